"""The policies by the names that users type."""

from __future__ import annotations

from collections.abc import Callable

from machine.errors import BadInput
from schedulers.coflow import (
    CoflowPolicy,
    DClas,
    FairSharing,
    Fifo,
    LeastBytesSent,
    LeastCompletedCoflows,
    Mcs,
    Varys,
)
from schedulers.parrot import Parrot

COFLOW_POLICIES: dict[str, Callable[[], CoflowPolicy]] = {
    "parrot": Parrot,
    "parrot-filling": lambda: Parrot(conservation="filling"),
    "parrot-wo-wc": lambda: Parrot(conservation="none"),
    "aalo": LeastBytesSent,
    "aalo-wo-wc": lambda: LeastBytesSent(work_conserving=False),
    "lccf": LeastCompletedCoflows,
    "lccf-wo-wc": lambda: LeastCompletedCoflows(work_conserving=False),
    "d-clas": DClas,
    "d-clas-weighted": lambda: DClas(weighted=True),
    "varys": Varys,
    "fifo": Fifo,
    "mcs": Mcs,
    "fair": FairSharing,
}


def coflow_policy(name: str) -> CoflowPolicy:
    """Return the policy called `name`; raise BadInput if there is none."""
    if name not in COFLOW_POLICIES:
        raise BadInput(f"policy {name!r} is unknown; use one of {', '.join(COFLOW_POLICIES)}")
    return COFLOW_POLICIES[name]()
