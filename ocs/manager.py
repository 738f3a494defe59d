"""Circuits with owners. One manager has one switch, and everybody asks it.

    changed = await manager.change("bert", [join(1, 9), join(2, 17)])
    ...
    await manager.undo(changed)      # as if it had not been
    await manager.release("bert")    # the circuits stay, for whoever needs their ports

Before each change the manager reads the switch. If no answer comes, it reads again, and repeats only what
has not been done. A change that fails is undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from machine.errors import EntrainError
from ocs.audit import AuditLog
from ocs.crossbar import Change, Circuit, Crossbar, PortFailed, Reading, plan
from ocs.driver import Driver, Refused, Unanswered

ATTEMPTS = 3
"""How often the manager asks a switch that does not answer."""

log = logging.getLogger(__name__)


class NotLit(EntrainError):
    """The switch says that it has done a change, and has not."""

    def __init__(self, left: Change) -> None:
        super().__init__(f"the optical circuit switch reported no error, but did not {left}")
        self.left = left


class NotPutBack(EntrainError):
    """A change failed, and so did putting back what was before. Circuits that nobody holds may be missing."""


Light = Literal["lit", "dark", "failed"]


@dataclass(frozen=True)
class Changed:
    """What a change did: what `owner` held `before` and holds `now`, and what was done at the switch."""

    owner: str
    before: frozenset[Circuit]
    now: frozenset[Circuit]
    done: Change


@dataclass(frozen=True)
class CircuitStatus:
    """A circuit that exists or that somebody holds.

    `owner` is None if nobody holds it. One that is held and not lit is `failed` if one of its ports has, and
    otherwise `dark`.
    """

    circuit: Circuit
    owner: str | None
    state: Light
    loss_db: float


class CircuitManager:
    """Circuits, each held by one owner at most. `held` is what owners hold already, such as before a restart.

    Its methods may be called concurrently; they run one after another.
    """

    def __init__(
        self,
        crossbar: Crossbar,
        driver: Driver,
        audit: AuditLog | None = None,
        *,
        held: Mapping[str, Iterable[Circuit]] | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.crossbar = crossbar
        self._driver = driver
        self._audit = audit
        self._attempts = attempts
        self._held = {owner: frozenset(circuits) for owner, circuits in (held or {}).items()}
        self._turn = asyncio.Lock()
        self._failed: frozenset[int] = frozenset()
        self._silence = ""
        self._suspect: dict[int, str] = {}

    @property
    def held(self) -> Mapping[str, frozenset[Circuit]]:
        """The circuits of each owner."""
        return dict(self._held)

    @property
    def failed(self) -> Mapping[int, str]:
        """The ports that no new circuit gets, each with the reason.

        The switch reports that it has failed, or a circuit over it did not come up since the manager started.
        """
        return dict.fromkeys(sorted(self._failed), "failed") | self._suspect

    @property
    def silence(self) -> str:
        """Why the switch could not be read when it was last asked; empty if it could."""
        return self._silence

    async def read(self) -> Reading:
        """Return the circuits that are lit, and the ports that no new one gets.

        Raises Unanswered and Refused.
        """
        async with self._turn:
            return await self._read()

    async def status(self) -> list[CircuitStatus]:
        """Return every circuit, in the order of its ports. Raises Unanswered and Refused."""
        reading = await self.read()
        owners = {circuit: owner for owner, circuits in self._held.items() for circuit in circuits}
        return [
            CircuitStatus(
                circuit,
                owners.get(circuit),
                self._state(circuit, reading),
                self.crossbar.insertion_loss_db(circuit),
            )
            for circuit in sorted(reading.circuits | owners.keys())
        ]

    async def change(self, owner: str, wanted: Iterable[Circuit]) -> Changed:
        """Make `wanted` circuits, and let `owner` hold them and no others.

        Raises BadInput, Conflict and PortFailed without having touched anything. Raises NotLit, PortFailed,
        Refused and Unanswered after everything has been put back; the message says so if that failed as well.
        """
        now = frozenset(wanted)
        async with self._turn:
            reading = await self._read()
            try:
                change = plan(self.crossbar, reading, owner, now, self._held)
            except EntrainError as error:
                self._write("refused", owner, now, problem=str(error))
                raise
            return await self._do(owner, now, change, reading)

    async def undo(self, changed: Changed) -> None:
        """Give the owner what it held before, and make again the circuits that the change deleted.

        Ports that somebody else holds by now are left alone. Raises what `change` raises.
        """
        owner, before = changed.owner, changed.before
        async with self._turn:
            reading = await self._read()
            change = plan(self.crossbar, reading, owner, before, self._held)
            others = {circuit for each, theirs in self._held.items() if each != owner for circuit in theirs}
            taken = {port for circuit in others for port in circuit.ports}
            deleted = {circuit for circuit in changed.done.remove if not taken & set(circuit.ports)}
            with contextlib.suppress(EntrainError):  # what nobody held need not come back
                change = plan(self.crossbar, reading, owner, before | deleted, self._held)
            await self._do(owner, before, change, reading)

    async def release(self, owner: str) -> None:
        """Let nobody hold the owner's circuits. They stay until one of their ports is needed."""
        async with self._turn:
            if owner in self._held:
                self._write("released", owner, self._held[owner])
                del self._held[owner]

    async def close(self) -> None:
        """Close the connection to the switch and the log. The circuits stay."""
        await self._driver.close()
        if self._audit is not None:
            self._audit.close()

    def _state(self, circuit: Circuit, reading: Reading) -> Light:
        if circuit in reading.circuits:
            return "lit"
        return "failed" if reading.failed & set(circuit.ports) else "dark"

    # -- at the switch

    async def _do(self, owner: str, now: frozenset[Circuit], change: Change, reading: Reading) -> Changed:
        before = self._held.get(owner, frozenset())
        self._write("change", owner, now, change)
        self._hold(owner, before | now)
        try:
            await self._make(change)
        except BaseException as error:
            self._hold(owner, before)
            problem = str(error) or type(error).__name__
            try:
                await self._put_back(change, reading)
            except EntrainError as another:
                problem = f"{problem}; what was before could not be put back: {another}"
                self._note("not put back", owner, now, change, problem)
                raise NotPutBack(problem) from error
            self._note("put back", owner, now, change, problem)
            raise
        self._hold(owner, now)
        self._note("done", owner, now, change)
        return Changed(owner, before, now, change)

    async def _make(self, change: Change) -> None:
        """Do a change, however often the switch stays silent. Repeat nothing that has been done."""
        left, attempt = change, 1
        while left:
            problem: Unanswered | None = None
            try:
                await self._driver.apply(left)
            except Unanswered as error:
                problem = error
            except Refused as error:
                if error.circuit is not None:
                    self._suspect |= dict.fromkeys(error.circuit.ports, str(error))
                raise
            reading = await self._read()
            left = Change(left.remove & reading.circuits, left.add - reading.circuits)
            for circuit in sorted(left.add):
                for port in circuit.ports:
                    if port in self._failed:
                        raise PortFailed(circuit, port)
            if left and problem is None:
                for circuit in left.add:
                    self._suspect |= dict.fromkeys(circuit.ports, f"circuit {circuit} did not come up")
                raise NotLit(left)
            if left and attempt == self._attempts:
                assert problem is not None
                raise problem
            attempt += 1

    async def _put_back(self, change: Change, before: Reading) -> None:
        """Give the ports of a change the circuits that they had before."""
        reading = await self._read()
        there, were = (
            frozenset(circuit for circuit in each.circuits if change.ports & set(circuit.ports))
            for each in (reading, before)
        )
        await self._make(Change(there - were, were - there))

    async def _read(self) -> Reading:
        """Read the switch. Reading changes nothing, so it is repeated, unless it failed before."""
        for left in reversed(range(1 if self._silence else self._attempts)):
            try:
                reading = await self._driver.read()
                break
            except EntrainError as error:
                if left and isinstance(error, Unanswered):
                    continue
                self._silence = str(error)
                raise
        self._silence = ""
        self._failed = reading.failed
        lit = frozenset(each for each in reading.circuits if not reading.failed & set(each.ports))
        return Reading(lit, reading.failed | self._suspect.keys())

    # -- what owners hold

    def _hold(self, owner: str, circuits: frozenset[Circuit]) -> None:
        if circuits:
            self._held[owner] = circuits
        else:
            self._held.pop(owner, None)

    def _write(
        self,
        event: str,
        owner: str,
        wanted: Iterable[Circuit],
        change: Change | None = None,
        problem: str = "",
    ) -> None:
        if self._audit is None:
            return
        details: dict[str, object] = {"owner": owner, "circuits": [str(each) for each in sorted(wanted)]}
        if change is not None:
            details["delete"] = [str(each) for each in sorted(change.remove)]
            details["make"] = [str(each) for each in sorted(change.add)]
        if problem:
            details["problem"] = problem
        self._audit.write(event, details)

    def _note(
        self, event: str, owner: str, wanted: Iterable[Circuit], change: Change, problem: str = ""
    ) -> None:
        """Write what has happened. The line before it says what was meant to."""
        try:
            self._write(event, owner, wanted, change, problem)
        except EntrainError as error:
            log.warning("%s (%s, %s)", error, event, owner)
