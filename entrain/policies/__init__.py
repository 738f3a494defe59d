"""The policies of live runs, by the names that users type: one module each, behind one registry."""

from __future__ import annotations

from entrain.policies.mltcp import Mltcp
from entrain.policies.none import Plain
from entrain.policies.policy import Policy
from entrain.policies.slots import Slots
from machine.errors import EntrainError
from machine.plugins import extended

GROUP = "entrain.policies"
"""The entry points by which other distributions register policies."""

OURS: dict[str, Policy] = {"none": Plain(), "mltcp": Mltcp(), "slots": Slots()}


def policies() -> dict[str, Policy]:
    """All that can be run. Raises EntrainError for one from outside that cannot be loaded."""
    found = extended(GROUP, OURS)
    for name, policy in found.items():
        if not isinstance(policy, Policy):
            raise EntrainError(
                f"{GROUP}: {name!r} is {policy!r}; an instance of entrain.policies.Policy is needed"
            )
    return found


def label(name: str) -> str:
    """What pictures call a policy; its name where it is not installed here."""
    found = policies()
    return found[name].label if name in found else name


def series(name: str, control: str | None) -> str:
    """What pictures and tables call the runs of a policy under a congestion control: no other policy's."""
    policy = policies().get(name)
    own = policy.series(control) if policy else None
    return own or f"{name} {control or ''}".strip()


def is_baseline(name: str) -> bool:
    """Whether others are compared with the policy: plain TCP."""
    policy = policies().get(name)
    return policy is not None and policy.baseline
