"""Themis shares GPUs by finish-time fairness, and its candidates are equally good placements."""

from __future__ import annotations

import math

import pytest

from simulation.clusters.scheduler import CANDIDATES, Present
from simulation.clusters.themis import Themis, auction, rho, speed
from tests.simulation.clusters.test_scheduler import RACKS, present


def test_no_gpu_stays_idle_that_a_job_can_use() -> None:
    for wants in ((5, 5, 5), (12, 12, 12, 12), (1, 2)):
        jobs = [present(f"j{n}", wanted) for n, wanted in enumerate(wants)]
        won = auction(0.0, jobs, {}, RACKS.gpus, RACKS)
        assert sum(won.values()) == min(RACKS.gpus, sum(wants))


def test_the_job_that_is_farthest_behind_gets_the_scarce_gpus() -> None:
    # Both have as much left. One has waited for long, so its time is the worse compared to its own cluster.
    late = present("late", 12, arrival_s=-5000.0)
    fresh = present("fresh", 12, arrival_s=-1.0)
    held = {"late": (0, 1), "fresh": (2, 3)}
    jobs = [
        present("late", 12, arrival_s=-5000.0, held=held["late"]),
        present("fresh", 12, arrival_s=-1.0, held=held["fresh"]),
    ]
    assert rho(late, 4, 0.0, 2, RACKS) > rho(fresh, 4, 0.0, 2, RACKS)
    won = auction(0.0, jobs, held, 2, RACKS)
    assert won["late"] == 2 and won["fresh"] == 0


def test_fairness_falls_with_every_gpu_and_is_infinite_without() -> None:
    job = present("j", 12, arrival_s=-100.0, least=2)
    values = [rho(job, count, 0.0, 3, RACKS) for count in range(13)]
    assert values[0] == values[1] == math.inf
    # The step to a second rack costs more than a GPU gains.
    assert values[2] > values[3] > values[4] and values[6] > values[12]


@pytest.mark.parametrize("seed", range(3))
def test_candidates_are_valid_and_as_good_for_every_job(seed: int) -> None:
    held = {"a": (0, 5, 9), "b": (1, 2)}
    jobs = [present(f"n{n}", wanted) for n, wanted in enumerate((3, 6, 2))]
    jobs += [present(name, len(gpus), held=gpus) for name, gpus in held.items()]
    found = Themis(seed=seed).candidates(0.0, jobs, RACKS)
    assert 1 < len(found) <= CANDIDATES
    for placement in found:
        gpus = [gpu for each in placement.values() for gpu in each]
        assert len(set(gpus)) == len(gpus) and set(gpus) <= set(range(RACKS.gpus))
        for job in jobs:
            own = placement[job.ident]
            assert len(own) == len(found[0][job.ident]) <= job.limit
            assert speed(job, own, RACKS) >= speed(job, found[0][job.ident], RACKS)
    assert len({tuple(sorted(each.items())) for each in found}) == len(found)
    assert all(each["a"] == held["a"] and each["b"] == held["b"] for each in found)  # leases


def test_a_lease_that_is_over_is_auctioned_again() -> None:
    themis = Themis(lease_s=600.0)
    rich = present("rich", 12, held=tuple(range(12)))
    mid = present("mid", 12, held=tuple(range(12, 24)))
    assert themis.candidates(0.0, [rich, mid], RACKS)[0] == {"rich": rich.held, "mid": mid.held}
    assert themis.again(0.0) == 600.0
    poor = present("poor", 12, arrival_s=10.0)
    early = themis.candidates(10.0, [rich, mid, poor], RACKS)[0]
    assert "poor" not in early
    late = themis.candidates(600.0, [rich, mid, poor], RACKS)[0]
    assert len(late["poor"]) >= 6
    assert themis.again(600.0) > 600.0


def test_a_job_below_its_least_number_of_gpus_does_not_run() -> None:
    jobs: list[Present] = [present("held", 23, held=tuple(range(23))), present("new", 8, least=2)]
    themis = Themis()
    themis.candidates(0.0, jobs[:1], RACKS)
    assert "new" not in themis.candidates(1.0, jobs, RACKS)[0]
