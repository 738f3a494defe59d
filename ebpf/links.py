"""BPF links: attachments that end when their last descriptor is closed, or its process ends."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
from pathlib import Path

from ebpf import libbpf
from ebpf.errors import describe


class Link:
    """One attachment. It ends with `close` or with the process, unless it is pinned."""

    def __init__(self, fd: int, what: str) -> None:
        self.fd = fd
        self.what = what

    def pin(self, path: Path) -> None:
        """Keep the attachment after this process, pinned at `path` in a BPF file system."""
        if libbpf.lib().bpf_obj_pin(self.fd, str(path).encode()) < 0:
            raise describe(f"cannot pin {self.what} at {path}", ct.get_errno())

    def close(self) -> None:
        """End the attachment. A second call does nothing."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Link({self.what!r})"


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
