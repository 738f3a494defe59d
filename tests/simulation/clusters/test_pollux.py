"""Pollux: its goodput model, its genetic algorithm, and jobs that train under it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from machine.errors import BadInput
from schedulers.placement.cluster import Cluster
from simulation.clusters import genetic, goodput
from simulation.clusters.adaptive import fastest, train
from simulation.clusters.applications import EPOCHS, POLLUX, application
from simulation.clusters.pollux import Pollux, packed
from simulation.clusters.scheduler import CANDIDATES, Present
from simulation.traces import TrainingJob, read_pollux_placements, read_pollux_scalability

SMALL = Cluster(leaves=2, spines=1, servers_per_leaf=2, gpus_per_server=4)


@pytest.mark.parametrize("name", EPOCHS)
def test_measured_steps_are_returned_as_measured(name: str) -> None:
    app = application(name)
    for each in read_pollux_placements(POLLUX / f"{name}-placements.csv"):
        placement = [int(digit) for digit in each.placement]
        for rotated in (placement, [*placement[1:], placement[0]]):
            assert app.times(tuple(rotated), each.batch_size) == pytest.approx((each.step_s, each.sync_s))
    for mean in read_pollux_scalability(POLLUX / f"{name}-scalability.csv"):
        spread = tuple(len(part) for part in np.array_split(range(mean.gpus), mean.nodes))
        assert app.times(spread, mean.batch_size) == pytest.approx((mean.step_s, mean.sync_s))


@pytest.mark.parametrize("name", EPOCHS)
def test_steps_between_measurements_are_between_them(name: str) -> None:
    app = application(name)
    for nodes, low, high in ((7, 6, 8), (10, 8, 12), (14, 12, 16)):
        per_node = (2,) * nodes
        below, above = ((2,) * count for count in (low, high))
        for batch in (app.least_local, app.least_local + 1):
            times = sorted(app.times(each, batch)[0] for each in (below, above))
            step, sync = app.times(per_node, batch)
            assert 0.5 * times[0] <= step <= 2.0 * times[1]
            assert 0.0 <= sync < step


@pytest.mark.parametrize("name", EPOCHS)
def test_efficiency_is_a_part_of_the_whole_and_falls_with_the_batch(name: str) -> None:
    app = application(name)
    for epoch in range(app.epochs):
        square, variance = app.gradient(app.initial_batch, epoch)
        parts = [goodput.efficiency(square, variance, scale) for scale in (1.0, 1.5, 2.0, 8.0, 32.0)]
        assert parts[0] == 1.0
        assert all(0.0 < part <= 1.0 for part in parts)
        assert parts == sorted(parts, reverse=True)


def seen(app_name: str, *steps: tuple[tuple[int, ...], int]) -> goodput.Agent:
    """An agent that has seen these placements and local batches."""
    app = application(app_name)
    agent = goodput.Agent(app, SMALL.gpus)
    for placement, local in steps:
        times = app.times(placement, local)
        agent.observe(len(placement), sum(placement), local, *times, app.gradient(app.initial_batch, 1))
    return agent


def test_the_fit_predicts_the_steps_that_it_has_seen() -> None:
    app = application("cifar10")
    steps = [(p, local) for p in ((1,), (2,), (4,), (2, 2), (4, 4)) for local in (64, 129, 257)]
    rows: list[tuple[int, int, int, float, float]] = []
    for placement, local in steps:
        step, sync = app.times(placement, local)
        rows.append((len(placement), sum(placement), local, math.log(step - sync), math.log(step)))
    fit = goodput.fitted(np.array(rows))
    for nodes, replicas, local, compute, step in rows:
        found = goodput.times(fit, nodes > 1, replicas, local)
        assert np.log(found) == pytest.approx((compute, step), abs=0.25)


def test_the_slope_of_the_loss_is_that_of_its_values() -> None:
    rows = np.array([[1, 1, 64, -3.0, -2.9], [1, 4, 64, -3.1, -2.5], [2, 6, 128, -2.4, -1.4]])
    at = np.array([0.02, 3e-4, 0.05, 0.004, 0.01, 0.002, 1.7])
    _, slope = goodput.loss(at, rows)
    for place in range(len(at)):
        step = np.zeros(len(at))
        step[place] = 1e-6 * at[place]
        rise = goodput.loss(at + step, rows)[0] - goodput.loss(at - step, rows)[0]
        assert slope[place] == pytest.approx(rise / (2 * step[place]), rel=1e-3, abs=1e-6)


def test_what_a_job_has_not_tried_is_taken_to_cost_nothing() -> None:
    fit = goodput.fitted(np.array([[1, 1, 128, math.log(0.1), math.log(0.101)]]))
    for distributed, replicas in ((False, 4), (True, 2), (True, 16)):
        assert goodput.times(fit, distributed, replicas, 128)[1] == pytest.approx(0.1, rel=0.02)


def test_a_job_gets_at_most_twice_as_many_gpus_as_it_has_ever_had() -> None:
    assert seen("cifar10").most == 1
    assert seen("cifar10", ((1,), 128)).most == 2
    assert seen("cifar10", ((1,), 128), ((3,), 128)).most == 6


@pytest.mark.parametrize("name", ["bert", "cifar10", "imagenet"])
def test_the_batch_suits_the_gpus(name: str) -> None:
    app = application(name)
    agent = seen(name, *(((n,), app.most_local) for n in (1, 2, 4)), ((4, 4), app.most_local))
    for nodes, replicas in ((1, 1), (1, 4), (2, 8), (4, 16)):
        local, accumulated = agent.sizes(nodes, replicas)
        assert app.least_local <= local <= app.most_local
        assert app.initial_batch <= local * (accumulated + 1) * replicas <= app.most_batch


def wants(ident: str, gain: float, **values: object) -> Present:
    """A job that came at 0, and that each further GPU speeds up by `gain` of what the one before did."""
    view = Present(ident, 0.0, 1.0, 1.0, lambda gpus: sum(gain**n for n in range(len(gpus))), 1, most=16)
    return replace(view, **values)  # type: ignore[arg-type]


def test_allocations_are_valid_and_repeat_with_the_seed() -> None:
    jobs = [wants(f"j{n}", 0.5 + 0.08 * n) for n in range(6)]
    runs = []
    for _ in range(2):
        pollux = Pollux(seed=3)
        held = jobs
        for minute in range(3):
            found = pollux.candidates(3600.0 + 60.0 * minute, held, SMALL)
            runs.append(found)
            assert 1 <= len(found) <= CANDIDATES
            for allocation in found:
                given = [gpu for gpus in allocation.values() for gpu in gpus]
                assert len(given) == len(set(given))
                assert set(given) <= set(range(SMALL.gpus))
                nodes = [{gpu // 4 for gpu in gpus} for gpus in allocation.values()]
                spread = [node for each in nodes if len(each) > 1 for node in each]
                assert len(spread) == len(set(spread))
            held = [replace(job, held=found[0].get(job.ident, ())) for job in jobs]
    assert runs[:3] == runs[3:]


def test_all_gpus_are_used_where_they_help() -> None:
    found = Pollux(seed=0).candidates(3600.0, [wants("a", 0.9), wants("b", 0.9)], SMALL)[0]
    assert sorted(len(gpus) for gpus in found.values()) == [8, 8]


def test_no_gpu_is_chosen_that_brings_no_goodput() -> None:
    """Job a gains nothing beyond two GPUs, and loses on a second node."""

    def speed(gpus: tuple[int, ...]) -> float:
        return min(len(gpus), 2) * (0.3 if len({gpu // 4 for gpu in gpus}) > 1 else 1.0)

    jobs = [wants("a", 1.0, speed=speed), wants("b", 0.9)]
    found = Pollux(seed=0).candidates(3600.0, jobs, SMALL)[0]
    assert len({gpu // 4 for gpu in found["a"]}) == 1
    assert speed(found["a"]) == 2.0
    alone = Pollux(seed=0).candidates(3600.0, jobs[:1], SMALL)[0]
    assert speed(alone["a"]) == 2.0


def test_a_job_is_not_moved_for_less_than_a_restart_costs() -> None:
    """On its two nodes a job would be a little faster on one; an hour after its start it may move."""

    def speed(gpus: tuple[int, ...]) -> float:
        return 0.95 if len({gpu // 4 for gpu in gpus}) > 1 else 1.0

    job = wants("a", 1.0, speed=speed, held=(0, 4), most=2)
    soon = Pollux(seed=0).candidates(120.0, [job], SMALL)[0]
    later = Pollux(seed=0).candidates(7200.0, [job], SMALL)[0]
    assert soon["a"] == (0, 4)
    assert len({gpu // 4 for gpu in later["a"]}) == 1


def test_other_candidates_give_the_same_gpus_on_other_nodes() -> None:
    jobs = [wants("kept", 0.9, held=(0, 1, 2, 3), most=4), *(wants(f"new{n}", 0.9, most=2) for n in range(3))]
    found = Pollux(seed=1).candidates(3600.0, jobs, SMALL)
    assert len(found) > 1
    assert found[0]["kept"] == (0, 1, 2, 3)
    numbers = [{ident: len(gpus) for ident, gpus in each.items()} for each in found]
    assert all(each == numbers[0] for each in numbers)
    places = [{ident: [gpu // 4 for gpu in gpus] for ident, gpus in each.items()} for each in found]
    assert all(a != b for n, a in enumerate(places) for b in places[:n])


def test_repaired_allocations_are_valid() -> None:
    generator = np.random.default_rng(5)
    least, most, free = np.full(6, 2), np.full(6, 5), np.full(4, 4)
    for _ in range(200):
        counts = generator.integers(0, 5, (6, 4)).astype(np.int8)
        genetic.repair(counts, least, most, free)
        assert (counts >= 0).all()
        assert (counts.sum(axis=0) <= 4).all()
        assert set(counts.sum(axis=1).tolist()) <= {0, 2, 3, 4, 5}
        spread = (counts > 0) & ((counts > 0).sum(axis=1) > 1)[:, None]
        assert (spread.sum(axis=0) <= 1).all()


def test_jobs_that_train_end_and_repeat_with_the_seed() -> None:
    jobs = [
        TrainingJob(f"{name}-{n}", 30.0 * n, 1, 0.0, 0, name)
        for n, name in enumerate(("cifar10", "ncf", "bert", "cifar10", "deepspeech2"))
    ]
    times = []
    for seed in (7, 7):
        done = train(jobs, SMALL, Pollux(seed=seed))
        times.append([job.finish for job in done])
        for job in done:
            app = job.agent.application
            assert job.epoch == app.epochs
            assert job.progress == app.needed[-1]
            assert job.finish - job.arrival > 0.99 * fastest(app.name, SMALL)
    assert times[0] == times[1]


@pytest.mark.parametrize(("count", "least", "expected"), [(3, 1, {3}), (3, 2, {2, 1}), (9, 1, {3})])
def test_gpus_are_packed_on_few_nodes(count: int, least: int, expected: set[int]) -> None:
    nodes = [gpu // 4 for gpu in packed(count, least, 4, 4)]
    assert {nodes.count(node) for node in nodes} == expected


def test_incomplete_measurements_are_named(tmp_path: Path) -> None:
    for kind in ("placements", "scalability", "validation"):
        rows = (POLLUX / f"bert-{kind}.csv").read_text().splitlines(keepends=True)
        (tmp_path / f"bert-{kind}.csv").write_text("".join(rows[:-1] if kind == "validation" else rows))
    with pytest.raises(BadInput, match=r"bert-validation.csv: a batch_size has fewer than 2 rows"):
        application("bert", tmp_path)
