"""What Python reads of C's records is checked against the object's BTF; a difference names the member."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ebpf import Codec, EbpfError, Object


@pytest.fixture
def records(compiled: Callable[[str], Path]) -> Iterator[Object]:
    with Object.open(compiled("records")) as opened:
        yield opened


class Record(NamedTuple):
    lock: int
    number: int
    time_ns: int
    name: bytes


class WithParts(NamedTuple):
    lock: int
    number: int
    time_ns: int
    name: bytes
    parts: bytes
    last: int


class Skipping(NamedTuple):
    lock: int
    time_ns: int


class Renamed(NamedTuple):
    lock: int
    count: int


class Longer(NamedTuple):
    lock: int
    number: int
    time_ns: int
    name: bytes
    parts: bytes
    last: int
    more: int


def test_a_record_with_the_members_of_c_is_accepted(records: Object) -> None:
    records.check_record("record", Codec("=IIQ8s", Record))
    records.check_record("record", Codec("=IIQ8s8sB", WithParts))
    records.check_record("record", Codec("=IxxxxQ", Skipping))


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Codec("=II", Renamed), r"number \(4 bytes at 4\) where Python has count"),
        (Codec("=IIxxxxQ8s", Record), r"time_ns \(8 bytes at 8\) where Python has time_ns \(8 bytes at 12\)"),
        (Codec("=IIQ6s", Record), r"name \(8 bytes at 16\) where Python has name \(6 bytes"),
        (Codec("=IQQ8s", Record), r"number \(4 bytes at 4\) where Python has number \(8 bytes at 4\)"),
        (Codec("=IIQ8s8sBI", Longer), "ends before Python's more"),
    ],
)
def test_a_difference_names_the_member(records: Object, codec: Codec[tuple[int, ...]], message: str) -> None:
    with pytest.raises(EbpfError, match=message):
        records.check_record("record", codec)


def test_a_struct_that_the_object_lacks_is_named(records: Object) -> None:
    with pytest.raises(EbpfError, match="no struct missing"):
        records.check_record("missing", Codec("=II", Renamed))


def test_enumerators_are_compared_by_name(records: Object) -> None:
    records.check_enum("colour", {"RED": 0, "GREEN": 4})
    with pytest.raises(EbpfError, match="GREEN = 4 where Python has 1"):
        records.check_enum("colour", {"GREEN": 1})
    with pytest.raises(EbpfError, match="BLUE = nothing where Python has 2"):
        records.check_enum("colour", {"BLUE": 2})
