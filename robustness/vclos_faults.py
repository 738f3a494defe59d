"""Kill one part of a cluster at a time, or cut a switch off, and measure the jobs that do not need it.

A network of softswitches under OCS-vClos, with 20 hosts on 5 leaves. Job `near` runs on 4 GPUs of one leaf,
job `wide` on 8 GPUs of two leaves, over circuits; both iterate all the time. A job `third` comes and goes on
the other two leaves. The controller and the optical circuit switch are processes of their own: `entrain
controller`'s, and a server that speaks SCPI and moves the circuits of the emulated panel. The controller
reaches both kinds of switches over a management network (`robustness.management`).

For each fault, iteration times of `near` and `wide` are compared: from the fault until what was killed runs
again and `third` has what it asked for, and for a while afterwards, against a while before. The fault `none`
kills nothing, so it shows how much times differ by themselves. Times are wall-clock times.

While a link is cut, `third` needs the switch behind it. Jobs that do not are submitted and cancelled, at once
and when the controller has named the switch as its problem. `named_s` says when that was, `delays_s` how long
each took to be admitted or released. `delayed_jobs` counts those over SILENCE_S, the deadline by which the
controller notices that a switch is silent. `wrong_entries` are counted when the link is whole again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.api_pb2 import (
    CancelRequest,
    DeployRequest,
    GetNetworkRequest,
    JobRequest,
    ListJobsRequest,
)
from controlplane.client import NETWORKS, RunningNetwork, call
from controlplane.heartbeat import SILENCE_S
from controlplane.ledger import Entry
from controlplane.topology import load_topology
from entrain.certificates import issue
from entrain.live_cluster import load_setup
from entrain.run.controller import control
from machine.errors import EntrainError
from machine.process import Child, give_way, launch
from machine.record import Record, clean_stale
from machine.signals import ending_once
from mininet_topos.isolation import NETNS, private_namespace
from mininet_topos.network import Network
from ocs.crossbar import Change, Circuit
from ocs.emulated import Panel
from robustness.management import OTHER_HOST, Management, managed
from tests.ocs.server import ScpiServer
from workloads.jobs import JobSpec, parse_job

LEAVES, SPINES, HOSTS = 5, 2, 4
RATE_MBPS = 50.0
CUT_OFF = f"leaf{LEAVES}"
"""The switch whose link is cut."""
CERTIFICATES = "certificates"
PORTS = 2 * LEAVES * HOSTS
"""Ports of the optical circuit switch: as many uplinks as hosts, and as many ports of spines."""

TIMEOUT_S = 60.0

NETWORK = f"""
[topology]
kind = "leaf-spine"
leaves = {LEAVES}
spines = {SPINES}
hosts_per_leaf = {HOSTS}
links_per_pair = 2
host_rate_mbps = {RATE_MBPS}
uplink_rate_mbps = {RATE_MBPS}

[cluster]
gpus_per_server = 2
strategy = "ocs-vclos"

[ocs]
"""

OTHERS = {"near": 4, "wide": 8}
"""The jobs that are measured, with their GPUs."""


# -- the optical circuit switch, a process of its own


class PanelServer(ScpiServer):
    """A switch whose circuits are those of an emulated panel. A file keeps them while it is dead."""

    panel: Panel
    state: Path

    def answer(self, command: str, fault: str) -> str:
        """Do a command, and return when the circuits that it makes are lit."""
        self.commands.clear()  # which tests look at, and here would only fill the memory
        before = self.circuits()
        text = super().answer(command, fault)
        if (now := self.circuits()) != before:
            change = Change(
                *(frozenset(Circuit(*each) for each in some) for some in (before - now, now - before))
            )
            with ThreadPoolExecutor() as pool:
                pool.submit(asyncio.run, self.panel.apply(change)).result()
            self.state.write_text(json.dumps(sorted(now)), encoding="utf-8")
        return text


def serve_circuits(host: str, port: str, state: str) -> None:
    """Be the optical circuit switch, at a TCP address, until a signal."""

    async def serve() -> None:
        circuits = [Circuit(*each) for each in json.loads(Path(state).read_text(encoding="utf-8"))]
        server = PanelServer(ports=PORTS)
        server.there = {pair for each in circuits for pair in (each.ports, each.ports[::-1])}
        server.state = Path(state)
        interfaces = {number: socket.if_nametoindex(f"ocs-eth{number}") for number in range(1, PORTS + 1)}
        server.panel = Panel(interfaces, circuits)
        async with server.serving(int(port), host):
            print("ready", flush=True)
            await asyncio.Event().wait()

    asyncio.run(serve())


def serve_jobs(file: str, state: str, certificates: str = "") -> None:
    """Be the controller, of switches in the management network if there are `certificates`.

    The file `fault` in `state` has the step of job `third` at which it kills itself.
    """
    topology = load_topology(file)
    if certificates:
        topology = managed(topology, Path(certificates))
    setup = load_setup(Path(file), topology)
    assert setup is not None, "the file has [cluster]"

    def on_step(entry: Entry, step: str) -> None:
        if entry.name == "third" and (Path(state) / "fault").read_text(encoding="utf-8") == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        if line.startswith("primary: "):
            print("ready", flush=True)

    control(topology, setup, Path(state), tell, on_step)


# -- the cluster


@dataclass
class Reading:
    """When the controller named a fault, and how long jobs that it does not concern took, in seconds."""

    named_s: float | None = None
    delays_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Cluster:
    """The running cluster. What can be killed can be started again. `reading` is of the present fault."""

    network: Network
    record: Record
    directory: Path
    file: Path
    ocs_address: tuple[str, int]
    management: Management | None = None
    controller: Child | None = None
    ocs: Child | None = None
    reading: Reading = field(default_factory=Reading)

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def start_controller(self) -> None:
        """Start the controller, and return when it controls the switches."""
        arguments, inside = [str(self.file), str(self.state)], []
        if self.management is not None:
            arguments.append(str(self.directory / CERTIFICATES))
            inside = ["nsenter", f"--net={NETNS / self.management.namespace}"]
        self.controller = self._start("controller", *arguments, inside=inside)

    def start_ocs(self) -> None:
        """Start the optical circuit switch, with the circuits that it had."""
        host, port = self.ocs_address
        self.ocs = self._start("ocs", host, str(port), str(self.directory / "circuits.json"))

    def _start(self, what: str, *arguments: str, inside: Sequence[str] = ()) -> Child:
        command = [*inside, sys.executable, "-m", "robustness.vclos_faults", "--part", what, *arguments]
        child = launch(self.record, f"the {what}", command, log=self.directory / f"{what}.log", tells=True)
        child.wait_ready(TIMEOUT_S)
        threading.Thread(target=_drain, args=(child,), daemon=True).start()
        return child

    def start_switch(self, name: str) -> None:
        """Start a switch again."""
        node = self.network.switches[name]
        node.stop()
        node.start()
        node.wait_ready()

    def ask(self, method: str, request: Any) -> Any:
        """Call a method of the controller."""
        with call(RunningNetwork(self.file.stem, NETWORKS / self.file.stem)) as stub:
            return getattr(stub, method)(request)

    def phases(self) -> dict[str, str]:
        """Return the phase of each job."""
        return {job.name: job.phase for job in self.ask("ListJobs", ListJobsRequest()).jobs}

    def submit(self, name: str, gpus: int) -> None:
        """Let a job wait for its turn."""
        self.ask("Submit", JobRequest(name=name, gpus=gpus))

    def cancel(self, name: str) -> None:
        """Release a job, and return when nothing of it is left."""
        with contextlib.suppress(EntrainError):  # it may be gone
            self.ask("Cancel", CancelRequest(name=name))
        self.until(lambda: name not in self.phases(), f"{name} to be released")

    def running(self, name: str) -> None:
        """Return when a job has the network."""
        self.until(lambda: self.phases().get(name) == "running", f"{name} to be admitted")

    def admitted(self, name: str, gpus: int) -> None:
        """Submit a job that the fault does not concern, and note how long it takes until it runs."""
        began = time.monotonic()
        self.submit(name, gpus)
        self.running(name)
        self.reading.delays_s[f"{name} admitted"] = time.monotonic() - began

    def released(self, name: str) -> None:
        """Cancel a job that the fault does not concern, and note how long it takes until it has nothing."""
        began = time.monotonic()
        self.cancel(name)
        self.reading.delays_s[f"{name} released"] = time.monotonic() - began

    def named(self, what: str, since_ns: int) -> None:
        """Return when the controller has named something in its `problem` and an event; note how long it took
        since then (nanoseconds since 1970)."""

        def holds() -> bool:
            events = self.ask("GetNetwork", GetNetworkRequest()).events
            return what in self.ask("ListJobs", ListJobsRequest()).problem and any(
                what in event.text for event in events if event.unix_ns >= since_ns
            )

        self.until(holds, f"{what} to be named")
        self.reading.named_s = (time.time_ns() - since_ns) / 1e9

    def whole(self) -> None:
        """Return when the controller has no problem."""
        self.until(lambda: not self.ask("ListJobs", ListJobsRequest()).problem, "all to be well")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait. Raises EntrainError after a minute."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            with contextlib.suppress(EntrainError):  # a controller that has been killed
                if condition():
                    return
            if time.monotonic() > deadline:
                with contextlib.suppress(EntrainError):
                    print(self.ask("ListJobs", ListJobsRequest()), file=sys.stderr)
                log = (self.directory / "controller.log").read_text(encoding="utf-8")[-2000:]
                raise EntrainError(f"waited for {TIMEOUT_S:g} s for {what}:\n{log}")
            time.sleep(0.02)

    def start_ranks(self, name: str) -> tuple[JobSpec, Child]:
        """Start the ranks of a job where it was placed; they iterate until they are ended."""
        found = next(job for job in self.ask("ListJobs", ListJobsRequest()).jobs if job.name == name)
        topology = self.network.topology
        hosts = [topology.host_by_name[host] for host in found.placement.hosts]
        data = {
            "name": name,
            "hosts": [str(host.ip) for host in hosts],
            "rendezvous": str(self.directory / "rendezvous" / name),
            "output": str(self.directory / "records"),
            "collective": "ring",
            "bytes": 600_000,
            "compute_ms": 30.0,
            "iterations": 1_000_000,
            "port_base": 7000,
            "netns": [f"/proc/{self.network.net[host.name].pid}/ns/net" for host in hosts],
        }
        spec = parse_job(data, name)
        description = self.directory / f"{name}.json"
        description.write_text(spec.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "workloads", "launch", "--job", str(description)]
        child = launch(self.record, f"job {name}", command, log=self.directory / f"{name}.log")
        self.until(lambda: bool(iterations(spec)), f"{name} to iterate")
        return spec, child

    def wrong_entries(self) -> int:
        """Return how many entries of the switches are not those of the jobs that run."""
        deployed = self.ask("Deploy", DeployRequest())
        return sum(each.inserted + each.modified + each.deleted for each in deployed.switches)


def _drain(child: Child) -> None:
    assert child.process.stdout is not None
    with contextlib.suppress(ValueError, OSError):
        while os.read(child.process.stdout.fileno(), 4096):
            pass


@contextlib.contextmanager
def cluster(*, cuts: bool = False) -> Iterator[Cluster]:
    """Bring the cluster up, with nothing in it. With `cuts` it has a management network."""
    name = f"faults{os.getpid() % 10000}"
    with (
        ending_once(),
        Record(f"benchmark-{name}") as record,
        private_namespace(record) as namespace,
        tempfile.TemporaryDirectory() as scratch,
    ):
        directory = Path(scratch)
        emulated, file = directory / "emulated" / f"{name}.toml", directory / f"{name}.toml"
        emulated.parent.mkdir()
        emulated.write_text(f'{NETWORK}driver = "emulated"\n', encoding="utf-8")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        host = OTHER_HOST if cuts else "127.0.0.1"
        file.write_text(
            f'{NETWORK}driver = "scpi"\naddress = "{host}:{port}"\ntimeout_s = 0.5\n', encoding="utf-8"
        )
        topology = load_topology(emulated)
        management = None
        if cuts:
            topology = managed(topology, directory / CERTIFICATES)
            issue(topology, directory / CERTIFICATES, days=1)
            management = Management(topology, CUT_OFF, record, directory, f"{namespace}-controller")
        (directory / "circuits.json").write_text(
            json.dumps(sorted(each.ports for each in topology.circuits)), encoding="utf-8"
        )
        with Network(topology, record, directory, namespace=namespace) as network:
            found = Cluster(network, record, directory, file, (host, port), management)
            found.state.mkdir(0o700)
            (found.state / "fault").write_text("", encoding="utf-8")
            found.start_ocs()
            found.start_controller()
            yield found


# -- faults

Fault = Callable[[Cluster, Callable[[], None]], None]
"""What happens to the cluster; it calls the second one while something is broken."""


def _kill(child: Child | None) -> None:
    assert child is not None
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait()


def _kill_switch(cluster: Cluster, name: str) -> None:
    pid = cluster.network.switches[name].process_id
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def nothing(cluster: Cluster, window: Callable[[], None]) -> None:
    """Nothing is killed; `third` comes and goes."""
    cluster.submit("third", 8)
    window()
    cluster.running("third")


def controller(cluster: Cluster, window: Callable[[], None]) -> None:
    """The controller dies while jobs run. `third` is submitted to the next one."""
    _kill(cluster.controller)
    window()
    cluster.start_controller()
    cluster.submit("third", 8)
    cluster.running("third")


def controller_admitting(cluster: Cluster, window: Callable[[], None]) -> None:
    """The controller dies when `third` has its circuits and no tables yet."""
    (cluster.state / "fault").write_text("circuits", encoding="utf-8")
    with contextlib.suppress(EntrainError):  # whom we ask dies
        cluster.submit("third", 8)
    assert cluster.controller is not None
    cluster.controller.process.wait(TIMEOUT_S)
    (cluster.state / "fault").write_text("", encoding="utf-8")
    window()
    cluster.start_controller()
    cluster.running("third")


def ocs(cluster: Cluster, window: Callable[[], None]) -> None:
    """The optical circuit switch dies while jobs run over it, and comes back."""
    cluster.submit("third", 8)
    cluster.running("third")
    _kill(cluster.ocs)
    window()
    cluster.start_ocs()


def ocs_admitting(cluster: Cluster, window: Callable[[], None]) -> None:
    """The optical circuit switch is dead when `third` needs it. A job without circuits is admitted."""
    _kill(cluster.ocs)
    cluster.submit("third", 8)
    cluster.admitted("small", 2)
    window()
    cluster.released("small")
    cluster.start_ocs()
    cluster.running("third")


def spine(cluster: Cluster, window: Callable[[], None]) -> None:
    """A spine dies while jobs run."""
    since_ns = time.time_ns()
    _kill_switch(cluster, "spine1")
    cluster.named("spine1", since_ns)
    window()
    cluster.start_switch("spine1")
    cluster.submit("third", 8)
    cluster.running("third")


def leaf(cluster: Cluster, window: Callable[[], None]) -> None:
    """A leaf of `third` dies while it has the network."""
    cluster.submit("third", 8)
    cluster.running("third")
    since_ns = time.time_ns()
    _kill_switch(cluster, CUT_OFF)
    cluster.named(CUT_OFF, since_ns)
    window()
    cluster.start_switch(CUT_OFF)


def leaf_admitting(cluster: Cluster, window: Callable[[], None]) -> None:
    """A leaf is dead when `third` needs it. A job that does not is admitted."""
    since_ns = time.time_ns()
    _kill_switch(cluster, CUT_OFF)
    cluster.submit("third", 8)
    cluster.admitted("small", 2)
    cluster.named(CUT_OFF, since_ns)
    window()
    cluster.released("small")
    cluster.start_switch(CUT_OFF)
    cluster.running("third")


def job(cluster: Cluster, window: Callable[[], None]) -> None:
    """A rank of `third` dies, and with it the job."""
    cluster.submit("third", 8)
    cluster.running("third")
    _, ranks = cluster.start_ranks("third")
    children = (
        Path(f"/proc/{ranks.process.pid}/task/{ranks.process.pid}/children")
        .read_text(encoding="utf-8")
        .split()
    )
    os.kill(int(children[0]), signal.SIGKILL)
    ranks.process.wait(TIMEOUT_S)
    window()
    ranks.end()


def _cut(how: Callable[[Management], contextlib.AbstractContextManager[None]]) -> Fault:
    def fault(cluster: Cluster, window: Callable[[], None]) -> None:
        assert cluster.management is not None
        cluster.submit("early", 2)
        cluster.running("early")
        with how(cluster.management), ThreadPoolExecutor() as at_once:
            since_ns = time.time_ns()
            cluster.submit("third", 6)  # which only fit on both leaves that have GPUs
            meanwhile = [
                at_once.submit(cluster.named, CUT_OFF, since_ns),
                at_once.submit(cluster.released, "early"),
                at_once.submit(cluster.admitted, "small", 2),
            ]
            for done in meanwhile:
                done.result()
            cluster.released("small")
            cluster.admitted("late", 2)
            window()
        cluster.whole()
        cluster.running("third")
        cluster.released("late")

    return fault


FAULTS: dict[str, Fault] = {
    "none": nothing,
    "controller": controller,
    "controller, admitting": controller_admitting,
    "ocs": ocs,
    "ocs, admitting": ocs_admitting,
    "spine": spine,
    "leaf of third": leaf,
    "leaf, admitting": leaf_admitting,
    "rank of third": job,
    "link down": _cut(Management.down),
    "nothing to the switch": _cut(lambda links: links.losing(to_switch=1, from_switch=0)),
    "nothing from the switch": _cut(lambda links: links.losing(to_switch=0, from_switch=1)),
    "50 % loss": _cut(lambda links: links.losing(to_switch=0.5, from_switch=0.5)),
    "2 s delay": _cut(lambda links: links.late(2)),
}


# -- measuring


def iterations(spec: JobSpec) -> list[tuple[int, int]]:
    """Return when each iteration of a job's first rank began and ended, CLOCK_MONOTONIC in ns."""
    path = spec.records(0)
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    lines = (json.loads(line) for line in whole.splitlines() if '"kind": "iteration"' in line)
    return [(line["start_ns"], line["end_ns"]) for line in lines]


def compare(spec: JobSpec, edges: Sequence[int]) -> dict[str, Any]:
    """Compare a job's iterations before, during and after a fault, which `edges` (4,) in ns divide."""
    every = iterations(spec)
    parts = [
        [(end - start) / 1e6 for start, end in every if a <= start and end <= b]
        for a, b in itertools.pairwise(edges)
    ]
    before_ms = statistics.median(parts[0]) if parts[0] else float("nan")
    found: dict[str, Any] = {"before_ms": before_ms}
    for name, part in zip(("before", "during", "after"), parts, strict=True):
        p10, p50, p90 = np.percentile(part, [10, 50, 90]) / before_ms if part else (float("nan"),) * 3
        found[name] = {"iterations": len(part), "p10": float(p10), "median": float(p50), "p90": float(p90)}
    return found


def measure(cluster: Cluster, faults: Sequence[str], window_s: float) -> Iterator[dict[str, Any]]:
    """Yield what each fault did to the other jobs."""
    specs = []
    for name, gpus in OTHERS.items():
        cluster.submit(name, gpus)
        cluster.running(name)
        specs.append(cluster.start_ranks(name)[0])
    give_way()  # with all that is started from now on: in a cluster it has machines of its own

    def window() -> None:
        """Wait a while, and until each of the others has iterated: the first records may be of before."""
        begin = [len(iterations(spec)) for spec in specs]
        time.sleep(window_s)
        cluster.until(
            lambda: all(len(iterations(spec)) > had + 2 for spec, had in zip(specs, begin, strict=True)),
            "the other jobs to iterate",
        )

    for fault in faults:
        edges = [time.monotonic_ns()]
        window()
        edges.append(time.monotonic_ns())
        cluster.reading = Reading()
        FAULTS[fault](cluster, window)
        edges.append(time.monotonic_ns())
        window()
        edges.append(time.monotonic_ns())
        phases = cluster.phases()
        wrong = cluster.wrong_entries()
        cluster.cancel("third")
        yield {
            "fault": fault,
            "seconds": (edges[2] - edges[1]) / 1e9,
            "jobs": {spec.name: compare(spec, edges) for spec in specs},
            "phases": phases,
            "named_s": cluster.reading.named_s,
            "delays_s": cluster.reading.delays_s,
            "wrong_entries": wrong,
        }


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what all faults have shown together; None where no fault was measured."""
    delays_s = [delay_s for each in found for delay_s in each["delays_s"].values()]
    return {
        "named_s_max": max((each["named_s"] for each in found if each["named_s"] is not None), default=None),
        "delay_s_max": max(delays_s, default=None),
        "delayed_jobs": sum(delay_s > SILENCE_S for delay_s in delays_s),
        "wrong_entries": sum(each["wrong_entries"] for each in found),
    }


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m robustness vclos_faults", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS), help="which (all)")
    parser.add_argument("--window", type=float, default=5.0, help="seconds before, during and after (5)")
    options = parser.parse_args(argv)
    clean_stale()
    found = []
    with cluster(cuts=True) as running:
        for each in measure(running, options.faults, options.window):
            found.append(each)
            if not options.json:
                _show(each)
    if options.json:
        print(json.dumps({**summary(found), "faults": found, "load_average": os.getloadavg()[0]}))
    else:
        print(", ".join(f"{name} {value}" for name, value in summary(found).items()))


def _show(found: dict[str, Any]) -> None:
    for name, job in found["jobs"].items():
        parts = "   ".join(
            f"{part} {job[part]['median']:.3f} ({job[part]['p10']:.3f} to {job[part]['p90']:.3f})"
            for part in ("before", "during", "after")
        )
        print(f"{found['fault']:22} {name:5} {job['before_ms']:6.1f} ms   {parts}", flush=True)


PARTS: dict[str, Callable[..., None]] = {"ocs": serve_circuits, "controller": serve_jobs}

if __name__ == "__main__":
    PARTS[sys.argv[2]](*sys.argv[3:])
