"""Entries that do not fit are refused by every target, and change nothing."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from finsy import P4TableAction, P4TableEntry, P4TableMatch
from finsy.proto import p4r

from tests.p4.conftest import Start
from tests.p4.runtime import refusals
from tests.p4.targets import Target
from tests.p4.test_features_match import entry, send

Change = Callable[[p4r.TableEntry], None]


def too_wide(made: p4r.TableEntry) -> None:
    made.match[0].exact.value = b"\1\0\0"


def missing_key(made: p4r.TableEntry) -> None:
    del made.match[:]


def unknown_key(made: p4r.TableEntry) -> None:
    made.match[0].field_id = 99


def twice_the_key(made: p4r.TableEntry) -> None:
    made.match.add().CopyFrom(made.match[0])


def wrong_kind(made: p4r.TableEntry) -> None:
    made.match[0].lpm.value, made.match[0].lpm.prefix_len = b"\1", 16


def unknown_table(made: p4r.TableEntry) -> None:
    made.table_id ^= 0x1234


def unknown_action(made: p4r.TableEntry) -> None:
    made.action.action.action_id ^= 0x1234


def no_action(made: p4r.TableEntry) -> None:
    made.ClearField("action")


def missing_parameter(made: p4r.TableEntry) -> None:
    del made.action.action.params[:]


def too_wide_parameter(made: p4r.TableEntry) -> None:
    made.action.action.params[0].value = b"\1\0"


def unknown_parameter(made: p4r.TableEntry) -> None:
    made.action.action.params[0].param_id = 9


def a_priority_that_means_nothing(made: p4r.TableEntry) -> None:
    made.priority = 5


CHANGES: list[Change] = [
    too_wide,
    missing_key,
    unknown_key,
    twice_the_key,
    wrong_kind,
    unknown_table,
    unknown_action,
    no_action,
    missing_parameter,
    too_wide_parameter,
    unknown_parameter,
    a_priority_that_means_nothing,
]


def insert_all(target: Target, *entities: p4r.Entity) -> list[bool]:
    """Insert in one batch; which were refused."""
    try:
        target.client.insert(*entities)
    except grpc.RpcError as error:
        return [bool(refusal.canonical_code) for refusal in refusals(error)]
    return [False] * len(entities)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_an_entry_that_does_not_fit_is_refused(start: Start, change: Change) -> None:
    target = start("match")
    good, other = entry("exact_table", 5, exact=500), entry("exact_table", 6, exact=600)
    bad = entry("exact_table", 7, exact=700).encode(target.client.schema)
    change(bad.table_entry)
    try:
        assert insert_all(target, good, bad, other) == [False, True, False]
        assert [send(target, exact=key)["exact_table"] for key in (500, 600, 700)] == [5, 6, 1]
    finally:
        target.client.delete(good, other)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("lpm_table", "lpm", (0x0A000001, 8)),
        ("lpm_table", "lpm", (0x0A000000, 33)),
        ("ternary_table", "ternary", (0xFF, 0x0F)),
        ("range_table", "range", (20, 10)),
    ],
    ids=["bits behind the prefix", "prefix too long", "bits outside of the mask", "range turned around"],
)
def test_a_key_that_means_nothing_is_refused(
    start: Start, table: str, key: str, value: tuple[int, int]
) -> None:
    target = start("match")
    made = entry(table, 5, 1 if table != "lpm_table" else 0).encode(target.client.schema)
    names = [field.alias for field in target.client.schema.tables[table].match_fields]
    match = made.table_entry.match.add(field_id=names.index(key) + 1)
    low, high = value
    if key == "lpm":
        match.lpm.value, match.lpm.prefix_len = low.to_bytes(4, "big"), high
    elif key == "ternary":
        match.ternary.value, match.ternary.mask = bytes([low]), bytes([high])
    else:
        match.range.low, match.range.high = bytes([low]), bytes([high])
    assert insert_all(target, made) == [True]


def test_an_entry_is_inserted_once(start: Start) -> None:
    target = start("match")
    first, again = entry("exact_table", 5, exact=500), entry("exact_table", 6, exact=500)
    with target.installed(first):
        assert insert_all(target, again) == [True]
        assert send(target, exact=500)["exact_table"] == 5


def test_the_same_key_with_another_priority_is_another_entry(start: Start) -> None:
    target = start("match")
    with target.installed(
        entry("ternary_table", 5, 1, ternary=(1, 1)), entry("ternary_table", 6, 2, ternary=(1, 1))
    ):
        assert send(target, ternary=1)["ternary_table"] == 6


@pytest.mark.parametrize("operation", ["modify", "delete"])
def test_what_is_not_there_cannot_be_changed(start: Start, operation: str) -> None:
    client = start("match").client
    with pytest.raises(grpc.RpcError):
        getattr(client, operation)(entry("exact_table", 5, exact=501))


def test_a_full_table_takes_no_more(start: Start) -> None:
    target = start("match")
    match = [
        P4TableMatch({"hdr.keys.$valid$": flag, "std.ingress_port": port})
        for flag in (0, 1)
        for port in range(9)
    ]
    entries = [
        P4TableEntry("valid_table", match=each, action=P4TableAction("set", value=9)) for each in match
    ]
    assert insert_all(target, *entries) == [False] * 16 + [True] * 2
    target.client.delete(*entries[:16])


def test_const_entries_cannot_be_touched(start: Start) -> None:
    target = start("match")
    with pytest.raises(grpc.RpcError):
        match = P4TableMatch({"hdr.keys.exact": (5, 0xFFFF)})
        target.client.insert(
            P4TableEntry("constant_table", match=match, action=P4TableAction("set", value=9), priority=9)
        )
