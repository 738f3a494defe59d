"""What every driver of an optical circuit switch does, and how it fails."""

from __future__ import annotations

from typing import Protocol

from machine.errors import EntrainError
from ocs.crossbar import Change, Circuit, Reading


class Unanswered(EntrainError):
    """The switch did not answer in time, or the connection broke: what it has done is not known."""


class Refused(EntrainError):
    """The switch answered that it does not do what it was told, with the circuit if it was about one."""

    def __init__(self, message: str, circuit: Circuit | None = None) -> None:
        super().__init__(message)
        self.circuit = circuit


class Driver(Protocol):
    """One switch. A driver repeats nothing by itself: `CircuitManager` decides that, after reading."""

    async def read(self) -> Reading:
        """Return the switch's state, from the switch. Raises Unanswered and Refused."""

    async def apply(self, change: Change) -> None:
        """Delete circuits, make others, and return when all of them are lit.

        What it finds done already, it leaves. It touches no port outside the change. Raises Unanswered and
        Refused; part of the change may then be done.
        """

    async def close(self) -> None:
        """Close the connection. The circuits stay."""
