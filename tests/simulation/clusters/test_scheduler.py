"""Random and Ideal place jobs validly."""

from __future__ import annotations

from itertools import chain

from schedulers.placement.cluster import Cluster
from simulation.clusters.scheduler import Ideal, Present, Random

RACKS = Cluster(leaves=6, spines=2, servers_per_leaf=4, gpus_per_server=1)


def present(ident: str, wanted: int, **changed: object) -> Present:
    """A job that works at the speed of its GPUs."""
    values: dict[str, object] = {"arrival_s": 0.0, "work": 100.0, "left": 100.0, "speed": len, **changed}
    return Present(ident=ident, wanted=wanted, **values)  # type: ignore[arg-type]


def test_random_gives_each_job_what_it_asks_for_in_order_of_arrival_and_no_gpu_twice() -> None:
    jobs = [present(f"j{n}", wanted, arrival_s=-n) for n, wanted in enumerate((1, 12, 9, 4))]
    (found,) = Random(seed=3).candidates(0.0, jobs, RACKS)
    assert {job: len(gpus) for job, gpus in found.items()} == {"j3": 4, "j2": 9}
    given = list(chain.from_iterable(found.values()))
    assert len(set(given)) == len(given) and set(given) <= set(range(24))


def test_random_moves_no_job_that_runs() -> None:
    jobs = [present("old", 3, held=(2, 7, 11)), present("new", 5)]
    (found,) = Random().candidates(0.0, jobs, RACKS)
    assert found["old"] == (2, 7, 11)
    assert not set(found["new"]) & {2, 7, 11}


def test_ideal_lets_nobody_wait() -> None:
    jobs = [present(f"j{n}", 12) for n in range(5)]
    (found,) = Ideal().candidates(0.0, jobs, RACKS)
    assert all(len(gpus) == 12 for gpus in found.values()) and len(found) == 5
