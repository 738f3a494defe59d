"""BPF objects, with their programs, maps and global variables: open, adjust and load them."""

from __future__ import annotations

import ctypes as ct
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebpf import libbpf, struct_ops
from ebpf.btf import Btf
from ebpf.errors import EbpfError, describe
from ebpf.links import Attachment, Link, adopt
from ebpf.maps import Map
from ebpf.tc import NO_TCX, Direction, TcAttachment, attach_tc, attach_tcx
from ebpf.typed import Codec

_BTF_KIND_DATASEC = 15


@dataclass(frozen=True)
class TestRun:
    """Outcome of `Program.test_run`: return value, packet and context afterwards."""

    __test__ = False  # not a pytest class

    retval: int
    data: bytes
    ctx: bytes


@dataclass(frozen=True)
class Variable:
    """A global variable: `size` bytes at `offset` in the single value of map `section`, such as .bss."""

    section: str
    offset: int
    size: int


class Program:
    """One loaded program."""

    def __init__(self, pointer: int, name: str) -> None:
        self._pointer = pointer
        self.name = name
        self.section: str = libbpf.lib().bpf_program__section_name(pointer).decode()
        self.fd: int = libbpf.lib().bpf_program__fd(pointer)

    def test_run(
        self, data: bytes = b"", ctx_in: bytes = b"", repeat: int = 1, data_out_size: int | None = None
    ) -> TestRun:
        """Run the program in the kernel on packet `data` and context `ctx_in`, without a network.

        With `repeat`, changes to the packet accumulate over the runs. `data_out_size` limits the resulting
        packet (default: 4096 bytes more than `data`). Raises EbpfError, with ENOSPC if the packet exceeds it.
        """
        room = (len(data) + 4096 if data else 0) if data_out_size is None else data_out_size
        data_out = ct.create_string_buffer(max(room, 1))
        ctx = ct.create_string_buffer(ctx_in, max(len(ctx_in), 1))
        ctx_out = ct.create_string_buffer(max(len(ctx_in), 1))
        in_place = self.section.startswith("syscall")  # the kernel writes this context back in place
        opts = libbpf.TestRunOpts(
            data_in=data or None,
            data_size_in=len(data),
            data_out=ct.addressof(data_out) if room else None,  # with a buffer, size 0 would mean no limit
            data_size_out=room,
            ctx_in=ct.addressof(ctx) if ctx_in else None,
            ctx_size_in=len(ctx_in),
            ctx_out=ct.addressof(ctx_out) if ctx_in and not in_place else None,
            ctx_size_out=0 if in_place else len(ctx_in),
            repeat=repeat if data else 0,
        )
        result = int(libbpf.lib().bpf_prog_test_run_opts(self.fd, ct.byref(opts)))
        if result < 0:
            raise describe(f"test run of program {self.name}", -result)
        return TestRun(
            opts.retval,
            data_out.raw[: opts.data_size_out] if room else b"",
            (ctx.raw if in_place else ctx_out.raw[: opts.ctx_size_out]) if ctx_in else b"",
        )

    def attach_tc(
        self,
        ifindex: int,
        direction: Direction,
        netns: str | None = None,
        priority: int = 1,
        handle: int = 1,
        *,
        replace: bool = False,
    ) -> TcAttachment:
        """Attach to an interface's clsact qdisc, until removed. `netns` is a name or a path. See ebpf.tc."""
        return attach_tc(
            self.fd,
            self.name,
            ifindex,
            direction,
            netns=netns,
            priority=priority,
            handle=handle,
            replace=replace,
        )

    def attach_interface(self, ifindex: int, direction: Direction, netns: str | None = None) -> Attachment:
        """Attach to an interface, after the programs there, until closed or this process ends.

        Uses a tcx link, or before Linux 6.6 a gate at clsact. Raises EbpfError.
        """
        try:
            return attach_tcx(self.fd, self.name, ifindex, direction, netns=netns)
        except EbpfError as error:
            if error.errno not in NO_TCX:
                raise
        from ebpf.gate import Gate  # which needs this module

        return Gate(self.fd, ifindex, direction, netns)

    def attach(self) -> Link:
        """Attach to the hook that the program's section names (tracepoint, fentry, iterator, ...)."""
        with libbpf.capture() as log:
            pointer = libbpf.lib().bpf_program__attach(self._pointer)
        return adopt(pointer, f"program {self.name} ({self.section})", log())

    def read_iterator(self, link: Link) -> bytes:
        """Run an attached iterator program once, and return everything that it writes."""
        fd = libbpf.lib().bpf_iter_create(link.fd)
        if fd < 0:
            raise describe(f"iterator {self.name}", -fd)
        with os.fdopen(fd, "rb") as stream:
            return stream.read()

    def __repr__(self) -> str:
        return f"Program({self.name!r}, {self.section!r})"


class Object:
    """An object file. Open it, adjust it, then `load()` it. `close`, or leaving `with`, frees it.

    `programs` and `maps`, by name, exist after loading. The compiler's sections are maps, too: `.data`,
    `.bss` and so on. Attachments by tc outlive the object, and links live as long as their own descriptor.
    """

    def __init__(self, path: Path, pointer: int) -> None:
        self.path = path
        self.programs: Mapping[str, Program] = {}
        self.maps: Mapping[str, Map] = {}
        self._pointer: int | None = pointer
        self._map_pointers = {_map_name(each): each for each in self._each("bpf_object__next_map")}
        self._program_pointers = {
            libbpf.lib().bpf_program__name(each).decode(): each
            for each in self._each("bpf_object__next_program")
        }

        if struct_ops.kernel_has_links():
            for name, each in self._map_pointers.items():
                if libbpf.lib().bpf_map__type(each) == struct_ops.MAP_TYPE:
                    self.add_map_flags(name, struct_ops.F_LINK)

    @classmethod
    def open(cls, path: Path) -> Object:
        """Read an object file. Raises EbpfError, naming it and the cause."""
        if not path.is_file():
            raise EbpfError(f"{path}: no such BPF object; build it first (make build)")
        with libbpf.capture() as log:
            opts = libbpf.ObjectOpenOpts()
            pointer = libbpf.lib().bpf_object__open_file(os.fsencode(path), ct.byref(opts))
        if not pointer:
            raise describe(f"{path}: cannot be opened", ct.get_errno(), log())
        return cls(path, pointer)

    def _each(self, following: str) -> Iterator[int]:
        step = getattr(libbpf.lib(), following)
        pointer = step(self._pointer, None)
        while pointer:
            yield pointer
            pointer = step(self._pointer, pointer)

    def map_pointer(self, name: str) -> int:
        """libbpf's pointer of a map; EbpfError when the object has none of that name."""
        return self._named(self._map_pointers, "map", name)

    def _named(self, pointers: Mapping[str, int], kind: str, name: str) -> int:
        if name not in pointers:
            raise EbpfError(
                f"{self.path}: no {kind} {name!r}; it has {', '.join(sorted(pointers)) or 'none'}"
            )
        return pointers[name]

    def _checked(self, result: int, action: str) -> None:
        if result < 0:
            raise describe(f"{self.path}: {action}", -result)

    def resize(self, name: str, max_entries: int) -> None:
        """Set a map's maximum number of entries, before loading."""
        result = libbpf.lib().bpf_map__set_max_entries(self.map_pointer(name), max_entries)
        self._checked(result, f"cannot resize map {name} to {max_entries}")

    def reuse_map(self, name: str, other: Map) -> None:
        """Use map `other`, loaded or pinned, as this object's map `name`. Call it before loading."""
        result = libbpf.lib().bpf_map__reuse_fd(self.map_pointer(name), other.fd)
        self._checked(result, f"cannot reuse map {other.name} as {name}")

    def add_map_flags(self, name: str, flags: int) -> None:
        """Add BPF_F_... flags to a map, before loading."""
        pointer = self.map_pointer(name)
        before = libbpf.lib().bpf_map__map_flags(pointer)
        self._checked(libbpf.lib().bpf_map__set_map_flags(pointer, before | flags), f"flags of map {name}")

    def check_record(self, name: str, codec: Codec[Any]) -> None:
        """Raise EbpfError, naming the member, where `struct name` and the codec's named tuple differ."""
        self._types().check_record(name, codec.members())

    def check_enum(self, name: str, values: Mapping[str, int]) -> None:
        """Raise EbpfError if `enum name` gives other values to the names in `values`."""
        self._types().check_enum(name, values)

    def _types(self) -> Btf:
        lib, size = libbpf.lib(), ct.c_uint32()
        btf = lib.bpf_object__btf(self._pointer)
        data = lib.btf__raw_data(btf, ct.byref(size)) if btf else None
        if not data:
            raise EbpfError(f"{self.path}: it has no BTF; compile it with clang -g")
        return Btf(ct.string_at(data, size.value), str(self.path))

    def variable(self, name: str) -> Variable:
        """Return the location of global variable `name`. Raises EbpfError if there is none."""
        lib = libbpf.lib()
        btf = lib.bpf_object__btf(self._pointer)
        for section in (".rodata", ".data", ".bss"):
            found = lib.btf__find_by_name_kind(btf, section.encode(), _BTF_KIND_DATASEC) if btf else -1
            if found < 0:
                continue
            datasec = lib.btf__type_by_id(btf, found)
            count = ct.c_uint32.from_address(datasec + 4).value & 0xFFFF
            for i in range(count):
                type_id, offset, size = (ct.c_uint32 * 3).from_address(datasec + 12 + 12 * i)
                name_offset = ct.c_uint32.from_address(lib.btf__type_by_id(btf, type_id)).value
                if lib.btf__name_by_offset(btf, name_offset) == name.encode():
                    return Variable(section, offset, size)
        raise EbpfError(f"{self.path}: no global variable {name!r}")

    def set_rodata(self, name: str, value: bytes) -> None:
        """Set the initial value of a global variable, before loading. `value` must have its size."""
        variable = self.variable(name)
        if len(value) != variable.size:
            raise EbpfError(f"{self.path}: global {name} has {variable.size} bytes, not {len(value)}")
        if self.maps:
            raise EbpfError(f"{self.path}: global {name} is fixed once the object is loaded")
        size = ct.c_size_t()
        base = libbpf.lib().bpf_map__initial_value(self.map_pointer(variable.section), ct.byref(size))
        ct.memmove(base + variable.offset, value, len(value))

    def register(self, name: str) -> Attachment:
        """Register the loaded struct_ops variable `name`. See ebpf.struct_ops."""
        return struct_ops.register(self, name)

    def load(self) -> None:
        """Create the maps, and load the programs into the kernel, where the verifier checks them.

        Raises EbpfError, with the relevant part of the verifier's log, and a remedy if the cause is known.
        """
        with libbpf.capture() as log:
            result = int(libbpf.lib().bpf_object__load(self._pointer))
        if result < 0:
            raise describe(f"{self.path}: cannot be loaded", -result, log())
        lib = libbpf.lib()
        self.maps = {
            name: Map(name, fd)
            for name, pointer in self._map_pointers.items()
            if (fd := lib.bpf_map__fd(pointer)) >= 0
        }
        self.programs = {
            name: Program(pointer, name)
            for name, pointer in self._program_pointers.items()
            if lib.bpf_program__fd(pointer) >= 0
        }

    def close(self) -> None:
        """Free everything. A second call does nothing."""
        if self._pointer is not None:
            libbpf.lib().bpf_object__close(self._pointer)
            self._pointer = None
            for each in self.maps.values():
                each.fd = -1
            for program in self.programs.values():
                program.fd = -1

    def __enter__(self) -> Object:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _map_name(pointer: int) -> str:
    """Return a map's name, for a section without the object's name that libbpf prepends (`fabric.bss`)."""
    name: str = libbpf.lib().bpf_map__name(pointer).decode()
    return "." + name.partition(".")[2] if libbpf.lib().bpf_map__is_internal(pointer) else name
