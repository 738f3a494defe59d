"""Policy `unfair`: a constant gain per job, and what it does to shares of a link."""

from __future__ import annotations

import csv
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrain.experiment import load_experiment
from entrain.policies.unfair import parameters
from entrain.results.gains import gains, scores
from entrain.results.values import JobResult, RunResult
from machine.errors import BadInput
from schedulers.mltcp import Gain
from tests.attempts import undisturbed
from tests.entrain.running import results
from workloads.records import Summary

ROOT = Path(__file__).parents[3]
EXPERIMENT = ROOT / "experiments" / "cassini-unfairness.toml"

BUSY = """
[experiment]
name = "busy"
policy = ["unfair"]
congestion_control = ["reno"]
sample_ms = 50

[network]
offloads = false

[unfair]
factor = 0.5

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 100
bottleneck_rate_mbps = 50
queue_packets = 22

[[job]]
name = "rival"
collective = "ring"
bytes = 2_000_000
compute_ms = 0
iterations = 10
hosts = ["h1", "h3"]

[[job]]
name = "favoured"
collective = "ring"
bytes = 2_000_000
compute_ms = 0
iterations = 10
hosts = ["h2", "h4"]
[job.unfair]
factor = 2
"""


@given(st.floats(0.01, 8), st.integers(1, 1 << 50))
def test_the_gain_is_the_factor_whatever_was_sent(factor: float, sent: int) -> None:
    raw = parameters({"factor": factor}).raw()
    gain = Gain(raw.slope, raw.intercept).at(sent, raw.total_bytes)
    assert float(gain) == pytest.approx(factor, abs=1 / 1024)


def test_factors_are_the_files_and_each_jobs_own(tmp_path: Path) -> None:
    file = tmp_path / "busy.toml"
    file.write_text(BUSY)
    rival, favoured = (parameters(job.tables["unfair"]) for job in load_experiment(file).jobs)
    assert (rival.intercept, favoured.intercept) == (0.5, 2.0)
    for key, wrong in (("factor = 2", "factor = 0"), ("factor = 2", "factors = 2")):
        file.write_text(BUSY.replace(key, wrong))
        with pytest.raises(BadInput, match=r"busy\.toml.*favoured.*factor|busy\.toml.*unfair.*factor"):
            load_experiment(file)
    file.write_text(BUSY.replace('"reno"', '"bbr"'))
    with pytest.raises(BadInput, match="policy unfair needs one of reno, cubic, dctcp"):
        load_experiment(file)


def test_the_score_says_which_pairs_of_the_experiment_fit() -> None:
    experiment = load_experiment(EXPERIMENT)
    assert scores(experiment, 1) == pytest.approx(
        {
            "dlrm-one": 1.0,
            "dlrm-two": 1.0,
            "vgg-one": 1.0,
            "vgg-two": 1.0,
            "mixed-bert": 0.8,
            "mixed-vgg": 0.8,
        },
        abs=0.01,
    )


def test_gains_leave_out_how_jobs_drift_apart_and_other_controls() -> None:
    experiment = load_experiment(EXPERIMENT)
    times = {"none": (9.0, 9.0, 200.0, 200.0, 200.0, 200.0), "unfair": (900.0, 100.0, 100.0, 100.0)}
    runs = []
    for combination in experiment.combinations():
        of_policy = times[combination.policy]
        summary = Summary("", "ring", 2, len(of_policy), of_policy, of_policy, 1.0, 9, 0.1, None)
        jobs = tuple(JobResult(job.name, job.hosts, summary, 90.0, 1) for job in experiment.jobs)
        runs.append(RunResult(combination, "softswitch", jobs, ()))
    for each in gains(experiment, runs):
        assert each.unfair_ms == 100.0
        assert each.fair_ms == pytest.approx(809 / 5)
    assert gains(experiment, runs[:1]) == []


@pytest.mark.root
def test_the_job_whose_window_grows_faster_gets_more_of_the_link(tmp_path: Path) -> None:
    """While both send. With a quarter of the other's growth, the rival would get half of its bandwidth if
    losses fell at random, and gets less, because its window also falls further."""
    file = tmp_path / "busy.toml"
    file.write_text(BUSY)

    def sent_at_once() -> Counter[str]:
        out = Path(tempfile.mkdtemp(dir=tmp_path)) / "out"
        (run,) = results(file, "--out", out)["runs"]
        assert (run["policy"], run["congestion_control"]) == ("unfair", "mltcp_reno")
        bins: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for row in csv.DictReader((out / "throughput.csv").open()):
            bins[row["link"], row["time_s"]][row["job"]] = float(row["mbps"])
        sent = Counter[str]()
        for both in bins.values():
            if all(both.get(job, 0.0) > 0.0 for job in ("rival", "favoured")):
                sent.update(both)
        return sent

    undisturbed(sent_at_once, lambda sent: sent["favoured"] > 1.4 * sent["rival"] > 0)
