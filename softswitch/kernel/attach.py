"""Attach a program to an interface's ingress.

A tcx link (Linux 6.6) ends with the process, so a switch that dies stops forwarding. Older kernels need a
filter on a clsact qdisc, which survives `kill -9`. The record owns that qdisc, unless it existed before.
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
    """Run `program` on packets that arrive at the interface. Return a function that detaches it.

    `record` is called only if something would outlive the process. Raises EbpfError.
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
    """Return the name of the current network namespace; empty for one without a name, such as the host's."""
    command = ["ip", "netns", "identify", str(os.getpid())]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _has_clsact(interface: str) -> bool:
    command = ["tc", "qdisc", "show", "dev", interface]
    return "qdisc clsact" in subprocess.run(command, capture_output=True, text=True, check=False).stdout
