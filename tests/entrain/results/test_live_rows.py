"""The rows of live experiments, from what `entrain run --out` writes, and the claims that follow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from entrain import fluid
from entrain.experiment import Combination, Experiment, load_experiment
from entrain.policies.reports import HostReport, Paced
from entrain.results import files, live_rows, published
from entrain.results.claimed import claims, judged
from entrain.results.cluster import Stay, Stays
from entrain.results.store import writing
from entrain.results.values import LEARNING, JobResult, RunResult, Timeline
from entrain.run.contention import LinkContention
from entrain.run.cross import NAME as CROSS
from entrain.run.samples import Throughput, Window
from entrain.trials import slot_rates
from hostbpf.rates.trial import FlowSlot, Outcome, Trial
from machine.errors import BadInput
from machine.rows import Row, chosen
from schedulers.placement.cluster import Placement
from workloads.records import Summary

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENTS = {path.stem: path for path in sorted((ROOT / "experiments").glob("*.toml"))}
IDEAL_MS = 100.0


def iteration_ms(experiment: str, combination: Combination) -> float:
    """What a made-up run takes: TCP 200 ms (Reno 190), MLTCP 125, slots 150; more where packets are lost."""
    lost = experiment.startswith(("slots-loss", "slots-window-loss")) and not experiment.endswith("-none")
    if combination.policy.startswith("slots"):
        return 160.0 if lost else 150.0
    if combination.policy == "mltcp":
        return 125.0
    if combination.control == "reno":
        return 190.0
    return 800.0 if lost else 200.0


RUNNING_S = {"ecmp": 20.0, "recmp": 16.0, "source": 15.0, "vclos": 10.0, "ocs-vclos": 8.0, "apart": 20.0}
"""How long a made-up job on a cluster runs; it waits for a quarter of that."""


def cluster_run(experiment: Experiment, combination: Combination) -> RunResult:
    """All jobs take the same; each iteration takes 1.2 times as long as alone."""
    assert experiment.cluster is not None
    assert combination.strategy is not None
    jobs, stays = [], []
    for arrival in experiment.cluster.arrivals(combination.seed):
        summary = Summary("", "ring", 2, 2, (120.0, 120.0), (120.0, 120.0), 0.24, 9, 0.1, None)
        jobs.append(JobResult(arrival.name, ("h1", "h2"), summary, 90.0, 1, IDEAL_MS))
        running_s = RUNNING_S[combination.strategy] * (0.8 if combination.policy == "slots-15" else 1.0)
        start_s = arrival.arrival_s + running_s / 4
        placement = Placement(arrival.name, 0, (0, 1), (0, 0))
        stays.append(Stay(placement, arrival.arrival_s, start_s, start_s + running_s, changed=1))
    return RunResult(
        combination,
        experiment.target,
        tuple(jobs),
        (LinkContention("leaf1->spine1", 1, 1, 3, 1, 1),),
        {"processor_busy": 0.3, "unattributed_bytes": 0},
        stays=Stays(tuple(stays), {"gpus": 7, "network": 5}),
    )


def run(experiment: Experiment, combination: Combination) -> RunResult:
    """All jobs take the same; under MLTCP it is as bad as without in the first ten iterations. Under Cassini
    half of the time is communication, and all of it otherwise."""
    jobs, windows = [], []
    for job in experiment.jobs:
        number = job.spec.iterations
        learning = 200.0 if combination.policy == "mltcp" else iteration_ms(experiment.name, combination)
        ms = (learning,) * 10 + (iteration_ms(experiment.name, combination),) * (number - 10)
        marks = (700,) * 10 + (50,) * (number - 10)
        sent = tuple(each / 2 for each in ms) if combination.policy == "cassini" else ms
        summary = Summary("", "ring", 2, number, ms, sent, sum(ms) / 1e3, 9, 0.1, None, (), sum(marks), marks)
        jobs.append(JobResult(job.name, job.hosts, summary, 90.0, 1, IDEAL_MS))
        lost = 1 if combination.policy == "mltcp" else 6  # by each host, in each iteration
        windows += [
            Window(sum(ms[:after]) / 1e3, job.name, host, 10, None, lost * after, 0)
            for host in job.hosts
            for after in sorted({0, min(LEARNING, number), number})
        ]
    since = {job.name: 5 for job in jobs}
    paced = Paced(1.0, dict.fromkeys(since, 12.0), 4.0, 3, 1.5, 0.012, since=since)
    report = HostReport("h1", (), {}, {}, (1.0, 4.0), (0.5,), 10.0, 1.5, 1_000_000, 100.0)
    link = "left->right"
    names = [job.name for job in jobs] + ([CROSS] if experiment.cross else [])
    shares = {CROSS: (0.0, 60.0, 60.0, 0.0)}
    return RunResult(
        combination,
        experiment.target,
        tuple(jobs),
        (LinkContention(link, 1, 1, 1, 1, 1),),
        {"processor_busy": 0.3, "unattributed_bytes": 0} | ({"cross_mbps": 60.0} if experiment.cross else {}),
        Timeline(
            tuple(Throughput(link, each, 20.0, shares.get(each, (80.0, 20.0, 20.0, 0.0))) for each in names),
            tuple(windows),
        ),
        (),
        (report,) * 2 if combination.policy == "slots" else (),
        paced=paced if combination.policy == "cassini" else Paced(),
    )


def leave(directory: Path, name: str) -> None:
    """Leave what `entrain run --out` would."""
    if name == "slot-rates":
        rates = slot_rates.load(EXPERIMENTS[name])
        slot = FlowSlot(0, 0, 10_000.0, 5_000, 0.5)  # half of what was wanted
        with writing(slot_rates.KIND, directory, rates, resume=False) as trials:
            for control in ("slot_reno", "cubic"):
                trial = Trial(60.0, 16, control=control)
                outcome = Outcome((slot,), 0.5, None)
                trials.add(slot_rates.TrialResult(trial, slot_rates.Goals(), outcome), control)
        return
    put(directory, load_experiment(EXPERIMENTS[name]))


def put(directory: Path, experiment: Experiment) -> None:
    with writing(files.NETWORK, directory, experiment, resume=False) as store:
        for combination in experiment.combinations():
            make = cluster_run if experiment.cluster else run
            store.add(make(experiment, combination), "run")


_FLUID: dict[tuple[str, int, str], float] = {}


@pytest.fixture(autouse=True)
def simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of one module are of the same experiments, so their fluid jobs are simulated once."""

    def mean_jct_s(experiment: Experiment, seed: int, policy: str) -> float:
        key = repr(experiment), seed, policy
        if key not in _FLUID:
            _FLUID[key] = fluid.mean_jct_s(experiment, seed, policy)
        return _FLUID[key]

    monkeypatch.setattr(live_rows, "mean_jct_s", mean_jct_s)


NAMES = [name for section in published.sections() for name in section.experiments]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    directory = tmp_path_factory.mktemp("results")
    for name in dict.fromkeys(NAMES):
        leave(directory / name, name)
    return published.measured([directory])


def test_no_experiment_is_forgotten() -> None:
    """Those that compare with a paper's figures are all in a section."""
    compared = {name for name in EXPERIMENTS if name.startswith(("slots-", "slot-", "mltcp-", "cassini-"))}
    assert compared | {"vclos", "vclos-small", "matrix", "parrot"} == set(NAMES)


HERE = {
    "slots-jct-live": "-21.1 ± 0.0 %",
    "slots-jct-16g-live": "-21.1 ± 0.0 %",
    "slots-jct-vgg19": "+33.3 ± 0.0 %",
    "slots-load-live": "+0.0 ± 0.0 %",
    "slots-loss-slots-1.5": "-6.2 %",
    "slots-loss-slots-cubic-1.5": "5.00",
    "slots-loss-cubic-0.2": "-75.0 %",
    "slots-window-loss-slots-cubic-1": "5.00 ± 0.00",
    "slots-negotiation-grpc": "3.7",
    "slots-host-only": "-21.1 ± 0.0 %",
    "slots-host-only-tcp": "-5.0 ± 0.0 %",
    "mltcp-live-lost": "6.00",
    "mltcp-live-mean": "1.52 to 1.60",
    "vclos-live-jrt-ecmp": "-50.0 %",
    "vclos-live-jwt-source": "-33.3 %",
    "cassini-unfair-live-dlrm": "0.95, 0.95",
    "cassini-two-jobs-shifted": "1.900 to 2.000",
    "cassini-snapshot-4-live": "2.00, 2.00",
    "matrix-live": "1.00",
}
"""What follows from the made-up runs, by claim."""


@pytest.mark.parametrize("name", HERE)
def test_claims_follow_from_runs(everything: dict[str, list[Row]], name: str) -> None:
    claim = next(claim for claim in claims() if claim.id == name)
    result = judged(claim, everything)
    assert result is not None
    assert result.here == HERE[name]


def test_every_live_claim_and_table_has_values(everything: dict[str, list[Row]]) -> None:
    never = {"mltcp-interleaved"}  # no made-up run converges
    for claim in claims():
        if claim.live and claim.id not in never:
            assert judged(claim, everything) is not None, claim.id
    for section in published.sections():
        for pivot in section.table if section.experiments else ():
            known = {row.figure for row in chosen(section.rows(everything), pivot.where)}
            shown = {figure.removesuffix("_least").removesuffix("_most") for figure in known}
            assert shown & set(pivot.figures), f"{section.title}: {pivot.figures}"


def value(rows: list[Row], **where: str) -> float:
    (row,) = (row for row in chosen(rows, where) if row.seed is None)
    return row.value


def test_rows_have_what_runs_measured(everything: dict[str, list[Row]]) -> None:
    slots = everything["live/slots-jct"]
    assert value(slots, figure="iteration_ms", policy="slots", job="vgg19") == 150.0
    assert len(chosen(slots, {"figure": "mean_jct_s", "policy": "slots"})) == 11  # ten seeds, and the mean
    assert value(slots, figure="negotiation_p50_ms_least", policy="slots") == 2.5
    assert value(slots, figure="carrier_share_percent", policy="slots") == pytest.approx(0.8)
    fluids = ("least left first, fluid", "max-min, fluid")
    ordered, shared = (value(slots, figure="mean_jct_s", policy=name) for name in fluids)
    assert ordered < shared
    tcp = everything["live/slots-tcp-flow"]
    assert value(tcp, figure="tcp_share_percent", policy="slots") == 75.0
    two = everything["live/cassini-two-jobs"]
    assert value(two, figure="mean_to_alone", policy="cassini, reno") == pytest.approx(1.9)
    assert value(two, figure="corrections", policy="cassini, reno") == 3
    loss = everything["live/slots-loss-1.5"]
    assert value(loss, figure="iteration_to_base", policy="cubic", job="vgg16") == pytest.approx(4.0)
    cluster = everything["live/vclos"]
    assert value(cluster, figure="stay_mean_jrt_s", policy="ecmp") == 20.0
    assert value(cluster, figure="fragmentation_gpu", policy="ecmp") == 7
    rates = everything["live/slot-rates"]
    assert value(rates, figure="rate_error_mean_percent", policy="cubic") == pytest.approx(50.0)
    assert {row.command for row in slots} == {"entrain run experiments/slots-jct.toml"}


def test_results_of_one_experiment_may_be_in_several_directories(tmp_path: Path) -> None:
    text = EXPERIMENTS["mltcp-seeds"].read_text(encoding="utf-8")
    before = next(line for line in text.splitlines() if line.startswith("congestion_control"))
    for control in ("cubic", "bpf_dctcp"):
        path = tmp_path / "mltcp-seeds.toml"
        path.write_text(text.replace(before, f'congestion_control = ["{control}"]'))
        put(tmp_path / control, load_experiment(path))
    rows = published.measured([tmp_path])["live/mltcp-seeds"]
    assert {row.policy for row in rows} == {"mltcp_cubic", "mltcp_dctcp"}
    put(tmp_path / "again", load_experiment(tmp_path / "mltcp-seeds.toml"))
    with pytest.raises(BadInput, match="both hold results of mltcp-seeds with mltcp_dctcp"):
        published.measured([tmp_path])
    with pytest.raises(BadInput, match="no results"):
        published.measured([tmp_path / "nothing"])


def entrain(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command; modules in `path` stand in for installed ones."""
    command = [sys.executable, "-m", "entrain.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_report_shows_and_draws_what_was_kept(tmp_path: Path) -> None:
    """As `entrain run` would have: from the runs alone, of each experiment below the directory."""
    for name in ("slots-two-jobs", "slot-rates"):
        leave(tmp_path / name, name)
    (tmp_path / "mininet.py").write_text("raise ModuleNotFoundError('it is not needed', name='mininet')")
    done = entrain("report", str(tmp_path), "--draw", path=tmp_path)
    assert done.returncode == 0, done.stderr
    for shown in ("slots-two-jobs on softswitch", "vgg19", "goals", "slot_reno"):
        assert shown in done.stdout
    for picture in ("iterations.png", "throughput.png", "results.png", "overhead.png"):
        assert (tmp_path / "slots-two-jobs" / picture).stat().st_size > 10_000
    assert (tmp_path / "slot-rates" / "results.png").exists()
    printed = json.loads(entrain("report", str(tmp_path / "slots-two-jobs"), "--json").stdout)
    assert printed == json.loads((tmp_path / "slots-two-jobs" / "results.json").read_text(encoding="utf-8"))
    assert entrain("report", str(tmp_path / "slots-two-jobs" / "runs")).returncode == 2
