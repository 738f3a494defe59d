"""Messages and attributes of rtnetlink, as far as running switches and networks read them all the time."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, kind, flags, sequence, port."""
REQUEST, DUMP = 1, 0x300
"""Flags."""
ERROR, DONE = 2, 3
"""Kinds that end a dump."""
_ANSWER_BYTES = 1 << 16


def request(kind: int, body: bytes, flags: int = 0) -> bytes:
    """Return a message that asks the kernel."""
    return HEADER.pack(HEADER.size + len(body), kind, REQUEST | flags, 0, 0) + body


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of each message in a datagram."""
    while len(data) >= HEADER.size:
        length, kind, *_ = HEADER.unpack_from(data)
        yield kind, data[HEADER.size : length]
        data = data[length + -length % 4 :]


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and value of each attribute."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind & 0x3FFF, data[4:length]
        data = data[length + -length % 4 :] if length >= 4 else b""


def dump(socket_: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """Yield the body of each message with which the kernel answers a dump. Raises OSError."""
    socket_.send(request(kind, body, DUMP))
    while True:
        for answer, content in messages(socket_.recv(_ANSWER_BYTES)):
            if answer == ERROR:
                code = -struct.unpack_from("=i", content)[0]
                raise OSError(code, f"rtnetlink refused request {kind}: {os.strerror(code)}")
            if answer == DONE:
                return
            yield content
