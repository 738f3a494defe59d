"""The command line's side of the controller's API: which networks are up, and calls to one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from controlplane import api_pb2_grpc as api_grpc
from machine.errors import BadInput, EntrainError
from machine.record import RECORDS

NETWORKS = RECORDS / "networks"
SOCKET = "api.sock"


@dataclass(frozen=True)
class RunningNetwork:
    """A network that `entrain up` started, by its directory."""

    name: str
    directory: Path

    @property
    def socket(self) -> Path:
        """The Unix socket of its controller."""
        return self.directory / SOCKET


def running_networks(root: Path = NETWORKS) -> list[RunningNetwork]:
    """The networks that have a directory; one whose controller died is found out by calling it."""
    return [RunningNetwork(path.parent.name, path.parent) for path in sorted(root.glob(f"*/{SOCKET}"))]


def choose(name: str | None, root: Path = NETWORKS) -> RunningNetwork:
    """The network called `name`, or the only one. Raises EntrainError (there is none), BadInput (unclear)."""
    networks = running_networks(root)
    names = ", ".join(network.name for network in networks)
    if name is not None:
        for network in networks:
            if network.name == name:
                return network
        up = f"up are {names}" if names else "none is up"
        raise EntrainError(f"no network {name!r} is up ({up}): `entrain up TOPOLOGY.toml`")
    if not networks:
        raise EntrainError("no network is up: `entrain up TOPOLOGY.toml`")
    if len(networks) > 1:
        raise BadInput(f"several networks are up ({names}): say which with --network")
    return networks[0]


@contextlib.contextmanager
def call(network: RunningNetwork) -> Iterator[Any]:
    """A stub of the network's controller; what the controller raises comes out as it was."""
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix:{network.socket}", options=options) as channel:
        try:
            yield api_grpc.ControllerStub(channel)
        except grpc.RpcError as error:
            raise _error(network, error) from None


def _error(network: RunningNetwork, error: grpc.RpcError) -> EntrainError:
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE:
        return EntrainError(
            f"the controller of network {network.name} does not answer on {network.socket}; "
            f"if it crashed, `entrain clean` removes what it left"
        )
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return BadInput(details)
    return EntrainError(details or code.name)
