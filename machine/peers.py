"""A Unix socket in front of a gRPC server that tells it which user calls.

gRPC for Python does not show a caller's credentials: of a Unix socket it shows the name alone that the
caller's end is bound to. So callers connect to a socket of this module, the kernel says who they are
(SO_PEERCRED), and their bytes go on to the server's own socket through an end whose name holds the user's
number. Nobody else can reach the server's own socket: it lies in a directory of mode 0700.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from machine.errors import EntrainError

CONNECTIONS_PER_USER = 16
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group
_CHUNK = 1 << 16
_BACKLOG = 64
_PREFIX = "entrain-caller"


def user_of(peer: str) -> int:
    """The user behind `context.peer()` of a call that came through `admitting`."""
    name, user, _ = peer.removeprefix("unix-abstract:").split("/")
    if name != _PREFIX:
        raise ValueError(f"{peer}: not a caller that was admitted")
    return int(user)


@contextlib.contextmanager
def admitting(path: Path, mode: int, server: Path) -> Iterator[None]:
    """Within, those whom `mode` lets connect to the Unix socket `path` are passed on to the socket `server`.

    Raises EntrainError where the socket cannot be made, or another process listens there.
    """
    loop = asyncio.new_event_loop()
    opened = admitting_async(path, mode, server)
    try:
        loop.run_until_complete(opened.__aenter__())
        thread = threading.Thread(target=loop.run_forever, name="callers")
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(opened.__aexit__(None, None, None))
    finally:
        loop.close()


@contextlib.asynccontextmanager
async def admitting_async(path: Path, mode: int, server: Path) -> AsyncIterator[None]:
    """The same as `admitting`, in the caller's event loop."""
    with _listening(path, mode) as listener:
        door = _Door(server)
        await door.open(listener)
        try:
            yield
        finally:
            await door.close()


class _Door:
    """Admits callers and passes bytes on, in one event loop."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._connections: Counter[int] = Counter()  # by user
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, listener: socket.socket) -> None:
        """Begin."""
        self._accepting = await asyncio.start_unix_server(self._admit, sock=listener, backlog=_BACKLOG)

    async def close(self) -> None:
        """End all connections."""
        self._accepting.close()
        await asyncio.sleep(0)  # who has just connected gets a task
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        credentials = writer.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        _, user, _ = _CREDENTIALS.unpack(credentials)
        self._connections[user] += 1
        try:
            if self._connections[user] <= CONNECTIONS_PER_USER:
                with contextlib.suppress(OSError):  # one of the ends has gone
                    await self._pass_on(user, reader, writer)
        finally:
            writer.close()
            self._connections[user] -= 1

    async def _pass_on(self, user: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = socket.socket(socket.AF_UNIX)
        try:
            end.bind(f"\0{_PREFIX}/{user}/{secrets.token_hex(8)}")
            end.connect(str(self._server))
            end.setblocking(False)
            answers, calls = await asyncio.open_unix_connection(sock=end)
        except OSError:
            end.close()
            raise
        ways = [asyncio.ensure_future(_relay(reader, calls)), asyncio.ensure_future(_relay(answers, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            calls.close()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


@contextlib.contextmanager
def _listening(path: Path, mode: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            if path.is_socket() and not somebody_listens(path):
                path.unlink()  # a process that is dead left it
            listener.bind(str(path))
            path.chmod(mode)  # before it listens: until then nobody can connect
            listener.listen(_BACKLOG)
        except OSError as error:
            why = "another process listens there" if path.is_socket() else error.strerror or str(error)
            raise EntrainError(f"unix:{path}: {why}; choose another address") from error
        own = path.stat()
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                if _identity(path.stat()) == _identity(own):
                    path.unlink()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def somebody_listens(path: Path) -> bool:
    """Whether a process accepts connections at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(str(path)) == 0
