"""Landlock (Linux 5.13): run a call, and the processes that it starts, with access to few files.

Landlock restricts root too, unlike file permissions. See landlock(7).
"""

from __future__ import annotations

import ctypes as ct
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ebpf.errors import describe

# System call numbers are the same on all architectures since Linux 5.1.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # flag of landlock_create_ruleset: return the ABI's version
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
# The number of rights over files, and over TCP ports, in each version of the ABI.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_TCP_RIGHTS = {4: 2}

T = TypeVar("T")


class _Ruleset(ct.Structure):
    _fields_ = (("handled_access_fs", ct.c_uint64), ("handled_access_net", ct.c_uint64))


class _PathBeneath(ct.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ct.c_uint64), ("parent_fd", ct.c_int32))


def _syscall(number: int, *arguments: object) -> int:
    return int(ct.CDLL(None, use_errno=True).syscall(ct.c_long(number), *arguments))


def version() -> int:
    """Return the kernel's Landlock ABI version, or 0 if it has none or Landlock is disabled."""
    return max(0, _syscall(_CREATE_RULESET, None, ct.c_size_t(0), ct.c_uint32(_VERSION)))


def confined(call: Callable[[], T], readable: Iterable[Path]) -> T:
    """Run `call()` with only `readable` files and directories accessible, and return its result.

    They can be read and executed. Nothing can be written, and no TCP port can be bound or connected to. Open
    descriptors stay usable. The call runs in its own thread, and only that thread is restricted. Processes
    that the call starts inherit the restriction. Paths that do not exist are skipped.

    Raises EbpfError if the kernel refuses, and whatever `call` raises. Needs `version() > 0`.
    """

    def restricted() -> T:
        _restrict(readable)
        return call()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="landlock") as pool:
        return pool.submit(restricted).result()


def _restrict(readable: Iterable[Path]) -> None:
    """Restrict the calling thread permanently."""
    abi = version()
    attributes = _Ruleset((1 << _at(_FILE_RIGHTS, abi)) - 1, (1 << _at(_TCP_RIGHTS, abi)) - 1)
    size = ct.sizeof(attributes) if abi >= min(_TCP_RIGHTS) else ct.sizeof(ct.c_uint64)
    ruleset = _checked(_syscall(_CREATE_RULESET, ct.byref(attributes), ct.c_size_t(size), ct.c_uint32(0)))
    try:
        for path in readable:
            _allow(ruleset, path)
        prctl = ct.CDLL(None, use_errno=True).prctl
        _checked(prctl(_PR_SET_NO_NEW_PRIVS, *map(ct.c_ulong, (1, 0, 0, 0))))
        _checked(_syscall(_RESTRICT_SELF, ct.c_int(ruleset), ct.c_uint32(0)))
    finally:
        os.close(ruleset)


def _at(rights: dict[int, int], abi: int) -> int:
    return max((count for since, count in rights.items() if since <= abi), default=0)


def _allow(ruleset: int, path: Path) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights = _EXECUTE | _READ_FILE | (_READ_DIR if path.is_dir() else 0)
        rule = _PathBeneath(rights, fd)
        arguments = (ct.c_int(ruleset), ct.c_int(_PATH_BENEATH), ct.byref(rule), ct.c_uint32(0))
        _checked(_syscall(_ADD_RULE, *arguments))
    finally:
        os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        raise describe("landlock", ct.get_errno())
    return result
