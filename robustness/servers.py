"""The four gRPC servers of the product, each a process that is started as the product starts it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane import api_pb2 as api
from controlplane.topology import load_topology
from entrain.certificates import issue
from hostbpf.rpc import agent_pb2 as agent_pb
from hostbpf.rpc import emulated_switch_pb2 as switch_pb
from machine.packages import ROOT, run_module
from machine.patience import patience
from machine.process import Child, launch
from machine.record import Record, Resource
from machine.tls import CONTROLLER, OPERATORS, Identity, identity_of
from wire.progress import DIRECTORY_VARIABLE

NOBODY = 65534
LONG_SLOT_MS = 1000.0
HOST, VICTIM, READER, SWITCH = "h1", "h2", "eve", "leaf1"
START_S = 60.0
"""Seconds (times `patience`) in which a server must answer, and a caller of it be ready."""
RELAY = """
import asyncio, sys

async def pass_on(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()

async def admit(reader, writer):
    answers, calls = await asyncio.open_unix_connection(sys.argv[2])
    await asyncio.gather(pass_on(reader, calls), pass_on(answers, writer), return_exceptions=True)

async def serve():
    async with await asyncio.start_unix_server(admit, sys.argv[1]) as server:
        print("ready", flush=True)
        await server.serve_forever()

asyncio.run(serve())
"""
NETWORK = """
[topology]
kind = "leaf-spine"
leaves = 1
spines = 1
hosts_per_leaf = 2
certificates = "certs"

[cluster]
gpus_per_server = 1
strategy = "vclos"

[controller]
listen = "127.0.0.1:{port}"
"""


@dataclass(frozen=True)
class Server:
    """A server that runs, and what operator and attacker call.

    `name` is the server's in its certificate. The attacker is the user `user`, or has a certificate.
    """

    address: str
    method: str
    request: bytes
    operator: Identity | None = None
    attacker: Identity | None = None
    user: int | None = None
    name: str = ""
    child: Child | None = None


class Place:
    """The directory of a campaign: certificates, files and logs. Processes belong to `record`."""

    def __init__(self, directory: Path, record: Record) -> None:
        self._directory, self.record = directory, record
        self._port = free_port()
        self._namespace = f"callers{os.getpid()}"
        self.file = directory / f"callers{os.getpid()}.toml"
        self.file.write_text(NETWORK.format(port=self._port), encoding="utf-8")
        issue(load_topology(self.file), directory / "certs", 1, readers=[READER])

    def identity(self, name: str) -> Identity:
        """Return the identity with that file name."""
        return identity_of(self._directory / "certs", name)

    @contextlib.contextmanager
    def _running(self, what: str, server: Server, command: Sequence[str]) -> Iterator[Server]:
        child = launch(self.record, f"the {what}", command, log=self._directory / f"{what}.log")
        try:
            yield replace(server, child=child)
        finally:
            child.end()

    @contextlib.contextmanager
    def emulated(self) -> Iterator[Server]:
        """Run an emulated switch."""
        address = f"127.0.0.1:{free_port()}"
        file = self._directory / "switch.toml"
        file.write_text(
            f'name = "{SWITCH}"\nlisten = "{address}"\ncertificates = "certs"\n'
            "[[port]]\nnumber = 1\nrate_mbps = 1000\n",
            encoding="utf-8",
        )
        server = Server(
            address,
            "/entrain.emulated.v1.EmulatedSwitch/ForgetFlow",
            switch_pb.ForgetFlowRequest().SerializeToString(),
            self.identity(VICTIM),
            self.identity(HOST),
            name=SWITCH,
        )
        command = [*run_module("entrain.cli"), "emulated-switch", str(file)]
        with self._running("emulated switch", server, command) as running:
            yield running

    @contextlib.contextmanager
    def emulated_for_anybody(self) -> Iterator[Server]:
        """Run an emulated switch with ports 1 and 2 that answers everybody on loopback, in long slots."""
        address, file = f"127.0.0.1:{free_port()}", self._directory / "open.toml"
        ports = "".join(f"[[port]]\nnumber = {number}\nrate_mbps = 1000\n" for number in (1, 2))
        settings = f'name = "{SWITCH}"\nlisten = "{address}"\nslot_ms = {LONG_SLOT_MS}\n'
        file.write_text(settings + ports, encoding="utf-8")
        command = [*run_module("entrain.cli"), "emulated-switch", str(file)]
        with self._running("open emulated switch", Server(address, "", b""), command) as running:
            yield running

    @contextlib.contextmanager
    def agent(self) -> Iterator[Server]:
        """Run an agent of a network namespace's loopback interface, for all users."""
        self.record.own(Resource("netns", self._namespace))
        subprocess.run(["ip", "netns", "add", self._namespace], check=True)
        subprocess.run(["ip", "-n", self._namespace, "link", "set", "lo", "up"], check=True)
        address = f"unix:{self._directory}/agent.sock"
        options = ["--interface", "lo", "--listen", address, "--allow-users"]
        options += ["--progress", str(self._directory / "progress")]
        command = ["ip", "netns", "exec", self._namespace, *run_module("hostbpf"), *options]
        request = agent_pb.ListJobsRequest().SerializeToString()
        server = Server(address, "/entrain.host.v1.Host/ListJobs", request, user=NOBODY)
        with self._running("agent", server, command) as running:
            yield running

    @contextlib.contextmanager
    def publishing(self, job: str) -> Iterator[None]:
        """Run a process of `job` where the agent is, which publishes its progress."""
        script = "import sys; from wire.progress import Publisher; "
        script += f"held = Publisher({job!r}); print(flush=True); sys.stdin.read()"
        command = ["ip", "netns", "exec", self._namespace, sys.executable, "-c", script]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            DIRECTORY_VARIABLE: str(self._directory / "progress"),
        }
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()
            yield
            process.stdin.close()

    @contextlib.contextmanager
    def as_user(self, server: Server) -> Iterator[str]:
        """Run a relay of the user `server.user` to a Unix socket; yields the relay's address."""
        directory = self._directory / "user"
        directory.mkdir(mode=0o700)
        os.chown(directory, server.user or 0, -1)
        address = directory / "relay.sock"
        user = ["setpriv", f"--reuid={server.user}", "--clear-groups"]
        command = [*user, sys.executable, "-c", RELAY, str(address), server.address.removeprefix("unix:")]
        child = launch(self.record, "the user's relay", command, tells=True)
        try:
            child.wait_ready(patience(START_S))
            yield f"unix:{address}"
        finally:
            child.end()

    @contextlib.contextmanager
    def softswitch(self) -> Iterator[Server]:
        """Run a switch without ports and without a program."""
        from finsy.proto import p4r

        address, own = f"127.0.0.1:{free_port()}", self.identity(SWITCH)
        command = [
            *(*run_module("softswitch"), "--no-p4", "--grpc-server-addr", address, "--grpc-server-ssl"),
            *("--grpc-server-cacert", str(own.authority), "--grpc-server-cert", str(own.certificate)),
            *("--grpc-server-key", str(own.key), "--grpc-server-with-client-auth"),
            *("--client-name", "entrain:operator"),
        ]
        server = Server(
            address,
            "/p4.v1.P4Runtime/Capabilities",
            p4r.CapabilitiesRequest().SerializeToString(),
            self.identity(OPERATORS),
            self.identity(HOST),
            name=SWITCH,
        )
        with self._running("softswitch", server, command) as running:
            yield running

    @contextlib.contextmanager
    def controller(self, attacker: str = HOST) -> Iterator[Server]:
        """Run the controller of a cluster."""
        state = self._directory / f"state-{attacker}"
        server = Server(
            f"127.0.0.1:{self._port}",
            "/entrain.v1.Controller/ListJobs",
            api.ListJobsRequest().SerializeToString(),
            self.identity(OPERATORS),
            self.identity(attacker),
            name=CONTROLLER,
        )
        command = [*run_module("entrain.cli"), "controller", str(self.file), "--state", str(state)]
        with self._running("controller", server, command) as running:
            yield running

    def controller_for_reader(self) -> contextlib.AbstractContextManager[Server]:
        """Run the same, attacked by a reader."""
        return self.controller(READER)


SERVERS: dict[str, Callable[[Place], contextlib.AbstractContextManager[Server]]] = {
    "emulated": Place.emulated,
    "agent": Place.agent,
    "softswitch": Place.softswitch,
    "controller": Place.controller,
    "controller-reader": Place.controller_for_reader,
}


def free_port() -> int:
    """Return a TCP port of loopback that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
