"""Maps whose keys and values are numbers or named tuples instead of bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Generic, TypeVar

from ebpf.btf import Member
from ebpf.maps import Map

_FORMAT = re.compile(r"(\d*)([a-zA-Z])")

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Codec(Generic[T]):
    """Converts between bytes and `kind`: int for a format of one number, otherwise a named tuple.

    Formats are those of `struct`.
    """

    def __init__(self, form: str, kind: type[T]) -> None:
        self._struct = struct.Struct(form)
        self._kind: Any = kind
        self.size = self._struct.size

    def members(self) -> list[Member]:
        """Return the fields of a named tuple as `Btf.check_record` compares them with C's."""
        found: list[Member] = []
        names = iter(self._kind._fields)
        offset = 0
        for number, letter in _FORMAT.findall(self._struct.format):
            if letter in "sx":
                size, count = int(number or 1), 1
            else:
                size, count = struct.calcsize(f"={letter}"), int(number or 1)
            for _ in range(count):
                if letter != "x":
                    found.append(Member(next(names), offset, size))
                offset += size
        return found

    def pack(self, value: T) -> bytes:
        """Return the bytes of `value`. Raises struct.error if a field is out of range."""
        fields: Iterable[Any] = value if isinstance(value, tuple) else (value,)
        return self._struct.pack(*fields)

    def unpack(self, data: bytes) -> T:
        """Return the value of `data`, which may be longer."""
        fields = self._struct.unpack_from(data)
        result: T = fields[0] if self._kind is int else self._kind(*fields)
        return result


class TypedMap(MutableMapping[K, V]):
    """A map through codecs. A codec shorter than the map's keys or values leaves the rest zero."""

    def __init__(self, raw: Map, key: Codec[K], value: Codec[V]) -> None:
        self.raw = raw
        self._key = key
        self._value = value

    def _raw_key(self, key: K) -> bytes:
        return self._key.pack(key).ljust(self.raw.key_size, b"\0")

    def __getitem__(self, key: K) -> V:
        return self._value.unpack(self.raw[self._raw_key(key)])

    def __setitem__(self, key: K, value: V) -> None:
        self.raw[self._raw_key(key)] = self._value.pack(value).ljust(self.raw.value_size, b"\0")

    def __delitem__(self, key: K) -> None:
        del self.raw[self._raw_key(key)]

    def __iter__(self) -> Iterator[K]:
        return map(self._key.unpack, iter(self.raw))

    def __len__(self) -> int:
        return len(self.raw)
