"""Experiments on a cluster: what a file may say, which jobs arrive, and what running them measures."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from entrain.cluster import Arrival
from entrain.experiment import Experiment, load_experiment
from entrain.results.cluster import Stay, times
from entrain.results.values import series_of
from entrain.run.cluster import networks
from machine.errors import BadInput
from schedulers.placement.cluster import Placement
from tests.entrain.running import results

FILE = """
[experiment]
name = "small"
seed = [1, 2]

[cluster]
leaves = 2
spines = 2
servers_per_leaf = 2
gpus_per_server = 2
links_per_pair = 2
strategy = ["ecmp", "recmp", "vclos"]

[arrivals]
jobs = 40
every_s = 1.5
gpus = [2, 4, 8]
duration_s = [3, 5]
models = ["vgg16", "moe"]
collectives = ["ring", "halving-doubling"]
"""

TRACE = """job,gpus,arrival_s,duration_s,pattern,model
late,4,5,10,ring,resnet50
early,8,0,10,halving-doubling,
"""


def load(tmp_path: Path, text: str = FILE, trace: str = TRACE) -> Experiment:
    (tmp_path / "jobs.csv").write_text(trace)
    path = tmp_path / "small.toml"
    path.write_text(text)
    return load_experiment(path)


def traced(text: str = FILE) -> str:
    return text.partition("[arrivals]")[0] + 'trace = "jobs.csv"\n'


def test_a_seed_draws_the_same_jobs_for_every_strategy(tmp_path: Path) -> None:
    plan = load(tmp_path).cluster
    assert plan is not None
    jobs = plan.arrivals(1)
    assert jobs == plan.arrivals(1) != plan.arrivals(2)
    assert len(jobs) == len({job.name for job in jobs}) == 40
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)
    assert {job.gpus for job in jobs} == {2, 4, 8}
    assert {(job.model, job.collective) for job in jobs} == {
        ("vgg16", "ring"),
        ("vgg16", "halving-doubling"),
        ("moe", "all-to-all"),
    }


def test_arrivals_are_scaled_to_the_load_of_the_gpus(tmp_path: Path) -> None:
    def jobs(percent: float) -> tuple[Arrival, ...]:
        plan = load(tmp_path, FILE.replace("every_s = 1.5", f"gpu_load = {percent}")).cluster
        assert plan is not None
        return plan.arrivals(1)

    few, many = jobs(40), jobs(80)
    for percent, found in ((40, few), (80, many)):
        busy_s = sum(job.gpus * job.duration_s for job in found) / 8
        assert busy_s / found[-1].arrival_s == pytest.approx(percent / 100)
    assert [replace(job, arrival_s=0.0) for job in few] == [replace(job, arrival_s=0.0) for job in many]


def test_policies_whose_jobs_may_come_and_go_run_with_each_strategy(tmp_path: Path) -> None:
    text = FILE.replace('name = "small"', 'name = "small"\npolicy = ["none", "slots-15"]')
    experiment = load(tmp_path, text.replace("seed = [1, 2]", 'congestion_control = ["cubic", "reno"]'))
    runs = [(each.strategy, each.policy, each.control) for each in experiment.combinations()]
    names = [series_of(experiment, each) for each in experiment.combinations()]
    assert runs[:3] == [
        ("ecmp", "none", "cubic"),
        ("ecmp", "none", "reno"),
        ("ecmp", "slots-15", "slot_cubic"),
    ]
    assert names[:3] == ["ecmp cubic", "ecmp reno", "ecmp slots-15"]
    assert len(set(names)) == len(runs) == 9
    with pytest.raises(BadInput, match='loads = "emulated": not with routing vclos'):
        load(tmp_path, text.replace('"ecmp", "recmp", ', "") + '\n[slots-15]\nloads = "emulated"\n')


def test_a_job_works_about_as_long_as_it_says(tmp_path: Path) -> None:
    plan = load(tmp_path, traced()).cluster
    assert plan is not None
    for job in plan.listed:
        iteration_s = job.duration_s / plan.iterations(job)
        assert 10 <= plan.iterations(job) * iteration_s <= 10 + iteration_s


def test_a_trace_lists_the_jobs_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    plan = load(tmp_path, traced()).cluster
    assert plan is not None
    assert [(job.name, job.model) for job in plan.arrivals(1)] == [("early", "vgg16"), ("late", "resnet50")]
    assert plan.arrivals(1) == plan.arrivals(2)


def test_every_strategy_and_seed_is_a_run_and_recmp_has_a_network_of_its_own(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    runs = [(each.strategy, each.routing, each.seed) for each in experiment.combinations()]
    assert runs == [
        (name, routing, seed)
        for name, routing in (("ecmp", "ecmp"), ("recmp", "ecmp"), ("vclos", "source"))
        for seed in (1, 2)
    ]
    parts = list(networks(experiment))
    assert [[each.strategy for each in part.combinations()][::2] for part in parts] == [
        ["ecmp", "vclos"],
        ["recmp"],
    ]
    spines = [sum(switch.role == "spine" for switch in part.topology.switches) for part in parts]
    assert spines == [2, 3]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"recmp"', '"rcmp"', "[cluster], strategy, item 2: must be"),
        ('"recmp"', '"rcmp"', "did you mean recmp?"),
        ('"recmp"', '"ocs-vclos"', "[cluster], ocs: is false, and ocs-vclos makes circuits"),
        (
            '"recmp"',
            '"best"',
            "strategy, item 2: must be one that a network runs (ecmp, recmp, source, apart,",
        ),
        ('"recmp"', '"vclos"', "strategy: 'vclos' is listed 2 times"),
        ("[2, 4, 8]", "[2, 16]", "[arrivals], gpus: 16: ecmp: 16 is more than the 8 GPUs of the cluster"),
        ("[2, 4, 8]", "[1]", "[arrivals], gpus, item 1: must be at least 2"),
        ("[3, 5]", "[5, 3]", "[arrivals], duration_s: put the shorter time first"),
        ('"moe"', '"mo"', "[arrivals], models, item 2"),
        ("[arrivals]", "trace = 'jobs.csv'\n[arrivals]", "[cluster], trace: give either"),
        ("leaves = 2", "leaves = 0", "[cluster], leaves"),
        ('name = "small"', 'name = "small"\npolicy = "cassini"', "policy: cassini must know all jobs"),
        ('name = "small"', 'name = "small"\npolicy = "slots"\nalone_iterations = 2', "alone_iterations: not"),
        ("every_s = 1.5", "", "[arrivals], every_s: give either every_s"),
        ("every_s = 1.5", "every_s = 1.5\ngpu_load = 50", "[arrivals], every_s: give either every_s"),
        ('name = "small"', 'name = "small"\nrouting = "ecmp"', "[experiment], routing: not with [cluster]"),
        ("[cluster]", "[topology]\nkind = 'dumbbell'\n[cluster]", "[topology]: not with [cluster]"),
    ],
)
def test_a_wrong_file_is_refused_with_key_and_remedy(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(BadInput) as error:
        load(tmp_path, FILE.replace(old, new, 1))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("late,4", "late,1", "line 2: gpus: a job of one GPU uses no network"),
        ("late,4", "early,4", "line 3: job: 'early' stands in line 2 already"),
        ("late,4", "late,9", "job late: ecmp: 9 is more than the 8 GPUs"),
        ("resnet50", "resnet", "line 2: model"),
        ("10,ring", "10,circle", "line 2: pattern"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(BadInput) as error:
        load(tmp_path, traced(), TRACE.replace(old, new))
    assert words in str(error.value)


def test_waiting_and_running_make_up_completion() -> None:
    placement = Placement("j", 0, (0, 1), (0, 0))
    found = times([Stay(placement, 1.0, 3.0, 7.0), Stay(placement, 0.0, 0.0, 2.0)])
    assert (found["jwt_s_mean"], found["jrt_s_mean"], found["jct_s_mean"]) == (1.0, 3.0, 4.0)
    assert found["jct_s_p99"] is None  # two jobs have none
    assert times([Stay(placement, 0.0, 0.0, 1.0 + n) for n in range(100)])["jct_s_p99"] == pytest.approx(
        99.01
    )


RUN = """
[experiment]
name = "run"
alone_iterations = 2

[cluster]
leaves = 2
spines = 3
servers_per_leaf = 3
gpus_per_server = 2
links_per_pair = 2
ocs = true
strategy = ["ocs-vclos", "vclos"]
rate_mbps = 100
server_rate_mbps = 200
scale = 1000
barrier = true
trace = "jobs.csv"
"""

SCHEDULED = """
[experiment]
name = "scheduled"
policy = ["none", "slots-15"]

[cluster]
leaves = 4
spines = 1
servers_per_leaf = 1
gpus_per_server = 2
strategy = ["apart"]
rate_mbps = 50
scale = 1000
parts = 2

[arrivals]
jobs = 4
gpu_load = 90
gpus = [4]
duration_s = [1.0, 1.5]
models = ["vgg16", "resnet50"]
collectives = ["ring", "parameter-server"]
"""


@pytest.mark.root
def test_a_slot_scheduler_schedules_jobs_that_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "scheduled.toml").write_text(SCHEDULED)
    found = results(tmp_path / "scheduled.toml", "--out", tmp_path / "out")
    plain, scheduled = found["runs"]
    assert [job["name"] for job in plain["jobs"]] == [job["name"] for job in scheduled["jobs"]]
    assert not plain["scheduling"]
    assert len(scheduled["scheduling"]) == 8
    assert scheduled["overhead"]["agents_cpu_s"] > 0
    for run in (plain, scheduled):
        for job in run["jobs"]:
            servers = [gpu // 2 for gpu in job["gpus"]]
            assert len(set(servers)) == 4
    for host in scheduled["scheduling"]:  # each has a rank of every other job at least
        assert host["counts"]["decisions"] > 0
        assert host["counts"].get("left_to_tcp", 0) == 0


JOBS = """job,gpus,arrival_s,duration_s,pattern,model
first,8,0,1.5,all-to-all,moe
second,4,0,0.5,ring,resnet50
third,12,0.1,0.5,halving-doubling,vgg16
"""


@pytest.mark.root
def test_under_vclos_at_most_one_flow_of_all_jobs_is_on_any_link(tmp_path: Path) -> None:
    """The first two jobs run side by side, both over the spines; the third needs all GPUs."""
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "run.toml").write_text(RUN)
    command = [sys.executable, "-m", "entrain.cli", "run", str(tmp_path / "run.toml"), "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["strategy"] for run in runs] == ["ocs-vclos", "vclos"]
    for run in runs:
        first, second, third = run["jobs"]
        assert second["start_s"] < first["end_s"]
        assert [job["max_flows_per_link"] for job in run["jobs"]] == [1, 1, 1]
        assert run["max_flows_per_link_all"] == 1
        assert third["start_s"] >= max(first["end_s"], second["end_s"])
        assert [each["cause"] for each in third["waiting"]] == ["gpus"]
        assert run["fragmentation"]["gpu"] >= 1
        assert run["jwt_s_mean"] <= third["jwt_s"]
        for job in run["jobs"]:
            assert job["jct_s"] == pytest.approx(job["jwt_s"] + job["jrt_s"])
            assert job["iteration_ms_alone"] > 0
        assert run["over_alone_mean"] > 0
        assert run["overhead"]["unattributed_bytes"] == 0
    rewired, wired = runs
    assert rewired["circuits_changed"] == sum(job["circuits_changed"] for job in rewired["jobs"]) > 0
    assert wired["circuits_changed"] == 0
    ours, theirs = ({str(link) for link in job["links"]} for job in wired["jobs"][:2])
    assert ours
    assert theirs
    assert not ours & theirs
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"results.png", "cluster.png"}
