"""Hooks other than tc: control groups, iterators, and what is pinned."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebpf import EbpfError, Map, Object

pytestmark = pytest.mark.root

BPF_FS = Path("/sys/fs/bpf")


@pytest.fixture
def hooks(compiled: Callable[[str], Path]) -> Iterator[Object]:
    with Object.open(compiled("hooks")) as obj:
        obj.load()
        yield obj


@pytest.fixture
def own_cgroup() -> Iterator[Path]:
    """A control group (version 2) that this process is in."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    roots = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    if not roots:
        pytest.skip("no cgroup version 2 is mounted")
    (before,) = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"]
    made = roots[0] / f"test-ebpf-{os.getpid()}"
    made.mkdir()
    try:
        (made / "cgroup.procs").write_text("0")
        yield made
    finally:
        (roots[0] / before.lstrip("/") / "cgroup.procs").write_text("0")
        made.rmdir()


def connect_to_nobody() -> None:
    with socket.socket() as sock, contextlib.suppress(OSError):
        sock.connect(("127.0.0.1", 9))


def test_sock_ops_sees_the_connections_of_its_group_until_closed(hooks: Object, own_cgroup: Path) -> None:
    place = hooks.variable("connects")
    with hooks.maps[".bss"].mmap() as memory:

        def connects() -> int:
            return int(struct.unpack_from("=Q", memory, place.offset)[0])

        connect_to_nobody()
        assert connects() == 0
        with hooks.programs["count_connects"].attach_cgroup(own_cgroup):
            connect_to_nobody()
            assert connects() == 1
        connect_to_nobody()
        assert connects() == 1


def test_iterator_writes_what_there_is(hooks: Object, compiled: Callable[[str], Path]) -> None:
    program = hooks.programs["list_maps"]
    with program.attach() as link:
        before = set(struct.iter_unpack("=I", program.read_iterator(link)))
        with Object.open(compiled("basic")) as other:
            other.load()
            during = set(struct.iter_unpack("=I", program.read_iterator(link)))
    assert len(during - before) >= 3


def test_pinned_map_is_shared_and_outlives_its_object(compiled: Callable[[str], Path]) -> None:
    if not BPF_FS.is_mount():
        pytest.skip("no BPF file system")
    pin = BPF_FS / f"test-ebpf-{os.getpid()}"
    try:
        with Object.open(compiled("basic")) as first:
            first.load()
            first.maps["table"].pin(pin)
            first.maps["table"][bytes(4)] = b"12345678"
        pinned = Map.open_pinned(pin)
        assert pinned[bytes(4)] == b"12345678"
        with Object.open(compiled("basic")) as second:
            second.reuse_map("table", pinned)
            second.load()
            assert second.maps["table"][bytes(4)] == b"12345678"
        os.close(pinned.fd)
    finally:
        pin.unlink(missing_ok=True)
    with pytest.raises(EbpfError, match="no map pinned"):
        Map.open_pinned(pin)
