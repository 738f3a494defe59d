"""An optical circuit switch as a value: its ports, its circuits, and what it takes to change them.

Ports are numbered from 1, as on the front panel, and are duplex: one fibre in, one fibre out. A circuit joins
two ports in both directions, and a port has one circuit at most. While the switch makes a circuit, its two
ports are dark; all others carry on. A circuit that nobody holds stays until one of its ports is needed.
Source: vClos, 7 and 8.1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from machine.errors import BadInput, EntrainError

SWITCHING_MS = 50.0
"""How long a MEMS switch takes to make a circuit. Source: vClos, 7."""

PORT_LOSS_DB = 1.0
"""What light loses at one port. A circuit passes two; MEMS switches lose 1 to 3 dB per circuit."""


@dataclass(frozen=True, order=True)
class Circuit:
    """A circuit between ports `a` and `b`, the lower first. Raises ValueError otherwise."""

    a: int
    b: int

    def __post_init__(self) -> None:
        if not 1 <= self.a < self.b:
            raise ValueError(f"circuit {self}: joins two ports, numbered from 1, the lower first")

    def __str__(self) -> str:
        return f"{self.a}-{self.b}"

    @property
    def ports(self) -> tuple[int, int]:
        """Both ports."""
        return self.a, self.b


def join(one: int, other: int) -> Circuit:
    """Return the circuit between two ports. Raises ValueError if they are one, or below 1."""
    return Circuit(min(one, other), max(one, other))


class Conflict(EntrainError):
    """A circuit needs a port that another owner holds."""

    def __init__(self, circuit: Circuit, port: int, owner: str, held: Circuit) -> None:
        super().__init__(f"circuit {circuit} needs port {port}, which {owner} holds in circuit {held}")
        self.circuit, self.port, self.owner, self.held = circuit, port, owner, held


class PortFailed(EntrainError):
    """A circuit needs a port that has failed."""

    def __init__(self, circuit: Circuit, port: int) -> None:
        super().__init__(
            f"circuit {circuit} needs port {port} of the optical circuit switch, which has failed"
        )
        self.circuit, self.port = circuit, port


@dataclass(frozen=True)
class Crossbar:
    """What a switch can do.

    `loss_db` has what light loses at a port, where that is not `port_loss_db`. `budget_db` is what a link may
    lose between its transceivers.
    """

    ports: int
    switching_ms: float = SWITCHING_MS
    loss_db: Mapping[int, float] = field(default_factory=dict)
    budget_db: float = math.inf
    port_loss_db: float = PORT_LOSS_DB

    def insertion_loss_db(self, circuit: Circuit) -> float:
        """Return what light loses on its way through a circuit, in dB."""
        return sum(self.loss_db.get(port, self.port_loss_db) for port in circuit.ports)


@dataclass(frozen=True)
class Reading:
    """The state of a switch: the circuits that it has made, and the ports that have failed."""

    circuits: frozenset[Circuit] = frozenset()
    failed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Change:
    """What to do at a switch: delete circuits, then make others. It is false if there is nothing to do."""

    remove: frozenset[Circuit] = frozenset()
    add: frozenset[Circuit] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.remove or self.add)

    @property
    def ports(self) -> frozenset[int]:
        """The ports that become dark."""
        return _ports(self.remove | self.add)

    def __str__(self) -> str:
        parts = [("delete", self.remove), ("make", self.add)]
        return ", ".join(f"{word} {listed(circuits)}" for word, circuits in parts if circuits) or "nothing"


def listed(circuits: Iterable[Circuit]) -> str:
    """Return circuits as text: `1-5, 2-7`."""
    return ", ".join(map(str, sorted(circuits)))


def plan(
    crossbar: Crossbar,
    reading: Reading,
    owner: str,
    wanted: Collection[Circuit],
    held: Mapping[str, Collection[Circuit]],
) -> Change:
    """Return the fewest changes after which all `wanted` circuits exist. None touches what others hold.

    `held` has the circuits of each owner. Raises BadInput for circuits that cannot be (a port that does not
    exist, a port in two of them, light below the budget), Conflict, and PortFailed for one to be made.
    """
    _check(crossbar, wanted)
    for other, theirs in held.items():
        if other != owner:
            _check_free(wanted, other, theirs)
    change = towards(reading.circuits, wanted)
    for circuit in sorted(change.add):
        for port in circuit.ports:
            if port in reading.failed:
                raise PortFailed(circuit, port)
    return change


def towards(present: Iterable[Circuit], wanted: Iterable[Circuit]) -> Change:
    """Return what makes all `wanted` circuits, and removes only what is in their way."""
    present, wanted = frozenset(present), frozenset(wanted)
    add = wanted - present
    needed = _ports(add)
    return Change(frozenset(each for each in present if needed & set(each.ports)), add)


def after(present: Iterable[Circuit], change: Change) -> frozenset[Circuit]:
    """Return the circuits after a change. Raises ValueError if one does not exist, or a port has one."""
    present = frozenset(present)
    if missing := change.remove - present:
        raise ValueError(f"circuits {listed(missing)} do not exist")
    left = present - change.remove
    for circuit in sorted(change.add):
        for other in sorted(left):
            if set(circuit.ports) & set(other.ports):
                raise ValueError(f"circuit {circuit}: a port of it has circuit {other}")
        left |= {circuit}
    return left


def _ports(circuits: Iterable[Circuit]) -> frozenset[int]:
    return frozenset(port for circuit in circuits for port in circuit.ports)


def _check(crossbar: Crossbar, wanted: Collection[Circuit]) -> None:
    first: dict[int, Circuit] = {}
    for circuit in sorted(set(wanted)):
        if circuit.b > crossbar.ports:
            raise BadInput(
                f"circuit {circuit}: there is no port {circuit.b}; the optical circuit switch has ports 1 to "
                f"{crossbar.ports}"
            )
        for port in circuit.ports:
            if port in first:
                raise BadInput(
                    f"circuits {first[port]} and {circuit} both need port {port}; want one of them"
                )
            first[port] = circuit
        loss = crossbar.insertion_loss_db(circuit)
        if loss > crossbar.budget_db:
            raise BadInput(
                f"circuit {circuit}: light would lose {loss:g} dB, and the budget is "
                f"{crossbar.budget_db:g} dB; choose other ports, or stronger transceivers and a "
                f"higher budget_db"
            )


def _check_free(wanted: Iterable[Circuit], owner: str, theirs: Iterable[Circuit]) -> None:
    taken = {port: circuit for circuit in theirs for port in circuit.ports}
    for circuit in sorted(wanted):
        for port in circuit.ports:
            if port in taken:
                raise Conflict(circuit, port, owner, taken[port])
