"""The barrier in shared memory: nobody passes before all have come, and nobody waits for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workloads.barrier import StepBarrier
from workloads.rendezvous import JobAborted, JobFailed

RANKS, ROUNDS = 5, 200


def test_nobody_passes_before_all_have_come(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    StepBarrier.create(path, RANKS)
    came = [0] * RANKS

    def run(rank: int) -> bool:
        barrier, good = StepBarrier(path, rank, RANKS), True
        for turn in range(1, ROUNDS + 1):
            came[rank] = turn
            barrier.wait(lambda: None, 30.0)
            good = good and all(turn <= other <= turn + 1 for other in came)
        return good

    with ThreadPoolExecutor(RANKS) as pool:
        assert all(pool.map(run, range(RANKS)))


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    StepBarrier.create(tmp_path / "counters", 3)
    barriers = [StepBarrier(tmp_path / "counters", rank, 3) for rank in range(3)]
    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(barriers[0].wait, lambda: None, 0.0)
        with pytest.raises(JobFailed, match="rank 1 did not end its step within 0 s"):
            failed.result(30)


def test_a_job_that_has_failed_ends_the_wait(tmp_path: Path) -> None:
    StepBarrier.create(tmp_path / "counters", 2)

    def check() -> None:
        raise JobAborted("rank 0 ended unexpectedly")

    with pytest.raises(JobAborted, match="rank 0"):
        StepBarrier(tmp_path / "counters", 1, 2).wait(check, 30.0)
