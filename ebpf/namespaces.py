"""Run a call inside another network namespace."""

from __future__ import annotations

import ctypes as ct
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ebpf.errors import EbpfError, describe

_CLONE_NEWNET = 0x40000000

T = TypeVar("T")


def netns_path(netns: str) -> Path:
    """Return the path of a namespace: `netns` is a name of `ip netns`, or a path (/proc/PID/ns/net)."""
    return Path(netns) if "/" in netns else Path("/run/netns") / netns


def netns_identity(path: Path) -> tuple[int, int]:
    """Return what tells the network namespace at `path` from others. Raises OSError if there is none."""
    status = path.stat()
    return status.st_dev, status.st_ino


def in_netns(netns: str | int | None, call: Callable[[], T]) -> T:
    """Run `call()` inside `netns` and return its result.

    `netns` is a name, a path or an open descriptor; None runs the call here.

    The call runs in its own thread, so the caller's namespace never changes.
    """
    if netns is None:
        return call()
    own = isinstance(netns, str)
    try:
        fd = os.open(netns_path(netns), os.O_RDONLY | os.O_CLOEXEC) if isinstance(netns, str) else netns
    except OSError as error:
        raise describe(f"network namespace {netns}", error.errno or 0) from error
    results: list[T] = []
    failures: list[BaseException] = []

    def enter() -> None:
        try:
            if ct.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET) < 0:
                raise describe(f"cannot enter network namespace {netns}", ct.get_errno())
            results.append(call())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=enter, name="in-netns")
    thread.start()
    thread.join()
    if own:
        os.close(fd)
    if failures:
        raise failures[0]
    if not results:
        raise EbpfError(f"the call in network namespace {netns} did not return")
    return results[0]
