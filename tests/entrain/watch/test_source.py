"""What is read: rates from counters, plans from load tables, jobs, agents; and the end of a network."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from controlplane import api_pb2 as api
from controlplane.client import RUNS, RunningNetwork, choose
from controlplane.topology import leaf_spine
from entrain.certificates import issue
from entrain.watch.source import Ended, Latest, RemoteAgents, Source
from hostbpf.rpc.agent_pb2_grpc import add_HostServicer_to_server
from machine.errors import BadInput, EntrainError
from machine.tls import add_port, identity_of
from tests.entrain.watch.network import JOB, PLANNED, USED, Agent, Controller

pytestmark = pytest.mark.sockets

Watched = tuple[RunningNetwork, Controller]


def test_rates_are_what_counters_grow_by(watched: Watched) -> None:
    *_, last = itertools.islice(Source(watched[0], 50).snapshots(), 4)
    links = {link.name: link for link in last.links}
    assert len(links) == 16  # twelve that leave a switch, four that leave a host
    for name, mbps in USED.items():
        assert links[name].measured_mbps == pytest.approx(mbps, rel=0.01)
        assert links[name].used == pytest.approx(mbps / 100, rel=0.01)
    assert links["leaf1->spine1"].planned_mbps == pytest.approx(PLANNED)
    assert links["leaf1->spine1"].slots[:8] == (PLANNED,) * 8
    assert links["h1->leaf1"].planned_mbps is None, "no switch plans what a host sends"
    assert [each.measured_mbps for each in last.history["leaf2->spine2"]] == [None, 0, 0, 0]


def test_links_have_their_queues_where_these_are_told(watched: Watched) -> None:
    snapshot = next(Source(watched[0]).snapshots())
    queued = {link.name: (link.backlog_bytes, link.dropped_packets) for link in snapshot.links}
    assert queued["leaf2->spine1"] == (6000, 12) and queued["h1->leaf1"] == (0, 0)
    assert queued["h2->leaf1"] == (None, None)
    assert [relay.dropped_packets for relay in snapshot.relays] == [2]


def test_jobs_agents_and_switches_are_told(watched: Watched) -> None:
    snapshot = next(Source(watched[0]).snapshots())
    vgg, resnet = snapshot.jobs
    assert (vgg.name, vgg.done, vgg.iterations) == (JOB, 50, 100)
    assert vgg.over_ideal == pytest.approx(200 / 160)
    assert resnet.over_ideal == pytest.approx(300 / 160)
    one, other = snapshot.agents
    assert (one.flows, one.negotiation_ms, one.problem) == (2, 2.0, "")
    assert other.problem.startswith("does not answer at unix:")
    assert snapshot.switches[0].drops == {"NO_ROUTE": 3, "LATE": 0}
    assert snapshot.circuits[0].job == JOB


def test_agents_of_other_machines_are_asked_over_tls_and_must_be_their_hosts(
    watched: Watched, tmp_path: Path
) -> None:
    topology = leaf_spine(leaves=2, spines=2, hosts_per_leaf=2)
    issue(topology, tmp_path / "certs", 1, readers=["anna"])
    server = grpc.server(ThreadPoolExecutor(4))
    add_HostServicer_to_server(Agent(), server)
    port = add_port(server, "127.0.0.1:0", identity_of(tmp_path / "certs", "h3"))
    server.start()
    try:
        remote = RemoteAgents(f"127.0.0.1:{port}", identity_of(tmp_path / "certs", "anna"))
        snapshot = next(Source(watched[0], remote=remote).snapshots())
    finally:
        server.stop(None).wait()
    agents = {agent.host: agent for agent in snapshot.agents}
    assert (agents["h1"].problem, agents["h3"].problem, agents["h3"].flows) == ("", "", 2)
    assert "with a certificate of h4" in agents["h4"].problem, "h3 answers there"
    assert RemoteAgents("{host}.rack:7", remote.identity).of(api.Host(name="h4")) == "h4.rack:7"


def test_a_network_that_ends_says_so(watched: Watched) -> None:
    network, controller = watched
    latest = Latest(Source(network, 50))
    number, _ = latest.wait(0, 100)
    controller.ended.set()
    with pytest.raises(Ended, match=r"demo has ended: its run is over; `entrain report DIR`"):
        while True:
            number, _ = latest.wait(number, 30)


def test_all_readers_share_one_reading(watched: Watched) -> None:
    network, controller = watched
    latest = Latest(Source(network, 50))
    for _ in range(3):
        latest.wait(1, 100)
    assert controller.watching == 1


def test_two_watchers_see_the_same(watched: Watched) -> None:
    one, other = (Source(watched[0], 50).snapshots() for _ in range(2))
    for _ in range(3):
        assert [link.name for link in next(one).links] == [link.name for link in next(other).links]


def test_without_a_network_the_remedy_is_told(watched: Watched) -> None:
    runs = watched[0].directory.parent
    nowhere = runs.parent / "none"
    with pytest.raises(EntrainError, match=r"no network is up or runs: `entrain up TOPOLOGY.toml`, or start"):
        choose(None, nowhere, runs=nowhere)
    assert choose(None, nowhere, runs=runs).name == "demo"
    (runs / "other").mkdir()
    (runs / "other/api.sock").touch()
    with pytest.raises(BadInput, match=r"several .* \(demo, other\): choose one with --network"):
        choose(None, nowhere, runs=runs)
    assert RUNS.name == "runs"
