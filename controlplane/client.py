"""The client of the controller's API: find the networks that are up, and call one of them.

A network of another machine is named by the HOST:PORT of its controller. The environment variable
ENTRAIN_IDENTITY then names the caller's certificate: DIR/NAME of DIR/NAME.crt and DIR/NAME.key.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from controlplane import api_pb2_grpc as api_grpc
from machine.errors import BadInput, EntrainError
from machine.record import RECORDS
from machine.tls import CONTROLLER, Identity, identity_of, open_channel

NETWORKS = RECORDS / "networks"
RUNS = RECORDS / "runs"
"""Directories of runs in progress, whose networks can be read."""
SOCKET = "api.sock"
IDENTITY = "ENTRAIN_IDENTITY"
"""The environment variable with the caller's certificate."""


@dataclass(frozen=True)
class RunningNetwork:
    """A network started by `entrain up`, or that of a run in progress, with its directory.

    With an `identity` it is another machine's, and `name` is the HOST:PORT of its controller.
    """

    name: str
    directory: Path
    identity: Identity | None = None

    @property
    def address(self) -> str:
        """Where the controller answers, as gRPC names it."""
        return self.name if self.identity is not None else f"unix:{self.directory / SOCKET}"


def running_networks(root: Path = NETWORKS) -> list[RunningNetwork]:
    """Return the networks that have a directory. Only a call shows whether a controller is alive."""
    return [RunningNetwork(path.parent.name, path.parent) for path in sorted(root.glob(f"*/{SOCKET}"))]


def choose(name: str | None, root: Path = NETWORKS, *, runs: Path | None = None) -> RunningNetwork:
    """Return the network called `name`, or the only one. With `runs`, also that of a run in progress there.

    Raises EntrainError if there is none, and BadInput if there are several and `name` is not given, or if
    `name` is an address and the environment names no certificate.
    """
    if name is not None and ":" in name:
        return RunningNetwork(name, root, own_identity(f"--network {name}"))
    networks = running_networks(root) + (running_networks(runs) if runs is not None else [])
    names = ", ".join(network.name for network in networks)
    if name is not None:
        for network in networks:
            if network.name == name:
                return network
        up = f"there is {names}" if names else "none is up"
        raise EntrainError(f"no network {name!r} is up ({up}): `entrain up TOPOLOGY.toml`")
    if not networks:
        remedy = "`entrain up TOPOLOGY.toml`" + (", or start `entrain run`" if runs is not None else "")
        raise EntrainError(f"no network is up{' or runs' if runs is not None else ''}: {remedy}")
    if len(networks) > 1:
        raise BadInput(f"several networks are up ({names}): choose one with --network")
    return networks[0]


def own_identity(option: str) -> Identity:
    """Return the caller's identity, as the environment names it. Raises BadInput, naming `option`."""
    if not (given := os.environ.get(IDENTITY)):
        raise BadInput(
            f"{option}: is another machine's; set {IDENTITY} to your certificate, DIR/NAME of a directory "
            f"that `entrain certs` has made"
        )
    return identity_of(Path(given).parent, Path(given).name)


@contextlib.contextmanager
def call(network: RunningNetwork) -> Iterator[Any]:
    """Connect to the network's controller. The controller's errors are raised here unchanged."""
    with open_channel(grpc, network.address, (), network.identity, CONTROLLER) as channel:
        try:
            yield api_grpc.ControllerStub(channel)
        except grpc.RpcError as error:
            raise _error(network, error) from None


def _error(network: RunningNetwork, error: grpc.RpcError) -> EntrainError:
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE:
        if network.identity is None and not (network.directory / SOCKET).exists():
            return EntrainError(f"network {network.name} is gone: it was taken down, or its run has ended")
        if network.identity is None and not os.access(network.directory / SOCKET, os.W_OK):
            return EntrainError(f"network {network.name} belongs to another user, such as root; run as root")
        return EntrainError(
            f"the controller of network {network.name} does not answer on {network.address}; "
            + (
                "check the address, and that its certificates are of your authority"
                if network.identity
                else "if it crashed, `entrain clean` removes what it left"
            )
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return BadInput(f"{network.name} is a run in progress, which can only be watched")
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return BadInput(details)
    return EntrainError(details or code.name)
