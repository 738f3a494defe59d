"""A private network namespace for each run, so that runs on one machine cannot collide.

Interfaces (`leaf1-eth1`) and gRPC ports in it can have the same names and numbers in every run. Everything in
it ends with it. The machine's own namespace, with its address managers, firewalls and IPv6
autoconfiguration, is not affected. It has a name, so that `ip netns exec NAME tcpdump -i leaf1-eth5` works.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from machine.errors import EntrainError
from machine.record import Record, Resource

NETNS = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace: Path) -> None:
    """Move the calling thread, and the threads and processes that it starts, into a network namespace.

    Running threads stay where they are, so call this before a library such as gRPC starts any.
    """
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(handle, _CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise EntrainError(f"cannot enter the network namespace {namespace}: {os.strerror(error)}")
    finally:
        os.close(handle)


def inhabitants(homes: Iterable[int]) -> Iterator[int]:
    """Yield the other processes in the network namespaces of the processes `homes`."""
    homes, namespaces = set(homes), set[int]()
    for each in homes:
        with contextlib.suppress(OSError):  # it has been killed
            namespaces.add(Path(f"/proc/{each}/ns/net").stat().st_ino)
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        number = int(path.parts[2])
        with contextlib.suppress(OSError):  # it has just ended
            if number not in homes and path.stat().st_ino in namespaces:
                yield number


@contextlib.contextmanager
def private_namespace(record: Record) -> Iterator[str]:
    """Create a namespace owned by `record` and enter it. Yields its name; leaves and removes it at the end.

    It has the name of the record, which is unique among the live ones on this machine.
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
