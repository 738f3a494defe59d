"""Attachments that end when they are closed, or their process ends.

BPF links end with their last descriptor. On kernels without the kind of link, an attachment lasts until
somebody removes it, so a record owns it (`Lasting`).
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from ebpf import libbpf
from ebpf.errors import describe
from machine.record import Record, Resource


class Attachment:
    """One attachment. It ends with `close`."""

    def close(self) -> None:
        """End the attachment. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Link(Attachment):
    """A BPF link. It ends with `close` or with the process, unless it is pinned."""

    def __init__(self, fd: int, what: str) -> None:
        self.fd = fd
        self.what = what

    def pin(self, path: Path) -> None:
        """Keep the attachment after this process, pinned at `path` in a BPF file system."""
        if libbpf.lib().bpf_obj_pin(self.fd, os.fsencode(path)) < 0:
            raise describe(f"cannot pin {self.what} at {path}", ct.get_errno())

    def close(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Link:
        return self

    def __repr__(self) -> str:
        return f"Link({self.what!r})"


class Lasting(Attachment):
    """An attachment without a link: resources that a record of this process owns, removed by `close`.

    After a crash, the next start or `entrain clean` removes them. Create and close it in the network
    namespace of its resources, before making them.
    """

    _turn = threading.RLock()
    _record: ClassVar[Record | None] = None
    _sharers: ClassVar[Counter[tuple[int, Resource]]] = Counter()
    """By network namespace and resource: how many open attachments of this process have it."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        namespace = Path("/proc/thread-self/ns/net").stat().st_ino
        self._resources = [(namespace, resource) for resource in resources]
        self._open = True
        with Lasting._turn:
            if Lasting._record is None:
                Lasting._record = Record("attachments")
            for shared in self._resources:
                Lasting._record.own(shared[1])
                Lasting._sharers[shared] += 1

    def close(self) -> None:
        with Lasting._turn:
            record = Lasting._record
            if not self._open or record is None:
                return
            self._open = False
            for shared in reversed(self._resources):
                Lasting._sharers[shared] -= 1
                if not Lasting._sharers[shared]:
                    del Lasting._sharers[shared]
                    record.release(shared[1])
            if not Lasting._sharers:
                record.close()
                Lasting._record = None


def create_link(fd: int, target: int, attach_type: int, what: str) -> Link:
    """Attach program (or struct_ops map) `fd` to `target`, with the kernel's BPF_LINK_CREATE."""
    with libbpf.capture() as log:
        link_fd = int(libbpf.lib().bpf_link_create(fd, target, attach_type, None))
    if link_fd < 0:
        raise describe(f"cannot attach {what}", -link_fd, log())
    return Link(link_fd, what)


def adopt(pointer: int | None, what: str, log: str) -> Link:
    """Convert libbpf's struct bpf_link to a Link, and free it. Raises EbpfError if `pointer` is NULL."""
    if not pointer:
        raise describe(f"cannot attach {what}", ct.get_errno(), log)
    fd = int(libbpf.lib().bpf_link__fd(pointer))
    libbpf.lib().bpf_link__disconnect(pointer)  # free the structure, not the attachment
    libbpf.lib().bpf_link__destroy(pointer)
    return Link(fd, what)
