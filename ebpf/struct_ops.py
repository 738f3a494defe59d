"""Register struct_ops, such as a TCP congestion control, so that the registration ends with the process.

Before version 1.2, libbpf registers a struct_ops without a kernel link, so that it survives even `kill -9`.
With the map flag BPF_F_LINK (Linux 6.4), which `Object.open` sets if possible, the registration is a link.
Older kernels have no such links, so a record owns the registration.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ebpf import libbpf
from ebpf.btf import kernel_members
from ebpf.compile import compile_cached
from ebpf.errors import describe
from ebpf.links import Attachment, Lasting, Link, create_link
from machine.errors import MissingTool
from machine.record import Resource, clean_stale

if TYPE_CHECKING:
    from ebpf.object import Object

MAP_TYPE = 26  # BPF_MAP_TYPE_STRUCT_OPS
F_LINK = 1 << 13
VARIANTS: tuple[dict[str, str | int], ...] = ({"TX_START_OPERATION": 0}, {"TX_START_OPERATION": 1})
"""What `compile_control` may define, which depends on the kernel."""
_ATTACH_TYPE = 44  # BPF_STRUCT_OPS
_LINK_TYPE = 9  # BPF_LINK_TYPE_STRUCT_OPS


def kernel_has_links() -> bool:
    """Return whether this kernel can register a struct_ops with a link."""
    return kernel_members(b"bpf_struct_ops_link") is not None


def compile_control(source: Path) -> Path:
    """Return the compiled object of a TCP congestion control, for the operations that this kernel has."""
    operations = kernel_members(b"tcp_congestion_ops") or frozenset()
    return compile_cached(source, defines=VARIANTS[b"cwnd_event_tx_start" in operations])


def register(obj: Object, name: str) -> Attachment:
    """Register the struct_ops variable `name` of a loaded object, until it is closed or this process ends.

    Raises EbpfError, with errno EEXIST if one of the same name is already registered. Before Linux 6.4, a
    registration outlives a killed process until its record is cleaned, and removing it needs bpftool: raises
    MissingTool without it.
    """
    if not kernel_has_links():
        return _register_without_link(obj, name)
    map_fd = obj.maps[name].fd
    pointer = _attach(obj, name)
    fd = int(libbpf.lib().bpf_link__fd(pointer))
    _free(pointer)
    if fd != map_fd:  # libbpf 1.2 and newer made the link
        return Link(fd, name)
    return create_link(map_fd, 0, _ATTACH_TYPE, f"{name}: registration")


def _register_without_link(obj: Object, name: str) -> Attachment:
    if shutil.which("bpftool") is None:
        raise MissingTool(
            f"bpftool not found, which removes {name} again on a kernel before Linux 6.4: install it "
            "(Debian: apt-get install bpftool)"
        )
    clean_stale()  # else what a killed process has left would still be registered
    lasting = Lasting([Resource("struct_ops", str(obj.maps[name].id))])
    try:
        _free(_attach(obj, name))
    except BaseException:
        lasting.close()
        raise
    return lasting


def _attach(obj: Object, name: str) -> int:
    """Let libbpf register it; return its struct bpf_link."""
    with libbpf.capture() as log:
        pointer = libbpf.lib().bpf_map__attach_struct_ops(obj.map_pointer(name))
    if not pointer:
        error = ct.get_errno()
        raise describe(f"{obj.path}: cannot register {name}", error, log())
    return int(pointer)


def _free(pointer: int) -> None:
    """Free libbpf's structure, not the registration."""
    libbpf.lib().bpf_link__disconnect(pointer)
    libbpf.lib().bpf_link__destroy(pointer)


def held(names: Collection[str]) -> list[Link]:
    """Return links to what any process of this machine has registered under `names`.

    While they are open it stays registered, also when that process ends. There are none on a kernel without
    such links, and for a process that may not look at those of others (CAP_SYS_ADMIN).
    """
    library, links = libbpf.lib(), []
    number = ct.c_uint32(0)
    while library.bpf_link_get_next_id(number, ct.byref(number)) == 0:
        fd = library.bpf_link_get_fd_by_id(number)
        if fd < 0:  # it has just ended, or is not for us
            continue
        link = Link(fd, _registered_name(fd))
        if link.what in names:
            links.append(link)
        else:
            link.close()
    return links


def _registered_name(link_fd: int) -> str:
    """Return the name of the struct_ops that a link registers; empty if it is another link."""
    info, size = libbpf.LinkInfo(), ct.c_uint32(ct.sizeof(libbpf.LinkInfo))
    library = libbpf.lib()
    if library.bpf_obj_get_info_by_fd(link_fd, ct.byref(info), ct.byref(size)) < 0:
        return ""
    if info.type != _LINK_TYPE or (map_fd := library.bpf_map_get_fd_by_id(info.map_id)) < 0:
        return ""
    try:
        of_map, size = libbpf.MapInfo(), ct.c_uint32(ct.sizeof(libbpf.MapInfo))
        known = library.bpf_obj_get_info_by_fd(map_fd, ct.byref(of_map), ct.byref(size)) == 0
        return of_map.name.decode() if known else ""
    finally:
        os.close(map_fd)


def available_congestion_controls() -> tuple[str, ...]:
    """Return the congestion controls that a socket can choose."""
    with contextlib.suppress(OSError):
        return tuple(
            Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="utf-8").split()
        )
    return ()
