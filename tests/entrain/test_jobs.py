"""Job files, `[cluster]` tables, and how the commands show jobs: what is wrong is named with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.cluster import cluster_of, failures, hosts_by_gpu, port_name
from controlplane.topology import dumbbell, leaf_spine, load_topology
from entrain.experiment import load_experiment
from entrain.jobs import ranges, read_job
from entrain.live_cluster import load_setup, servers_of
from machine.errors import BadInput
from machine.terminal import duration
from mininet_topos.servers import Servers
from schedulers.placement.cluster import Cluster, Port

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = '[topology]\nkind = "leaf-spine"\nleaves = 2\nspines = 3\nhosts_per_leaf = 4\nlinks_per_pair = 2\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[job]\ngpus = 0\n", "[job], gpus: must be at least 1, is 0"),
        ("[job]\nname = 'a b'\ngpus = 1\n", "[job], name: must begin with a letter or digit"),
        ("[job]\ngpus = 1\npattern = 'rings'\n", "did you mean ring?"),
        ("[job]\ngpus = 1\nduration_ms = 5\n", "[job], duration_ms: "),
        ("[job]\nname = 'a'\n", "[job], gpus: this key is missing"),
        ("gpus = 1\n", "gpus: unknown key"),
    ],
)
def test_a_wrong_job_file_names_key_and_remedy(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        read_job(path)
    assert f"{path}: " in str(error.value)
    assert words in str(error.value)


def test_a_job_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "bert.toml"
    path.write_text("[job]\ngpus = 8\n")
    assert read_job(path) == {"name": "bert", "gpus": 8, "pattern": "ring"}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            "gpus_per_server = 3",
            "gpus_per_server: 4 hosts of a leaf cannot be divided",
        ),
        ("gpus_per_server = 2\nstrategy = 'vlcos'", "did you mean vclos?"),
        ("gpus_per_server = 2\nstrategy = 'best'", "others are for `entrain place` and `entrain simulate`"),
        ("gpus_per_server = 2\nserver_rate_mbps = 0", "[cluster], server_rate_mbps: must be"),
        ("gpus_per_server = 2\nstrategy = 'ocs-vclos'", "[cluster], strategy: ocs-vclos makes circuits"),
        ("gpus_per_server = 2\nqueue = 'lifo'", "did you mean fifo?"),
        ("strategy = 'vclos'", "[cluster], gpus_per_server: this key is missing"),
    ],
)
def test_a_wrong_cluster_names_key_and_remedy(table: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f"{TOPOLOGY}[cluster]\n{table}\n")
    with pytest.raises(BadInput) as error:
        load_setup(path, load_topology(path))
    assert f"{path}: " in str(error.value)
    assert words in str(error.value)


def test_a_topology_is_a_cluster_with_a_gpu_behind_each_host(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f"{TOPOLOGY}[cluster]\ngpus_per_server = 2\nqueue = 'edf'\nbackfill = true\n")
    topology = load_topology(path)
    setup = load_setup(path, topology)
    assert setup is not None
    assert setup.cluster == Cluster(2, 3, 2, 2, links_per_pair=2)
    assert (setup.strategy.name, setup.order, setup.backfill) == ("vclos", "edf", True)
    assert hosts_by_gpu(topology) == tuple(f"h{n}" for n in range(1, 9))
    assert port_name(topology, Port("leaf", 1, 5)) == "leaf2-eth10"
    assert port_name(topology, Port("spine", 2, 3)) == "spine3-eth4"
    path.write_text(TOPOLOGY)
    assert load_setup(path, topology) is None


def test_an_experiment_on_a_cluster_is_one_too_by_its_first_strategy() -> None:
    path = ROOT / "experiments/vclos-small.toml"
    experiment = load_experiment(path)
    assert experiment.cluster is not None
    setup = load_setup(path, experiment.topology)
    assert setup is not None
    first = experiment.cluster.table.strategy[0]
    assert setup.strategy.name == first
    assert setup.cluster.gpus == experiment.cluster.cluster(first).gpus == len(experiment.topology.hosts)


def test_servers_are_those_of_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f"{TOPOLOGY}[cluster]\ngpus_per_server = 2\nserver_rate_mbps = 400\n")
    hosts = (("h1", "h2"), ("h3", "h4"), ("h5", "h6"), ("h7", "h8"))
    assert servers_of(path, load_topology(path)) == Servers(hosts, 400.0)
    path.write_text(f"{TOPOLOGY}[cluster]\ngpus_per_server = 2\n")
    assert not servers_of(path, load_topology(path)).hosts
    small = ROOT / "experiments/vclos-small.toml"
    experiment = load_experiment(small)
    assert experiment.cluster is not None
    assert servers_of(small, experiment.topology) == experiment.cluster.servers


def test_other_networks_are_no_clusters() -> None:
    with pytest.raises(ValueError, match="is not a leaf-spine network"):
        cluster_of(dumbbell(2), 1)


def test_what_a_dead_switch_takes_along_is_known() -> None:
    topology = leaf_spine(2, 2, 2)
    lost = failures(topology, {"leaf2": "does not answer", "spine1": "does not answer", "leaf1": "ready"})
    assert set(lost.gpus) == {2, 3}
    assert set(lost.ports) == {
        Port("leaf", 1, 0),
        Port("leaf", 1, 1),
        Port("spine", 0, 0),
        Port("spine", 0, 1),
    }


def test_names_and_durations_are_short() -> None:
    assert ranges(["h1", "h2", "h3", "h7", "h9", "h10", "spine1", "x"]) == "h1-h3 h7 h9-h10 spine1 x"
    assert ranges([]) == ""
    assert [duration(s) for s in (0, 119, 600, 7200, 90000, 1e6)] == [
        "0 s",
        "119 s",
        "10 min",
        "2.0 h",
        "25.0 h",
        "11.6 d",
    ]
