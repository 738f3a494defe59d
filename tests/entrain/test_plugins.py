"""What an installed distribution adds by entry points is used like what is ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

EXPERIMENT = """
[experiment]
name = "shifted"
policy = ["none", "shift"]
congestion_control = "cubic"

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 100
bottleneck_rate_mbps = 100

[[job]]
name = "left"
collective = "there-and-back"
bytes = 100_000
iterations = 2
hosts = ["h1", "h3"]

[[job]]
name = "right"
collective = "there-and-back"
bytes = 100_000
iterations = 2
hosts = ["h2", "h4"]
[job.shift]
by_ms = 150
"""

COLLECTIVE = """
from workloads.collectives import Options, Program, Transfer


def there_and_back(ranks: int, options: Options) -> Program:
    there = tuple(Transfer(rank, 0, 0, 0, 1, True) for rank in range(1, ranks))
    back = tuple(Transfer(0, rank, 0, 0, 1, False) for rank in range(1, ranks))
    return Program("there-and-back", ranks, 1, (there, back), tuple(range(ranks)))
"""

SIMULATOR = """
from schedulers.coflow.rivals import Fifo


def newest_first() -> Fifo:
    return Fifo()
"""

STRATEGY = """
from dataclasses import replace

from schedulers.placement.strategies import STRATEGIES

anywhere = replace(STRATEGIES["vclos"], name="elsewhere", locality=False)
ranked = STRATEGIES["crux"]
"""

CLUSTER = """
[experiment]
name = "placed"

[cluster]
leaves = 2
spines = 3
servers_per_leaf = 3
gpus_per_server = 2
links_per_pair = 2
ocs = true
strategy = ["anywhere", "ocs-relaxed"]
rate_mbps = 100
scale = 1000

[arrivals]
jobs = 2
every_s = 0
gpus = [8]
duration_s = [0.5, 1]
"""

ENTRIES = {
    "entrain.policies": "shift = shifts:shift",
    "entrain.collectives": "there-and-back = ours:there_and_back",
    "entrain.simulator_policies": "my-fifo = simulated:newest_first",
    "entrain.strategies": "anywhere = placed:anywhere\nranked = placed:ranked",
}


def installed(site: Path, entries: dict[str, str], **modules: str) -> Path:
    """Install a distribution to `site`, as pip does: modules and their metadata."""
    metadata = site / "guest-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "".join(f"[{group}]\n{entry}\n\n" for group, entry in entries.items())
    )
    for name, text in modules.items():
        (site / f"{name}.py").write_text(text)
    return site


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    """A distribution with the policy of examples/policy, and with one of each other kind."""
    policy = (ROOT / "examples/policy/shifts.py").read_text(encoding="utf-8")
    modules = {"shifts": policy, "ours": COLLECTIVE, "simulated": SIMULATOR, "placed": STRATEGY}
    return installed(tmp_path / "site", ENTRIES, **modules)


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of `site` installed."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def load(site: Path, file: Path, text: str) -> subprocess.CompletedProcess[str]:
    file.write_text(text)
    code = (
        "import sys; from pathlib import Path; from entrain.experiment import load_experiment\n"
        "from entrain.policies import label, series\n"
        "found = load_experiment(Path(sys.argv[1]))\n"
        "for each in found.combinations():\n"
        "    print(each.policy, label(each.policy), '|', series(each.policy, each.control))\n"
        "for job in found.jobs: print(job.name, dict(job.tables['shift']), len(job.spec.program().steps))\n"
    )
    return python(site, "-c", code, str(file))


def test_an_installed_policy_has_keys_controls_and_a_label(guest: Path, tmp_path: Path) -> None:
    done = load(guest, tmp_path / "shifted.toml", EXPERIMENT)
    assert done.stdout.splitlines() == [
        "none TCP | cubic",
        "shift time shifts | shift cubic",
        "left {'by_ms': 0.0} 2",
        "right {'by_ms': 150.0} 2",
    ], done.stderr


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("by_ms = 150", "bi_ms = 150", "[[job]] 2, shift, bi_ms: unknown key; did you mean by_ms?"),
        ("by_ms = 150", 'by_ms = "150"', '[[job]] 2, shift, by_ms: must be a number, is "150"'),
        ('"shift"]', '"shifft"]', "[experiment], policy, item 2: must be"),
        ('"shift"]', '"shifft"]', "did you mean shift?"),
        ('"there-and-back"', '"there-and-bac"', "did you mean there-and-back?"),
    ],
)
def test_mistakes_with_it_are_told_as_any(guest: Path, tmp_path: Path, old: str, new: str, told: str) -> None:
    done = load(guest, tmp_path / "shifted.toml", EXPERIMENT.replace(old, new, 1))
    assert done.returncode == 1
    assert told in done.stderr


def test_what_cannot_be_loaded_is_told_with_its_distribution(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", {"entrain.policies": "shift = nowhere:shift"})
    done = python(site, "-c", "from entrain.policies import policies; policies()")
    assert (
        "guest 1.0 registers 'shift' in entrain.policies, but nowhere:shift cannot be loaded" in done.stderr
    )


def test_a_name_of_ours_is_not_replaced(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", {"entrain.policies": "slots = shifts:shift"}, shifts="shift = 1")
    done = python(site, "-c", "from entrain.policies import policies; policies()")
    assert "'slots' in entrain.policies, a name that is already taken" in done.stderr


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", {"entrain.policies": "shift = shifts:shift"}, shifts="shift = 1")
    done = python(site, "-c", "from entrain.policies import policies; policies()")
    assert "'shift' is 1" in done.stderr


def test_an_installed_simulator_policy_schedules_coflows(guest: Path) -> None:
    """What it returns is ours here, so its results are ours, under its own name."""
    command = ["-m", "entrain.cli", "simulate", "coflow-fb2010", "--limit", "20", "--json"]
    done = python(guest, *command, "--policy", "my-fifo,fifo", "--workers", "1")
    assert done.returncode == 0, done.stderr
    mine, ours = json.loads(done.stdout)["points"]
    assert (mine["policy"], ours["policy"]) == ("my-fifo", "fifo")
    assert mine["mean_cct_s"] == ours["mean_cct_s"]


def test_an_installed_strategy_places_jobs(guest: Path) -> None:
    files = ["experiments/cluster-32.toml", "--jobs", "experiments/cluster-32-jobs.csv"]
    done = python(guest, "-m", "entrain.cli", "place", *files, "--strategy", "anywhere", "--json")
    assert done.returncode == 0, done.stderr
    placed = json.loads(done.stdout)
    assert (placed["strategy"], placed["locality"]) == ("anywhere", False)
    wrong = python(guest, "-m", "entrain.cli", "place", *files, "--strategy", "anywere")
    assert "did you mean anywhere?" in wrong.stderr


def test_a_network_runs_an_installed_strategy_that_switches_can_carry_out(
    guest: Path, tmp_path: Path
) -> None:
    """In experiments and in topology files, under the name of its entry point."""
    code = (
        "import sys; from pathlib import Path\n"
        "from controlplane.topology import load_topology\n"
        "from entrain.experiment import load_experiment; from entrain.live_cluster import load_setup\n"
        "found = load_experiment(Path(sys.argv[1]))\n"
        "print(*[(each.strategy, each.routing) for each in found.combinations()])\n"
        "setup = load_setup(Path(sys.argv[2]), load_topology(Path(sys.argv[2])))\n"
        "print(setup.strategy.name, setup.strategy.locality)\n"
    )
    experiment, network = tmp_path / "placed.toml", tmp_path / "network.toml"
    topology = '[topology]\nkind = "leaf-spine"\nleaves = 2\nspines = 2\nhosts_per_leaf = 2\n'
    for name in ("anywhere", "ranked"):
        experiment.write_text(CLUSTER.replace("anywhere", name))
        network.write_text(f'{topology}[cluster]\ngpus_per_server = 1\nstrategy = "{name}"\n')
        done = python(guest, "-c", code, str(experiment), str(network))
        if name == "anywhere":
            combinations = "('anywhere', 'source') ('ocs-relaxed', 'source')"
            assert done.stdout.splitlines() == [combinations, "anywhere False"], done.stderr
        else:
            assert "strategy, item 1: must be one that a network runs (ecmp, " in done.stderr


@pytest.mark.root
def test_jobs_run_on_a_network_under_an_installed_strategy(guest: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "placed.toml", tmp_path / "out"
    file.write_text(CLUSTER)
    done = python(guest, "-m", "entrain.cli", "run", str(file), "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["strategy"] for run in runs] == ["anywhere", "ocs-relaxed"]
    for run in runs:
        assert len(run["jobs"]) == 2
        assert run["max_flows_per_link_all"] == 1
    assert {path.name for path in out.glob("*.png")} >= {"results.png", "cluster.png"}


@pytest.mark.root
def test_an_experiment_runs_with_an_installed_policy_and_collective(guest: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "shifted.toml", tmp_path / "out"
    file.write_text(EXPERIMENT)
    done = python(guest, "-m", "entrain.cli", "run", str(file), "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    plain, shifted = json.loads(done.stdout)["runs"]
    assert (plain["policy"], shifted["policy"]) == ("none", "shift")
    assert plain["policy_report"] == {}
    assert shifted["policy_report"] == {"by_ms": {"left": 0.0, "right": 150.0}}
    assert (out / "results.png").stat().st_size > 10_000
