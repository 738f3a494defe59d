"""Iterators and pinned maps."""

from __future__ import annotations

import os
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
