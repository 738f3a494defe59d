"""Jobs of live clusters as fluid: what one takes alone, and what an order of several gains."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrain.experiment import Experiment, load_experiment
from entrain.fluid import BOUNDS, has_bounds, mean_jct_s
from simulation.experiments.registry import points
from simulation.experiments.slots import run_bound
from simulation.results import Completion

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

FILE = """
[experiment]
name = "load"

[cluster]
leaves = 4
spines = 1
servers_per_leaf = 1
gpus_per_server = 2
strategy = ["apart"]
rate_mbps = 100
scale = 100

[arrivals]
jobs = {jobs}
gpu_load = 100
gpus = [4]
duration_s = [3, 9]
models = ["vgg16"]
collectives = ["{collective}"]
"""


def cluster(tmp_path: Path, jobs: int, collective: str = "ring", servers: int = 1) -> Experiment:
    path = tmp_path / "load.toml"
    text = FILE.format(jobs=jobs, collective=collective)
    path.write_text(text.replace("servers_per_leaf = 1", f"servers_per_leaf = {servers}"))
    return load_experiment(path)


@pytest.mark.parametrize(("collective", "sent"), [("ring", 2 * 3 / 4), ("parameter-server", 1.0 + 1.0)])
def test_a_job_alone_computes_and_sends_at_the_links_rate(
    tmp_path: Path, collective: str, sent: float
) -> None:
    """A ring of four sends 3/2 of the model from each rank. Two workers send it to two servers, each a half,
    and get it back after that, as there is one part."""
    experiment = cluster(tmp_path, 1, collective)
    assert experiment.cluster is not None
    (job,) = experiment.cluster.arrivals(1)
    seconds = 0.141 + sent * 528 * 2**20 / 100 / (0.95 * 100e6 / 8)
    expected = experiment.cluster.iterations(job) * seconds
    for policy in ("fair", "varys"):
        assert mean_jct_s(experiment, 1, policy) == pytest.approx(expected)


def test_jobs_that_share_servers_gain_by_an_order(tmp_path: Path) -> None:
    experiment = cluster(tmp_path, 12)
    ordered, shared = (mean_jct_s(experiment, 1, policy) for policy in ("varys", "fair"))
    assert ordered < shared


def test_only_servers_with_one_link_each_have_bounds(tmp_path: Path) -> None:
    assert has_bounds(cluster(tmp_path, 1))
    assert not has_bounds(cluster(tmp_path, 1, servers=2))
    assert not has_bounds(cluster(tmp_path, 1, "halving-doubling"))


def test_the_testbeds_jobs_take_what_the_simulated_experiment_says() -> None:
    """`entrain simulate slots-bound` has the jobs before their division by 50."""
    experiment = load_experiment(EXPERIMENTS / "slots-bound.toml")
    assert has_bounds(experiment)
    for policy in BOUNDS:
        (base,) = [each for each in points("slots-bound", None, policy, None, 0)[1] if each["gbps"] == 10]
        simulated = run_bound({**base, "draws": 1}).figures
        assert isinstance(simulated, Completion)
        assert mean_jct_s(experiment, 1, policy) == pytest.approx(simulated.mean_jct_s, rel=1e-6)


def test_cross_traffic_takes_its_share_from_fluid_jobs() -> None:
    """The jobs of both files are the same, and so are their starts."""
    without, crossed = (
        load_experiment(EXPERIMENTS / f"{name}.toml") for name in ("slots-bound", "slots-jct")
    )
    assert has_bounds(crossed)
    for policy in BOUNDS:
        assert mean_jct_s(crossed, 1, policy) > 1.05 * mean_jct_s(without, 1, policy)


def test_capped_cross_traffic_has_no_bounds(tmp_path: Path) -> None:
    path = tmp_path / "slots-jct.toml"
    text = (EXPERIMENTS / path.name).read_text(encoding="utf-8")
    path.write_text(text.replace("every_ms = 2000", "every_ms = 2000\nrate_mbps = 20"))
    assert not has_bounds(load_experiment(path))
