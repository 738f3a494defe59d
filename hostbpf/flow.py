"""Flows as the keys of the kernel side's maps (bpf/flow_key.h)."""

from __future__ import annotations

import functools
import ipaddress
import socket
from typing import NamedTuple

from ebpf import Codec, in_netns
from wire.flow import Flow

SO_NETNS_COOKIE = 71
"""Socket option of Linux that reads the number of a socket's network namespace."""


class _Key(NamedTuple):
    """Addresses and ports as the network-order bytes read on this machine."""

    netns: int
    source: int
    destination: int
    source_port: int
    destination_port: int
    protocol: int


KEY = Codec("=QIIHHI", _Key)


@functools.lru_cache(8192)
def flow_key(flow: Flow, netns: int = 0) -> _Key:
    """The key of `flow` in the kernel side's maps (flow_key.h)."""
    source, destination = (
        socket.ntohl(int(ipaddress.IPv4Address(each))) for each in (flow.source, flow.destination)
    )
    ports = (socket.ntohs(flow.source_port), socket.ntohs(flow.destination_port))
    return _Key(netns, source, destination, *ports, flow.protocol)


@functools.lru_cache(8192)
def packed_key(flow: Flow, netns: int = 0) -> bytes:
    """The bytes of that key."""
    return KEY.pack(flow_key(flow, netns))


def netns_cookie(netns: str | None = None) -> int:
    """The kernel's number of a network namespace (default: the present one)."""

    def read() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), "little")

    return in_netns(netns, read)


def flow_of(key: _Key) -> Flow:
    """The flow that a key of the kernel side's maps stands for."""
    source, destination = (
        str(ipaddress.IPv4Address(socket.htonl(each))) for each in (key.source, key.destination)
    )
    ports = socket.htons(key.source_port), socket.htons(key.destination_port)
    return Flow(source, ports[0], destination, ports[1], key.protocol)
