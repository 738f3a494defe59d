"""docs/results.md: made from what `entrain run --out` writes, and never losing what stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from entrain.contention import LinkContention
from entrain.cross import NAME as CROSS
from entrain.experiment import Combination, Experiment, load_experiment
from entrain.results import live as live_results
from entrain.results import page as results_page
from entrain.results.files import write
from entrain.results.values import JobResult, RunResult, Timeline
from entrain.samples import Throughput
from entrain.slots import HostReport
from machine.errors import BadInput
from workloads.records import Summary

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = {path.stem: path for path in sorted((ROOT / "experiments").glob("*.toml"))}
IDEAL_MS = 100.0


def iteration_ms(experiment: str, combination: Combination) -> float:
    """What a made-up run takes: TCP 200 ms (Reno 190), MLTCP 125, slots 150; more where packets are lost."""
    lost = experiment.startswith("slots-loss") and experiment != "slots-loss-none"
    if combination.policy == "slots":
        return 160.0 if lost else 150.0
    if combination.policy == "mltcp":
        return 125.0
    if combination.control == "reno":
        return 190.0
    return 800.0 if lost else 200.0


def run(experiment: Experiment, combination: Combination) -> RunResult:
    """All jobs take the same; under MLTCP it is as bad as without in the first ten iterations."""
    jobs = []
    for job in experiment.jobs:
        number = job.spec.iterations
        learning = 200.0 if combination.policy == "mltcp" else iteration_ms(experiment.name, combination)
        ms = (learning,) * 10 + (iteration_ms(experiment.name, combination),) * (number - 10)
        summary = Summary("", "ring", 2, number, ms, ms, sum(ms) / 1e3, 9, 0.1, None)
        jobs.append(JobResult(job.name, job.hosts, summary, 90.0, 1, IDEAL_MS))
    report = HostReport("h1", (), {}, {}, (1.0, 4.0), (0.5,), 10.0, 1.5, 1_000_000, 100.0)
    link = "left->right"
    names = [job.name for job in jobs] + ([CROSS] if experiment.cross else [])
    shares = {CROSS: (0.0, 60.0, 60.0, 0.0)}
    return RunResult(
        combination,
        experiment.target,
        tuple(jobs),
        (LinkContention(link, 1, 1, 1, 1, 1),),
        {"processor_busy": 0.3, "unattributed_bytes": 0},
        Timeline(
            tuple(Throughput(link, each, 20.0, shares.get(each, (80.0, 20.0, 20.0, 0.0))) for each in names)
        ),
        (),
        (report,) * 2 if combination.policy == "slots" else (),
    )


def leave(directory: Path, name: str) -> None:
    """What `entrain run --out` would."""
    if name == "slot-rates":
        directory.mkdir(parents=True)
        keys = ("rate_error_mean", "rate_error_p99", "within_bound", "boundary_delay_ms_p99", "agent_cpu")
        trial: dict[str, Any] = dict.fromkeys(keys, 0.5) | {"slot_ms": 60.0, "flows": 16, "host_cpu": None}
        runs = [{"policy": "slots", **trial, "control": control} for control in ("slot_reno", "cubic")]
        (directory / "results.json").write_text(json.dumps({"experiment": name, "runs": runs}))
        return
    experiment = load_experiment(EXPERIMENTS[name])
    results = [run(experiment, combination) for combination in experiment.combinations()]
    write(directory, experiment, results)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("results")
    for name in live_results.NAMES:
        leave(directory / "live" / name, name)
    return directory


def section(page: str, number: int) -> str:
    return results_page.split(page)[live_results.TITLES[number]]


def test_no_experiment_is_forgotten() -> None:
    """Those that compare with a paper's figures are all in a section."""
    compared = {name for name in EXPERIMENTS if name.startswith(("slots-", "slot-rates", "mltcp-"))}
    assert compared == set(live_results.NAMES)


def test_figures_are_compared_with_the_papers(everything: Path) -> None:
    page = results_page.page(everything)
    assert list(results_page.split(page)) == list(live_results.TITLES)
    completion, loss, two, tcp, overhead, rates, mltcp = (section(page, n) for n in range(7))
    for speed in ("10", "16", "24"):
        paper = "at least -15 %"
        claim = f"| mean completion time, slots against reno, {speed} Gbit/s | {paper} | -21.1 % |"
        assert claim in completion
    assert "| training speed of VGG19, slots against cubic, 10 Gbit/s | +22 % | +33.3 % |" in completion
    assert "| slots, 1.5 % of loss against none | -4 % | -6.2 % |" in loss
    assert "| slots against cubic, 1.5 % of loss | × 5.1 | × 5.00 |" in loss
    assert "| cubic, 0.2 % of loss against none | -62 % | -75.0 % |" in loss
    assert "| cubic | 200 ms | × 4.00 |" in loss
    assert "| slots | 150 | 150 | 2.77 | 100 % |" in two
    assert "| slots | 60 | 20 | 75 % |" in tcp  # while the TCP flow is on
    assert "| slots-jct | 2 | 2.5 | 3.7 | 3.97 | 0.5 | 0.5 | 0.5 | 15 % | 1.6 | 0.80 % |" in overhead
    assert "| cubic | 60 | 16 | 50.00 % | 50.00 % | 50.0 % | 0.50 | - |" in rates
    settled = "1.250 | 50 | 0 of 1 | - | 0.75 | 1.52 | 1.52"
    assert f"| mltcp-three-jobs | mltcp_reno | {settled} | 30 % |" in mltcp
    assert "Processors busy: 30 %" in completion


def test_what_was_not_run_is_left_out_and_named(tmp_path: Path) -> None:
    ran = ("slots-jct", "slots-loss-0.2")
    for name in ran:
        leave(tmp_path / name, name)
    page = results_page.page(tmp_path)
    assert "24 Gbit/s" not in page
    assert "| cubic | 800 ms |" in section(page, 1)  # there is nothing to compare with
    last = page.splitlines()[-1]
    for name in live_results.NAMES:
        assert (f"`experiments/{name}.toml`" in last) == (name not in ran)
    assert "`entrain simulate slots-jct`" in last


def test_sections_without_new_results_stay_as_they_stand(tmp_path: Path) -> None:
    """The rest of the page is the same, byte for byte; the page need not have had the section before."""
    old = (ROOT / "docs" / "results.md").read_text()
    leave(tmp_path / "rates", "slot-rates")
    new = results_page.page(tmp_path, old)
    before, after = results_page.split(old), results_page.split(new)
    fresh = live_results.sections(tmp_path)
    assert {title: text for title, text in after.items() if title not in fresh} == {
        title: text for title, text in before.items() if title not in fresh
    }
    assert {title: after[title] for title in fresh} == fresh
    assert list(after) == [title for title in results_page.TITLES if title in after]
    assert results_page.page(tmp_path, new) == new


def test_no_figures_get_lost_silently(everything: Path, tmp_path: Path) -> None:
    old = results_page.page(everything)
    leave(tmp_path / "mine", "slots-jct")
    with pytest.raises(BadInput, match=r"experiments/slots-jct-16g\.toml"):
        results_page.page(tmp_path, old)
    with pytest.raises(BadInput, match="By hand"):
        results_page.page(everything, old + "\n## By hand\n\nText.\n")
    leave(tmp_path / "again", "slots-jct")
    with pytest.raises(BadInput, match="both hold results of slots-jct with reno"):
        results_page.page(tmp_path)
    with pytest.raises(BadInput, match="holds no results"):
        results_page.page(tmp_path / "nothing")


def test_controls_of_one_experiment_may_have_been_run_one_by_one(tmp_path: Path) -> None:
    for control in ("cubic", "bpf_dctcp"):
        path = tmp_path / "mltcp-seeds.toml"
        path.write_text(
            re.sub(
                "^congestion_control = .*",
                f'congestion_control = ["{control}"]',
                EXPERIMENTS["mltcp-seeds"].read_text(),
                flags=re.MULTILINE,
            )
        )
        experiment = load_experiment(path)
        write(tmp_path / control, experiment, [run(experiment, each) for each in experiment.combinations()])
    text = section(results_page.page(tmp_path), -1)
    for name in ("mltcp_cubic", "mltcp_dctcp"):
        assert f"| mltcp-seeds | {name} | 1.250 | 50 | 0 of 10 |" in text


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    leave(tmp_path / "mine", "slots-two-jobs")
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "entrain.cli", "simulate", "results", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--page", str(page)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert page.read_text() == results_page.page(tmp_path)


def test_the_page_of_this_repository_is_the_makers() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    assert page.startswith(results_page.HEAD)
    assert results_page.split(page)
