"""Register struct_ops, such as a TCP congestion control, so that the registration ends with the process.

Before version 1.2, libbpf registers a struct_ops without a kernel link, so that it survives even `kill -9`.
With the map flag BPF_F_LINK (Linux 6.4), which `Object.open` sets if possible, the registration is a link.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from ebpf import libbpf
from ebpf.errors import EbpfError, describe
from ebpf.links import Link, create_link

if TYPE_CHECKING:
    from ebpf.object import Object

MAP_TYPE = 26  # BPF_MAP_TYPE_STRUCT_OPS
F_LINK = 1 << 13
_ATTACH_TYPE = 44  # BPF_STRUCT_OPS
_BTF_KIND_STRUCT = 4


@functools.cache
def kernel_has_links() -> bool:
    """Return whether this kernel can register a struct_ops with a link."""
    btf = libbpf.lib().btf__load_vmlinux_btf()
    if not btf:
        return False
    found = libbpf.lib().btf__find_by_name_kind(btf, b"bpf_struct_ops_link", _BTF_KIND_STRUCT)
    libbpf.lib().btf__free(btf)
    return bool(found > 0)


def register(obj: Object, name: str) -> Link:
    """Register the struct_ops variable `name` of a loaded object, until the link or this process ends.

    Needs Linux 6.4. Raises EbpfError, with errno EEXIST if one of the same name is already registered.
    """
    if not kernel_has_links():
        raise EbpfError(
            f"{obj.path}: this kernel cannot register {name} so that it ends with the process; "
            "remedy: Linux 6.4 or newer, with BTF"
        )
    map_fd = obj.maps[name].fd
    with libbpf.capture() as log:
        pointer = libbpf.lib().bpf_map__attach_struct_ops(obj.map_pointer(name))
    if not pointer:
        error = ct.get_errno()
        raise describe(f"{obj.path}: cannot register {name}", error, log())
    fd = int(libbpf.lib().bpf_link__fd(pointer))
    libbpf.lib().bpf_link__disconnect(pointer)
    libbpf.lib().bpf_link__destroy(pointer)
    if fd != map_fd:  # libbpf 1.2 and newer made the link
        return Link(fd, name)
    return create_link(map_fd, 0, _ATTACH_TYPE, f"{name}: registration")


def available_congestion_controls() -> tuple[str, ...]:
    """Return the congestion controls that a socket can choose."""
    with contextlib.suppress(OSError):
        return tuple(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split())
    return ()
