"""`entrain simulate`: what it writes, resuming, bad input, and agreement with an independent simulator."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from entrain.commands.simulate import command
from entrain.results import published
from machine import rows as long_form
from machine.errors import BadInput, MissingTool
from machine.rows import chosen
from schedulers.coflow.rivals import Varys
from simulation import output, sweep
from simulation.detail import FlowTimes, LinkUsage
from simulation.engine import Simulation
from simulation.experiments.registry import EXPERIMENTS, points
from simulation.plots import plot
from simulation.results import (
    RESULT,
    CoflowTimes,
    Completion,
    Decision,
    Iterations,
    JobTimes,
    Latency,
    Result,
    Row,
    Settings,
    Summary,
    parameters,
    read_summary,
)
from simulation.scheduled import ScheduledTransport
from simulation.topology import GBIT, switch
from simulation.traces import read_coflow_benchmark

HERE = Path(__file__).parent / "data"
ROOT = Path(__file__).resolve().parents[2]


def entrain(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "entrain.cli", "simulate", *arguments], capture_output=True, text=True
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_without_a_cache_it_says_why_it_compiles_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schedulers.compiled.cached", lambda: False)
    done = CliRunner().invoke(
        command, ["parrot-jct", "--trace", str(HERE / "jobs.csv"), "--policy", "parrot"]
    )
    assert done.exit_code == 0, done.output
    assert "set XDG_CACHE_HOME" in done.stderr and "XDG_CACHE_HOME" not in done.stdout


def test_it_writes_summary_jobs_and_coflows(tmp_path: Path) -> None:
    trace = str(HERE / "jobs.csv")
    done = entrain(
        "parrot-jct", "--trace", trace, "--policy", "parrot,aalo,lccf", "--out", str(tmp_path), "--json"
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    for speed in ("10", "40"):
        totals = summary["total_jct_s"][speed]
        assert set(totals) == {"parrot", "aalo", "lccf", "lower_bound"}
        assert all(totals[p] >= totals["lower_bound"] > 0.0 for p in ("parrot", "aalo", "lccf"))
    jobs = rows(tmp_path / "jobs.csv")
    assert list(jobs[0])[:3] == ["job", "arrival_s", "jct_s"]
    assert len(jobs) == 3 * 3 * 2
    mine = [float(j["jct_s"]) for j in jobs if j["policy"] == "aalo" and j["gbps"] == "10"]
    assert sum(mine) == pytest.approx(summary["total_jct_s"]["10"]["aalo"])
    coflows = rows(tmp_path / "coflows.csv")
    assert list(coflows[0])[:3] == ["coflow", "arrival_s", "cct_s"]
    assert (tmp_path / "parrot-jct.png").stat().st_size > 1000


def test_coflows_keep_the_traces_ids(tmp_path: Path) -> None:
    done = entrain(
        "coflow-fb2010",
        "--trace",
        str(HERE / "coflows.txt"),
        "--limit",
        "2",
        "--policy",
        "varys",
        "--out",
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    coflows = {c["coflow"]: float(c["cct_s"]) for c in rows(tmp_path / "coflows.csv")}
    # Alone in the network: the larger side's bytes at 1 Gbit/s.
    assert coflows == pytest.approx({"1": 4 * 2**20 / GBIT, "2": 4 * 2**20 / GBIT})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "unknown; known are parrot-jct"),
        (["parrot-jct", "--policy", "magic"], "policy 'magic' is unknown"),
        (["slots-jct", "--policy", "d-clas"], "policy 'd-clas' is unknown to slots-jct"),
        (["slots-jct", "--trace", "x"], "leave out --trace"),
        (
            ["parrot-jct", "--trace", "/no/such/file"],
            "/no/such/file: there is no such file; get simulator/60_",
        ),
        (
            ["coflow-fb2010", "--trace", "FB2010-1Hr-150-0.txt"],
            "get FB2010-1Hr-150-0.txt of https://github.com/coflow/coflow-benchmark (licence: none stated), "
            "or leave out --trace for",
        ),
        (["parrot-jct", "--limit", "0"], "--limit is 0"),
    ],
)
def test_bad_input_ends_with_status_2_and_a_remedy(arguments: list[str], message: str) -> None:
    done = entrain(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def small_points() -> list[dict[str, Any]]:
    return points("parrot-jct", HERE / "jobs.csv", "parrot,aalo,fair", None, 0)[1]


def without_clock(result: Result) -> Result:
    assert isinstance(result.figures, Completion)
    return replace(result, figures=replace(result.figures, decision=None))


def test_an_interrupted_sweep_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = small_points()
    calls: list[int] = []

    def interrupt_third(point: dict[str, Any]) -> Result:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return EXPERIMENTS[point["experiment"]].run(point)

    monkeypatch.setattr(sweep, "run_point", interrupt_third)
    with pytest.raises(KeyboardInterrupt):
        sweep.run_points(todo, directory=tmp_path, workers=1)
    assert len(list((tmp_path / "points").glob("*.json"))) == 2
    resumed: list[bool] = []
    results = sweep.run_points(
        todo, directory=tmp_path, workers=1, done=lambda point, old: resumed.append(old)
    )
    assert resumed == [True, True, False, False, False, False]
    whole = sweep.run_points(todo, workers=1)
    assert [without_clock(r) for r in results] == [without_clock(r) for r in whole]


def alive(session: int) -> list[int]:
    """Return the processes of `session` that still run (a zombie does not)."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_sweep_with_its_workers_and_keeps_what_is_finished(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "entrain.cli", "simulate", "parrot-eta", "--workers", "2"]
    command += ["--trace", str(HERE / "jobs.csv"), "--policy", "parrot,aalo", "--out", str(tmp_path)]
    run = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        while not (kept := set(tmp_path.glob("points/*.json"))) and run.poll() is None:
            time.sleep(0.01)
        run.send_signal(number)
        assert run.wait(60) in (-number, 128 + number)
        deadline = time.monotonic() + 60
        while alive(run.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not alive(run.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert kept <= set(tmp_path.glob("points/*.json"))
    assert not (tmp_path / "summary.json").exists()
    assert entrain(*command[4:]).returncode == 0
    assert (tmp_path / "summary.json").exists()


def test_a_truncated_result_is_run_again(tmp_path: Path) -> None:
    todo = small_points()[:1]
    sweep.run_points(todo, directory=tmp_path, workers=1)
    path = sweep.point_file(tmp_path, todo[0])
    path.write_text(path.read_text()[:50])
    figures = sweep.run_points(todo, directory=tmp_path, workers=1)[0].figures
    assert isinstance(figures, Completion)
    assert figures.total_jct_s > 0.0


def test_processes_give_the_same_results_as_one(tmp_path: Path) -> None:
    todo = small_points()
    one, two = (sweep.run_points(todo, workers=n) for n in (1, 2))
    assert [without_clock(r) for r in one] == [without_clock(r) for r in two]


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_other_engines_give_the_same_results(engine: Literal["ray", "dask"]) -> None:
    """In a process of its own: both leave threads and settings behind."""
    pytest.importorskip("distributed" if engine == "dask" else engine, reason=f"{engine} is not installed")
    trace = str(HERE / "jobs.csv")
    command = ["parrot-jct", "--trace", trace, "--policy", "parrot,fair", "--workers", "2", "--json"]
    here, there = (entrain(*command, "--engine", which) for which in ("local", engine))
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    first, second = (json.loads(done.stdout)["points"] for done in (here, there))
    for each in (*first, *second):
        del each["decision"]
    assert first == second


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingTool, match="ray"):
        sweep.run_points(small_points()[:1], engine="ray")


def test_by_default_nothing_outside_the_repository_is_read() -> None:
    for name in EXPERIMENTS:
        for point in points(name, None, None, None, 0)[1]:
            assert Path(point.get("trace", ROOT)).is_relative_to(ROOT), name


def test_drawn_coflows_are_called_so() -> None:
    done = entrain("coflow-fb2010", "--limit", "2", "--policy", "fifo", "--json")
    assert done.returncode == 0, done.stderr
    assert "trace" not in json.loads(done.stdout)["settings"]
    words = ("FB2010-1Hr-150-0.txt", "coflow/coflow-benchmark", "licence: none stated", "--trace")
    assert all(word in " ".join(done.stderr.split()) for word in words)


SOME: dict[str, Callable[[dict[str, Any]], bool]] = {
    "parrot-jct": lambda point: point["gbps"] == 10,
    "parrot-load": lambda point: point["gap_ms"] == 1000,
    "slots-jct": lambda point: point["domain"] == 10,
    "slots-models": lambda point: point["models"] == "all" and point["slot_ms"] > 20,
    "slots-tau": lambda point: point["slot_ms"] > 20,
    "cassini-unfairness": lambda point: point["group"] in ("vgg19 vgg19", "vgg19 vgg16 resnet50"),
    "matrix": lambda point: point["sending_percent"] == 25,
    "parrot-live": lambda point: point["eta_ms"] == 200,
    "slots-bound": lambda point: point["gbps"] == 24,
    "slots-load": lambda point: point["load_percent"] == 60,
}
"""Which points run where all experiments do: of those that differ in a number only, a part."""


def test_every_experiment_runs_small_and_gets_its_section(tmp_path: Path) -> None:
    for name, experiment in EXPERIMENTS.items():
        todo = [p for p in points(name, None, None, 3, 0)[1] if SOME.get(name, bool)(p)]
        if name == "matrix":
            todo = [{**p, "placements": 1} for p in todo]
        if name in ("cassini-themis", "cassini-pollux", "parrot-live", "slots-bound", "slots-load"):
            todo = [{**p, "draws": 1} for p in todo]
        results = [experiment.run(point) for point in todo]
        todo = [{key: value for key, value in p.items() if key != "placements"} for p in todo]
        summary = output.summarise(experiment, todo, results)
        output.write(tmp_path / name, summary, results)
        assert read_summary(tmp_path / name / "summary.json") == summary
        assert (tmp_path / name / f"{name}.png").stat().st_size > 1000
    rows = published.measured([tmp_path])
    pages = published.pages(rows)
    for section in (section for section in published.sections() if section.experiment):
        assert f"\n## {EXPERIMENTS[section.experiment].title}\n" in pages[f"results/{section.page}.md"]
        for pivot in section.table:
            known = {row.figure for row in chosen(section.rows(rows), pivot.where)}
            assert known & set(pivot.figures), f"{section.experiment}: {pivot.figures}"
    kept = long_form.read(tmp_path / "parrot-jct" / "rows.csv")
    assert len(kept) == len(rows["simulated/parrot-jct"])


def test_varys_agrees_with_coflowsim_on_the_first_hundred_coflows(
    public_trace: Callable[[str], Path],
) -> None:
    """CoflowSim (coflow/coflowsim at its HEAD, SEBF) gives a sum of 281.880 s on these, in steps of 8 ms.

    Arrivals, sizes and capacity are taken as it takes them: epochs of 10.24 s, whole MB, 1 MB per 8 ms.
    """
    path = public_trace("FB2010-1Hr-150-0.txt")
    trace = read_coflow_benchmark(path, limit=100, whole_megabytes=True, epoch_s=10.24)
    topology = switch(trace.ports, 125 * 2**20)
    outcome = Simulation(trace.jobs, ScheduledTransport(topology, Varys(dynamic=False), check=True)).run()
    assert np.sum([j.jct for j in outcome.jobs]) == pytest.approx(281.880, rel=0.01)


DECISION = Decision(1.0, 2.0, 3.0, 4.0, 5)
TIMES = Completion(2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 7, DECISION)


@pytest.mark.parametrize(
    ("points", "result"),
    [
        ([{"policy": "slots"}], Result(Latency(DECISION))),
        (
            [{"policy": "slots", "scale": "1/1"}, {"policy": "slots", "scale": "2/1"}],
            Result(TIMES, (JobTimes("j", 0.0, 1.0, 0.0, 1.0),)),
        ),
    ],
)
def test_no_plot_is_better_than_one_that_misleads(
    tmp_path: Path, points: list[dict[str, str]], result: Result
) -> None:
    path = tmp_path / "plot.png"
    path.write_text("of an earlier run")
    results = [result] * len(points)
    rows = tuple(Row(parameters(point), result.figures) for point in points)
    plot(path, Summary("e", "t", 0, None, Settings(), {}, rows), results)
    assert not path.exists()


@pytest.mark.parametrize(
    "result",
    [
        Result(TIMES, (JobTimes("j", 0.0, 1.0, 0.0, 1.0),), (CoflowTimes("c", 0.0, 1.0, 8.0),)),
        Result(
            replace(TIMES, decision=None, flows=3, competitive_ratio=1.5),
            flow_times=FlowTimes(["c"], [0], [1], [8.0], [0.0], [1.0]),
            usage=LinkUsage(1.0, ["l"], [10.0], [[0.5], [0.0]]),
        ),
        Result(Iterations(None, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1)),
        Result(Latency(replace(DECISION, percentiles_us=(1.0, 2.0)))),
    ],
)
def test_results_are_read_back_as_they_were(result: Result) -> None:
    assert RESULT.validate_json(RESULT.dump_json(result)) == result


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("parameters"),
        lambda content: content["points"][0].pop("total_jct_s"),
        lambda content: content["points"][0].update(unheard_of=1),
        lambda content: content["settings"].update(jobs="many"),
    ],
)
def test_a_summary_that_is_not_one_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    row = Row(parameters({"policy": "fair", "gbps": 10}), TIMES)
    content = Summary("parrot-jct", "t", 0, 3, Settings(jobs=3), {"a": "b"}, (row,)).document()
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(content))
    assert read_summary(path).points == (row,)
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="run the experiment again"):
        read_summary(path)
