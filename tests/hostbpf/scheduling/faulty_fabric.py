"""Two training jobs under the slot scheduler on a running fabric, and one fault after the other.

A program of its own, because it moves into a network namespace. Prints JSON: for each fault, whether the jobs
that are left went on, and what the agents said.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import grpc

from controlplane.fabric import Fabric
from controlplane.loads import LoadReader
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy, desired_state
from controlplane.topology import Host, Topology, parse_topology
from hostbpf.agent.agent import Agent, Options, Scheduling
from hostbpf.clock import SlotClock
from hostbpf.controls import controls
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.agent_pb2_grpc import HostStub
from machine.patience import patience
from machine.process import Child, launch
from machine.record import Record
from mininet_topos.agents import agent_command
from mininet_topos.isolation import private_namespace
from mininet_topos.loss import lossy
from mininet_topos.network import Network, Tcp
from schedulers.slots.host import warm_up
from wire.slot_header import LANES, slot_near
from workloads.jobs import JobSpec, parse_job

SLOT_MS = 60.0
PATIENCE_S = patience(60.0)
"""Until a job that makes no progress has stalled."""
ITERATIONS = 3
"""So many more of them mean that a job goes on."""
TABLES = {
    "topology": {
        "kind": "dumbbell",
        "hosts_per_side": 2,
        "host_rate_mbps": 100,
        "bottleneck_rate_mbps": 100,
        "queue_packets": 128,
    }
}
NONSENSE = """
import sys
from wire.progress import Phase, Publisher
source, port, destination, other = sys.argv[1:]
with Publisher("nonsense") as publisher:
    flow = (source, int(port), destination, int(other), 6)
    entries = [publisher.flow(flow, 1), publisher.flow((source, 9, destination, 9, 6), 1)]
    entries[0].update(0, Phase.COMMUNICATING, 10**9, 10**9, 0)  # somebody else's flow
    entries[1].update(0, Phase.COMMUNICATING, 10, 5, 7)  # more done than ready
    print("published", flush=True)
    sys.stdin.read()
"""


@dataclass
class Job:
    """A running job: its launcher, and its first rank's records."""

    spec: JobSpec
    launcher: Child

    def iterations(self) -> int:
        path = self.spec.records(0)
        return path.read_text().count('"kind": "iteration"') if path.exists() else 0


@dataclass
class Bench:
    """The network, and what runs in it."""

    network: Network
    topology: Topology
    pipeline: Pipeline
    loop: asyncio.Runner
    record: Record
    directory: Path
    jobs: dict[str, Job]
    agents: dict[str, Child]

    def netns(self, host: str) -> str:
        return f"/proc/{self.network.net[host].pid}/ns/net"

    def address(self, host: Host) -> str:
        return f"unix:{self.directory}/{host.name}.sock"

    def start_agent(self, name: str) -> None:
        host = self.topology.host_by_name[name]
        progress = self.directory / "progress"
        command = agent_command(
            self.network, host, self.address(host), SLOT_MS, Scheduling(), progress=progress
        )
        log = self.directory / f"{name}.log"
        agent = launch(self.record, f"agent of {name}", command, log=log, death="KILL", tells=True)
        self.agents[name] = agent
        agent.wait_ready(PATIENCE_S)

    def start_job(self, name: str, ranks: list[str], port: int) -> None:
        rendezvous = self.directory / name
        rendezvous.mkdir()
        description: dict[str, Any] = {
            "name": name,
            "hosts": [str(self.topology.host_by_name[each].ip) for each in ranks],
            "netns": [self.netns(each) for each in ranks],
            "collective": "ring",
            "bytes": 600_000,
            "compute_ms": 60,
            "iterations": 100_000,
            "port_base": port,
            "congestion_control": "slot_cubic",
            "rendezvous": str(rendezvous),
            "output": str(self.directory / "records"),
            "progress": str(self.directory / "progress"),
        }
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(description))
        command = [sys.executable, "-m", "workloads", "launch", "--job", str(path)]
        launcher = launch(self.record, f"job {name}", command, log=self.directory / f"{name}.log")
        self.jobs[name] = Job(parse_job(description, name), launcher)

    def route(self) -> None:
        async def write() -> None:
            async with Fabric(self.topology, self.pipeline) as fabric:
                await fabric.apply(desired_state(self.topology, FabricPolicy(routing="ecmp")))

        self.loop.run(write())

    def planned(self) -> float:
        """What all links' tables hold for slots that are still to come, Mbit/s."""

        async def read() -> float:
            async with Fabric(self.topology, self.pipeline) as fabric:
                now = SlotClock.shared(SLOT_MS).slot()
                tables = await LoadReader(fabric).read()
            planned = (each for table in tables for each in table.slots.items())
            return sum(rate for slot, rate in planned if slot_near(now, slot) >= now)

        return self.loop.run(read())

    def status(self, name: str) -> Any:
        with grpc.insecure_channel(self.address(self.topology.host_by_name[name])) as channel:
            return HostStub(channel).GetStatus(pb.GetStatusRequest(), timeout=patience(10))

    def go_on(self, *names: str) -> dict[str, bool]:
        """By job, whether it makes some more iterations."""
        wanted = {name: self.jobs[name].iterations() + ITERATIONS for name in names}
        return {name: until(lambda name=name: self.jobs[name].iterations() >= wanted[name]) for name in names}


def until(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def agent_killed(bench: Bench) -> dict[str, Any]:
    agent = bench.agents["h1"].process
    agent.kill()
    agent.wait()
    without = bench.go_on("one", "two")
    bench.start_agent("h1")
    decides = until(lambda: bench.status("h1").scheduling.counts["decisions"] > 0)
    return {"without": without, "again": bench.go_on("one", "two"), "decides": decides}


def switch_restarted(bench: Bench) -> dict[str, Any]:
    for node in bench.network.switches.values():
        node.restart()
    time.sleep(5 * SLOT_MS / 1e3)  # the fabric is empty for some slots
    bench.route()
    return {"again": bench.go_on("one", "two"), "events": list(bench.status("h1").scheduling.events)}


def packets_lost(bench: Bench) -> dict[str, Any]:
    with lossy([port.ifindex for port in bench.network.fabric_ports()], 0.3) as loss:
        time.sleep(2)
        until(lambda: loss.count().lost > 0)
        lost = loss.count().lost
    return {"again": bench.go_on("one", "two"), "lost": lost}


def nonsense_progress(bench: Bench) -> dict[str, Any]:
    record = next(
        json.loads(line)
        for line in bench.jobs["one"].spec.records(1).read_text().splitlines()
        if '"kind": "flow"' in line
    )
    flow = [record["src_ip"], str(record["src_port"]), record["dst_ip"], str(record["dst_port"])]
    process = subprocess.Popen(
        ["nsenter", f"--net={bench.netns('h1')}", sys.executable, "-c", NONSENSE, *flow],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "ENTRAIN_PROGRESS": str(bench.directory / "progress")},
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    again = bench.go_on("one", "two")

    def refused() -> list[str]:
        return sorted(name for name in bench.status("h1").scheduling.counts if name.startswith("refused"))

    until(lambda: all(any(why in each for each in refused()) for why in ("claimed twice", "more done than")))
    found = refused()
    process.kill()
    process.communicate()
    return {"again": again, "refused": found}


def clock_stepped(bench: Bench) -> dict[str, Any]:
    """The agent of h2 is one of this process, so that its clock can be another than the machine's."""
    bench.agents["h2"].end()
    host = bench.topology.host_by_name["h2"]
    options = Options(
        host.interface,
        bench.netns("h2"),
        SLOT_MS,
        100.0,
        scheduling=Scheduling(),
        progress=bench.directory / "progress",
    )
    shared = SlotClock.shared

    def stepped(slot_ms: float) -> SlotClock:
        right = shared(slot_ms)
        return SlotClock(right.slot_ns, right.epoch_ns - 5 * 10**9)

    with Agent.running(options) as agent:
        assert agent.scheduler is not None
        counts = agent.scheduler.counts
        until(lambda: counts["decisions"] > 0)
        with mock.patch("hostbpf.agent.agent.SlotClock.shared", stepped):
            ahead = bench.go_on("one", "two")
            before = counts["decisions"]
            decides = until(lambda: counts["decisions"] > before)
        back = bench.go_on("one", "two")
        steps = counts["clock_steps"]
    bench.start_agent("h2")
    return {"ahead": ahead, "again": back, "steps": steps, "decides": decides}


def job_killed(bench: Bench) -> dict[str, Any]:
    """In the middle of an iteration: when its launcher's children are killed, nobody takes anything back."""
    launcher = bench.jobs["two"].launcher.process
    ranks = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    for pid in ranks:
        os.kill(int(pid), signal.SIGKILL)
    launcher.wait()
    again = bench.go_on("one")

    def left() -> list[str]:
        return [path.name for path in (bench.directory / "progress").glob("two*.progress")]

    until(lambda: not left() and bench.status("h2").flows == 0)  # an agent looks in each of its turns
    return {
        "again": again,
        "flows": bench.status("h2").flows,
        "left": left(),
        "failed": launcher.returncode != 0,
    }


def tables_empty(bench: Bench) -> dict[str, Any]:
    """With the last job gone, nothing is planned any more K slots after its agents have noticed."""
    bench.jobs["one"].launcher.end()
    until(lambda: not any(bench.status(name).flows for name in ("h1", "h3")))
    time.sleep((LANES + 1) * SLOT_MS / 1e3)
    return {"planned_mbps": bench.planned()}


FAULTS = (
    agent_killed,
    switch_restarted,
    packets_lost,
    nonsense_progress,
    clock_stepped,
    job_killed,
    tables_empty,
)


@contextlib.contextmanager
def running() -> Iterator[Bench]:
    """The fabric with its agents and jobs. Nobody controls the switches once their tables are set."""
    topology = parse_topology(TABLES, "faults")
    with (
        tempfile.TemporaryDirectory() as name,
        Record("test-faults") as record,
        private_namespace(record) as namespace,
        Network(
            topology,
            record,
            Path(name),
            namespace=namespace,
            tcp=Tcp(rto_min_ms=20, slow_start_after_idle=False),
        ) as network,
        controls(record),
        asyncio.Runner() as loop,
    ):
        bench = Bench(network, topology, Pipeline.load(), loop, record, Path(name), {}, {})
        (bench.directory / "progress").mkdir()
        bench.route()
        warm_up()
        for host in topology.hosts:
            bench.start_agent(host.name)
        try:
            bench.start_job("one", ["h1", "h3"], 7000)
            bench.start_job("two", ["h2", "h4"], 7001)
            assert until(lambda: all(job.iterations() for job in bench.jobs.values())), (
                "the jobs do not start"
            )
            yield bench
        finally:
            for job in bench.jobs.values():
                job.launcher.end()
            for agent in bench.agents.values():
                agent.end()


def main() -> None:
    with running() as bench:
        for fault in FAULTS:
            began = time.monotonic()
            result = fault(bench)
            print(
                json.dumps({"fault": fault.__name__, "s": round(time.monotonic() - began, 1), **result}),
                flush=True,
            )


if __name__ == "__main__":
    socket.setdefaulttimeout(20)
    main()
