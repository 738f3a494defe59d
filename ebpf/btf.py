"""Types of a BPF object, read from its BTF: names and offsets of C struct members.

Python reads and writes records that C declares. Both sides are written by hand, so `check_record` and
`check_enum` compare them when the object is loaded. An error names the member that differs.

Format: Documentation/bpf/btf.rst of the Linux kernel.
"""

from __future__ import annotations

import ctypes as ct
import functools
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from ebpf import libbpf
from ebpf.errors import EbpfError

_HEADER = struct.Struct("=HBBIIIII")
_TYPE = struct.Struct("=III")
_MAGIC = 0xEB9F
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM = 1, 2, 3, 4, 5, 6
_FUNC_PROTO, _VAR, _DATASEC, _FLOAT, _DECL_TAG, _ENUM64 = 13, 14, 15, 16, 17, 19
_ALIASES = frozenset((8, 9, 10, 11, 18))  # typedef, volatile, const, restrict, type tag
_EXTRA_BYTES = {_INT: 4, _ARRAY: 12, _VAR: 4, _DECL_TAG: 4}
_EXTRA_BYTES_EACH = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _FUNC_PROTO: 8, _DATASEC: 12, _ENUM64: 12}


@dataclass(frozen=True)
class Member:
    """One scalar of a record: its path in C (`lanes[3].rate`), offset and size in bytes."""

    name: str
    offset: int
    size: int

    @property
    def top(self) -> str:
        """The member of the outermost struct that holds it."""
        return self.name.partition(".")[0].partition("[")[0]


@dataclass(frozen=True)
class _Type:
    kind: int
    count: int
    name: str
    size_or_type: int
    extra: bytes


class Btf:
    """The types in raw BTF `data`. Errors call the object `source`."""

    def __init__(self, data: bytes, source: str) -> None:
        magic, _, _, length, type_offset, type_length, text_offset, text_length = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise EbpfError(f"{source}: its BTF does not begin with {_MAGIC:#x}")
        self._source = source
        self._text = data[length + text_offset :][:text_length]
        self._types = [_Type(0, 0, "void", 0, b""), *self._read(data[length + type_offset :][:type_length])]

    def _read(self, types: bytes) -> Iterator[_Type]:
        at = 0
        while at < len(types):
            name, info, size_or_type = _TYPE.unpack_from(types, at)
            kind, count = info >> 24 & 0x1F, info & 0xFFFF
            extra = _EXTRA_BYTES.get(kind, 0) + _EXTRA_BYTES_EACH.get(kind, 0) * count
            at += _TYPE.size
            yield _Type(kind, count, self._name(name), size_or_type, types[at : at + extra])
            at += extra

    def _name(self, offset: int) -> str:
        return self._text[offset : self._text.index(b"\0", offset)].decode()

    def _find(self, kind: int, word: str, name: str) -> _Type:
        for each in self._types:
            if each.kind == kind and each.name == name:
                return each
        raise EbpfError(f"{self._source}: its BTF has no {word} {name}; declare a variable or a map of it")

    def members(self, name: str) -> list[Member]:
        """Return the scalars of `struct name`, in order. Raises EbpfError if the BTF has no such struct."""
        return list(self._scalars(self._find(_STRUCT, "struct", name), "", 0))

    def enumerators(self, name: str) -> dict[str, int]:
        """Return the values of `enum name`. Raises EbpfError if the BTF has no such enum."""
        found = self._find(_ENUM, "enum", name)
        return {self._name(text): value for text, value in struct.iter_unpack("=Ii", found.extra)}

    def _scalars(self, each: _Type, path: str, offset: int) -> Iterator[Member]:
        if each.kind in _ALIASES:
            yield from self._scalars(self._types[each.size_or_type], path, offset)
        elif each.kind in (_STRUCT, _UNION):
            for text, type_id, place in struct.iter_unpack("=III", each.extra):
                name = self._name(text)
                inner = f"{path}.{name}" if path and name else path or name
                yield from self._scalars(self._types[type_id], inner, offset + (place & 0xFFFFFF) // 8)
        elif each.kind == _ARRAY:
            type_id, _, number = struct.unpack("=III", each.extra)
            size = self._size(self._types[type_id])
            for i in range(number):
                yield from self._scalars(self._types[type_id], f"{path}[{i}]", offset + i * size)
        else:
            yield Member(path, offset, self._size(each))

    def _size(self, each: _Type) -> int:
        if each.kind in _ALIASES:
            return self._size(self._types[each.size_or_type])
        if each.kind == _ARRAY:
            type_id, _, number = struct.unpack("=III", each.extra)
            return int(number) * self._size(self._types[type_id])
        return 8 if each.kind == _PTR else each.size_or_type

    def check_record(self, name: str, fields: Sequence[Member]) -> None:
        """Raise EbpfError unless Python's `fields` are the first members of `struct name`.

        A field may hold a whole array or struct, such as a text. Python may skip members as padding.
        """
        theirs = self._packed(self.members(name), {ours.offset for ours in fields})
        for ours in fields:
            each = next((each for each in theirs if each.offset + each.size > ours.offset), None)
            if each is None:
                raise EbpfError(f"{self._source}: struct {name} ends before Python's {ours.name}")
            if ours != each:
                raise EbpfError(
                    f"{self._source}: struct {name} has {each.name} ({each.size} bytes at {each.offset}) "
                    f"where Python has {ours.name} ({ours.size} bytes at {ours.offset})"
                )

    @staticmethod
    def _packed(scalars: Sequence[Member], begins: Set[int]) -> Iterator[Member]:
        """Join the scalars of one outermost member, up to the start of Python's next field."""
        at = 0
        while at < len(scalars):
            first = scalars[at]
            size, at = first.size, at + 1
            while at < len(scalars) and scalars[at].top == first.top and scalars[at].offset not in begins:
                size, at = size + scalars[at].size, at + 1
            yield Member(first.top, first.offset, size)

    def check_enum(self, name: str, values: Mapping[str, int]) -> None:
        """Raise EbpfError if `enum name` gives other values to the names in `values`."""
        theirs = self.enumerators(name)
        for key, value in values.items():
            if theirs.get(key) != value:
                raise EbpfError(
                    f"{self._source}: enum {name} has {key} = {theirs.get(key, 'nothing')} "
                    f"where Python has {value}"
                )


@functools.cache
def kernel_members(structure: bytes) -> frozenset[bytes] | None:
    """Return the names of a kernel structure's members; None if the kernel has none of that name."""
    lib = libbpf.lib()
    btf = lib.btf__load_vmlinux_btf()
    if not btf:
        return None
    try:
        found = lib.btf__find_by_name_kind(btf, structure, _STRUCT)
        if found < 0:
            return None
        described = lib.btf__type_by_id(btf, found)
        count = ct.c_uint32.from_address(described + 4).value & 0xFFFF
        names = (ct.c_uint32.from_address(described + 12 + 12 * i).value for i in range(count))
        return frozenset(lib.btf__name_by_offset(btf, name) for name in names)
    finally:
        lib.btf__free(btf)
