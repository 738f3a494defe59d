"""A text protocol over TCP: one request, one answer, within a deadline.

An answer that is late could be taken for that of the next request. So whatever goes wrong closes the
connection, and the next request opens another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from ocs.driver import Unanswered

LONGEST_ANSWER = 1 << 20
"""Bytes of an answer. A switch of a thousand ports sends a tenth of that."""

_CHUNK = 4096


class Connection:
    """A connection to `address`, HOST:PORT, opened when it is first used. `greet` follows each opening.

    `end` returns where the first message in the bytes so far ends, or None if it is not complete.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        end: Callable[[bytes], int | None],
        greet: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._end = end
        self._greet = greet
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._rest = b""

    async def ask(self, request: str, is_answer: Callable[[str], bool], shown: str = "") -> str:
        """Send a request, and return the first message that is its answer. Others are dropped.

        Errors show the request as `shown`, if given. Raises Unanswered.
        """
        if self._streams is None:
            await self._open()
            if self._greet is not None:
                try:
                    await self._greet()
                except BaseException:
                    await self.close()
                    raise
        what = f"{self.address} did not answer {shown or request.strip()!r}"
        try:
            async with asyncio.timeout(self._timeout_s):
                assert self._streams is not None
                reader, writer = self._streams
                writer.write(request.encode())
                await writer.drain()
                while True:
                    message = await self._message(reader)
                    if is_answer(message):
                        return message
        except TimeoutError:
            await self.close()
            raise Unanswered(f"{what} within {self._timeout_s:g} s") from None
        except (OSError, EOFError, _TooLong) as error:
            await self.close()
            raise Unanswered(f"{what}: {str(error) or 'it closed the connection'}") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection. The next request opens another one."""
        if self._streams is not None:
            _, writer = self._streams
            self._streams, self._rest = None, b""
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    async def _open(self) -> None:
        host, _, port = self.address.rpartition(":")
        try:
            async with asyncio.timeout(self._timeout_s):
                self._streams = await asyncio.open_connection(host.strip("[]"), int(port))
        except TimeoutError:
            raise Unanswered(f"{self.address} accepted no connection within {self._timeout_s:g} s") from None
        except OSError as error:
            raise Unanswered(f"{self.address} cannot be reached ({error.strerror or error})") from error

    async def _message(self, reader: asyncio.StreamReader) -> str:
        while (end := self._end(self._rest)) is None:
            if len(self._rest) > LONGEST_ANSWER:
                raise _TooLong(f"its answer has more than {LONGEST_ANSWER} bytes")
            chunk = await reader.read(_CHUNK)
            if not chunk:
                raise EOFError
            self._rest += chunk
        message, self._rest = self._rest[:end], self._rest[end:]
        return message.decode(errors="replace")


class _TooLong(Exception):
    """An answer exceeds `LONGEST_ANSWER`."""
