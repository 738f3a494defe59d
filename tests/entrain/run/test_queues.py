"""What is kept of the queues that a run has read."""

from __future__ import annotations

from dataclasses import replace

from controlplane.queues import Queue
from entrain.run.queues import QueueUse, QueueWatch

QUEUE = Queue("leaf1", 1, "leaf1->h1", "interface", dropped_packets=5, limit_bytes=64_000)


def test_a_run_has_its_own_drops_and_the_longest_backlog() -> None:
    held = iter([3000, 9000, 6000])
    watch = QueueWatch([QUEUE], lambda: [replace(QUEUE, backlog_bytes=next(held))])
    for _ in range(3):
        watch._due = 0.0
        watch.look()
    assert watch.used([replace(QUEUE, dropped_packets=7)]) == (QueueUse("leaf1->h1", 2, 9000, 64_000),)


def test_looking_at_once_again_reads_nothing() -> None:
    read: list[int] = []
    watch = QueueWatch([], lambda: read.append(1) or [])
    watch.look()
    watch._due = float("inf")
    watch.look()
    assert read == [1]
