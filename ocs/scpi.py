"""SCPI over TCP, as matrix switches of single fibres speak it (Polatis, port 5025).

Input fibres have the numbers 1 to N, and output fibres N + 1 and on. Our duplex port p is input fibre p and
output fibre N + p, so a circuit of ports a and b is two connections, a to N + b and b to N + a:

    :oxc:swit:conn:add (@1,5),(@21,17);*opc?     -> 1
    :oxc:swit:conn:sub (@1,5),(@21,17);*opc?     -> 1
    :oxc:swit:conn:stat?     -> (@1,5),(@21,17)
    :oxc:swit:port:stat? (@1,2,17,18)     -> (E,E,F,E)     enabled, disabled, failed
    :oxc:swit:size?     -> 16,16
    :syst:err?     -> 0,"No error"

Commands have no answer, so each ends with a query. Source: IEEE 488.2 and SCPI-99; Polatis SCPI manual.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from machine.errors import BadInput
from ocs.connection import Connection
from ocs.crossbar import Change, Circuit, Reading, join
from ocs.driver import Refused

_END = re.compile(rb"[^\r\n][\r\n]")
"""A message ends with a line's end, which is a carriage return, a line feed, or both."""

_LISTS = re.compile(r"\(@([0-9,\s]*)\)\s*,\s*\(@([0-9,\s]*)\)")

_ERRORS = 32
"""The most errors to read. A switch that reports more is not listening to *CLS."""

_Fibres = tuple[int, int]


class ScpiDriver:
    """A switch at `address`, HOST:PORT, of which `ports` duplex ports are plugged in."""

    def __init__(self, address: str, ports: int, *, timeout_s: float = 5.0) -> None:
        self._ports = ports
        self._inputs = 0
        self._connection = Connection(address, timeout_s, _end, self._check_size)

    async def read(self) -> Reading:
        """Return the circuits that exist in both directions, and the ports of which one fibre has failed."""
        there = await self._connections()
        inputs = range(1, self._ports + 1)
        fibres = [*inputs, *(self._inputs + port for port in inputs)]
        states = (await self._query(f":oxc:swit:port:stat? {_list(fibres)}")).strip("() ").split(",")
        if len(states) != len(fibres):
            raise Refused(f"{self._connection.address} tells {len(states)} states of {len(fibres)} fibres")
        failed = {
            (fibre - 1) % self._inputs + 1
            for fibre, state in zip(fibres, states, strict=True)
            if state.strip().upper() != "E"
        }
        circuits = (self._circuit(each) for each in there if self._back(each) in there)
        return Reading(frozenset(filter(None, circuits)), frozenset(failed))

    async def apply(self, change: Change) -> None:
        """Disconnect what is in the way, and connect."""
        there = await self._connections()
        wanted = {each: circuit for circuit in change.add for each in self._fibres(circuit)}
        touched = {fibre for port in change.ports for fibre in (port, self._inputs + port)}
        await self._command("sub", {each for each in there if touched & set(each)} - wanted.keys())
        only = next(iter(change.add)) if len(change.add) == 1 else None
        try:
            await self._command("add", wanted.keys() - there, only)
        except Refused:
            if only is not None:
                raise
            for circuit in sorted(change.add):  # one by one, so that the error is about one
                await self._command("add", set(self._fibres(circuit)) - await self._connections(), circuit)

    async def close(self) -> None:
        """Close the connection. The circuits stay."""
        await self._connection.close()

    # -- commands

    async def _connections(self) -> set[_Fibres]:
        answer = await self._query(":oxc:swit:conn:stat?")
        found = _LISTS.search(answer)
        if found is None:
            raise Refused(f"{self._connection.address} tells its connections as {answer!r}")
        inputs, outputs = ([int(each) for each in text.split(",") if each.strip()] for text in found.groups())
        if len(inputs) != len(outputs):
            raise Refused(f"{self._connection.address} tells {len(inputs)} inputs and {len(outputs)} outputs")
        return set(zip(inputs, outputs, strict=True))

    async def _command(self, verb: str, fibres: Iterable[_Fibres], circuit: Circuit | None = None) -> None:
        pairs = sorted(fibres)
        if not pairs:
            return
        command = f":oxc:swit:conn:{verb} {_list(a for a, _ in pairs)},{_list(b for _, b in pairs)}"
        await self._query(f"*cls;{command};*opc?")
        if problem := await self._error():
            raise Refused(f"{self._connection.address} answers {command!r} with {problem}", circuit)

    async def _error(self) -> str:
        """Return the first error since *CLS, or nothing. Empty the queue."""
        first = ""
        for _ in range(_ERRORS):
            answer = await self._query(":syst:err?")
            if re.match(r"[+-]?0\b", answer):
                break
            first = first or answer
        return first

    async def _check_size(self) -> None:
        answer = await self._query(":oxc:swit:size?")
        found = re.fullmatch(r"(\d+)\s*,\s*(\d+)", answer)
        if found is None:
            raise Refused(f"{self._connection.address} tells its size as {answer!r}")
        self._inputs = int(found[1])
        if self._ports > min(int(found[1]), int(found[2])):
            raise BadInput(
                f"{self._ports} ports are plugged into the optical circuit switch at "
                f"{self._connection.address}, which has {found[1]} inputs and {found[2]} outputs"
            )

    async def _query(self, query: str) -> str:
        return (await self._connection.ask(f"{query}\n", lambda message: bool(message.strip()))).strip()

    # -- ports

    def _fibres(self, circuit: Circuit) -> tuple[_Fibres, _Fibres]:
        return (circuit.a, self._inputs + circuit.b), (circuit.b, self._inputs + circuit.a)

    def _back(self, each: _Fibres) -> _Fibres:
        """The connection in the other direction."""
        return each[1] - self._inputs, each[0] + self._inputs

    def _circuit(self, each: _Fibres) -> Circuit | None:
        one, other = each[0], each[1] - self._inputs
        return join(one, other) if one != other and max(one, other) <= self._ports else None


def _list(fibres: Iterable[int]) -> str:
    return f"(@{','.join(map(str, fibres))})"


def _end(received: bytes) -> int | None:
    found = _END.search(received)
    return found.end() if found else None
