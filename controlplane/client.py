"""The client of the controller's API: find the networks that are up, and call one of them."""

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
    """A network started by `entrain up`, with its directory."""

    name: str
    directory: Path

    @property
    def socket(self) -> Path:
        """The controller's Unix socket."""
        return self.directory / SOCKET


def running_networks(root: Path = NETWORKS) -> list[RunningNetwork]:
    """Return the networks that have a directory. Only a call shows whether a controller is alive."""
    return [RunningNetwork(path.parent.name, path.parent) for path in sorted(root.glob(f"*/{SOCKET}"))]


def choose(name: str | None, root: Path = NETWORKS) -> RunningNetwork:
    """Return the network called `name`, or the only one.

    Raises EntrainError if there is none, and BadInput if there are several and `name` is not given.
    """
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
        raise BadInput(f"several networks are up ({names}): choose one with --network")
    return networks[0]


@contextlib.contextmanager
def call(network: RunningNetwork) -> Iterator[Any]:
    """Connect to the network's controller. The controller's errors are raised here unchanged."""
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
