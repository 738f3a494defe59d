"""The fluid model of Parrot's live jobs: the same jobs, starting at the same times."""

from __future__ import annotations

import pytest

from entrain.experiment import load_experiment
from simulation.experiments.parrot import DRAWS, LIVE, live_jobs


@pytest.mark.parametrize("seed", range(1, DRAWS + 1))
def test_jobs_are_the_live_ones_with_the_same_seed(seed: int) -> None:
    live = load_experiment(LIVE)
    assert seed in live.seeds
    starts_s = [(job.spec.start_ms + live.start_offset_ms(seed, job)) / 1000.0 for job in live.jobs]
    jobs = live_jobs(seed)
    assert [(job.ident, job.iterations) for job in jobs] == [
        (job.name, job.spec.iterations) for job in live.jobs
    ]
    assert [job.arrival for job in jobs] == pytest.approx(starts_s)
