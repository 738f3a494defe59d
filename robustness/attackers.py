"""Callers that try to use up a gRPC server: they say nothing, or little, or never stop.

As a process, an attacker gets its task as JSON on its command line, says `ready` when its calls are open, and
prints how they ended when the time is over, or at SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from machine.tls import Identity, open_channel

CONNECTIONS, CALLS = 16, 64
"""How many connections an attacker has, and calls on each: 1,024 in all."""
OPEN_S = 1.0
"""Seconds in which the calls on open connections are opened."""
BYTE_S = 0.5
"""Seconds between bytes of the slow caller's messages."""
PAUSE_S = 0.1
"""Seconds from the end of a call of the silent and the slow caller to the next."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_ACK, _END_HEADERS = 1, 4
_LENGTH = 1000
"""Bytes of the message that the slow caller announces."""


@dataclass(frozen=True)
class Task:
    """What to call, as whom, how, and for how many seconds.

    `certificate` is a path without its suffix, in the authority's directory; `server` is the name in the
    server's certificate. `request` is the message, as hexadecimal digits.
    """

    kind: str
    address: str
    method: str
    seconds: float
    request: str = ""
    certificate: str = ""
    server: str = ""

    @property
    def identity(self) -> Identity | None:
        """The attacker's certificate."""
        if not self.certificate:
            return None
        own = Path(self.certificate)
        return Identity(own.parent / "ca.crt", own.with_suffix(".crt"), own.with_suffix(".key"))


class Attacker:
    """Opens the calls of a task again and again. Use `run` once."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.ended: Counter[str] = Counter()  # calls, by status
        self._connected: set[object] = set()

    async def run(self) -> None:
        """Attack until the time is over or SIGTERM; say `ready` when the first calls are open."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        one = {"silent": self._silent, "slow": self._slow, "flood": self._flood}[self._task.kind]
        attacks = [asyncio.create_task(one()) for _ in range(CONNECTIONS)]
        while len(self._connected) < CONNECTIONS and not any(each.done() for each in attacks):
            await asyncio.sleep(0.1)
        await asyncio.sleep(OPEN_S)
        print("ready", flush=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), self._task.seconds)
        for each in attacks:
            each.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _channel(self) -> AsyncIterator[Any]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        task = self._task
        async with open_channel(grpc.aio, task.address, options, task.identity, task.server) as channel:
            await channel.channel_ready()
            self._connected.add(channel)
            yield channel

    async def _silent(self) -> None:
        async with self._channel() as channel:
            method = channel.stream_unary(self._task.method)

            async def call() -> None:
                while True:
                    self.ended[(await method().code()).name] += 1
                    await asyncio.sleep(PAUSE_S)

            await asyncio.gather(*(call() for _ in range(CALLS)))

    async def _flood(self) -> None:
        async with self._channel() as channel:
            method, request = channel.unary_unary(self._task.method), bytes.fromhex(self._task.request)

            async def call() -> None:
                while True:
                    code = await method(request).code()
                    self.ended[code.name] += 1
                    if code == grpc.StatusCode.UNAVAILABLE:  # the connection has gone
                        await asyncio.sleep(PAUSE_S)

            await asyncio.gather(*(call() for _ in range(CALLS)))

    async def _slow(self) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
                reader, writer = await self._connect()
                self._connected.add(writer)
                ways = [
                    asyncio.ensure_future(each) for each in (self._hear(reader, writer), self._say(writer))
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
                    writer.close()
            await asyncio.sleep(PAUSE_S)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        task = self._task
        if task.address.startswith("unix:"):
            return await asyncio.open_unix_connection(task.address.removeprefix("unix:"))
        host, _, port = task.address.rpartition(":")
        if (own := task.identity) is None:
            return await asyncio.open_connection(host, int(port))
        context = ssl.create_default_context(cafile=str(own.authority))
        context.load_cert_chain(str(own.certificate), str(own.key))
        context.set_alpn_protocols(["h2"])
        return await asyncio.open_connection(host, int(port), ssl=context, server_hostname=task.server)

    async def _say(self, writer: asyncio.StreamWriter) -> None:
        """Open calls, and send one byte of each message after the other."""
        writer.write(_PREFACE + _frame(_SETTINGS))
        streams = range(1, 2 * CALLS, 2)
        for stream in streams:
            writer.write(_frame(_HEADERS, _END_HEADERS, stream, _headers(self._task.method)))
        message = b"\0" + _LENGTH.to_bytes(4, "big") + bytes(_LENGTH)
        for byte in message:
            for stream in streams:
                writer.write(_frame(_DATA, 0, stream, bytes([byte])))
            await writer.drain()
            await asyncio.sleep(BYTE_S)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what has to be answered, until half of the calls have ended."""
        ended: set[int] = set()
        while len(ended) < CALLS // 2:
            head = await reader.readexactly(9)
            body = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big")
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                writer.write(_frame(kind, _ACK, 0, body if kind == _PING else b""))
            elif stream and kind == _HEADERS and flags & 1 and stream not in ended:
                ended.add(stream)
                self.ended["ENDED"] += 1


def _frame(kind: int, flags: int = 0, stream: int = 0, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _headers(method: str) -> bytes:
    """Return the headers of a call, uncompressed."""
    found = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in each) for each in found.items()
    )


def main(task: Task) -> None:
    """Attack, and print how calls ended."""
    attacker = Attacker(task)
    asyncio.run(attacker.run())
    print(json.dumps(attacker.ended), flush=True)


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
