"""The fluid model of the live slot scheduler's jobs: the same jobs, and bounds that bound."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from entrain.experiment import load_experiment
from simulation.experiments.registry import points
from simulation.experiments.slots import (
    COMPUTE_SCALE,
    DRAWS,
    LIVE_JOBS,
    LIVE_PARTS,
    LIVE_SERVERS,
    LIVE_SLOTS,
    START_SPREAD_S,
    live_jobs,
    run_bound,
)
from simulation.results import Completion

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"


SPEEDS = ("slots-jct", "slots-jct-16g", "slots-jct-24g")
SIBLINGS = ("slots-bound", "slots-host-only", "slots-emulated", "slot-length", "short-slots")


def test_each_worker_has_a_gpu_of_its_own() -> None:
    """The testbed's servers have two each; parameter servers need none."""
    workers = Counter(host for job in LIVE_JOBS for host in job.hosts[job.servers :])
    assert workers == dict.fromkeys(range(LIVE_SERVERS), 2)


@pytest.mark.parametrize("name", SPEEDS)
def test_the_setting_is_that_of_the_live_experiment(name: str) -> None:
    live = tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8"))
    assert 2 * live["topology"]["hosts_per_side"] == LIVE_SERVERS
    assert {job["compute_scale"] for job in live["job"]} == {COMPUTE_SCALE}
    assert {job["parts"] for job in live["job"]} == {LIVE_PARTS}
    assert live["experiment"]["start_spread_ms"] == 1000 * START_SPREAD_S
    assert live["slots"]["slot_ms"] == 1000 * LIVE_SLOTS["slots"]["slot_s"]
    assert set(live["experiment"]["seed"]) <= set(range(1, DRAWS + 1))


@pytest.mark.parametrize("name", [*SPEEDS, *SIBLINGS])
def test_siblings_have_the_same_five_jobs(name: str) -> None:
    live = tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8"))
    assert [
        (
            *(job["name"], job["model"], tuple(int(host[1:]) - 1 for host in job["hosts"])),
            *(job["iterations"], job.get("start_ms", 0) / 1000.0, job.get("servers", 0)),
        )
        for job in live["job"]
    ] == [(j.ident, j.model, j.hosts, j.iterations, j.arrival_s, j.servers) for j in LIVE_JOBS]


@pytest.mark.parametrize("seed", [1, 5])
def test_jobs_start_as_live_ones_with_the_same_seed(seed: int) -> None:
    live = load_experiment(EXPERIMENTS / "slots-jct.toml")
    starts = [job.spec.start_ms + live.start_offset_ms(seed, job) for job in live.jobs]
    for policy in ("slots", "fair"):
        arrivals = [job.arrival for job in live_jobs(policy, seed)]
        assert arrivals == pytest.approx([start / 1000.0 for start in starts])


def mean_jct(policy: str, limit: int | None) -> float:
    """At 10 Gbit/s, of two draws."""
    (point, *_) = points("slots-bound", None, policy, limit, 0)[1]
    figures = run_bound({**point, "draws": 2}).figures
    assert isinstance(figures, Completion)
    assert figures.to_bound >= 1.0 - 1e-9
    assert figures.draws_jct_s is not None
    assert figures.mean_jct_s == pytest.approx(sum(figures.draws_jct_s) / 2)
    return figures.mean_jct_s


def test_a_job_alone_takes_as_long_under_any_policy() -> None:
    assert mean_jct("fair", 1) == pytest.approx(mean_jct("varys", 1))
    assert mean_jct("fair", 1) == pytest.approx(mean_jct("fixed-order", 1))


def test_no_fixed_order_is_better_than_the_best_one(monkeypatch: pytest.MonkeyPatch) -> None:
    best = mean_jct("fixed-order", 3)
    monkeypatch.setattr("itertools.permutations", lambda _: [(0, 1, 2), (2, 1, 0)])
    assert best <= mean_jct("fixed-order", 3)


def test_a_job_alone_takes_hardly_longer_under_slots() -> None:
    assert mean_jct("slots-15", 1) <= 1.03 * mean_jct("fair", 1)
