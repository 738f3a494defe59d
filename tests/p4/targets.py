"""What the packet tests run on: the same program behind the same interface, on every target.

A target owns a switch that runs one program. `send` gives it a packet at a port and returns, once the switch
has done with it, what left and where. The controller's port is an ordinary port here: a packet sent to it is
a packet-out, and what leaves at it was a packet-in, both with the controller header as the data plane has it.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.p4.compile import BUILD, NAMES
from tests.p4.runtime import Runtime

CPU_PORT = 255
PORTS = (1, 2, 3, 4, 5, 6)
FENCE = 0x88B6

Output = tuple[int, bytes]
Injected = tuple[int, bytes]


def fence(source: int, port: int, token: bytes) -> bytes:
    """The fence of the feature programs (base.p4): sent at `source`, it leaves untouched at `port`."""
    return port.to_bytes(6, "big") + bytes(6) + FENCE.to_bytes(2, "big") + token


def fence_behind_header(source: int, port: int, token: bytes) -> bytes:
    """The same for programs whose packet-outs begin with {egress_port: 9 bits, 7 bits}."""
    packet = fence(source, port, token)
    return (port << 7).to_bytes(2, "big") + packet if source == CPU_PORT else packet


@dataclass(frozen=True)
class Program:
    """A compiled program, and how to make packets that certainly leave at a given port.

    `fence(source, port, token)`, sent at port `source`, leaves at `port` with `token` at its end and changes
    no state that a test looks at.
    """

    name: str
    build: Path = BUILD
    fence: Callable[[int, int, bytes], bytes] = fence

    @property
    def json(self) -> Path:
        return self.build / f"{self.name}.json"

    @property
    def p4info(self) -> Path:
        return self.build / f"{self.name}.p4info.txtpb"


@dataclass
class Batch:
    """What came of a sequence of packets: per packet what left at data ports (sorted), and all packet-ins."""

    outputs: list[list[Output]]
    controller: list[bytes] = field(default_factory=list)


class Target(ABC):
    """One switch with one program. A context manager; `client` speaks P4Runtime to it."""

    kind: str
    client: Runtime

    def __init__(self, program: Program) -> None:
        self.program = program
        self._tokens = itertools.count(1)

    @abstractmethod
    def start(self) -> None:
        """Start the switch and load the program."""

    @abstractmethod
    def close(self) -> None:
        """End the switch."""

    @abstractmethod
    def send_batch(self, packets: Sequence[Injected]) -> Batch:
        """Send packets in this order; returns when the switch has done with all of them."""

    def send(self, port: int, packet: bytes) -> list[Output]:
        """Send one packet; what left, sorted by port and bytes."""
        batch = self.send_batch([(port, packet)])
        return sorted(batch.outputs[0] + [(CPU_PORT, data) for data in batch.controller])

    @contextmanager
    def installed(self, *entities: Any) -> Iterator[None]:
        """Within, these P4Runtime entities are there (written in one batch, removed in reverse order)."""
        if not entities:
            yield
            return
        self.client.insert(*entities)
        try:
            yield
        finally:
            self.client.delete(*reversed(entities))

    def token(self) -> bytes:
        """Bytes that no other packet carries."""
        return b"entrain-fence" + next(self._tokens).to_bytes(4, "big")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


PROGRAMS = {name: Program(name) for name in NAMES} | {
    "cpu": Program("cpu", fence=fence_behind_header),
}
