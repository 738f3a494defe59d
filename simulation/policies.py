"""The simulator's policies by name."""

from __future__ import annotations

from collections.abc import Callable

from machine.errors import BadInput
from machine.explain import suggestion
from machine.plugins import extended
from schedulers.coflow.parrot import Parrot
from schedulers.coflow.rivals import (
    DClas,
    FairSharing,
    Fifo,
    LeastBytesSent,
    LeastCompletedCoflows,
    Mcs,
    Varys,
)
from schedulers.coflow.view import CoflowPolicy
from schedulers.slots.host import GROUP as SLOT_GROUP
from schedulers.slots.host import SCHEDULERS, SlotScheduler

COFLOW_POLICIES: dict[str, Callable[[], CoflowPolicy]] = {
    "parrot": Parrot,
    "parrot-filling": lambda: Parrot(conservation="filling"),
    "parrot-ordered": lambda: Parrot(conservation="ordered"),
    "parrot-wo-wc": lambda: Parrot(conservation="none"),
    "parrot-started": lambda: Parrot(service="started"),
    "parrot-letter": lambda: Parrot(scope="network"),
    "aalo": LeastBytesSent,
    "aalo-shared": lambda: LeastBytesSent(conservation="shared"),
    "aalo-factor": lambda: LeastBytesSent(conservation="factor"),
    "aalo-unsized": lambda: LeastBytesSent(allocation="max-min"),
    "aalo-wo-wc": lambda: LeastBytesSent(conservation="none"),
    "lccf": LeastCompletedCoflows,
    "lccf-shared": lambda: LeastCompletedCoflows(conservation="shared"),
    "lccf-factor": lambda: LeastCompletedCoflows(conservation="factor"),
    "lccf-unsized": lambda: LeastCompletedCoflows(allocation="max-min"),
    "lccf-wo-wc": lambda: LeastCompletedCoflows(conservation="none"),
    "d-clas": DClas,
    "d-clas-weighted": lambda: DClas(weighted=True),
    "d-clas-job": lambda: DClas(entity="job"),
    "varys": Varys,
    "fifo": Fifo,
    "mcs": Mcs,
    "fair": FairSharing,
}


GROUP = "entrain.simulator_policies"
"""Entry points at which other distributions register coflow policies: callables that return one."""


def coflow_policies() -> dict[str, Callable[[], CoflowPolicy]]:
    """Return all coflow policies by name. Raises EntrainError for an external policy that cannot be
    loaded."""
    return extended(GROUP, COFLOW_POLICIES)


def coflow_policy(name: str) -> CoflowPolicy:
    """Return the policy called `name`; raise BadInput if there is none."""
    known = coflow_policies()
    if name not in known:
        raise BadInput(f"policy {name!r} is unknown; {suggestion(name, known)}")
    policy = known[name]()
    policy.name = name
    return policy


def slot_schedulers() -> dict[str, type[SlotScheduler]]:
    """Return the slot schedulers by name, which agents also run. Raises EntrainError for one of another
    distribution that cannot be loaded."""
    return extended(SLOT_GROUP, SCHEDULERS, base=SlotScheduler)
