"""BPF maps as Python mappings from bytes to bytes."""

from __future__ import annotations

import ctypes as ct
import errno
import functools
import mmap
import os
from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

from ebpf import libbpf
from ebpf.errors import EbpfError, describe

ANY, NOEXIST, EXIST, LOCK = 0, 1, 2, 4  # flags of update (and, LOCK only, of lookup)

_PER_CPU_TYPES = {5, 6, 10, 21}  # percpu_hash, percpu_array, lru_percpu_hash, percpu_cgroup_storage
_QUICK_TYPES = {1, 2, 5, 6, 9, 10}  # hash, array, and those of them that are per CPU or LRU
_NO_BATCH = {errno.EINVAL, errno.EOPNOTSUPP, 524}  # 524 is the kernel's ENOTSUPP


@functools.cache
def _quick() -> Any:
    """libbpf for quick calls, which keep Python's lock because releasing it would take longer than the call.

    The functions are untyped, because converting each argument would cost a third more. They take int (as C
    int), bytes, and ctypes objects. They return negative error numbers and do not set ctypes' errno.
    """
    return ct.PyDLL(None, handle=libbpf.lib()._handle)


_flags = functools.cache(ct.c_uint64)  # each is made once


class Map(MutableMapping[bytes, bytes]):
    """One map. Keys and values are bytes of exactly `key_size` and `value_size`.

    A missing key raises KeyError. Every other failure raises EbpfError with the kernel's `errno`. Per-CPU
    maps have one value per possible CPU: read and write them with `lookup_cpus` and `update_cpus`.
    """

    def __init__(self, name: str, fd: int) -> None:
        info = libbpf.MapInfo()
        size = ct.c_uint32(ct.sizeof(info))
        if libbpf.lib().bpf_obj_get_info_by_fd(fd, ct.byref(info), ct.byref(size)) < 0:
            raise describe(f"map {name}: cannot read its properties", ct.get_errno())
        self.name = name
        self.fd = fd
        self.type: int = info.type
        self.id: int = info.id
        self.key_size: int = info.key_size
        self.value_size: int = info.value_size
        self.max_entries: int = info.max_entries
        self.flags: int = info.map_flags
        self.per_cpu = self.type in _PER_CPU_TYPES
        self._stride = (self.value_size + 7) // 8 * 8
        self._bytes = self._stride * libbpf.possible_cpus() if self.per_cpu else self.value_size
        self._room = ct.c_char * self._bytes
        library = _quick() if self.type in _QUICK_TYPES else libbpf.lib()
        self._lookup_elem = library.bpf_map_lookup_elem_flags
        self._update_elem = library.bpf_map_update_elem
        self._delete_elem = library.bpf_map_delete_elem

    @classmethod
    def open_pinned(cls, path: Path) -> Map:
        """Return the map pinned at `path`. The caller closes its `fd`."""
        fd = libbpf.lib().bpf_obj_get(os.fsencode(path))
        if fd < 0:
            raise describe(f"no map pinned at {path}", ct.get_errno())
        return cls(path.name, fd)

    def pin(self, path: Path) -> None:
        """Keep the map after this process, pinned at `path` in a BPF file system."""
        if libbpf.lib().bpf_obj_pin(self.fd, os.fsencode(path)) < 0:
            raise describe(f"map {self.name}: cannot pin it at {path}", ct.get_errno())

    def lookup(self, key: bytes, flags: int = 0) -> bytes:
        """Return the value of `key`. Raises KeyError if there is none. `flags` may be LOCK."""
        if self.per_cpu:
            raise TypeError(f"map {self.name} is per CPU: use lookup_cpus")
        return self._lookup(key, flags)

    def lookup_cpus(self, key: bytes, flags: int = 0) -> list[bytes]:
        """Return the values of `key`, one per possible CPU."""
        raw = self._lookup(key, flags)
        return [raw[at : at + self.value_size] for at in range(0, len(raw), self._stride)]

    def _lookup(self, key: bytes, flags: int) -> bytes:
        self._check(key, self.key_size, "key")
        value = self._room()
        result = self._lookup_elem(self.fd, key, value, _flags(flags))
        if result < 0:
            raise self._error("lookup", key, -result)
        raw: bytes = value.raw
        return raw

    def update(self, key: bytes, value: bytes, flags: int = ANY) -> None:  # type: ignore[override]
        """Set `key` to `value`. `flags` is ANY, NOEXIST or EXIST, plus LOCK if the value has a lock.

        Raises KeyError for NOEXIST if the key exists, and for EXIST if it does not.
        """
        if self.per_cpu:
            raise TypeError(f"map {self.name} is per CPU: use update_cpus")
        self._update(key, value, flags)

    def update_cpus(self, key: bytes, values: Iterable[bytes], flags: int = ANY) -> None:
        """Set the values of `key`, one per possible CPU."""
        self._update(key, b"".join(value.ljust(self._stride, b"\0") for value in values), flags)

    def _update(self, key: bytes, raw: bytes, flags: int) -> None:
        self._check(raw, self._bytes, "values of all CPUs" if self.per_cpu else "value")
        self._check(key, self.key_size, "key")
        result = self._update_elem(self.fd, key, raw, _flags(flags))
        if result < 0:
            raise self._error("update", key, -result)

    def lookup_batch(self) -> list[tuple[bytes, bytes]]:
        """Return all entries of a map that is not per CPU, with batched system calls if available."""
        items: list[tuple[bytes, bytes]] = []
        room = min(self.max_entries, 4096)
        token_in: ct.Array[ct.c_char] | None = None
        while True:
            token_out = ct.create_string_buffer(max(4, self.key_size))
            keys = ct.create_string_buffer(self.key_size * room)
            values = ct.create_string_buffer(self.value_size * room)
            count = ct.c_uint32(room)
            result = libbpf.lib().bpf_map_lookup_batch(
                self.fd, token_in, token_out, keys, values, ct.byref(count), None
            )
            error = ct.get_errno() if result < 0 else 0
            if error in _NO_BATCH and token_in is None:
                return list(self.items())
            if error == errno.ENOSPC:  # one hash bucket is longer than the room left
                room *= 2
                continue
            if error not in (0, errno.ENOENT):
                raise describe(f"map {self.name}: batched lookup", error)
            key_bytes, value_bytes, k, v = keys.raw, values.raw, self.key_size, self.value_size
            items += [
                (key_bytes[i * k : (i + 1) * k], value_bytes[i * v : (i + 1) * v]) for i in range(count.value)
            ]
            if error == errno.ENOENT:
                return items
            token_in = token_out

    def mmap(self, *, writable: bool = True) -> mmap.mmap:
        """Return the values of an array with BPF_F_MMAPABLE, such as .data and .bss, as shared memory.

        Entry i begins at i times `value_size` rounded up to 8.
        """
        page = mmap.PAGESIZE
        length = (self._stride * self.max_entries + page - 1) // page * page
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            return mmap.mmap(self.fd, length, mmap.MAP_SHARED, prot)
        except OSError as error:
            raise describe(f"map {self.name}: cannot be mapped to memory", error.errno or 0) from error

    def __getitem__(self, key: bytes) -> bytes:
        return self.lookup(key)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.update(key, value)

    def __delitem__(self, key: bytes) -> None:
        self._check(key, self.key_size, "key")
        result = self._delete_elem(self.fd, key)
        if result < 0:
            raise self._error("delete", key, -result)

    def __iter__(self) -> Iterator[bytes]:
        key: bytes | None = None
        following = ct.create_string_buffer(self.key_size)
        while libbpf.lib().bpf_map_get_next_key(self.fd, key, following) == 0:
            key = following.raw
            yield key
        if ct.get_errno() != errno.ENOENT:
            raise describe(f"map {self.name}: iteration", ct.get_errno())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        try:
            self._lookup(key, 0)  # type: ignore[arg-type]
        except KeyError:
            return False
        return True

    def __repr__(self) -> str:
        return f"Map({self.name!r}, {self.key_size} -> {self.value_size} bytes, {self.max_entries} entries)"

    def _check(self, data: bytes, size: int, what: str) -> None:
        if len(data) != size:
            raise EbpfError(f"map {self.name}: {what} has {len(data)} bytes, not {size}", errno=errno.EINVAL)

    def _error(self, action: str, key: bytes, error: int) -> Exception:
        if error in (errno.ENOENT, errno.EEXIST):
            return KeyError(key)
        if error == errno.E2BIG:
            return EbpfError(
                f"map {self.name}: {action} of key {key.hex()}: full, or index out of range "
                f"(max_entries {self.max_entries}); remedy: resize it before load",
                errno=error,
            )
        return describe(f"map {self.name}: {action} of key {key.hex()}", error)
