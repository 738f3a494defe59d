"""Switches over TCP that answer late, in pieces, with errors, or hang up."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import ClassVar

NAMES = ("1.1.1", "1.1.2", "1.1.3", "1.1.4", "1.2.1", "1.2.2", "1.2.3", "1.2.4")


@dataclass
class Server:
    """A switch of 8 duplex ports. `there` are its cross-connects, from port to port.

    `faults` has what happens to the next commands that change something: `error` refuses it; `before` hangs
    up without doing it, `after` hangs up when it is done; `late` does it, and answers when the next
    connection has been made; `lies` does nothing and reports success; empty is no fault. `pieces` sends each
    answer byte by byte. `failed` ports report so, and refuse new circuits. `stubborn` ports only refuse them.
    """

    there: set[tuple[int, int]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    pieces: bool = False
    failed: set[int] = field(default_factory=set)
    stubborn: set[int] = field(default_factory=set)
    commands: list[str] = field(default_factory=list)
    address: str = ""
    connections: int = 0
    _next: asyncio.Event = field(default_factory=asyncio.Event)

    end: ClassVar[bytes]

    def changes(self, command: str) -> bool:
        raise NotImplementedError

    def answer(self, command: str, fault: str) -> str:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[Server]:
        server = await asyncio.start_server(self._serve, host, port)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        try:
            yield self
        finally:
            self._next.set()
            server.close()

    def circuits(self) -> set[tuple[int, int]]:
        return {(a, b) for a, b in self.there if a < b and (b, a) in self.there}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._next.set()
        with contextlib.suppress(OSError, EOFError):
            while True:
                command = (await reader.readuntil(self.end)).decode().strip()
                self.commands.append(command)
                fault = self.faults.pop(0) if self.faults and self.changes(command) else ""
                if fault == "before":
                    break
                answer = self.answer(command, fault)
                if fault == "after":
                    break
                if fault == "late":
                    self._next.clear()
                    await self._next.wait()
                await self._send(writer, answer.encode())
        writer.close()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        for piece in [data[i : i + 1] for i in range(len(data))] if self.pieces else [data]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    def _busy(self, *ports: int) -> bool:
        return any(set(ports) & set(each) for each in self.there)


@dataclass
class Tl1Server(Server):
    """Speaks TL1. It acknowledges each command, and reports an event in between.

    With `activates`, entering a cross-connect does not put it in service. While it is `logged_out`, it denies
    everything until a user of `users` has logged in.
    """

    activates: bool = False
    users: dict[str, str] = field(default_factory=dict)
    logged_out: bool = False
    ready: set[tuple[int, int]] = field(default_factory=set)
    end = b";"

    def changes(self, command: str) -> bool:
        return command.startswith(("ENT-CRS", "DLT-CRS", "ACT-CRS", "CANC-CRS"))

    def answer(self, command: str, fault: str) -> str:
        verb, _, aid, tag, *rest = command.rstrip(";").split(":")
        if self.logged_out and verb != "ACT-USER":
            return self._message(tag, "DENY", "   PLNA\r\n   /* Login Not Active */\r\n")
        if fault == "lies":
            return self._message(tag, "COMPLD")
        if fault == "error":
            return self._message(tag, "DENY", "   SROF\r\n   /* Connection failed; try another port */\r\n")
        match verb:
            case "ACT-USER":
                known = self.users.get(aid) == rest[-1]
                self.logged_out = self.logged_out and not known
                return self._message(tag, *(("COMPLD",) if known else ("DENY", "   PICC\r\n")))
            case "RTRV-CRS":
                return self._message(tag, "COMPLD", "".join(map(self._line, sorted(self._pairs()))))
            case "RTRV-PORT":
                return self._message(tag, "COMPLD", "".join(self._port(port) for port in range(1, 9)))
        source, destination = (NAMES.index(name) + 1 for name in aid.split(","))
        pair = (min(source, destination), max(source, destination))
        match verb:
            case "ENT-CRS":
                if self._busy(*pair) or (self.failed | self.stubborn) & set(pair):
                    return self._message(tag, "DENY", "   SRCN\r\n   /* Port in use or failed */\r\n")
                assert rest[-1] == "entrain,2WAY"
                self.there |= {pair, pair[::-1]}
                if self.activates:
                    self.ready.add(pair)
            case "ACT-CRS":
                if pair not in self.ready:
                    return self._message(tag, "DENY", "   SAAS\r\n   /* Already active */\r\n")
                self.ready.discard(pair)
            case "CANC-CRS":
                if pair in self.ready or pair not in self.there:
                    return self._message(tag, "DENY", "   SROF\r\n")
                self.ready.add(pair)
            case "DLT-CRS":
                if pair not in self.ready:
                    return self._message(tag, "DENY", "   SROF\r\n   /* Active or absent */\r\n")
                self.ready.discard(pair)
                self.there -= {pair, pair[::-1]}
        return self._message(tag, "COMPLD")

    def circuits(self) -> set[tuple[int, int]]:
        return super().circuits() - self.ready

    def _pairs(self) -> set[tuple[int, int]]:
        return {(a, b) for a, b in self.there if a < b or (b, a) not in self.there}

    def _line(self, pair: tuple[int, int]) -> str:
        two_way = pair[::-1] in self.there
        a, b = (NAMES[port - 1] for port in pair)
        name = f"{a}{'-' if two_way else '>'}{b}"
        state = "AS=UMA,OS=RDY" if pair in self.ready else "AS=IS,OS=IS"
        return (
            f'   "{name}:SRCPORT={a},DSTPORT={b},GRPNAME=entrain,CONNNAME={name},'
            f'CONNTYPE={"2WAY" if two_way else "1WAY"},{state},OC=OK,PS=UPR,AL=CL"\r\n'
        )

    def _port(self, port: int) -> str:
        state = "FAIL" if port in self.failed else "OK"
        name = NAMES[port - 1]
        return (
            f'   "{name}:WX,NONE,NONE:INAS=IS,INOS=IS,INOC=OK,INRS=NPR,OUTAS=IS,OUTOS=IS,OUTOC={state}"\r\n'
        )

    def _message(self, tag: str, code: str, text: str = "") -> str:
        head = "\r\n\n   OCS 26-11-22 12:00:00\r\n"
        event = f'{head}A  99 REPT EVT CRS\r\n   "1.1.1:EVENT,TC,,,,,NEND;\\"M {tag} COMPLD\\""\r\n;\r\n'
        lines = text.splitlines(keepends=True)
        first, second = "".join(lines[:2]), "".join(lines[2:])
        parts = f"{head}M  {tag} {code}\r\n{first}"
        if second:
            parts += f">\r\n{head}M  {tag} {code}\r\n{second}"
        return f"IP {tag}\r\n<\r\n{event}{parts};\r\n"


@dataclass
class ScpiServer(Server):
    """Speaks SCPI, with inputs 1 to `ports` and as many outputs after them."""

    ports: int = 8
    errors: list[str] = field(default_factory=list)
    end = b"\n"

    def changes(self, command: str) -> bool:
        return ":conn:add" in command or ":conn:sub" in command

    def answer(self, command: str, fault: str) -> str:
        answers = [answer for part in command.split(";") if (answer := self._one(part, fault)) is not None]
        return ";".join(answers) + "\r\n"

    def _one(self, part: str, fault: str) -> str | None:
        name, _, arguments = part.strip().partition(" ")
        match name:
            case "*cls":
                self.errors.clear()
                return None
            case "*opc?":
                return "1"
            case ":oxc:swit:size?":
                return f"{self.ports},{self.ports}"
            case ":syst:err?":
                return self.errors.pop(0) if self.errors else '0,"No error"'
            case ":oxc:swit:conn:stat?":
                pairs = sorted(self.there)
                ends = zip(*((a, b + self.ports) for a, b in pairs), strict=True)
                return ",".join(f"(@{','.join(map(str, some))})" for some in ends) or "(@),(@)"
            case ":oxc:swit:port:stat?":
                fibres = map(int, re.findall(r"\d+", arguments))
                return "({})".format(
                    ",".join("F" if (each - 1) % self.ports + 1 in self.failed else "E" for each in fibres)
                )
        if fault == "error":
            self.errors.append('-200,"Execution error;no light"')
        if fault in ("error", "lies"):
            return None
        lists = re.findall(r"\(@([\d,]*)\)", arguments)
        inputs, outputs = ([int(each) for each in text.split(",")] for text in lists)
        asked = {(a, b - self.ports) for a, b in zip(inputs, outputs, strict=True)}
        match name:
            case ":oxc:swit:conn:sub":
                if not asked <= self.there:
                    self.errors.append('-221,"Settings conflict"')
                self.there -= asked
            case ":oxc:swit:conn:add":
                taken = {a for a, _ in self.there}, {b for _, b in self.there}
                broken = self.failed | self.stubborn
                if any(a in taken[0] or b in taken[1] or broken & {a, b} for a, b in asked):
                    self.errors.append('-221,"Settings conflict"')
                else:
                    self.there |= asked
            case _:
                self.errors.append('-113,"Undefined header"')
        return None
