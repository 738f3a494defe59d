"""Programs at clsact that end with their process, for kernels without tcx links (before Linux 6.6).

A gate (`bpf/gate.bpf.c`) stands at the interface, and leads to the program while this process lives. The gate
itself and its clsact qdisc last, so a record owns them.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import errno
import itertools
import os
import socket
import struct
import subprocess
from pathlib import Path

from ebpf import libbpf
from ebpf.compile import compile_cached
from ebpf.errors import describe
from ebpf.links import Attachment, Lasting
from ebpf.namespaces import in_netns, netns_path
from ebpf.object import Object
from ebpf.tc import Direction, attach_tc, hook
from machine.record import RECORDS, Resource, clean_stale, is_owned
from machine.state import locked, own_directory

SOURCE = Path(__file__).parent / "bpf" / "gate.bpf.c"
LOCK = "gates.lock"
"""Held while a priority is chosen and taken."""


class Gate(Attachment):
    """A program behind a gate, after all programs that are at this hook already."""

    def __init__(self, prog_fd: int, ifindex: int, direction: Direction, netns: str | None) -> None:
        """Attach. Raises EbpfError."""
        with contextlib.ExitStack() as stack:
            self._object = stack.enter_context(Object.open(compile_cached(SOURCE)))
            self._object.load()
            self._object.maps["behind"].update(bytes(4), struct.pack("=I", prog_fd))
            namespace = None if netns is None else os.open(netns_path(netns), os.O_RDONLY | os.O_CLOEXEC)
            if namespace is not None:
                stack.callback(os.close, namespace)
            lasting = in_netns(namespace, lambda: self._stand(ifindex, direction))
            stack.callback(in_netns, namespace, lasting.close)
            self._stack = stack.pop_all()

    def _stand(self, ifindex: int, direction: Direction) -> Lasting:
        gate = self._object.programs["gate"]
        with locked(own_directory(RECORDS) / LOCK):
            clean_stale()  # else what a killed process has left would stand before this
            interface = socket.if_indextoname(ifindex)
            qdisc = Resource("qdisc", interface, detail="clsact")
            priority = next(p for p in itertools.count(1) if _is_free(ifindex, direction, p))
            resources = [Resource("filter", interface, detail=f"{direction} pref {priority}")]
            if not _has_clsact(interface) or is_owned(qdisc):
                resources.insert(0, qdisc)
            lasting = Lasting(resources)
            try:
                attach_tc(gate.fd, gate.name, ifindex, direction, priority=priority)
            except BaseException:
                lasting.close()
                raise
            return lasting

    def close(self) -> None:
        self._stack.close()


def _is_free(ifindex: int, direction: Direction, priority: int) -> bool:
    opts = libbpf.TcOpts(handle=1, priority=priority)
    with libbpf.capture():
        error = -int(libbpf.lib().bpf_tc_query(ct.byref(hook(ifindex, direction)), ct.byref(opts)))
    if error > 0 and error not in (errno.ENOENT, errno.EINVAL):  # EINVAL: there is no clsact
        raise describe(f"tc {direction} of interface {ifindex}", error)
    return error > 0


def _has_clsact(interface: str) -> bool:
    command = ["tc", "qdisc", "show", "dev", interface]
    return "qdisc clsact" in subprocess.run(command, capture_output=True, text=True, check=False).stdout
