"""Publish the progress of a rank's connections for the host's scheduler (docs/monitor.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from schedulers.slots.roles import Role
from wire.progress import Direction, Entry, Phase, Publisher
from workloads.collectives import Program
from workloads.connections import Incoming, Outgoing
from workloads.jobs import JobSpec


class Reported:
    """The progress of one connection. Bytes include headers and values."""

    def __init__(self, entry: Entry, direction: Direction, total: int) -> None:
        self._entry, self._total = entry, total
        # A receiver does not know when its peer may send.
        self._ready_before = 0 if direction is Direction.SENT else total
        self._before = self._moved = 0  # bytes of this iteration's earlier transfers, and of the current one
        self.compute(0)

    def compute(self, iteration: int) -> None:
        """Publish the start of an iteration, which begins with computation."""
        self._iteration, self._phase, self._ready = iteration, Phase.COMPUTING, self._ready_before
        self._before = self._moved = 0
        self._update()

    def communicate(self) -> None:
        """Publish the start of communication."""
        self._phase = Phase.COMMUNICATING
        self._update()

    def release(self, size: int) -> None:
        """Publish that a transfer of `size` bytes may now be sent."""
        self._ready = min(self._ready + size, self._total)
        self._update()

    def moved(self, size: int, complete: bool) -> None:
        """Publish that `size` bytes of the current transfer have been sent or received."""
        self._moved = size
        self._update()
        if complete:
            self._before, self._moved = self._before + size, 0

    def _update(self) -> None:
        done = self._before + self._moved
        self._entry.update(self._iteration, self._phase, self._total, self._ready, done)


class _Sizes(NamedTuple):
    """Bytes of one connection: per iteration, and of its largest transfer."""

    total: int = 0
    largest: int = 0


def reported(
    publisher: Publisher,
    job: JobSpec,
    rank: int,
    transfers: Iterable[tuple[Outgoing | Incoming, int]],
) -> dict[int, Reported]:
    """Return a `Reported` for each connection, by descriptor. `transfers` are an iteration's transfers with
    their sizes in bytes."""
    program = job.program()
    sizes: dict[Outgoing | Incoming, _Sizes] = {}
    for connection, size in transfers:
        total, largest = sizes.get(connection, _Sizes())
        sizes[connection] = _Sizes(total + size, max(largest, size))
    found = {}
    for connection, (total, largest) in sizes.items():
        sent = isinstance(connection, Outgoing)
        direction = Direction.SENT if sent else Direction.RECEIVED
        role, group = role_of(program, *((rank, connection.peer) if sent else (connection.peer, rank)))
        # A ring member is ahead of its predecessor by at most its own chunk. A server sends back each
        # transfer once it has that of all workers.
        chunk = 0
        if role is Role.RING:
            chunk = largest * (program.units // program.ranks)
        elif role is Role.AGGREGATION:
            chunk = largest
        entry = publisher.flow(connection.flow, direction, role, group, chunk=chunk)
        found[connection.fd] = Reported(entry, direction, total)
    return found


def role_of(program: Program, sender: int, receiver: int) -> tuple[Role, int]:
    """Return the role of a flow between two ranks and the group of flows on which it depends: the rank of the
    parameter server, else 0."""
    if program.collective == "ring":
        return Role.RING, 0
    if program.collective == "parameter-server":
        return (Role.AGGREGATION, receiver) if sender in program.sources else (Role.BROADCAST, sender)
    return Role.FREE, 0
