"""Mininet nodes for P4 switches. For any target, a node is one process that serves P4Runtime.

A node starts with the ports of its topology, and is ready when its P4Runtime server answers. If it does not
become ready, or ends, the error shows the end of its log.
"""

from __future__ import annotations

import functools
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc
from finsy.proto import p4r, p4r_grpc

from controlplane.topology import Switch, Target
from machine import tls
from machine.errors import EntrainError, MissingTool
from machine.packages import run_module
from machine.patience import patience
from machine.process import Child, launch
from machine.record import Record
from mininet_topos.base import Switch as MininetSwitch
from wire.slot_header import ETHERTYPE

CPU_PORT = 255
"""The port through which a switch and its controller exchange packets."""
READY_TIMEOUT_S = patience(30.0)
"""How long a switch may take to serve."""

FIRST_THRIFT_PORT = 9090
"""BMv2's default, which all switches of a network would otherwise use."""

_RECONNECT_AT_ONCE = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]


class SwitchNode(MininetSwitch):  # type: ignore[misc]
    """A P4 switch process. `start` returns at once; `wait_ready` returns when it serves.

    The process logs to `directory/NAME.log`.
    """

    target: ClassVar[Target]

    def __init__(
        self,
        name: str,
        *,
        switch: Switch,
        record: Record,
        directory: Path,
        log_level: str,
        thrift_port: int = FIRST_THRIFT_PORT,
        **params: Any,
    ) -> None:
        super().__init__(name, dpid=f"{switch.device_id:x}", **{**params, "inNamespace": False})
        self.switch = switch
        self.log = directory / f"{name}.log"
        self.log_level = log_level
        self.thrift_port = thrift_port
        self._record = record
        self._child: Child | None = None

    @classmethod
    def require(cls) -> None:
        """Raise MissingTool if the target is not installed."""

    def command(self) -> list[str]:
        """Return the command line of the switch process."""
        raise NotImplementedError

    def start(self, controllers: Sequence[object] = ()) -> None:
        """Start the process. Raises EntrainError if its gRPC port is taken."""
        self._check_port()
        what = f"switch {self.name} ({self.target})"
        self._child = launch(self._record, what, self.command(), log=self.log, death="KILL")

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the P4Runtime server answers. Raises EntrainError with the log's end if it does not."""
        child = self._running()
        deadline = time.monotonic() + timeout_s
        with tls.open_channel(
            grpc, self.switch.grpc_address, _RECONNECT_AT_ONCE, self.switch.operator, self.name
        ) as channel:
            ask = p4r_grpc.P4RuntimeStub(channel).Capabilities
            while True:
                child.check()
                answer = ask.future(p4r.CapabilitiesRequest(), timeout=0.25, wait_for_ready=True)
                try:
                    answer.result()
                    return
                except grpc.RpcError as error:
                    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                        return  # it serves, which is all we need
                    if time.monotonic() > deadline:
                        raise child.failure(f"did not serve P4Runtime within {timeout_s:.0f} s") from error

    def check(self) -> None:
        """Raise EntrainError with the log's end if the process has ended."""
        self._running().check()

    def _running(self) -> Child:
        if self._child is None:
            raise EntrainError(f"switch {self.name} was not started")
        return self._child

    def stop(self, deleteIntfs: bool = False) -> None:  # noqa: N803 (Mininet's name)
        """End the process. The interfaces belong to the network, which removes them."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def ask_to_end(self) -> None:
        """Ask the process to end, without waiting for it."""
        if self._child is not None and self._child.process.poll() is None:
            self._child.process.terminate()

    def restart(self) -> None:
        """Restart the process. It comes back empty, and the controller restores its state."""
        self.stop()
        self.start()
        self.wait_ready()

    @property
    def process_id(self) -> int | None:
        """The process id of the switch while it runs."""
        return self._child.process.pid if self._child is not None else None

    def _check_port(self) -> None:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((self.switch.grpc_host, self.switch.grpc_port))
            except OSError as error:
                raise EntrainError(
                    f"switch {self.name} cannot listen on {self.switch.grpc_address}: {error.strerror}; end "
                    f"the process that uses it (`entrain down`, `entrain clean`), or choose another grpc_port"
                ) from error

    def _ports(self) -> list[str]:
        ports: list[str] = []
        for port in self.switch.ports:
            ports += ["-i", f"{port.number}@{self.switch.interface(port.number)}"]
        return ports

    def _target_options(self) -> list[str]:
        options = ["--grpc-server-addr", self.switch.grpc_address, "--cpu-port", str(CPU_PORT)]
        if self.switch.certificates is not None:
            own = tls.identity_of(self.switch.certificates, self.name)
            own.read()  # a file that is missing is named here, and not in a switch's log
            options += ["--grpc-server-ssl", "--grpc-server-with-client-auth"]
            options += ["--grpc-server-cacert", str(own.authority)]
            options += ["--grpc-server-cert", str(own.certificate), "--grpc-server-key", str(own.key)]
        return options


class SoftSwitchNode(SwitchNode):
    """The embedded target: the program runs in the kernel, and the process serves P4Runtime."""

    target: ClassVar[Target] = "softswitch"

    def command(self) -> list[str]:
        """`python -m softswitch` with the rate and queue of each port, from which it reckons queue depth."""
        rates = [
            argument
            for port in self.switch.ports
            for argument in ("--port-rate", f"{port.number}@{port.rate_mbps:g}:{port.queue_packets}")
        ]
        operators = ["--client-name", tls.OPERATOR] if self.switch.certificates is not None else []
        return [
            *(*run_module("softswitch"), "--no-p4", "--device-id", str(self.switch.device_id)),
            *self._ports(),
            *("--name", self.name, "--log-level", self.log_level, *rates),
            *("--express-ethertype", f"{ETHERTYPE:#x}", *operators, "--", *self._target_options()),
        ]


class Bmv2Node(SwitchNode):
    """The reference target, `simple_switch_grpc`."""

    target: ClassVar[Target] = "bmv2"
    program: ClassVar[str] = "simple_switch_grpc"

    @classmethod
    def require(cls) -> None:
        """Raise MissingTool if it is not on PATH."""
        if shutil.which(cls.program) is None:
            raise MissingTool(
                f"{cls.program} is not on PATH: install BMv2 (github.com/p4lang/behavioral-model), "
                f'or use target = "softswitch"'
            )

    def command(self) -> list[str]:
        """`simple_switch_grpc` without a program, with a Thrift port of its own if it has Thrift."""
        thrift = ["--thrift-port", str(self.thrift_port)] if has_thrift(self.program) else []
        return [
            *(self.program, "--no-p4", "--device-id", str(self.switch.device_id), *self._ports(), *thrift),
            *("--log-console", "--log-level", self.log_level, "--", *self._target_options()),
        ]


@functools.cache
def has_thrift(program: str = Bmv2Node.program) -> bool:
    """Return whether this BMv2 was built with Thrift: only then its help names the option for the port."""
    shown = subprocess.run([program, "--help"], capture_output=True, text=True, check=False, timeout=30)
    return "--thrift-port" in shown.stdout + shown.stderr


def thrift_ports(switches: Sequence[Switch]) -> dict[str, int]:
    """By name, a port for each switch's Thrift server: free, and not the gRPC port of any."""
    taken = {switch.grpc_port for switch in switches}
    free = (port for port in range(FIRST_THRIFT_PORT, 65536) if port not in taken and _is_free(port))
    return {switch.name: next(free) for switch in switches}


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError:
            return False
    return True


NODES: dict[Target, type[SwitchNode]] = {node.target: node for node in (SoftSwitchNode, Bmv2Node)}
"""The node class of each target that runs on this machine."""


def wait_ready(nodes: Iterable[SwitchNode], timeout_s: float = READY_TIMEOUT_S) -> None:
    """Wait until all of `nodes`, already started, serve. Raises EntrainError of the first that does not."""
    deadline = time.monotonic() + timeout_s
    for node in nodes:
        node.wait_ready(max(1.0, deadline - time.monotonic()))
