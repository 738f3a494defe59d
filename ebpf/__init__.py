"""Loader for CO-RE eBPF programs: a small typed layer over the system's libbpf (1.1 or newer)."""

from ebpf.compile import compile_bpf, compile_cached
from ebpf.errors import EbpfError
from ebpf.links import Attachment, Link
from ebpf.maps import Map
from ebpf.namespaces import in_netns
from ebpf.object import Object, Program, TestRun, Variable
from ebpf.ringbuf import RingBuffer
from ebpf.tc import TcAttachment
from ebpf.typed import Codec, TypedMap

__all__ = [
    "Attachment",
    "Codec",
    "EbpfError",
    "Link",
    "Map",
    "Object",
    "Program",
    "RingBuffer",
    "TcAttachment",
    "TestRun",
    "TypedMap",
    "Variable",
    "compile_bpf",
    "compile_cached",
    "in_netns",
]
