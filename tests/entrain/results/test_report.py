"""results.json, the CSV files, the table and the picture, from results made by hand."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import image
from rich.console import Console

from entrain.bound import bound_ms
from entrain.experiment import Combination, Experiment, load_experiment
from entrain.policies.reports import HostReport
from entrain.results import files, html, overhead, store, tables, timelines
from entrain.results.files import has_delays, write
from entrain.results.plots import plot
from entrain.results.tables import completion, remarks, settling, show, table
from entrain.results.values import (
    JobResult,
    RunResult,
    Timeline,
    converged_at,
    fairness,
    over_bound_last,
    over_ideal_last,
)
from entrain.run.contention import LinkContention
from entrain.run.cross import NAME as CROSS
from entrain.run.queues import QueueUse
from entrain.run.samples import Throughput, Window
from machine import palette
from machine.palette import style
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


def of_jobs(experiment: Experiment, *times: tuple[float, ...]) -> RunResult:
    """A run of a job for each of `times`."""
    runs = [result(experiment, "ecmp", each, 1, 0.5) for each in times]
    return replace(runs[0], jobs=tuple(run.jobs[0] for run in runs))


def test_converged_means_until_the_end(experiment: Experiment) -> None:
    slow, ideal, near = (160.0,), (100.0,), (104.0,)
    assert converged_at(of_jobs(experiment, slow * 40 + near * 60)) == 40
    assert converged_at(of_jobs(experiment, ideal * 100)) == 0
    # what comes later counts, of every job
    assert converged_at(of_jobs(experiment, slow * 40 + ideal * 30 + slow * 30)) is None
    assert converged_at(of_jobs(experiment, slow * 40 + ideal * 20 + slow * 20 + ideal * 20)) == 80
    assert converged_at(of_jobs(experiment, ideal * 100, ideal * 60 + slow * 40)) is None
    assert converged_at(of_jobs(experiment, ideal * 100, slow * 60 + ideal * 40)) == 60
    assert converged_at(of_jobs(experiment, (100.0, 100.0, 130.0) * 40)) is None
    # and there has to be enough of it
    assert converged_at(of_jobs(experiment, slow * 81 + ideal * 19)) is None
    assert converged_at(of_jobs(experiment, ideal * 19)) is None
    assert converged_at(of_jobs(experiment, ideal * 20)) == 0


@settings(max_examples=50)
@given(data=st.data())
def test_a_run_has_converged_exactly_from_where_it_stays_near_the_ideal(data: st.DataObject) -> None:
    times = data.draw(st.lists(st.sampled_from([100.0, 104.0, 110.0, 150.0]), min_size=10, max_size=60))
    summary = Summary("", "ring", 2, len(times), tuple(times), tuple(times), 1.0, 0, 0.0, None)
    run = RunResult(Combination("ecmp", "none", 1), "softswitch", (JobResult("", (), summary, 100.0, 1),), ())
    means = [sum(times[first : first + 10]) / 10 for first in range(len(times) - 9)]
    near = [at for at in range(len(times) - 19) if max(means[at:]) <= 105]
    assert converged_at(run) == min(near, default=None)


def test_settled_figures_are_of_what_comes_after_learning(tmp_path: Path, experiment: Experiment) -> None:
    """The 50 first iterations are in none of them, and the number of the others is told."""
    run = of_jobs(experiment, (500.0,) * 50 + (100.0,) * 99 + (200.0,), (900.0,) * 50 + (300.0,) * 60)
    write(tmp_path, experiment, [run])
    results = json.loads((tmp_path / "results.json").read_text())
    one, two = (job["settled"] for job in results["runs"][0]["jobs"])
    assert one == pytest.approx(
        {
            "first_iteration": 50,
            "iterations": 100,
            "iteration_ms_mean": 101,
            "iteration_ms_p99": 101,
            "over_ideal": 1.01,
            "over_bound": 1.01,
            "over_ideal_p99": 1.01,
        }
    )
    assert (two["iterations"], two["iteration_ms_mean"]) == (60, 300)
    assert two["iteration_ms_p99"] is two["over_ideal_p99"] is None  # 60 are too few
    both = results["runs"][0]["settled"]
    assert (both["iterations"], both["over_ideal"]) == pytest.approx((60, (1.01 + 3) / 2))
    assert results["summary"][0]["settled"] == both
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(settling(experiment, [run]))
    assert "2.005" in captured.get()
    assert " 60 " in captured.get()


def test_a_run_that_is_too_short_has_no_settled_figures(tmp_path: Path, experiment: Experiment) -> None:
    for number, known in ((99, False), (100, True)):
        write(tmp_path, experiment, [of_jobs(experiment, (100.0,) * 200, (100.0,) * number)])
        results = json.loads((tmp_path / "results.json").read_text())
        assert results["runs"][0]["jobs"][0]["settled"] is not None
        for where in (results["runs"][0]["jobs"][1], results["runs"][0], results["summary"][0]):
            assert (where["settled"] is not None) == known


def test_ideal_is_the_time_alone_where_it_was_measured(experiment: Experiment) -> None:
    run = result(experiment, "ecmp", (130.0,) * 60, 1, 0.5)
    assert over_ideal_last(run) == over_bound_last(run) == pytest.approx(1.3)
    measured = replace(run, jobs=(replace(run.jobs[0], alone_ms=125.0),))
    assert over_ideal_last(measured) == pytest.approx(1.04)
    assert over_bound_last(measured) == pytest.approx(1.3)
    assert (converged_at(run), converged_at(measured)) == (None, 0)


@settings(max_examples=50)
@given(means=st.lists(st.floats(50.0, 5000.0), min_size=1, max_size=8))
def test_fairness_is_even_or_not(means: list[float]) -> None:
    """Jain's index is 1 where all advance alike, 1/n where one does all, and between them otherwise."""
    jobs = tuple(
        JobResult(str(i), (), Summary("", "ring", 2, 1, (ms,), (ms,), 1.0, 0, 0.0, None), 50.0, 1)
        for i, ms in enumerate(means)
    )
    found = fairness(RunResult(Combination("ecmp", "none", 1), "softswitch", jobs, ()))
    assert 1 / len(means) - 1e-9 <= found.jain <= 1 + 1e-9
    assert found.slowest == pytest.approx(50 / max(means))
    assert found.fastest == pytest.approx(50 / min(means))
    assert found.longest_over_ideal == pytest.approx(max(means) / 50)
    if max(means) == min(means):
        assert found.jain == pytest.approx(1)


def test_seeds_are_summed_up(tmp_path: Path, experiment: Experiment) -> None:
    settling_runs = [
        replace(
            result(experiment, "ecmp", (150.0,) * at + (100.0,) * (40 - at), 1, 0.5),
            combination=Combination("ecmp", "mltcp", seed, "mltcp_reno"),
        )
        for seed, at in ((1, 4), (2, 10), (3, 40))
    ]
    write(tmp_path, experiment, settling_runs)
    (summary,) = json.loads((tmp_path / "results.json").read_text())["summary"]
    assert (summary["runs"], summary["converged"]) == (3, 2)
    assert summary["converged_at_iteration_max"] == converged_at(settling_runs[1])
    assert summary["over_ideal_last50_max"] == pytest.approx(1.5)
    console = Console(width=80, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(settling(experiment, settling_runs))
    assert "mltcp_reno" in captured.get()
    assert "2/3" in captured.get()
    assert "…" not in captured.get()


def test_ideal_is_compute_and_the_busiest_hosts_of_each_step(experiment: Experiment) -> None:
    # two steps of half of 1,448,000 bytes: 500 frames of 1514 bytes each, at 100 Mbit/s
    assert bound_ms(experiment.jobs[0].spec, [100.0, 100.0]) == pytest.approx(50 + 2 * 500 * 1514 * 8 / 100e3)
    assert bound_ms(experiment.jobs[0].spec, [100.0, 50.0]) == pytest.approx(50 + 2 * 500 * 1514 * 8 / 50e3)


@pytest.mark.parametrize(("servers", "parts"), [(1, 1), (1, 5), (2, 0), (2, 1), (2, 4), (2, 100)])
def test_ideal_of_parameter_servers_is_what_goes_into_one_and_its_last_part_back(
    tmp_path: Path, servers: int, parts: int
) -> None:
    path = tmp_path / "servers.toml"
    keys = f'"parameter-server"\nservers = {servers}\nparts = {parts}'
    path.write_text(EXPERIMENT.replace('"ring"', keys).replace('"h3"]', '"h2", "h3", "h4"]'))
    (job,) = load_experiment(path).jobs
    workers = 4 - servers
    frames = workers * 1000 / servers  # of all workers for one server
    gradients = frames * 1514 * 8 / 100e3
    assert bound_ms(job.spec, [100.0] * 4) == pytest.approx(50 + gradients * (1 + 1 / (parts or 1)))


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
    assert job["iteration_ms_p99"] is None  # three iterations have none
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
    assert not (tmp_path / "queues.csv").exists()
    write(tmp_path, experiment, [replace(run, queues=(QueueUse("a->b", 7, 9000, 0),)) for run in runs])
    queues = list(csv.DictReader((tmp_path / "queues.csv").open()))
    assert [(line["link"], line["dropped_packets"]) for line in queues] == [("a->b", "7")] * 2


def shown(experiment: Experiment, runs: list[RunResult]) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        show(experiment, runs, console)
    return " ".join(captured.get().split())


def test_it_is_said_once_whether_queues_filled(experiment: Experiment, runs: list[RunResult]) -> None:
    assert "queue" not in shown(experiment, runs), "measured by a version that did not read them"
    idle = QueueUse("h1->leaf1", 0, 0, 64_000)
    held, lost = replace(idle, backlog_bytes_max=9000), replace(idle, link="a->b", dropped_packets=7)

    def said(*queues: QueueUse) -> str:
        return shown(experiment, [replace(run, queues=queues) for run in runs])

    assert "no queue dropped a packet or was found to hold one" in said(idle)
    assert "no queue dropped a packet; the longest held 9 KB (h1->leaf1)" in said(held)
    assert "queues dropped 14 packets in 2 runs, most of them at a->b (14)" in said(held, lost)


@pytest.mark.parametrize(("timeouts", "cell"), [(4, "4"), (None, "unknown")])
def test_the_page_shows_what_each_job_sent_again(
    tmp_path: Path, experiment: Experiment, runs: list[RunResult], timeouts: int | None, cell: str
) -> None:
    first, *others = runs[0].jobs
    summary = replace(first.summary, retransmitted=1234, timeouts=timeouts)
    jobs, queues = (replace(first, summary=summary), *others), (QueueUse("a->b", 0, 0, 0),)
    run = replace(runs[0], jobs=jobs, queues=queues)
    with store.writing(files.NETWORK, tmp_path, experiment, resume=False) as kept:
        kept.add(run, "ecmp")
    (row,) = [row for row in html.page([tmp_path]).split("<tr>") if ">1234<" in row]
    assert f">{first.name}<" in row and f">{cell}<" in row
    write(tmp_path, experiment, [run])
    (job, *_) = json.loads((tmp_path / "results.json").read_text())["runs"][0]["jobs"]
    assert (job["retransmitted"], job["timeouts"]) == (1234, timeouts)


def test_the_page_has_a_table_of_queues_that_held_or_dropped_something(
    tmp_path: Path, experiment: Experiment, runs: list[RunResult]
) -> None:
    idle, lost = QueueUse("h1->leaf1", 0, 0, 64_000), QueueUse("leaf1->h1", 7, 9000, 0)
    for queues, found in (((idle,), False), ((idle, lost), True)):
        with store.writing(files.NETWORK, tmp_path, experiment, resume=False) as kept:
            kept.add(replace(runs[0], queues=queues), "ecmp")
        text = html.page([tmp_path])
        assert ("leaf1-&gt;h1" in text) == found and "h1-&gt;leaf1" not in text
        assert ("No queue dropped a packet or was found to hold one." in text) != found
        assert text.count("Did queues fill?") == 1


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
    for shown in ("ecmp", "source", "ring", "300.0", "3.00", "0.90"):
        assert shown in text


def test_legends_fit_a_terminal_of_80_columns() -> None:
    legends = {name: text for name, text in vars(tables).items() if name.endswith("LEGEND")}
    assert len(legends) >= 4
    for name, text in legends.items():
        assert max(map(len, text.splitlines())) <= tables.WIDTH, name


def test_a_narrower_terminal_gets_whole_words(experiment: Experiment, runs: list[RunResult]) -> None:
    console = Console(width=60, force_terminal=False)
    with console.capture() as captured:
        show(experiment, runs, console)
    text = captured.get()
    assert "collective" in text and "source" in text
    assert "need 80 columns, and this terminal has 60" in text


def pixels(path: Path) -> Any:
    return image.imread(path)[..., :3].reshape(-1, 3)


def share_of(colour: str, path: Path) -> float:
    """Of the picture's pixels."""
    wanted = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return float((abs(pixels(path) - wanted).max(axis=1) < 0.02).mean())


def test_pictures_and_tables_over_time(tmp_path: Path, experiment: Experiment) -> None:
    """Iterations of plain and MLTCP in their colours, throughput in the job's; seeds only with several."""
    busy = Throughput("leaf1->spine1", "a", 10.0, (0.0, 100.0) * 500)
    window = Window(0.1, "a", "h1", 20, 1.5, 3, 2)
    timed = [
        replace(
            result(experiment, "ecmp", (150.0,) * 10 + (100.0,) * 30, 1, 0.5),
            combination=Combination("ecmp", policy, seed, control),
            timeline=Timeline((busy,), (window,)),
        )
        for policy, control in (("none", "reno"), ("mltcp", "mltcp_reno"))
        for seed in (1, 2)
    ]  # fmt: skip
    timelines.plot(tmp_path, experiment, timed, "png")
    for name, colour in (
        ("iterations.png", style("reno").colour),
        ("throughput.png", palette.job(0)),
        ("seeds.png", style("mltcp_reno").colour),
    ):
        assert share_of(colour, tmp_path / name) > 0 == share_of(palette.job(3), tmp_path / name), name
    (tmp_path / "seeds.png").unlink()
    timelines.plot(tmp_path, experiment, timed[::2], "png")
    assert not (tmp_path / "seeds.png").exists()
    write(tmp_path, replace(experiment, sample_ms=10.0), timed)
    lines = list(csv.DictReader((tmp_path / "throughput.csv").open()))
    assert len(lines) == 4 * 1000
    assert float(lines[3]["time_s"]) == pytest.approx(0.03)
    assert float(lines[3]["mbps"]) == pytest.approx(100)
    (first, *_) = csv.DictReader((tmp_path / "windows.csv").open())
    assert (first["host"], first["cwnd"], first["gain"]) == ("h1", "20", "1.5")


def settling_runs(experiment: Experiment, seeds: tuple[int, ...] = (1,)) -> list[RunResult]:
    """TCP, MLTCP and slots; each a job of ideal 100 ms and one of 200 ms, at 1.5, 1 and 1.2 times ideal."""
    runs = []
    for policy, control, over in (
        ("none", "cubic", 1.5),
        ("mltcp", "mltcp_cubic", 1.0),
        ("slots", "slot_cubic", 1.2),
    ):
        for seed in seeds:
            run = of_jobs(experiment, (100.0 * over,) * 100, (200.0 * over,) * 50)
            jobs = (run.jobs[0], replace(run.jobs[1], bound_ms=200.0))
            bins = tuple(Throughput("leaf1->spine1", "a", 10.0, (0.0, 100.0) * 500) for _ in range(1))
            combination = Combination("ecmp", policy, seed, control)  # type: ignore[arg-type]
            runs.append(replace(run, jobs=jobs, combination=combination, timeline=Timeline(bins)))
    return runs


def labels(axes: Any) -> list[str]:
    """What the legend of a panel says."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_iterations_are_compared_with_each_jobs_own_ideal(experiment: Experiment) -> None:
    """A panel is named after its policy, and says whether ideal was measured or computed."""
    runs = settling_runs(experiment)
    figure = timelines.iterations(experiment, runs)
    assert [axes.get_title() for axes in figure.axes] == ["TCP", "MLTCP", "slot scheduler"]
    for axes, over in zip(figure.axes, (1.5, 1.0, 1.2), strict=True):
        line = axes.get_lines()[0]
        assert set(line.get_ydata().round(6)) == {over}  # type: ignore[union-attr]
        assert "computed bound" in labels(axes)
    measured = [replace(run, jobs=tuple(replace(job, alone_ms=99.0) for job in run.jobs)) for run in runs]
    for axes in timelines.iterations(experiment, measured).axes:
        assert "alone in the network (measured)" in labels(axes)


def test_rows_of_throughput_show_the_same_times(experiment: Experiment) -> None:
    figure = timelines.throughput(experiment, settling_runs(experiment, (7,)))
    assert "seed 7" in figure.get_suptitle()
    rows = np.array(figure.axes).reshape(3, -1)
    for column in rows.T:
        (limits,) = {axes.get_xlim() for axes in column}
        assert limits[0] < limits[1]
    ends = [run.jobs[0].summary.jct_s for run in settling_runs(experiment)]
    assert rows[0][-1].get_xlim()[1] <= min(end for end in ends if end) + 1e-9  # all of them still run


@pytest.mark.parametrize("converges", [False, True])
def test_no_panel_is_empty(experiment: Experiment, converges: bool) -> None:
    runs = settling_runs(experiment, (1, 2))
    figure = timelines.seeds(experiment, runs if converges else runs[:2])
    assert len(figure.axes) == 1 + converges
    for axes in figure.axes:
        drawn = [line for line in axes.get_lines() if len(set(np.ravel(line.get_ydata()))) > 0]
        assert len(drawn) >= (3 if converges else 1)


def test_cross_traffic_is_in_the_picture_of_throughput(tmp_path: Path) -> None:
    path = tmp_path / "crossed.toml"
    path.write_text(EXPERIMENT + "[[cross]]\n")
    experiment = load_experiment(path)
    run = result(experiment, "ecmp", (100.0,) * 6, 1, 0.5)
    job = Throughput("leaf1->spine1", "a", 10.0, (50.0,) * 60)
    flow = Throughput("leaf1->spine1", CROSS, 10.0, (0.0,) * 20 + (100.0,) * 20 + (0.0,) * 20)
    for seen, shown in (((job,), ["a"]), ((job, flow), ["a", CROSS])):
        figure = timelines.throughput(experiment, [replace(run, timeline=Timeline(seen, ()))])
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == shown


def test_busy_processors_are_remarked(experiment: Experiment, runs: list[RunResult]) -> None:
    assert list(remarks(runs)) == []
    (remark,) = remarks([*runs, result(experiment, "ecmp", (1.0,), 1, 0.97)])
    assert "97%" in remark


def test_the_picture_shows_bars_of_every_run(
    tmp_path: Path, experiment: Experiment, runs: list[RunResult]
) -> None:
    plot(tmp_path / "results.png", experiment, runs)
    for routing in ("ecmp", "source"):
        assert share_of(style(routing).colour, tmp_path / "results.png") > 0.01


def of_policy(run: RunResult, policy: str, control: str) -> RunResult:
    return replace(run, combination=replace(run.combination, policy=policy, control=control))  # type: ignore[arg-type]


def test_completion_times_are_compared_with_the_best_tcp(tmp_path: Path, experiment: Experiment) -> None:
    """Mean and extremes over the jobs and seeds; the baseline is the plain TCP with the least mean."""
    slow, fast = (result(experiment, "ecmp", (ms,) * 10, 1, 0.5) for ms in (200.0, 100.0))
    runs = [
        of_policy(replace(slow, jobs=slow.jobs + fast.jobs), "none", "reno"),  # 2 s and 1 s
        of_policy(replace(slow, jobs=slow.jobs * 2), "none", "cubic"),
        of_policy(replace(fast, jobs=fast.jobs * 2), "slots", "slot_cubic"),
    ]
    write(tmp_path, experiment, runs)
    written = json.loads((tmp_path / "results.json").read_text())
    first = {key: value for key, value in written["runs"][0].items() if key.startswith("jct_s")}
    assert first.pop("jct_s_p99") is None
    assert first == pytest.approx({"jct_s_mean": 1.5, "jct_s_min": 1, "jct_s_max": 2})
    over = [each["jct_over_best_tcp"] for each in written["summary"]]
    assert over == pytest.approx([1, 2 / 1.5, 1 / 1.5])
    console = Console(width=80, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(completion(experiment, runs))
    for shown in ("baseline", "none, reno", "+33.3 %", "-33.3 %"):
        assert shown in captured.get()
    plot(tmp_path / "results.png", experiment, [replace(run, jobs=run.jobs[:1]) for run in runs])
    for control in ("reno", "cubic", "slots"):  # a bar for each
        assert share_of(style(control).colour, tmp_path / "results.png") > 0.01


def test_what_scheduling_cost_is_written_and_drawn(tmp_path: Path, experiment: Experiment) -> None:
    """Every delay is a line of `delays.csv`; shares are of one processor and of the host's link."""
    run = of_policy(result(experiment, "ecmp", (100.0,) * 10, 1, 0.5), "slots", "slot_cubic")
    assert not has_delays([run])
    silent = HostReport("h2", ("the agent does not answer: gone",))
    busy = HostReport("h1", (), {}, {}, (1.0, 3.0), (0.5,), 10.0, 1.2, 1_250_000, 100.0)
    runs = [replace(run, scheduling=(busy, silent))]
    assert has_delays(runs)
    write(tmp_path, experiment, runs)
    first, second = json.loads((tmp_path / "results.json").read_text())["runs"][0]["scheduling"]
    assert first["negotiation_ms"]["p50"] == pytest.approx(2)
    assert (first["cpu_share"], first["carrier_mbps"], first["carrier_share"]) == pytest.approx(
        (0.12, 1, 0.01)
    )
    assert (second["cpu_share"], second["carrier_share"]) == (None, None)
    lines = list(csv.DictReader((tmp_path / "delays.csv").open()))
    assert [(line["host"], line["kind"], float(line["seconds"])) for line in lines] == [
        ("h1", "negotiation", 0.001),
        ("h1", "negotiation", 0.003),
        ("h1", "decision", 0.0005),
    ]
    overhead.plot(tmp_path / "overhead.png", experiment, runs)
    assert share_of(style("slots").colour, tmp_path / "overhead.png") > 0.001
