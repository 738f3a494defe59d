"""A network namespace for one run, so that runs on one machine cannot collide.

Within it, switch interfaces (`leaf1-eth1`) and gRPC ports may have the same names and numbers in every run;
whatever is in it ends with it; and the machine's own namespace (with its address managers, firewalls and IPv6
autoconfiguration) never sees any of it. It has a name, so that `ip netns exec NAME tcpdump -i leaf1-eth5`
works.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from machine.errors import EntrainError
from machine.record import Record, Resource

NETNS = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace: Path) -> None:
    """Move the calling thread, and the threads and processes it will start, into a network namespace.

    Threads that run already stay where they are: call this before a library starts any (gRPC does).
    """
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(handle, _CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise EntrainError(f"cannot enter the network namespace {namespace}: {os.strerror(error)}")
    finally:
        os.close(handle)


@contextlib.contextmanager
def private_namespace(record: Record) -> Iterator[str]:
    """Make a namespace that `record` owns and be in it; yields its name. Leaves and removes it at the end.

    It is called after the record, whose name no other live one on this machine has.
    """
    name = f"entrain-{record.path.stem}"
    resource = record.own(Resource("netns", name))
    for command in (["netns", "add", name], ["-n", name, "link", "set", "lo", "up"]):
        done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise EntrainError(f"ip {' '.join(command)}: {done.stderr.strip()}")
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(NETNS / name)
        yield name
    finally:
        _libc.setns(before, _CLONE_NEWNET)
        os.close(before)
        record.release(resource)
