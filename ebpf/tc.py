"""Attach programs to the traffic-control hooks of an interface, possibly in another network namespace."""

from __future__ import annotations

import ctypes as ct
import errno
import os
from dataclasses import dataclass, field
from typing import Literal

from ebpf import libbpf
from ebpf.errors import describe
from ebpf.links import Link, create_link
from ebpf.namespaces import in_netns, netns_path

Direction = Literal["ingress", "egress"]

_ATTACH_POINT: dict[Direction, int] = {"ingress": 1, "egress": 2}
_TCX: dict[Direction, int] = {"ingress": 46, "egress": 47}  # enum bpf_attach_type
_REPLACE = 1
NO_TCX = {errno.EINVAL, errno.EOPNOTSUPP}
"""Error numbers of a kernel without tcx links."""
_GONE = {
    errno.ENODEV,
    errno.ENOENT,
    errno.EINVAL,
}  # the interface or its clsact has been removed, and the filter with it


def hook(ifindex: int, direction: Direction) -> libbpf.TcHook:
    """Return libbpf's name for an interface's clsact, in the present network namespace."""
    return libbpf.TcHook(ifindex=ifindex, attach_point=_ATTACH_POINT[direction])


@dataclass
class TcAttachment:
    """A program attached to clsact. It survives this process, until `detach` or removal of the interface."""

    ifindex: int
    direction: Direction
    priority: int
    handle: int
    _netns_fd: int | None = field(repr=False, default=None)
    _attached: bool = field(repr=False, default=True)

    def detach(self) -> None:
        """Detach the program. Do nothing if the interface no longer exists."""
        if not self._attached:
            return
        self._attached = False

        def call() -> int:
            at = hook(self.ifindex, self.direction)
            opts = libbpf.TcOpts(handle=self.handle, priority=self.priority)
            with libbpf.capture():
                return int(libbpf.lib().bpf_tc_detach(ct.byref(at), ct.byref(opts)))

        error = -in_netns(self._netns_fd, call)
        if self._netns_fd is not None:
            os.close(self._netns_fd)
        if error > 0 and error not in _GONE:
            raise describe(f"tc detach from interface {self.ifindex} {self.direction}", error)


def attach_tc(
    prog_fd: int,
    name: str,
    ifindex: int,
    direction: Direction,
    *,
    netns: str | None = None,
    priority: int = 1,
    handle: int = 1,
    replace: bool = False,
) -> TcAttachment:
    """Attach in direct-action mode. Create the clsact qdisc if there is none.

    Raises EbpfError, with EEXIST if this priority and handle have a filter already, unless `replace` is set.
    """

    def call() -> tuple[int, int, str]:
        at = hook(ifindex, direction)
        flags = _REPLACE if replace else 0
        opts = libbpf.TcOpts(prog_fd=prog_fd, handle=handle, priority=priority, flags=flags)
        with libbpf.capture() as log:
            created = -int(libbpf.lib().bpf_tc_hook_create(ct.byref(at)))
            attached = -int(libbpf.lib().bpf_tc_attach(ct.byref(at), ct.byref(opts)))
        return created, attached, log()

    created, attached, log = in_netns(netns, call)
    where = f"tc {direction} of interface {ifindex}" + (f" in {netns}" if netns else "")
    if created > 0 and created != errno.EEXIST:
        raise describe(f"cannot make the clsact qdisc for {where}", created, log)
    if attached > 0:
        raise describe(f"cannot attach program {name} at {where}, priority {priority}", attached, log)
    netns_fd = None if netns is None else os.open(netns_path(netns), os.O_RDONLY | os.O_CLOEXEC)
    return TcAttachment(ifindex, direction, priority, handle, netns_fd)


def attach_tcx(
    prog_fd: int, name: str, ifindex: int, direction: Direction, *, netns: str | None = None
) -> Link:
    """Attach with a tcx link (Linux 6.6), which needs no qdisc and ends with this process.

    Raises EbpfError; its errno is in `NO_TCX` where the kernel has no such links.
    """
    where = f"tcx {direction} of interface {ifindex}" + (f" in {netns}" if netns else "")
    return in_netns(
        netns, lambda: create_link(prog_fd, ifindex, _TCX[direction], f"program {name} at {where}")
    )
