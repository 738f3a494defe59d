"""Queueing disciplines by rtnetlink: the few messages that changing a rate takes, without a process for each.

A change costs some ten microseconds, where `tc` takes milliseconds to start.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from types import TracebackType

from ebpf import in_netns
from machine.errors import EntrainError

NEW_QDISC, DELETE_QDISC, GET_QDISC = 36, 37, 38
NEW_CLASS, DELETE_CLASS = 40, 41
ROOT = 0xFFFFFFFF  # TC_H_ROOT
CREATE, REPLACE, EXCLUSIVE = 0x400, 0x100, 0x200

_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_TC = struct.Struct("=BxxxiIII")  # struct tcmsg
_KIND, _OPTIONS = 1, 2  # TCA_KIND, TCA_OPTIONS
_BATCH_BYTES = 1 << 14  # answers of a batch must fit the socket's buffer
_ANSWER_BYTES = 1 << 16


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute (struct rtattr), padded."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


class Netlink:
    """An rtnetlink socket about one interface."""

    def __init__(self, ifindex: int, netns: str | None = None) -> None:
        self.ifindex = ifindex
        self._socket = in_netns(
            netns, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        )
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def message(
        self, kind: int, parent: int, handle: int, name: str = "", options: bytes = b"", flags: int = 0
    ) -> bytes:
        """A request about the qdisc or class `handle` below `parent`; `name` is the qdisc's kind."""
        body = _TC.pack(socket.AF_UNSPEC, self.ifindex, handle, parent, 0)
        if name:
            body += attribute(_KIND, name.encode() + b"\0") + attribute(_OPTIONS, options)
        self._sequence += 1
        header = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACK | flags, self._sequence, 0)
        return header + body

    def send(self, messages: list[bytes], doing: str, *, ignore: frozenset[int] = frozenset()) -> None:
        """Send `messages`, and wait until the kernel has carried them out.

        Raises EntrainError with `doing` when one failed, unless its error is one of `ignore`.
        """
        batch: list[bytes] = []
        failed = 0
        for each in messages:
            if sum(map(len, batch)) + len(each) > _BATCH_BYTES:
                failed = failed or self._exchange(batch, ignore)
                batch = []
            batch.append(each)
        failed = failed or self._exchange(batch, ignore)
        if failed:
            raise EntrainError(f"{doing}: {os.strerror(failed)}")

    def _exchange(self, batch: list[bytes], ignore: frozenset[int]) -> int:
        failed = 0
        if batch:
            self._socket.send(b"".join(batch))
        answered = 0
        while answered < len(batch):
            data = self._socket.recv(_ANSWER_BYTES)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", data, _HEADER.size)
                    answered += 1
                    if code and -code not in ignore:
                        failed = failed or -code
                data = data[length + -length % 4 :]
        return failed

    def root(self) -> tuple[str, int]:
        """Kind and handle of the interface's root qdisc; handle 0 is the kernel's own choice."""
        body = _TC.pack(socket.AF_UNSPEC, self.ifindex, 0, 0, 0)
        self._sequence += 1
        self._socket.send(
            _HEADER.pack(_HEADER.size + len(body), GET_QDISC, _REQUEST | _DUMP, self._sequence, 0) + body
        )
        found = "noqueue", 0
        while True:
            data = self._socket.recv(_ANSWER_BYTES)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind in (_DONE, _ERROR):
                    return found
                _, ifindex, handle, parent, _ = _TC.unpack_from(data, _HEADER.size)
                if ifindex == self.ifindex and parent == ROOT:
                    found = _name(data[_HEADER.size + _TC.size : length]), handle
                data = data[length + -length % 4 :]


def _name(attributes: bytes) -> str:
    while attributes:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _KIND:
            return attributes[4 : length - 1].decode()
        attributes = attributes[length + -length % 4 :]
    return ""


GONE = frozenset({errno.ENODEV, errno.ENOENT, errno.EINVAL})
"""What deleting answers when the interface, the qdisc or the class has gone already."""
