"""A program at an interface's ingress, in the way that leaves least behind.

A tcx link (Linux 6.6) ends with the process, so that a dead switch stops. On older kernels it is a filter on
a clsact qdisc, which stays after `kill -9`: then the record owns the qdisc, unless it was somebody else's.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Callable

from ebpf import EbpfError
from ebpf.object import Program
from machine.record import Record, Resource

_NO_TCX = {errno.EINVAL, errno.EOPNOTSUPP}


def attach(program: Program, ifindex: int, record: Callable[[], Record]) -> Callable[[], None]:
    """Run `program` on what arrives at the interface; returns what takes it off. Raises EbpfError.

    `record` is asked for only where something would outlive the process.
    """
    try:
        return program.attach_tcx(ifindex, "ingress").close
    except EbpfError as error:
        if error.errno not in _NO_TCX:
            raise
    qdisc = Resource("qdisc", socket.if_indextoname(ifindex), netns=namespace(), detail="clsact")
    ours = not _has_clsact(qdisc.name)
    if ours:
        record().own(qdisc)
    filter_ = program.attach_tc(ifindex, "ingress", replace=True)

    def take_off() -> None:
        filter_.detach()
        if ours:
            record().release(qdisc)

    return take_off


def namespace() -> str:
    """The name of the present network namespace, or nothing where it has none (the machine's own)."""
    command = ["ip", "netns", "identify", str(os.getpid())]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _has_clsact(interface: str) -> bool:
    command = ["tc", "qdisc", "show", "dev", interface]
    return "qdisc clsact" in subprocess.run(command, capture_output=True, text=True, check=False).stdout
