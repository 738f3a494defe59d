"""TL1 over TCP, as MEMS switches with duplex ports speak it (Calient S series, port 3082).

A circuit is a cross-connect of type 2WAY between two ports:

    ENT-CRS::1.1.1,1.2.1:7::entrain,2WAY;     enter it, in a group
    ACT-CRS::1.1.1,1.2.1:8::1.1.1-1.2.1,entrain;     activate it, if entering did not
    CANC-CRS::1.1.1,1.2.1:9::,entrain,1.1.1-1.2.1;   deactivate it
    DLT-CRS::1.1.1,1.2.1:10::,entrain,1.1.1-1.2.1;   delete it
    RTRV-CRS:::11::ALL;     retrieve all
    RTRV-PORT::0:12;     retrieve the state of all ports

Answers carry the correlation tag of their command: `M 7 COMPLD` or `M 7 DENY`. Source: Telcordia GR-831
(messages); Calient S320 TL1 Reference Guide.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from machine.errors import BadInput
from ocs.connection import Connection
from ocs.crossbar import Change, Circuit, Reading, join
from ocs.driver import Refused, Unanswered

_END = re.compile(rb"^[ \t]*[;<][ \t]*(?:\r?\n|$)", re.MULTILINE)
"""A message ends with a semicolon, an acknowledgement (`IP 7`) with `<`. After `>` the message goes on."""

_LOGGED_OUT = re.compile(r"\bPLNA\b|login not active", re.IGNORECASE)
"""How a switch denies a command after a session has been idle for too long."""

_SPECIAL = re.compile(r'[;:,"]|[^!-~]')
"""What a part of a command cannot have: TL1's own characters, white space, and what is not ASCII."""

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class _CrossConnect:
    """One line of RTRV-CRS."""

    name: str
    source: str
    destination: str
    group: str
    two_way: bool
    active: bool

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.source, self.destination))


class Tl1Driver:
    """A switch at `address`, HOST:PORT.

    `names` has what the switch calls port 1, 2 and so on; a port beyond has its number for a name. With a
    `user`, each connection begins with ACT-USER. New circuits belong to `group`. Other groups' circuits are
    read as well, and deleted if they are in the way.
    """

    def __init__(
        self,
        address: str,
        ports: int,
        *,
        names: Sequence[str] = (),
        user: str | None = None,
        password: str = "",
        group: str = "entrain",
        timeout_s: float = 5.0,
    ) -> None:
        if _SPECIAL.search(password):
            raise BadInput(
                'the password of the optical circuit switch has ; : , " or white space, or is not ASCII, '
                "which TL1 does not carry"
            )
        self._names = [*names[:ports], *map(str, range(len(names) + 1, ports + 1))]
        self._numbers = {name: number for number, name in enumerate(self._names, 1)}
        self._user = user
        self._password = password
        self._group = group
        self._tags = itertools.count(1)
        self._connection = Connection(address, timeout_s, _end, self._log_in if user else None)

    async def read(self) -> Reading:
        """Return the circuits in service, and the ports of which one direction has failed."""
        there = await self._cross_connects()
        lines = _lines(await self._ask("RTRV-PORT", "0"))
        failed = {
            self._numbers[port]
            for port, fields in lines
            if port in self._numbers and "FAIL" in (fields.get("INOC"), fields.get("OUTOC"))
        }
        return Reading(frozenset(filter(None, map(self._circuit, there))), frozenset(failed))

    async def apply(self, change: Change) -> None:
        """Delete what is in the way, enter circuits, and activate those that entering did not."""
        there = await self._cross_connects()
        touched = {self._name(port) for port in change.ports}
        wanted = {frozenset(map(self._name, circuit.ports)): circuit for circuit in sorted(change.add)}
        kept = {each.ends for each in there if each.two_way and each.ends in wanted}
        for each in there:
            if each.ends & touched and each.ends not in kept:
                await self._delete(each)
        for circuit in (circuit for ends, circuit in wanted.items() if ends not in kept):
            aids = ",".join(map(self._name, circuit.ports))
            await self._ask("ENT-CRS", aids, f"{self._group},2WAY", circuit)
        for each in await self._cross_connects() if wanted else ():
            if each.ends in wanted and not each.active:
                circuit = wanted[each.ends]
                self._check_names(each, circuit)
                aids = f"{each.source},{each.destination}"
                await self._ask("ACT-CRS", aids, f"{each.name},{each.group}", circuit)

    async def close(self) -> None:
        """Close the connection. The circuits stay."""
        await self._connection.close()

    # -- commands

    async def _delete(self, each: _CrossConnect) -> None:
        circuit = self._circuit(each)
        self._check_names(each, circuit)
        aids, which = f"{each.source},{each.destination}", f",{each.group},{each.name}"
        if each.active:
            await self._ask("CANC-CRS", aids, which, circuit)
        await self._ask("DLT-CRS", aids, which, circuit)

    def _check_names(self, connect: _CrossConnect, circuit: Circuit | None) -> None:
        """Raise Refused for names, which the switch has given, that would not stay one part of a command."""
        for name in (connect.source, connect.destination, connect.group, connect.name):
            if _SPECIAL.search(name):
                raise Refused(
                    f"{self._connection.address} has a cross-connect with the name {name!r}, which no "
                    f"command can carry; rename or delete it at the switch",
                    circuit,
                )

    async def _cross_connects(self) -> list[_CrossConnect]:
        answer = await self._ask("RTRV-CRS", "", "ALL")
        return [
            _CrossConnect(
                fields.get("CONNNAME", name),
                fields["SRCPORT"],
                fields["DSTPORT"],
                fields.get("GRPNAME", ""),
                fields.get("CONNTYPE", "").upper() == "2WAY",
                fields.get("OS", "IS").upper() != "RDY",
            )
            for name, fields in _lines(answer)
            if {"SRCPORT", "DSTPORT"} <= fields.keys()
        ]

    async def _log_in(self) -> None:
        assert self._user is not None
        try:
            await self._ask("ACT-USER", self._user, self._password, shown=f"ACT-USER::{self._user}")
        except Refused as error:
            if "already logged in" not in str(error).lower():
                raise

    async def _ask(
        self, verb: str, aid: str, data: str = "", circuit: Circuit | None = None, shown: str = ""
    ) -> str:
        """Return the answer to a command. Errors show it as `shown`, if given. Raises Refused, Unanswered."""
        tag = next(self._tags)
        command = f"{verb}::{aid}:{tag}{data and f'::{data}'};"
        answered = re.compile(rf"^[ \t]*M\s+{tag}\s+(\w+)(.*)", re.MULTILINE | re.DOTALL)
        answer = await self._connection.ask(
            command, lambda message: answered.search(message) is not None, shown
        )
        found = answered.search(answer)
        assert found is not None
        if found[1] != "COMPLD":
            why = " ".join(found[2].replace("/*", "").replace("*/", "").rstrip("; \r\n\t").split())
            problem = f"{self._connection.address} answers {shown or command!r} with {found[1]}: {why}"
            if _LOGGED_OUT.search(why):  # the next connection logs in again
                await self._connection.close()
                raise Unanswered(problem)
            raise Refused(problem, circuit)
        return found[2]

    # -- ports

    def _name(self, port: int) -> str:
        return self._names[port - 1]

    def _circuit(self, each: _CrossConnect) -> Circuit | None:
        """The circuit that a cross-connect makes between our ports, if it is in service both ways."""
        one, other = self._numbers.get(each.source), self._numbers.get(each.destination)
        if not each.two_way or not each.active or one is None or other is None or one == other:
            return None
        return join(one, other)


def _end(received: bytes) -> int | None:
    found = _END.search(received)
    return found.end() if found else None


def _lines(answer: str) -> list[tuple[str, Mapping[str, str]]]:
    """Return the identifier and the fields of each quoted line, `"1.1.1:TYPE:KEY=VALUE,KEY=VALUE"`."""
    lines: list[tuple[str, Mapping[str, str]]] = []
    for text in _QUOTED.findall(answer):
        name, *parts = text.split(":")
        pairs = (field.partition("=") for part in parts for field in part.split(","))
        lines.append((name, {key.strip().upper(): value.strip() for key, _, value in pairs}))
    return lines
