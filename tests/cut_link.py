"""A link to a server on this machine that can be cut: nothing passes, and neither end is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

_CHUNK = 1 << 16


class CutLink:
    """A TCP port that leads to another one. Connections of before a cut stay silent when it is over."""

    def __init__(self, to: int) -> None:
        self.port = 0
        self._to = to
        self._whole = asyncio.Event()
        self._whole.set()
        self._cuts = 0

    def cut(self) -> None:
        """Let nothing pass any longer."""
        self._whole.clear()
        self._cuts += 1

    def mend(self) -> None:
        """Let new connections pass."""
        self._whole.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        there, out = await asyncio.open_connection("127.0.0.1", self._to)
        began = self._cuts

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(_CHUNK):
                if began != self._cuts:
                    await asyncio.Event().wait()
                sink.write(data)
            if began != self._cuts:
                await asyncio.Event().wait()
            sink.close()

        with contextlib.suppress(OSError):
            await asyncio.gather(pass_on(reader, out), pass_on(there, writer))


@contextlib.asynccontextmanager
async def cut_link(to: int) -> AsyncIterator[CutLink]:
    """Yield a link to a port of this machine."""
    link = CutLink(to)
    tasks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(link._serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
