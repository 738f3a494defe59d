"""A controller and an agent without a network: they answer as the real ones do, with made-up numbers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from controlplane import api_pb2 as api
from controlplane import api_pb2_grpc as api_grpc
from controlplane.client import SOCKET, RunningNetwork
from controlplane.queues import Queue
from hostbpf.clock import SlotClock
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.agent_pb2_grpc import HostServicer, add_HostServicer_to_server

CAPACITY = 100.0
USED = {"leaf1->spine1": 40.0, "leaf2->spine1": 95.0}
"""Mbit/s that links carry; all others carry none."""
PLANNED = 60.0
"""Mbit/s planned on leaf1->spine1 in every slot."""
QUEUES = [
    queue.message()
    for queue in (
        Queue("leaf2", 3, "leaf2->spine1", "switch", 7),
        Queue("leaf2", 3, "leaf2->spine1", "interface", 5, 4, 6000),
        Queue("h1", 0, "h1->leaf1", "interface", 0),
        Queue("leaf1", 3, "leaf1-spine1", "relay", 2),
    )
]
JOB = "<b>vgg</b>"
"""A job whose name is markup."""


class Controller(api_grpc.ControllerServicer):
    """A leaf-spine network with two leaves, two spines and four hosts, in which a run is in progress."""

    def __init__(self, agents: dict[str, str]) -> None:
        self.agents = agents
        self.ended = threading.Event()
        self._began_ns = time.monotonic_ns()
        self._calls = threading.Lock()
        self.watching = 0
        self.lacking = ""

    def GetNetwork(self, request: Any, context: Any) -> api.Network:  # noqa: N802
        return api.Network(
            name="net",
            run="demo",
            routing="source",
            program="fabric",
            switches=[
                api.Switch(
                    name=name, role=name[:-1], target="softswitch", status="ready", tables={"route": 4}
                )
                for name in ("leaf1", "leaf2", "spine1", "spine2")
            ],
            hosts=[
                api.Host(
                    name=f"h{number}",
                    address=f"10.{leaf}.{place}.2",
                    interface=f"none{number}",
                    switch=f"leaf{leaf}",
                    port=place,
                    agent=self.agents.get(f"h{number}", ""),
                )
                for number, (leaf, place) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2)], 1)
            ],
            events=[api.Event(unix_ns=time.time_ns(), text="<img src=x onerror=alert(1)> leaf1: ready")],
        )

    def WatchLoads(self, request: Any, context: Any) -> Iterator[api.Loads]:  # noqa: N802
        with self._calls:
            self.watching += 1
        while context.is_active() and not self.ended.is_set():
            ports = list(self._ports())
            yield api.Loads(unix_ns=time.time_ns(), ports=ports, queues=QUEUES, lacking=self.lacking)
            if not request.interval_ms or self.ended.wait(request.interval_ms / 1e3):
                return

    def _ports(self) -> Iterator[api.PortLoad]:
        now = time.monotonic_ns()
        present = SlotClock.shared(60).slot()
        leaves = {1: ["h1", "h2", "spine1", "spine2"], 2: ["h3", "h4", "spine1", "spine2"]}
        peers = {f"leaf{leaf}": names for leaf, names in leaves.items()}
        peers |= {f"spine{spine}": ["leaf1", "leaf2"] for spine in (1, 2)}
        for switch, names in peers.items():
            for port, peer in enumerate(names, 1):
                link = f"{switch}->{peer}"
                planned = PLANNED if link == "leaf1->spine1" else 0.0
                sent = round(USED.get(link, 0.0) / 8e3 * (now - self._began_ns))
                yield api.PortLoad(
                    switch=switch,
                    port=port,
                    peer=peer,
                    link=link,
                    capacity_mbps=CAPACITY,
                    slots=[api.SlotLoad(slot=present + each, load_mbps=planned) for each in range(-20, 10)],
                    counters=api.Counters(monotonic_ns=now, sent_bytes=sent, sent_packets=sent // 1000),
                )

    def ListDrops(self, request: Any, context: Any) -> api.Drops:  # noqa: N802
        return api.Drops(switches=[api.SwitchDrops(name="leaf1", packets={"NO_ROUTE": 3, "LATE": 0})])

    def ListTraining(self, request: Any, context: Any) -> api.Training:  # noqa: N802
        now = time.time_ns()
        jobs = []
        for place, name in enumerate((JOB, "resnet")):
            lasts, done = (2 + place) * 10**8, 50
            begins = [now - (done - number) * lasts for number in range(done)]
            recent = [
                api.TrainingIteration(
                    number=number,
                    start_ns=begin,
                    compute_end_ns=begin + lasts // 2,
                    end_ns=begin + lasts,
                )
                for number, begin in enumerate(begins)
            ]
            jobs.append(
                api.TrainingJob(
                    name=name,
                    hosts=[f"h{1 + place}", f"h{3 + place}"],
                    iterations=100,
                    done=done,
                    ideal_ms=160,
                    ideal="bound",
                    recent=recent,
                )
            )
        return api.Training(jobs=jobs)

    def ListJobs(self, request: Any, context: Any) -> api.Jobs:  # noqa: N802
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no cluster")
        raise AssertionError

    def ListCircuits(self, request: Any, context: Any) -> api.Circuits:  # noqa: N802
        ports = [api.CircuitPort(name=name) for name in ("leaf1-eth3", "spine1-eth1")]
        return api.Circuits(circuits=[api.OwnedCircuit(circuit=api.Circuit(a=ports[0], b=ports[1]), job=JOB)])


class Agent(HostServicer):
    """An agent with two flows."""

    def GetStatus(self, request: Any, context: Any) -> pb.Status:  # noqa: N802
        scheduling = pb.Scheduling(counts={"decisions": 7}, negotiation_ms=[1.0, 2.0, 9.0], decision_ms=[0.5])
        return pb.Status(
            process_id=7,
            slot_ns=60_000_000,
            flows=2,
            carriers={"sent": 5},
            enforcer="pacing",
            scheduling=scheduling,
        )


@contextlib.contextmanager
def network(directory: Path) -> Iterator[tuple[RunningNetwork, Controller]]:
    """Serve a network in `directory`, with an agent on h1; the one of h2 does not answer.

    The others are on machines of their own, if at all.
    """
    place = directory / "runs" / "demo"
    place.mkdir(parents=True)
    addresses = {"h1": f"unix:{directory}/agent.sock", "h2": f"unix:{directory}/none.sock"}
    controller = Controller(addresses)
    with contextlib.ExitStack() as stack:
        for add, servicer, address in (
            (api_grpc.add_ControllerServicer_to_server, controller, f"unix:{place / SOCKET}"),
            (add_HostServicer_to_server, Agent(), addresses["h1"]),
        ):
            server = grpc.server(ThreadPoolExecutor(8))
            add(servicer, server)
            server.add_insecure_port(address)
            server.start()
            stack.callback(lambda server=server: server.stop(None).wait())
        stack.callback(controller.ended.set)
        yield RunningNetwork("demo", place), controller
