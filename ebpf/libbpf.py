"""The system's libbpf.so.1 through ctypes: signatures, option structures and its log."""

from __future__ import annotations

import contextlib
import ctypes as ct
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from machine.errors import MissingTool

_SONAME = "libbpf.so.1"
_VA_LIST_BYTES = 32  # 24 on x86-64, 32 on arm64; both pass a va_list as a pointer


class Opts(ct.Structure):
    """Base of libbpf's option structures. `sz` is the caller's size of the structure."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.sz = ct.sizeof(self)


class ObjectOpenOpts(Opts):
    _fields_ = (
        ("sz", ct.c_size_t),
        ("object_name", ct.c_char_p),
        ("relaxed_maps", ct.c_bool),
        ("pin_root_path", ct.c_char_p),
        ("_attach_prog_fd", ct.c_uint32),
        ("kconfig", ct.c_char_p),
        ("btf_custom_path", ct.c_char_p),
    )


class TestRunOpts(Opts):
    __test__ = False  # not a pytest class
    _fields_ = (
        ("sz", ct.c_size_t),
        ("data_in", ct.c_char_p),
        ("data_out", ct.c_void_p),
        ("data_size_in", ct.c_uint32),
        ("data_size_out", ct.c_uint32),
        ("ctx_in", ct.c_void_p),
        ("ctx_out", ct.c_void_p),
        ("ctx_size_in", ct.c_uint32),
        ("ctx_size_out", ct.c_uint32),
        ("retval", ct.c_uint32),
        ("repeat", ct.c_int),
        ("duration", ct.c_uint32),
        ("flags", ct.c_uint32),
        ("cpu", ct.c_uint32),
        ("batch_size", ct.c_uint32),
    )


class TcHook(Opts):
    _fields_ = (
        ("sz", ct.c_size_t),
        ("ifindex", ct.c_int),
        ("attach_point", ct.c_int),
        ("parent", ct.c_uint32),
        ("_padding", ct.c_uint32),
    )


class TcOpts(Opts):
    _fields_ = (
        ("sz", ct.c_size_t),
        ("prog_fd", ct.c_int),
        ("flags", ct.c_uint32),
        ("prog_id", ct.c_uint32),
        ("handle", ct.c_uint32),
        ("priority", ct.c_uint32),
        ("_padding", ct.c_uint32),
    )


class MapInfo(ct.Structure):
    """The beginning of the kernel's struct bpf_map_info."""

    _fields_ = (
        *(
            (name, ct.c_uint32)
            for name in ("type", "id", "key_size", "value_size", "max_entries", "map_flags")
        ),
        ("name", ct.c_char * 16),
    )


class LinkInfo(ct.Structure):
    """The beginning of the kernel's struct bpf_link_info, with what it has for a struct_ops."""

    _fields_ = (*((name, ct.c_uint32) for name in ("type", "id", "prog_id", "_padding", "map_id")),)


PrintFn = ct.CFUNCTYPE(ct.c_int, ct.c_int, ct.c_char_p, ct.c_void_p)
RingBufferFn = ct.CFUNCTYPE(ct.c_int, ct.c_void_p, ct.c_void_p, ct.c_size_t)

_PTR, _STR, _INT, _U32, _U64, _SIZE = (
    ct.c_void_p,
    ct.c_char_p,
    ct.c_int,
    ct.c_uint32,
    ct.c_uint64,
    ct.c_size_t,
)

# By name: (result, arguments). Pointers to libbpf's objects are plain void pointers; object.py types them.
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "libbpf_set_print": (_PTR, (PrintFn,)),
    "libbpf_version_string": (_STR, ()),
    "libbpf_num_possible_cpus": (_INT, ()),
    "bpf_object__open_file": (_PTR, (_STR, _PTR)),
    "bpf_object__load": (_INT, (_PTR,)),
    "bpf_object__close": (None, (_PTR,)),
    "bpf_object__btf": (_PTR, (_PTR,)),
    "bpf_object__next_program": (_PTR, (_PTR, _PTR)),
    "bpf_object__next_map": (_PTR, (_PTR, _PTR)),
    "bpf_program__name": (_STR, (_PTR,)),
    "bpf_program__section_name": (_STR, (_PTR,)),
    "bpf_program__fd": (_INT, (_PTR,)),
    "bpf_program__autoload": (ct.c_bool, (_PTR,)),
    "bpf_program__attach": (_PTR, (_PTR,)),
    "bpf_program__attach_iter": (_PTR, (_PTR, _PTR)),
    "bpf_map__name": (_STR, (_PTR,)),
    "bpf_map__fd": (_INT, (_PTR,)),
    "bpf_map__type": (_INT, (_PTR,)),
    "bpf_map__is_internal": (ct.c_bool, (_PTR,)),
    "bpf_map__set_max_entries": (_INT, (_PTR, _U32)),
    "bpf_map__map_flags": (_U32, (_PTR,)),
    "bpf_map__set_map_flags": (_INT, (_PTR, _U32)),
    "bpf_map__initial_value": (_PTR, (_PTR, ct.POINTER(_SIZE))),
    "bpf_map__attach_struct_ops": (_PTR, (_PTR,)),
    "bpf_map__reuse_fd": (_INT, (_PTR, _INT)),
    "bpf_map__set_autocreate": (_INT, (_PTR, ct.c_bool)),
    "bpf_link__fd": (_INT, (_PTR,)),
    "bpf_link__destroy": (_INT, (_PTR,)),
    "bpf_link__disconnect": (None, (_PTR,)),
    "bpf_link_create": (_INT, (_INT, _INT, _INT, _PTR)),
    "bpf_iter_create": (_INT, (_INT,)),
    "bpf_obj_pin": (_INT, (_INT, _STR)),
    "bpf_obj_get": (_INT, (_STR,)),
    "bpf_obj_get_info_by_fd": (_INT, (_INT, _PTR, ct.POINTER(_U32))),
    "bpf_link_get_next_id": (_INT, (_U32, ct.POINTER(_U32))),
    "bpf_link_get_fd_by_id": (_INT, (_U32,)),
    "bpf_map_get_fd_by_id": (_INT, (_U32,)),
    "bpf_map_lookup_elem_flags": (_INT, (_INT, _STR, _PTR, _U64)),
    "bpf_map_update_elem": (_INT, (_INT, _STR, _STR, _U64)),
    "bpf_map_delete_elem": (_INT, (_INT, _STR)),
    "bpf_map_get_next_key": (_INT, (_INT, _STR, _PTR)),
    "bpf_map_lookup_batch": (_INT, (_INT, _PTR, _PTR, _PTR, _PTR, ct.POINTER(_U32), _PTR)),
    "bpf_prog_test_run_opts": (_INT, (_INT, _PTR)),
    "bpf_tc_hook_create": (_INT, (_PTR,)),
    "bpf_tc_attach": (_INT, (_PTR, _PTR)),
    "bpf_tc_detach": (_INT, (_PTR, _PTR)),
    "bpf_tc_query": (_INT, (_PTR, _PTR)),
    "btf__load_vmlinux_btf": (_PTR, ()),
    "btf__free": (None, (_PTR,)),
    "btf__find_by_name_kind": (_INT, (_PTR, _STR, _U32)),
    "btf__type_by_id": (_PTR, (_PTR, _U32)),
    "btf__raw_data": (_PTR, (_PTR, ct.POINTER(_U32))),
    "btf__name_by_offset": (_STR, (_PTR, _U32)),
    "ring_buffer__new": (_PTR, (_INT, RingBufferFn, _PTR, _PTR)),
    "ring_buffer__poll": (_INT, (_PTR, _INT)),
    "ring_buffer__consume": (_INT, (_PTR,)),
    "ring_buffer__epoll_fd": (_INT, (_PTR,)),
    "ring_buffer__free": (None, (_PTR,)),
}

_captured = threading.local()


def _print(_level: int, fmt: bytes, args: int) -> int:
    lines = getattr(_captured, "lines", None)
    if lines is not None:
        libc = _libc()
        saved = ct.create_string_buffer(ct.string_at(args, _VA_LIST_BYTES), _VA_LIST_BYTES)
        size = int(libc.vsnprintf(None, 0, fmt, ct.addressof(saved))) + 1
        text = ct.create_string_buffer(size)
        libc.vsnprintf(text, size, fmt, args)
        lines.append(text.value.decode(errors="replace"))
    return 0


_print_callback = PrintFn(_print)  # must outlive the library


@functools.cache
def _libc() -> ct.CDLL:
    libc = ct.CDLL(None, use_errno=True)
    libc.vsnprintf.argtypes = (_PTR, _SIZE, _STR, _PTR)
    return libc


@functools.cache
def lib() -> Any:
    """Return the library, its functions typed. Raises MissingTool if it is not installed."""
    try:
        library = ct.CDLL(_SONAME, use_errno=True)
    except OSError as error:
        raise MissingTool(f"{_SONAME} not found: install it (Debian: apt-get install libbpf1)") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.libbpf_set_print(_print_callback)
    return library


@contextlib.contextmanager
def capture() -> Iterator[Callable[[], str]]:
    """Capture libbpf's log messages of this thread. Yields a function that returns the log so far."""
    before = getattr(_captured, "lines", None)
    lines: list[str] = []
    _captured.lines = lines
    try:
        yield lambda: "".join(lines)
    finally:
        _captured.lines = before


@functools.cache
def possible_cpus() -> int:
    """Number of values in one entry of a per-CPU map."""
    return int(lib().libbpf_num_possible_cpus())


def version() -> str:
    """libbpf's version, such as `v1.1`."""
    return str(lib().libbpf_version_string().decode())
