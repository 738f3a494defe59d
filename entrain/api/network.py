"""Networks that are up, from Python: run commands on their hosts, read their loads, change their program."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from controlplane.api_pb2 import DeployRequest, GetNetworkRequest
from controlplane.client import RunningNetwork, call, choose
from controlplane.pipeline import given_files
from controlplane.queues import by_link, queue_of
from entrain.api.commands import error_of
from entrain.run.starting import prepared, start, stop
from entrain.watch.source import measured
from hostbpf.clock import SlotClock
from machine.errors import BadInput, EntrainError
from wire.slot_header import slot_near


@dataclass(frozen=True)
class Host:
    """A host of a network."""

    name: str
    address: str
    """Its IPv4 address."""
    switch: str
    """The switch to which it is connected."""
    process_id: int = field(repr=False)

    @property
    def namespace(self) -> Path:
        """The path of its network namespace."""
        return Path(f"/proc/{self.process_id}/ns/net")

    def run(
        self, *command: str, check: bool = True, timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, wait for its end, and return its output and status.

        Raises EntrainError, with what it printed, if the status is not 0 and `check` is true; and
        subprocess.TimeoutExpired.
        """
        done = subprocess.run(
            self._line(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise EntrainError(f"{self.name}: {' '.join(command)}: status {done.returncode}: {said}")
        return done

    @contextlib.contextmanager
    def running(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command on the host, such as a server, while the context lasts. Its output is in `stdout`."""
        with subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self._line(command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.terminate()

    def _line(self, command: tuple[str, ...]) -> list[str]:
        if not command:
            raise BadInput(f'{self.name}: give a command, as in .run("ip", "address")')
        if not self.process_id:
            raise BadInput(f"{self.name}: the network does not emulate its hosts; log in to the host itself")
        return ["nsenter", f"--net={self.namespace}", *command]


@dataclass(frozen=True)
class Network:
    """A network that is up. `entrain up` and `entrain.up` bring networks up."""

    name: str
    _running: RunningNetwork = field(repr=False)

    @classmethod
    def running(cls, name: str | None = None) -> Network:
        """Return the network called `name`, or the only one that is up. Raises EntrainError and BadInput."""
        found = choose(name)
        return cls(found.name, found)

    @cached_property
    def _description(self) -> Any:
        with call(self._running) as stub:
            return stub.GetNetwork(GetNetworkRequest())

    @property
    def namespace(self) -> str:
        """The name of the network namespace in which the switches are."""
        return str(self._description.namespace)

    @property
    def hosts(self) -> dict[str, Host]:
        """The hosts by name."""
        return {
            each.name: Host(each.name, each.address, each.switch, each.process_id)
            for each in self._description.hosts
        }

    def host(self, name: str) -> Host:
        """Return a host. Raises BadInput if there is no such host."""
        hosts = self.hosts
        if name not in hosts:
            raise BadInput(f"{name}: no such host in network {self.name}; it has {', '.join(hosts)}")
        return hosts[name]

    @property
    def switches(self) -> dict[str, str]:
        """The addresses of the switches' P4Runtime servers, within `namespace`, by the switches' names."""
        return {each.name: each.grpc_address for each in self._description.switches}

    def loads(self, slot_ms: float = 60.0, interval_ms: int = 500) -> list[dict[str, Any]]:
        """Return what each port sends, and what is planned on it, from the switches' counters and registers.

        A row has `switch`, `port`, `peer`, `capacity_mbps`, `measured_mbps`, and in `slots` the planned
        Mbit/s by slot, counted from the present one; none with a program of switches that has no load tables.
        `backlog_bytes` and `dropped` (packets) are of its
        queues, None where they cannot be read. What is measured is the mean over `interval_ms`, for which the
        call waits. `slot_ms` is the length of a slot. Raises EntrainError.
        """
        with call(self._running) as stub:
            reading, used = measured(stub, interval_ms)
        clock = SlotClock.shared(slot_ms)
        present = clock.slot(time.monotonic_ns() - time.time_ns() + reading.unix_ns)  # when they were read
        queues = {queue.link: queue for queue in by_link(map(queue_of, reading.queues))}
        return [
            {
                "switch": port.switch,
                "port": port.port,
                "peer": port.peer,
                "capacity_mbps": port.capacity_mbps,
                "measured_mbps": used[port.switch, port.port][0],
                "backlog_bytes": queues[port.link].backlog_bytes if port.link in queues else None,
                "dropped": queues[port.link].dropped_packets if port.link in queues else None,
                "slots": {slot_near(present, slot.slot) - present: slot.load_mbps for slot in port.slots},
            }
            for port in reading.ports
        ]

    def counter(self, switch: str, name: str) -> dict[int | str, tuple[int, int]]:
        """Return the packets and bytes of the cells of a counter of the switch's program that are not zero.

        They are by index, or of a direct counter by table and match. Raises BadInput if there is no such
        switch or counter, and EntrainError.
        """
        return {
            cell["entry"] or cell["index"]: (cell["packets"], cell["bytes"])
            for cell in self._cells(switch, name)
        }

    def register(self, switch: str, name: str) -> dict[int, int]:
        """Return the values of the cells of a register of the switch's program that are not zero.

        Raises BadInput if there is no such switch or register, and EntrainError, also where the target cannot
        read registers (BMv2).
        """
        return {cell["index"]: cell["value"] for cell in self._cells(switch, name)}

    def _cells(self, switch: str, name: str) -> list[dict[str, Any]]:
        """Read a counter in a process of its own, which can enter the switches' namespace."""
        found: list[dict[str, Any]] = json.loads(
            _command("counter", switch, name, "--network", self.name, "--json")
        )
        return found

    def deploy(
        self,
        *,
        routing: Literal["ecmp", "source"] | None = None,
        program: str | Path | None = None,
        p4info: str | Path | None = None,
    ) -> None:
        """Set the switches' routing, or another program: what p4c wrote for BMv2, and its P4Info.

        `program="fabric"`, without a P4Info, is entrain's own. Raises BadInput and EntrainError.
        """
        given = given_files(
            None if program is None else Path(program),
            None if p4info is None else Path(p4info),
            self._description.switches[0].target,
        )
        files = {} if given is None else {"program": str(given[0]), "p4info": str(given[1])}
        with call(self._running) as stub:
            stub.Deploy(DeployRequest(routing=routing or "", **files))

    def down(self) -> None:
        """Take the network down. Raises EntrainError."""
        stop(self._running)


@contextlib.contextmanager
def up(
    topology: str | Path,
    *,
    target: Literal["softswitch", "bmv2"] | None = None,
    routing: Literal["ecmp", "source"] | None = None,
) -> Iterator[Network]:
    """Bring up a network with its controller, and take it down at the end of the context.

    `topology` is the path of a topology or an experiment, or the text of one. It needs root. Should this
    process be killed, `entrain down` takes the network down.

    Warns of what is not applied as it stands in the file. Raises BadInput for the file, and EntrainError,
    also if a network with its name is already up.
    """
    with tempfile.TemporaryDirectory(prefix="entrain-") as place:
        file = Path(topology)
        if isinstance(topology, str) and "\n" in topology:
            file = Path(place) / "network.toml"
            file.write_text(topology, encoding="utf-8")
        plan = prepared(file, target, routing)
        for warning in plan.warnings:
            warnings.warn(warning, stacklevel=3)  # at the caller's `with`
        if start(plan) is None:
            raise EntrainError(
                f"network {plan.topology.name} is already up; `entrain.Network.running()` returns it, and "
                f"`entrain down --network {plan.topology.name}` takes it down"
            )
    network = Network.running(plan.topology.name)
    try:
        yield network
    finally:
        network.down()


def _command(*arguments: str) -> str:
    """Return what an entrain command prints. Raises the error that it prints."""
    line = [sys.executable, "-m", "entrain.cli", *arguments]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise error_of(done.returncode, done.stdout, done.stderr)
    return done.stdout
