"""The 5-tuple of a flow, as all parts of the project name flows."""

from __future__ import annotations

import socket
from typing import NamedTuple


class Flow(NamedTuple):
    """A flow as its sender sees it; addresses are IPv4 in text, `protocol` is 6 (TCP) or 17 (UDP)."""

    source: str
    source_port: int
    destination: str
    destination_port: int
    protocol: int = socket.IPPROTO_TCP

    def __str__(self) -> str:
        protocol = {socket.IPPROTO_TCP: "", socket.IPPROTO_UDP: " (UDP)"}.get(
            self.protocol, f" (protocol {self.protocol})"
        )
        return f"{self.source}:{self.source_port} to {self.destination}:{self.destination_port}{protocol}"

    @classmethod
    def of(cls, connected: socket.socket) -> Flow:
        """The flow that a connected socket sends."""
        source, destination = connected.getsockname(), connected.getpeername()
        return cls(source[0], source[1], destination[0], destination[1], connected.proto or 6)
