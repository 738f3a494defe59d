"""A switch in memory, with the faults of real ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ocs.crossbar import Change, Circuit, Reading, after
from ocs.driver import Refused, Unanswered


@dataclass
class FakeSwitch:
    """Does each change completely, unless `faults` has something for its next call of `apply`.

    `silent` does nothing, and does not answer; `done` does all of it, and does not answer; `half` does the
    deletions only; `dark` claims success, and makes no circuit; `refuses` refuses the first circuit.
    """

    circuits: frozenset[Circuit] = frozenset()
    failed: frozenset[int] = frozenset()
    faults: list[str] = field(default_factory=list)
    unread: int = 0
    """How many calls of `read` stay without an answer."""
    applied: list[Change] = field(default_factory=list)

    async def read(self) -> Reading:
        if self.unread:
            self.unread -= 1
            raise Unanswered("the switch did not answer")
        return Reading(self.circuits, self.failed)

    async def apply(self, change: Change) -> None:
        self.applied.append(change)
        fault = self.faults.pop(0) if self.faults else ""
        dead = {circuit for circuit in change.add if self.failed & set(circuit.ports)}
        done = {
            "silent": Change(),
            "half": Change(change.remove),
            "dark": Change(change.remove),
            "refuses": Change(change.remove),
        }.get(fault, Change(change.remove, change.add - dead))
        self.circuits = after(self.circuits, done)
        if fault in ("silent", "half", "done"):
            raise Unanswered("the switch did not answer")
        if fault == "refuses":
            raise Refused("the switch refuses", min(change.add, default=None))

    async def close(self) -> None:
        return None


def circuits(*names: str) -> frozenset[Circuit]:
    """Return the circuits named, such as `1-9`."""
    return frozenset(parsed(names))


def parsed(names: Iterable[str]) -> Iterable[Circuit]:
    return (Circuit(*map(int, name.split("-"))) for name in names)
