"""results.json, the CSV files, the table and the picture, from results made by hand."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from entrain.contention import LinkContention
from entrain.experiment import Combination, Experiment, load_experiment
from entrain.plots import plot
from entrain.report import remarks, table, write
from entrain.results import JobResult, RunResult, bound_ms, converged_at, over_ideal_last
from workloads.records import Summary

EXPERIMENT = """
[experiment]
name = "made-up"
routing = ["ecmp", "source"]

[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
host_rate_mbps = 100

[[job]]
name = "a"
collective = "ring"
bytes = 1448000
compute_ms = 50
hosts = ["h1", "h3"]
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    path = tmp_path / "made-up.toml"
    path.write_text(EXPERIMENT)
    return load_experiment(path)


def result(
    experiment: Experiment, routing: str, times: tuple[float, ...], flows: int, busy: float
) -> RunResult:
    (job,) = experiment.jobs
    summary = Summary("a", "ring", 2, len(times), times, times, sum(times) / 1e3, 99, 0.1, None)
    links = (
        LinkContention("leaf1->spine1", flows, flows, flows + 1, 5, 1000),
        LinkContention("spine1->leaf2", 0, 0, 0, 0, 0),
    )
    overhead = {"processor_busy": busy, "unattributed_bytes": 0}
    jobs = (JobResult("a", job.hosts, summary, 100.0, flows),)
    return RunResult(Combination(routing, "none", 1), "softswitch", jobs, links, overhead)  # type: ignore[arg-type]


@pytest.fixture
def runs(experiment: Experiment) -> list[RunResult]:
    return [
        result(experiment, "ecmp", (200.0, 300.0, 400.0), 3, 0.5),
        result(experiment, "source", (100.0, 110.0, 120.0), 1, 0.4),
    ]


def test_last_iterations_and_convergence(experiment: Experiment) -> None:
    settling = (150.0,) * 40 + (104.0,) * 60
    run = result(experiment, "ecmp", settling, 1, 0.5)
    assert over_ideal_last(run) == pytest.approx(1.04)
    assert converged_at(run) == 40
    restless = result(experiment, "ecmp", (100.0, 100.0, 130.0) * 40, 1, 0.5)
    assert over_ideal_last(restless) == pytest.approx(1.1, abs=0.01)
    assert converged_at(restless) is None


def test_ideal_is_compute_and_the_busiest_hosts_of_each_step(experiment: Experiment) -> None:
    # two steps of half of 1,448,000 bytes: 500 frames of 1514 bytes each, at 100 Mbit/s
    assert bound_ms(experiment.jobs[0], [100.0, 100.0]) == pytest.approx(50 + 2 * 500 * 1514 * 8 / 100e3)
    assert bound_ms(experiment.jobs[0], [100.0, 50.0]) == pytest.approx(50 + 2 * 500 * 1514 * 8 / 50e3)


def test_results_json_has_the_stated_shape(
    tmp_path: Path, experiment: Experiment, runs: list[RunResult]
) -> None:
    write(tmp_path / "out", experiment, runs)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    ecmp, source = results["runs"]
    assert {key: ecmp[key] for key in ("routing", "policy", "target", "seed")} == {
        "routing": "ecmp",
        "policy": "none",
        "target": "softswitch",
        "seed": 1,
    }
    assert (ecmp["max_flows_per_link"], ecmp["max_flows_per_link_all"]) == (3, 4)
    assert (source["max_flows_per_link"], source["max_flows_per_link_all"]) == (1, 2)
    (job,) = ecmp["jobs"]
    assert job["name"] == "a"
    assert job["collective"] == "ring"
    assert job["iteration_ms_mean"] == pytest.approx(300)
    assert job["iteration_ms_p99"] == pytest.approx(398)
    assert job["jct_s"] == pytest.approx(0.9)


def test_csv_files_have_a_line_for_each_job_iteration_and_link(
    tmp_path: Path, experiment: Experiment, runs: list[RunResult]
) -> None:
    write(tmp_path, experiment, runs)
    lines = {
        name: list(csv.DictReader((tmp_path / f"{name}.csv").open()))
        for name in ("jobs", "iterations", "links")
    }
    assert [line["routing"] for line in lines["jobs"]] == ["ecmp", "source"]
    assert [float(line["iteration_ms"]) for line in lines["iterations"]] == [200, 300, 400, 100, 110, 120]
    assert [line["link"] for line in lines["links"]] == ["leaf1->spine1", "spine1->leaf2"] * 2


def test_the_table_fits_a_terminal_of_80_columns(tmp_path: Path, runs: list[RunResult]) -> None:
    path = tmp_path / "widest.toml"
    path.write_text(EXPERIMENT.replace('"a"', '"resnet50"').replace('"ring"', '"halving-doubling"'))
    experiment = load_experiment(path)
    wide = [replace(run, combination=replace(run.combination, seed=seed)) for seed, run in enumerate(runs)]
    console = Console(width=80, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table(experiment, wide))
    text = captured.get()
    assert "…" not in text
    for shown in ("ecmp", "source", "ring", "300.0", "398.0", "3.00", "0.90"):
        assert shown in text


def test_busy_processors_are_remarked(experiment: Experiment, runs: list[RunResult]) -> None:
    assert list(remarks(runs)) == []
    (remark,) = remarks([*runs, result(experiment, "ecmp", (1.0,), 1, 0.97)])
    assert "97%" in remark


def test_the_picture_shows_bars_of_every_run(
    tmp_path: Path, experiment: Experiment, runs: list[RunResult]
) -> None:
    plot(tmp_path / "results.png", experiment, runs)
    data = (tmp_path / "results.png").read_bytes()
    assert data.startswith(b"\x89PNG")

    from matplotlib import image

    pixels = image.imread(tmp_path / "results.png")[..., :3].reshape(-1, 3)
    for colour in ("#d1605e", "#3b75af"):  # one for each routing
        wanted = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        assert (abs(pixels - wanted).max(axis=1) < 0.02).mean() > 0.01
