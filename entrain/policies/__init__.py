"""The policies of live runs: one module each, registered under the names that users type."""

from __future__ import annotations

from entrain.policies.cassini import Cassini
from entrain.policies.coflow import COFLOWS, Coflows
from entrain.policies.mltcp import Mltcp
from entrain.policies.none import Plain
from entrain.policies.policy import Policy
from entrain.policies.slots import LongSlotsTable, ShortSlotsTable, Slots, SlotsTable
from entrain.policies.unfair import Unfair
from machine.plugins import extended

GROUP = "entrain.policies"
"""Entry point group through which other distributions register policies."""

OURS: dict[str, Policy] = {
    "none": Plain(),
    "mltcp": Mltcp(),
    "slots": Slots("slots", "slot scheduler", SlotsTable),
    "slots-15": Slots("slots-15", "slots of 15 ms", ShortSlotsTable),
    "slots-60": Slots("slots-60", "slots of 60 ms", SlotsTable),
    "slots-120": Slots("slots-120", "slots of 120 ms", LongSlotsTable),
    "cassini": Cassini(),
    "unfair": Unfair(),
    **{name: Coflows(name, label) for name, label in COFLOWS.items()},
}


def policies() -> dict[str, Policy]:
    """Return all policies by name. Raises EntrainError if one from another distribution cannot be loaded."""
    return extended(GROUP, OURS, Policy)


def label(name: str) -> str:
    """Return a policy's name in plots; the name itself if the policy is not installed."""
    found = policies()
    return found[name].label if name in found else name


def series(name: str, control: str | None) -> str:
    """Return the name of a policy's runs under a congestion control, unique among all policies."""
    policy = policies().get(name)
    own = policy.series(control) if policy else None
    return own or f"{name} {control or ''}".strip()


def is_baseline(name: str) -> bool:
    """Return whether the policy is plain TCP, with which others are compared."""
    policy = policies().get(name)
    return policy is not None and policy.baseline
