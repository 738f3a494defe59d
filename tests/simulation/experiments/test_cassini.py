"""`entrain simulate cassini-themis` and `cassini-snapshots`."""

from __future__ import annotations

from simulation.experiments.cassini import run_cluster, run_snapshot, snapshot_points
from simulation.experiments.registry import points
from simulation.results import Snapshot, TrainingTimes


def _snapshot(group: str, policy: str) -> Snapshot:
    (point,) = (
        each
        for each in snapshot_points({"experiment": "cassini-snapshots", "limit": 100, "seed": 0}, (policy,))
        if each["group"] == group
    )
    figures = run_snapshot(point).figures
    assert isinstance(figures, Snapshot)
    return figures


def test_iterations_are_shorter_where_the_score_is_high_and_as_long_where_it_is_low() -> None:
    for group, helps in (("snapshot2", True), ("snapshot3", True), ("snapshot4", True), ("snapshot5", False)):
        plain, shifted = (_snapshot(group, policy) for policy in ("themis", "themis-cassini"))
        before, after = sum(plain.iterations_s), sum(shifted.iterations_s)
        assert after < 0.95 * before if helps else after < 1.02 * before
    assert _snapshot("snapshot3", "ideal").marks_per_iteration == 0.0


def test_a_point_runs_the_same_twice_and_lies_between_ideal_and_random() -> None:
    _, found = points("cassini-themis", None, "ideal,random,themis-cassini", 8, 0)
    first = [{**point, "draws": 1} for point in found if point["load_percent"] == 80]
    figures = [run_cluster(point).figures for point in (*first, first[-1])]
    assert figures[-1] == figures[-2]
    ideal, random, cassini, _ = figures
    assert isinstance(ideal, TrainingTimes) and isinstance(cassini, TrainingTimes)
    assert isinstance(random, TrainingTimes)
    assert 0.99 < ideal.mean_to_alone < 1.01 < random.mean_to_alone
    assert ideal.mean_to_alone < cassini.mean_to_alone < random.mean_to_alone
    assert ideal.placed is not None and ideal.placed.sharing == 0 < ideal.placed.jobs
    assert ideal.marks_per_iteration == 0.0 < cassini.marks_per_iteration


def test_pollux_runs_the_same_traces_and_cassini_raises_no_marks() -> None:
    _, found = points("cassini-pollux", None, "pollux,pollux-cassini", 8, 0)
    dynamic = [each for each in found if (each["arrivals"], each["models"]) == ("dynamic", "mixed")][:2]
    plain, cassini = (run_cluster({**point, "draws": 1}).figures for point in dynamic)
    assert isinstance(plain, TrainingTimes) and isinstance(cassini, TrainingTimes)
    assert plain.score is None and cassini.score is not None
    assert plain.placed is not None and cassini.placed is not None
    assert plain.placed.paced == plain.placed.shifted == 0 < plain.placed.sharing <= plain.placed.jobs
    counts = cassini.placed
    assert 0 <= counts.shifted <= counts.paced <= counts.sharing <= counts.jobs
    assert cassini.marks_per_iteration < plain.marks_per_iteration
