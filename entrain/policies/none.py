"""Policy `none`: flows send as their TCP does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from entrain.policies.mltcp import learning
from entrain.policies.policy import Policy, Run, Session


class Plain(Policy):
    """Nobody schedules. An MLTCP variant that the file lists as a congestion control is run as it is."""

    label = "TCP"
    baseline = True

    def series(self, control: str | None) -> str:
        """The control's name; a copy in eBPF is called as the kernel's own."""
        return (control or "none").removeprefix("bpf_")

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Within, MLTCP knows the jobs, where they use it."""
        with learning(run) as session:
            yield session
