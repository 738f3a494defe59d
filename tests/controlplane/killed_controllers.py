"""Controllers of one cluster of softswitches, of which the primary one is killed again and again.

`python -m tests.controlplane.killed_controllers` runs as a process of its own, as it enters a network
namespace. It prints a line of JSON for each kill. With arguments it is one of the controllers.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane.api_pb2 import CancelRequest, DeployRequest, JobRequest, ListJobsRequest
from controlplane.client import NETWORKS, RunningNetwork, call
from controlplane.cluster import ClusterSetup, cluster_of
from controlplane.ledger import Entry
from controlplane.topology import load_topology
from entrain.run.controller import control
from machine.errors import EntrainError
from machine.record import Record
from machine.signals import ending_once
from mininet_topos.isolation import private_namespace
from mininet_topos.network import Network
from schedulers.placement.strategies import STRATEGIES

FAULTS = ("reserved", "tables", "ready", "leaving", "no tables")
"""The steps after each of which a controller kills itself: of a job `b` that is submitted, or ends."""

TOPOLOGY = '[topology]\nkind = "leaf-spine"\nleaves = 2\nspines = 2\nhosts_per_leaf = 3\n'


def serve(file: str, state: str) -> None:
    """Be one of the controllers. The file `fault` in `state` has the step after which it dies."""
    topology = load_topology(file)

    def on_step(entry: Entry, step: str) -> None:
        if entry.name == "b" and (Path(state) / "fault").read_text() == step:
            os.kill(os.getpid(), signal.SIGKILL)

    setup = ClusterSetup(cluster_of(topology, 1), STRATEGIES["vclos"])
    control(topology, setup, Path(state), lambda line: print(line, flush=True), on_step)


class Controllers:
    """As many controllers as there are faults, and one more; the first line of the primary one says so."""

    def __init__(self, file: Path, state: Path) -> None:
        self.said: list[str] = []
        command = [sys.executable, "-m", "tests.controlplane.killed_controllers", str(file), str(state)]
        self._lines = selectors.DefaultSelector()
        self._all = []
        for _ in range(len(FAULTS) + 1):
            one = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
            assert one.stdout is not None
            self._lines.register(one.stdout, selectors.EVENT_READ, one)
            self._all.append(one)

    def primary(self) -> subprocess.Popen[bytes]:
        """Wait for the next controller that becomes primary."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for key, _ in self._lines.select(1.0):
                line = key.data.stdout.readline().decode()
                if not line:
                    self._lines.unregister(key.fileobj)
                self.said.append(line)
                if line.startswith("primary: "):
                    one: subprocess.Popen[bytes] = key.data
                    return one
        raise EntrainError(f"nobody is primary: {self.said}")

    def end(self) -> None:
        """End those that are left."""
        for one in self._all:
            one.terminate()
        for one in self._all:
            one.wait(60)
            assert one.stdout is not None
            one.stdout.close()


@contextlib.contextmanager
def running() -> Iterator[tuple[Controllers, Path, RunningNetwork]]:
    """A network, controllers, and their state's directory."""
    name = f"kc{os.getpid() % 10000}"
    with (
        ending_once(),
        Record(f"test-{name}") as record,
        private_namespace(record) as namespace,
        tempfile.TemporaryDirectory() as scratch,
    ):
        directory = Path(scratch)
        file, state = directory / f"{name}.toml", directory / "state"
        file.write_text(TOPOLOGY)
        state.mkdir(0o700)
        (state / "fault").write_text("")
        with Network(load_topology(file), record, directory, namespace=namespace):
            controllers = Controllers(file, state)
            try:
                yield controllers, state, RunningNetwork(name, NETWORKS / name)
            finally:
                controllers.end()


def ask(network: RunningNetwork, method: str, request: Any) -> Any:
    """Call a method of the controller that is primary."""
    with call(network) as stub:
        return getattr(stub, method)(request)


def agreement(network: RunningNetwork) -> dict[str, Any]:
    """What jobs have once all run, and how many entries of any switch would have to change for that."""
    deadline = time.monotonic() + 60
    while True:
        jobs = ask(network, "ListJobs", ListJobsRequest())
        phases = {job.name: job.phase for job in jobs.jobs}
        if {*phases.values()} <= {"running"} or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    deployed = ask(network, "Deploy", DeployRequest())
    written = sum(each.inserted + each.modified + each.deleted for each in deployed.switches)
    return {"jobs": phases, "wrong": written, "problem": jobs.problem}


def ready(network: RunningNetwork, name: str, gpus: int) -> None:
    """Submit a job, and return when it runs."""
    ask(network, "Submit", JobRequest(name=name, gpus=gpus))
    agreement(network)


def main() -> None:
    """Kill one controller after another."""
    with running() as (controllers, state, network):
        present = controllers.primary()
        ready(network, "a", 1)
        for fault in FAULTS:
            leaves = fault in ("leaving", "no tables")
            there = "b" in agreement(network)["jobs"]
            if leaves and not there:
                ready(network, "b", 4)
            elif there and not leaves:
                ask(network, "Cancel", CancelRequest(name="b"))
            (state / "fault").write_text(fault)
            with contextlib.suppress(EntrainError):  # whom we ask dies
                if leaves:
                    ask(network, "Cancel", CancelRequest(name="b"))
                else:
                    ask(network, "Submit", JobRequest(name="b", gpus=4))
            status = present.wait(60)
            (state / "fault").write_text("")
            present = controllers.primary()
            print(json.dumps({"fault": fault, "status": status, **agreement(network)}), flush=True)
        print(
            json.dumps({"stood_by": sum("standing by: process" in line for line in controllers.said)}),
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(*sys.argv[1:])
    else:
        main()
