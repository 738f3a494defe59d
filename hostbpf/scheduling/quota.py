"""What reading users' files may cost in one turn, so that no user delays the turns of others."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from types import TracebackType

WORK = 1024
"""Units of work per user and turn: about a microsecond of processor time each."""
OPEN = 64
LOOKUP = 16
READ = 4
"""What the steps cost."""
CPU_NS = 4_000_000
"""Processor time that all users together may take in a turn, however slow the steps are."""
ROOT = 0
"""Is not limited: root can stop the agent anyway."""


class Quota:
    """The share of one user in one turn. Work is done within it as a context manager."""

    def __init__(self, work: float, cpu_ns: float, now_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self._work, self._cpu_ns, self._now_ns = work, cpu_ns, now_ns
        self._began_ns = 0
        self.exhausted = False
        """Whether something was refused; from then on everything is."""

    def spend(self, work: int) -> bool:
        """Whether a step of so much work may be taken now."""
        self._work -= work
        if self._work < 0 or self._now_ns() - self._began_ns > self._cpu_ns:
            self.exhausted = True
        return not self.exhausted

    def __enter__(self) -> Quota:
        self._began_ns = self._now_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cpu_ns -= self._now_ns() - self._began_ns


class Quotas:
    """The shares of all users in one turn."""

    def __init__(self, users: Collection[int]) -> None:
        """Divide the turn among `users`; others may join in it."""
        self._cpu_ns = CPU_NS / max(len(users), 1)
        self._quotas = {ROOT: Quota(float("inf"), float("inf"), lambda: 0)}

    def of(self, user: int) -> Quota:
        """The share of `user`."""
        if user not in self._quotas:
            self._quotas[user] = Quota(WORK, self._cpu_ns)
        return self._quotas[user]
