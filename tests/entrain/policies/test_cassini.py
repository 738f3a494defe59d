"""How policy `cassini` paces jobs, with agents and training processes but without a network."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from controlplane.topology import parse_topology
from entrain.policies import cassini
from entrain.policies.cassini import AgentOf, CassiniTable, Pacing, lasted
from entrain.policies.policy import Session
from hostbpf.agent.paces import Paces
from hostbpf.agent.service import HostService
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc import calls as rpc
from hostbpf.rpc.agent_pb2_grpc import add_HostServicer_to_server
from wire.progress import Publisher
from workloads import pacing
from workloads.jobs import JobSpec

pytestmark = pytest.mark.sockets

TOPOLOGY = {
    "topology": {
        "kind": "dumbbell",
        "hosts_per_side": 3,
        "host_rate_mbps": 100,
        "bottleneck_rate_mbps": 100,
    }
}
HOSTS = {"one": ("h1", "h4"), "two": ("h2", "h5"), "three": ("h3", "h6")}
COMPUTE_S, BYTES = 0.2, 1_400_000  # 117 ms of its link
LASTS_S = 0.32


class Cluster:
    """Agents, training processes that only sleep, and the session that paces them."""

    def __init__(
        self, directory: Path, stack: contextlib.ExitStack, threshold: float = 0.7, bottleneck_mbps: int = 100
    ) -> None:
        self.directory, self.stack = directory, stack
        dumbbell = {**TOPOLOGY["topology"], "bottleneck_rate_mbps": bottleneck_mbps}
        self.topology = parse_topology({"topology": dumbbell}, "test")
        self.serving: dict[str, contextlib.ExitStack] = {}
        self.agents: dict[str, Paces] = {}
        self.starts: dict[str, list[int]] = defaultdict(list)
        self.ending: dict[str, threading.Event] = {}
        addresses = {host.name: self._agent(host.name) for host in self.topology.hosts}
        run: Any = SimpleNamespace(
            table=CassiniTable(measured=2, threshold=threshold, drift_bound=0.2).model_dump(),
            jobs=[SimpleNamespace(name=name, hosts=hosts, mark=0) for name, hosts in HOSTS.items()],
            network=SimpleNamespace(topology=self.topology),
            routing="ecmp",
            directory=directory,
        )
        self.session = Pacing(run, addresses, directory, Session())
        stack.enter_context(self.session.working())

    def _agent(self, host: str) -> str:
        paces = self.agents[host] = Paces(self.directory / host, None)
        self.stack.callback(paces.close)
        agent: Any = SimpleNamespace(paces=paces, options=SimpleNamespace(netns=None))

        def add(server: Any) -> None:
            add_HostServicer_to_server(HostService(agent, lambda _: 0), server)

        address = f"unix:{self.directory}/{host}.sock"
        self.serving[host] = self.stack.enter_context(contextlib.ExitStack())
        self.serving[host].enter_context(rpc.serving(add, address, threads=2))
        return address

    def kill(self, host: str) -> None:
        """Let a host's agent die: it answers no more, and takes back no paces."""
        self.agents[host]._stop.set()
        self.serving[host].close()

    def start(self, job: str, lasts_s: float = LASTS_S) -> None:
        """Start the ranks of a job. Each of its iterations ends when all ranks have ended theirs."""
        spec = JobSpec.model_validate(
            {
                "name": job,
                "hosts": [self.topology.host_by_name[host].ip for host in HOSTS[job]],
                "rendezvous": "unset",
                "output": "unset",
                "collective": "ring",
                "bytes": BYTES,
                "compute_ms": COMPUTE_S * 1e3,
            }
        )
        self.session.job(spec)
        ending = self.ending[job] = threading.Event()
        barrier = threading.Barrier(len(HOSTS[job]))
        for rank, host in enumerate(HOSTS[job]):
            thread = threading.Thread(target=self._train, args=(job, rank, host, lasts_s, ending, barrier))
            thread.start()
            self.stack.callback(thread.join)
        self.stack.callback(ending.set)

    def _train(
        self, job: str, rank: int, host: str, lasts_s: float, ending: threading.Event, barrier: Any
    ) -> None:
        with Publisher(job, directory=self.directory / host, capacity=1) as publisher:
            starting = pacing.Pacing(publisher)
            while True:
                begun = starting.begin()
                if rank == 0:
                    self.starts[job].append(begun.at_ns)
                time.sleep(max(0.0, (begun.at_ns - time.monotonic_ns()) / 1e9 + lasts_s))
                if rank == 0 and ending.is_set():
                    barrier.abort()
                try:
                    barrier.wait(60)
                except threading.BrokenBarrierError:
                    return

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something to be the case."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it does not happen"
            time.sleep(0.02)

    def are_apart(self, job: str, other: str) -> bool:
        """Whether the last iterations of two jobs started about half of a period apart."""
        period = float(np.median(np.diff(self.starts[job][-5:])))
        return 0.35 < (self.starts[job][-1] - self.starts[other][-1]) / period % 1.0 < 0.65

    def goes_on(self, job: str, iterations: int = 5) -> None:
        """Wait for some iterations of a job."""
        end = len(self.starts[job]) + iterations
        self.until(lambda: len(self.starts[job]) >= end)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack, **getattr(request, "param", {}))


def test_jobs_are_moved_apart_and_stay_apart_when_nobody_moves_them_any_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start("one")
    cluster.start("two")
    cluster.until(lambda: len(cluster.session.shifts) == 2)
    hour, wall = 3600 * 10**9, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall() + hour)  # somebody sets the clock
    monkeypatch.setattr(time, "time", lambda: (wall() + hour) / 1e9)
    cluster.until(lambda: cluster.are_apart("one", "two"))
    cluster.session.end()  # whoever has solved is gone
    cluster.goes_on("one")
    cluster.until(lambda: cluster.are_apart("one", "two"))
    for agent in cluster.agents.values():
        agent.close()
    cluster.goes_on("one")
    cluster.goes_on("two")


def test_a_job_that_comes_is_fitted_in_and_one_that_stays_alone_is_free(cluster: Cluster) -> None:
    cluster.start("one")
    cluster.start("two")
    cluster.until(lambda: len(cluster.session.shifts) == 2)
    cluster.ending["two"].set()
    cluster.until(lambda: not any(each.paced for each in cluster.agents["h1"].starts(0)))
    cluster.start("three")
    cluster.until(lambda: "three" in cluster.session.shifts)
    cluster.goes_on("three")
    cluster.goes_on("one")
    cluster.until(lambda: cluster.are_apart("one", "three"))


def test_the_clock_of_a_host_is_known_from_its_fastest_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_s, delays, now_s = 5000.0, iter([0.2, 0.0, 0.1]), 1.0

    def answer(request: object, timeout: float) -> object:
        nonlocal now_s
        now_s += next(delays)
        return pb.Starts(now_ns=round((now_s + ahead_s) * 1e9))

    monkeypatch.setattr(cassini, "time", SimpleNamespace(monotonic=lambda: now_s))
    host = AgentOf("h1", SimpleNamespace(ListStarts=answer))
    for _ in range(3):
        assert host.ask() == []
    assert host.ahead_s == pytest.approx(ahead_s)


def test_an_iteration_is_not_longer_because_ranks_wait_for_one_that_is_paced_already() -> None:
    waits_ms, takes_ms = 180.0, 417.0
    paced = [pb.Start(number=7, lasted_ms=takes_ms), pb.Start(number=8, lasted_ms=takes_ms)]
    not_yet = [pb.Start(number=7, lasted_ms=waits_ms + takes_ms), pb.Start(number=8, lasted_ms=takes_ms)]
    assert lasted([*not_yet, *paced]) == {7: takes_ms / 1e3, 8: takes_ms / 1e3}


@pytest.mark.parametrize("cluster", [{"threshold": 0.95}], indirect=True)
def test_jobs_that_no_shift_helps_are_left_alone(cluster: Cluster) -> None:
    for job in HOSTS:
        cluster.start(job)
    cluster.until(lambda: cluster.session.solved)
    assert not cluster.session.shifts
    assert any("its links score less than 0.95" in event for event in cluster.session.events)


def test_a_job_whose_agents_die_keeps_its_shift_and_the_report_says_so(cluster: Cluster) -> None:
    cluster.start("one")
    cluster.start("two")
    cluster.until(lambda: len(cluster.session.shifts) == 2)
    cluster.until(lambda: cluster.are_apart("one", "two"))
    for host in HOSTS["two"]:
        cluster.kill(host)
    cluster.until(lambda: sum("does not answer" in event for event in cluster.session.events) == 2)
    cluster.goes_on("one")
    cluster.goes_on("two")
    cluster.until(lambda: cluster.are_apart("one", "two"))
    assert cluster.session.solved == 1, "it counts as running"
    assert all(each.paced for each in cluster.agents["h1"].starts(0))


@pytest.mark.parametrize("cluster", [{"bottleneck_mbps": 50}], indirect=True)
def test_a_job_does_not_count_as_faster_than_the_slowest_link_on_its_way(cluster: Cluster) -> None:
    """Each sends for 54 % of its iteration. As fast as its hosts, it would exceed the link by itself."""
    cluster.start("one")
    cluster.start("two")
    cluster.until(lambda: len(cluster.session.shifts) == 2)
