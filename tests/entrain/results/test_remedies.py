"""The picture of routings by policies, of live runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from entrain.experiment import Combination, Experiment, load_experiment
from entrain.results import remedies
from entrain.results.files import draw, write
from entrain.results.values import JobResult, RunResult, best_tcp_jct_s, document
from workloads.records import Summary

EXPERIMENT = """
[experiment]
name = "both"
routing = ["ecmp", "source"]
policy = ["none", "slots"]
load = [25, 65]

[topology]
kind = "leaf-spine"
leaves = 2
spines = 1
hosts_per_leaf = 1

[[job]]
name = "a"
collective = "ring"
bytes = 1000
"""

OVERHEAD = {"processor_busy": 0.5, "unattributed_bytes": 0}


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    path = tmp_path / "both.toml"
    path.write_text(EXPERIMENT + 'hosts = ["h1", "h2"]\n')
    return load_experiment(path)


def run(which: Combination, times: tuple[float, ...]) -> RunResult:
    summary = Summary("a", "ring", 2, len(times), times, times, sum(times) / 1e3, 99, 0.1, None)
    return RunResult(which, "softswitch", (JobResult("a", ("h1", "h2"), summary, 100.0, 1),), (), OVERHEAD)


@pytest.fixture
def runs(experiment: Experiment) -> list[RunResult]:
    """At 25 % as alone, at 65 % twice as long, after a slow first quarter."""
    return [
        run(each, (900.0,) * 2 + (100.0 if each.load == 25 else 200.0,) * 6)
        for each in experiment.combinations()
    ]


def test_a_cell_leaves_out_the_first_quarter(runs: list[RunResult]) -> None:
    cell = remedies.cell(runs[:1])
    assert (cell.mean, cell.p99) == (1.0, 1.0)
    assert remedies.cell([runs[0], replace(runs[-1])]).mean == 1.5


def test_loads_are_drawn_instead_of_bars(
    tmp_path: Path, experiment: Experiment, runs: list[RunResult]
) -> None:
    draw(tmp_path, experiment, runs)
    assert (tmp_path / "remedies.png").stat().st_size > 10_000
    assert not (tmp_path / "results.png").exists()
    write(tmp_path, experiment, runs)
    assert [each["load"] for each in document(experiment, runs)["summary"]] == [25.0] * 4 + [65.0] * 4


def test_runs_are_compared_with_plain_tcp_at_their_own_load(runs: list[RunResult]) -> None:
    assert best_tcp_jct_s(runs, Combination("ecmp", "slots", 1, load=25.0)) == pytest.approx(2.4)
    assert best_tcp_jct_s(runs, Combination("ecmp", "slots", 1, load=65.0)) == pytest.approx(3.0)


def test_the_picture_needs_routings_and_policies(runs: list[RunResult]) -> None:
    assert remedies.suits(runs)
    assert not remedies.suits([each for each in runs if each.combination.routing == "ecmp"])
    assert not remedies.suits([each for each in runs if each.combination.policy == "none"])
