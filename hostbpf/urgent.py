"""Threads of the agent that have to be in time, on machines whose processors are all busy."""

from __future__ import annotations

import contextlib
import os


def urgent() -> None:
    """Let the calling thread go before all processes that share the processors by time, where that is
    allowed: it needs little of them, but at once, and training takes all."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
