"""What runs are compared with, and the names of what ran, in tables, pages and results.json."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from entrain.experiment import Combination, Experiment, load_experiment
from entrain.results import html, interactive, plots, tables
from entrain.results.files import NETWORK, name
from entrain.results.names import label, scheduler_name
from entrain.results.store import writing
from entrain.results.values import JobResult, RunResult, document, strategy
from machine.headless import pyplot
from workloads.records import Summary

HEAD = """
[experiment]
name = "compared"
{keys}

[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
host_rate_mbps = 100
"""
JOB = """
[[job]]
name = "{name}"
collective = "ring"
bytes = {bytes}
hosts = ["{first}", "{second}"]
"""
OVERHEAD = {"processor_busy": 0.5, "unattributed_bytes": 0}


def loaded(tmp_path: Path, keys: str, sizes: tuple[int, ...], more: str = "") -> Experiment:
    path = tmp_path / "compared.toml"
    places = (("h1", "h3"), ("h2", "h4"))
    jobs = (
        JOB.format(name=word, bytes=size, first=first, second=second)
        for word, size, (first, second) in zip(("small", "large"), sizes, places, strict=False)
    )
    path.write_text(HEAD.format(keys=keys) + more + "".join(jobs), encoding="utf-8")
    return load_experiment(path)


def ran(which: Combination, experiment: Experiment, *jct_s: float, iterations: int = 10) -> RunResult:
    jobs = []
    for job, seconds in zip(experiment.jobs, jct_s, strict=True):
        times = (1e3 * seconds / iterations,) * iterations
        summary = Summary(job.name, "ring", 2, iterations, times, times, seconds, 99, 0.1, None)
        jobs.append(JobResult(job.name, job.hosts, summary, 100.0, 1))
    return RunResult(which, "softswitch", tuple(jobs), (), OVERHEAD)


def printed(experiment: Experiment, runs: list[RunResult]) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        tables.show(experiment, runs, console)
    return captured.get()


ROUTINGS = 'routing = ["ecmp", "source", "vclos"]\nseed = [1, 2]'
DIFFERENT = (100_000, 400_000)


@pytest.fixture
def routed(tmp_path: Path) -> tuple[Experiment, list[RunResult]]:
    """Under source routing the small job takes half as long and the large one as long as under ECMP."""
    experiment = loaded(tmp_path, ROUTINGS, DIFFERENT)
    times = {"ecmp": (2.0, 4.0), "source": (1.0, 4.0), "vclos": (1.0, 2.0)}
    runs = [
        ran(which, experiment, *(seconds * (1 + which.seed / 10) for seconds in times[strategy(which)]))
        for which in experiment.combinations()
    ]
    return experiment, runs


def test_over_routings_the_baseline_is_the_first_one(routed: tuple[Experiment, list[RunResult]]) -> None:
    """It is neither the best of them, nor does the order of the runs count."""
    experiment, runs = routed
    written = document(experiment, runs[::-1])["summary"]
    assert {one["strategy"]: one["baseline"]["strategy"] for one in written} == dict.fromkeys(
        ("ecmp", "source", "vclos"), "ecmp"
    )
    assert {one["strategy"]: one["jct_over_baseline"] for one in written} == pytest.approx(
        {"ecmp": 1.0, "source": 5 / 6, "vclos": 0.5}
    )
    assert {one["strategy"]: one["jct_over_best_tcp"] for one in written} == dict.fromkeys(
        ("ecmp", "source", "vclos")
    )
    source = next(one for one in written if one["strategy"] == "source")
    assert [(job["name"], job["jct_over_baseline"]) for job in source["jobs"]] == [
        ("small", pytest.approx(0.5)),
        ("large", pytest.approx(1.0)),
    ]


def test_the_outcome_is_said_of_each_job_and_of_all(routed: tuple[Experiment, list[RunResult]]) -> None:
    assert list(tables.outcome(*routed)) == [
        "small: source routing -50 %, vClos -50 % against ECMP",
        "large: source routing +0 % (within the spread), vClos -50 % against ECMP",
        "all jobs together: source routing -17 %, vClos -50 % against ECMP",
    ]


def test_the_outcome_counts_seeds_that_both_have(routed: tuple[Experiment, list[RunResult]]) -> None:
    """Of an interrupted experiment, ECMP with both seeds is not compared with vClos with one."""
    experiment, runs = routed
    first = [run for run in runs if run.combination.seed == 1 or run.combination.routing == "ecmp"]
    assert list(tables.outcome(experiment, first))[-1] == (
        "all jobs together: source routing -17 %, vClos -50 % against ECMP"
    )
    assert list(tables.outcome(experiment, runs[:2])) == []


def test_tables_name_the_baseline_and_average_no_unlike_jobs(
    routed: tuple[Experiment, list[RunResult]],
) -> None:
    text = printed(*routed)
    assert "from the baseline (ecmp)" in text
    assert re.search(r"ecmp +small .*baseline", text)
    assert re.search(r"sum of 2 +6.90 +6.60 +7.20 +baseline", text)
    assert "vs." not in text and "TCP" not in text


def test_within_one_routing_policies_are_compared_with_plain_tcp(tmp_path: Path) -> None:
    experiment = loaded(
        tmp_path, 'policy = ["slots", "none"]\ncongestion_control = ["reno", "cubic"]', (1000, 1000)
    )
    assert experiment.alike
    times = {"slot_cubic": 3.0, "reno": 2.0, "cubic": 4.0}
    runs = [ran(each, experiment, *(times[str(each.control)],) * 2) for each in experiment.combinations()]
    assert list(tables.outcome(experiment, runs)) == [
        "all jobs together: slots, slot_cubic +50 %, none, cubic +100 % against none, reno"
    ]
    written = document(experiment, runs)["summary"]
    assert [one["jct_over_best_tcp"] for one in written] == pytest.approx([1.5, 1.0, 2.0])
    assert "each of 2" in printed(experiment, runs)  # alike, so that a mean says something


def test_a_single_combination_is_compared_with_nothing(tmp_path: Path) -> None:
    experiment = loaded(tmp_path, "", (1000,))
    runs = [ran(each, experiment, 1.0) for each in experiment.combinations()]
    (summary,) = document(experiment, runs)["summary"]
    assert summary["baseline"] is summary["jct_over_baseline"] is summary["jct_over_best_tcp"] is None
    assert list(tables.outcome(experiment, runs)) == []


def test_what_ran_has_a_name(tmp_path: Path) -> None:
    """The scheduler that the user has chosen is named, and so is the congestion control of the kernel."""
    experiment = loaded(tmp_path, 'policy = ["none", "slots"]', (1000,))
    chosen = {**experiment.tables, "slots": {**experiment.tables["slots"], "scheduler": "largest-first"}}
    experiment = replace(experiment, tables=chosen)
    runs = [ran(each, experiment, 1.0) for each in experiment.combinations()]
    names = [label(experiment, run, runs) for run in runs]
    assert names == ["none, kernel's default", "slots (largest-first), slot_cubic"]
    assert [scheduler_name(experiment, run.combination) for run in runs] == [
        "TCP, kernel's default",
        "slots (largest-first)",
    ]
    text = printed(experiment, runs)
    assert "None" not in text
    assert "largest-first" in text


def test_there_are_captions_of_columns_that_exist_only(tmp_path: Path) -> None:
    experiment = loaded(tmp_path, "", (1000,))
    (which,) = experiment.combinations()
    short = ran(which, experiment, 1.0)
    assert "ECN" not in printed(experiment, [short])
    assert "p99" not in printed(experiment, [short])
    assert "× bound" in printed(experiment, [short]).replace("\n", " ")
    (job,) = short.jobs
    marked = replace(job, summary=replace(job.summary, marks=3), alone_ms=90.0)
    text = printed(experiment, [replace(short, jobs=(marked,))])
    assert "ECN marks:" in text and "× alone" in text
    assert "p99" in printed(experiment, [ran(which, experiment, 1.0, iterations=100)])


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_page_shows_intervals_of_several_seeds_only(tmp_path: Path, seeds: int) -> None:
    experiment = loaded(
        tmp_path, f'routing = ["ecmp", "source"]\nseed = {list(range(1, seeds + 1))}', DIFFERENT
    )
    runs = [ran(which, experiment, 1.0 * which.seed, 5.0) for which in experiment.combinations()]
    picture = next(interactive.pictures(experiment, [replace(run, links=()) for run in runs]))
    assert ("95 %" in picture.caption) == (seeds > 1)
    assert "differ in length" in picture.caption
    bars = picture.figure.data[0]
    low = [mean - below for mean, below in zip(bars.y, bars.error_y.arrayminus, strict=True)]
    assert min(low) >= 0
    with writing(NETWORK, tmp_path / "out", experiment, resume=False) as store:
        for run in runs:
            store.add(replace(run, links=()), name(run))
    text = html.page([tmp_path / "out"])
    assert "all jobs together: source routing +0 %" in text
    assert ("Means over seeds" in text) == (seeds > 1)
    assert "from the baseline (ecmp)" in text


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_picture_speaks_of_an_interval_of_several_seeds_only(tmp_path: Path, seeds: int) -> None:
    experiment = loaded(
        tmp_path, f'policy = ["none", "slots"]\nseed = {list(range(1, seeds + 1))}', DIFFERENT
    )
    runs = [ran(which, experiment, 1.0 * which.seed, 9.0) for which in experiment.combinations()]
    figure, axes = pyplot.subplots()
    plots._completion(axes, experiment, plots._groups(experiment, runs))
    assert ("95 %" in axes.get_xlabel()) == (seeds > 1)
    assert "jobs that differ" in axes.get_xlabel()
    pyplot.close(figure)
