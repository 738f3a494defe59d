"""Callers that open calls to a gRPC server, and never send the message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from machine.patience import patience
from machine.tls import Identity, open_channel

Metadata = tuple[tuple[str, str], ...]
WAIT_S = 60.0
OF_ONE = 16
"""Calls of one connection."""
_APART = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


class Silent:
    """Calls that are open, or have ended without an answer."""

    def __init__(self) -> None:
        self.statuses: list[tuple[grpc.StatusCode, str]] = []
        """Of the calls that have ended: code and reason."""

    async def open(self, channel: Any, method: str, calls: int, metadata: Metadata = ()) -> None:
        """Open calls of a method, and note how each ends."""
        made = [channel.stream_unary(method)(metadata=metadata) for _ in range(calls)]
        async with asyncio.TaskGroup() as ends:
            for each in made:
                ends.create_task(self._end(each))

    async def _end(self, call: Any) -> None:
        self.statuses.append((await call.code(), await call.details()))

    async def until(self, ready: Callable[[list[grpc.StatusCode]], bool]) -> None:
        """Wait until the calls that have ended, by code, are enough. Raises TimeoutError."""
        async with asyncio.timeout(patience(WAIT_S)):
            while not ready([code for code, _ in self.statuses]):
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def silent(
    address: str,
    method: str,
    calls: int,
    identity: Identity | None = None,
    server: str = "",
    metadata: Metadata = (),
) -> AsyncIterator[Silent]:
    """Within, so many calls are open that send nothing, over a connection for each `OF_ONE` of them."""
    async with contextlib.AsyncExitStack() as stack:
        found = Silent()
        opened = []
        for first in range(0, calls, OF_ONE):
            channel = await stack.enter_async_context(
                open_channel(grpc.aio, address, _APART, identity, server)
            )
            some = min(OF_ONE, calls - first)
            opened.append(asyncio.create_task(found.open(channel, method, some, metadata)))
        try:
            yield found
        finally:
            for each in opened:
                each.cancel()
            await asyncio.gather(*opened, return_exceptions=True)
