"""Policy `none`: plain TCP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from entrain.policies.mltcp import learning
from entrain.policies.policy import Policy, Run, Session


class Plain(Policy):
    """No scheduling. An MLTCP variant in the file's congestion controls runs like any other control."""

    label = "TCP"
    baseline = True
    on_clusters = True

    def series(self, control: str | None) -> str:
        """Return the control's name. An eBPF copy has the name of the kernel's original."""
        return (control or "none").removeprefix("bpf_")

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Set the jobs' MLTCP parameters, if they use it."""
        with learning(run) as session:
            yield session
