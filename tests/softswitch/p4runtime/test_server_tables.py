"""Table entries: what may be written, what it is refused with, and that it is read back as it was written."""

from __future__ import annotations

import pytest
from finsy.proto import p4r

from softswitch.contract import ActionCall, Exact, Lpm, Range, Ternary
from tests.softswitch.harness import (
    DELETE,
    IDS,
    INSERT,
    MODIFY,
    Bench,
    action,
    entry,
    l2,
    lpm,
    octets,
    ternary,
)

ACL = {1: ternary(0x0A000000, 0xFF000000), 2: ("optional", {"value": 6}), 3: ("range", {"low": 1, "high": 9})}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_every_match_kind_reaches_the_datapath_and_is_read_back(bench: Bench) -> None:
    written = [
        entry("l2", {1: 0xAA}, action("to_port", 3), metadata=b"mine", controller_metadata=5),
        entry("route", {1: lpm(0x0A000000, 8)}, action("set_nexthop", 9)),
        entry("route", {}, action("route_drop")),
        entry("acl", ACL, action("deny"), priority=7),
        entry("acl", {}, action("deny"), priority=1),
    ]
    bench.insert(*written)
    assert [e[1:] for e in bench.datapath.entries.values() if e[0].endswith(("l2", "route", "acl"))] == [
        ((Exact(0xAA),), 0, ActionCall("FeaturesIngress.to_port", (3,))),
        ((Lpm(0x0A000000, 8),), 0, ActionCall("FeaturesIngress.set_nexthop", (9,))),
        ((Lpm(0, 0),), 0, ActionCall("FeaturesIngress.route_drop")),
        (
            (Ternary(0x0A000000, 0xFF000000), Ternary(6, 0xFF), Range(1, 9)),
            7,
            ActionCall("FeaturesIngress.deny"),
        ),
        ((Ternary(0, 0), Ternary(0, 0), Range(0, 0xFFFF)), 1, ActionCall("FeaturesIngress.deny")),
    ]
    read = [e for table in ("l2", "route", "acl") for e in bench.read(entry(table))]
    assert read == written


def test_padded_values_are_accepted_and_come_back_canonical(bench: Bench) -> None:
    padded = l2(0xAA)
    padded.match[0].exact.value = b"\0\0\0\0\0\xaa"
    padded.action.action.params[0].value = b"\0\x01"
    bench.insert(padded)
    assert bench.read(entry("l2")) == [l2(0xAA)]


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (entry("l2", {1: 1 << 48}, action("to_port", 1)), "'dst': 0x1000000000000 does not fit 48 bits"),
        (entry("l2", {1: ternary(1, 1)}, action("to_port", 1)), "'dst' is matched by exact, not by ternary"),
        (entry("l2", {}, action("to_port", 1)), "'dst' is missing"),
        (entry("l2", {2: 1}, action("to_port", 1)), "no key has id 2; it has 1 (dst)"),
        (entry("l2", {1: 1}, action("to_port", 512)), "parameter 'port': 0x200 does not fit 9 bits"),
        (entry("l2", {1: 1}, action("to_port")), "parameter 'port' is missing"),
        (entry("l2", {1: 1}, action("to_port", 1, 2)), "no parameter has id 2; it has 1 (port)"),
        (entry("l2", {1: 1}, action("deny")), "does not have action FeaturesIngress.deny; it has"),
        (entry("l2", {1: 1}), "has no action"),
        (entry("l2", {1: 1}, action("to_port", 1), priority=3), "priority 3 must be 0"),
        (entry("l2", {1: 1}, action("to_port", 1), is_const=True), "is_const"),
        (entry("l2", {1: 1}, action("to_port", 1), idle_timeout_ns=5), "idle timeouts"),
        (entry("acl", ACL, action("deny")), "needs a priority above 0"),
        (
            entry("route", {1: lpm(0x0A000001, 8)}, action("route_drop")),
            "0xa000001 has bits set beyond its prefix",
        ),
        (entry("route", {1: lpm(0, 0)}, action("route_drop")), "prefix length 0 is not in 1..32"),
        (entry("route", {1: lpm(0, 33)}, action("route_drop")), "prefix length 33 is not in 1..32"),
        (entry("acl", {1: ternary(1, 0)}, action("deny"), priority=1), "the mask is 0"),
        (
            entry("acl", {1: ternary(3, 1)}, action("deny"), priority=1),
            "0x3 has bits set outside of its mask 0x1",
        ),
        (
            entry("acl", {3: ("range", {"low": 9, "high": 1})}, action("deny"), priority=1),
            "low 0x9 is above high 0x1",
        ),
        (entry("acl", {3: ("range", {"low": 0, "high": 65535})}, action("deny"), priority=1), "everything"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused_by_name(bench: Bench, message: object, named: str) -> None:
    before = dict(bench.datapath.entries)
    refusal = bench.write(INSERT, message)
    assert refusal is not None
    assert refusal[0] == "INVALID_ARGUMENT"
    assert named in refusal[1]
    assert bench.datapath.entries == before


def test_an_empty_value_is_refused(bench: Bench) -> None:
    message = l2(1)
    message.match[0].exact.value = b""
    assert bench.write(INSERT, message) == (
        "INVALID_ARGUMENT",
        "FeaturesIngress.l2: key 'dst': the value is empty",
    )


def test_one_entry_per_key(bench: Bench) -> None:
    bench.insert(l2(1))
    assert bench.write(INSERT, l2(1, port=2)) == (
        "ALREADY_EXISTS",
        "FeaturesIngress.l2 already has the entry (dst 0x1)",
    )
    assert bench.read(entry("l2")) == [l2(1)]
    assert bench.write(MODIFY, l2(1, port=2)) is None
    assert bench.read(entry("l2")) == [l2(1, port=2)]
    assert bench.write(MODIFY, l2(2)) == ("NOT_FOUND", "FeaturesIngress.l2 has no entry (dst 0x2)")
    assert bench.write(DELETE, l2(2)) == ("NOT_FOUND", "FeaturesIngress.l2 has no entry (dst 0x2)")
    assert bench.write(DELETE, entry("l2", {1: 1})) is None
    assert bench.read(entry("l2")) == []


def test_the_same_match_at_two_priorities_is_two_entries(bench: Bench) -> None:
    bench.insert(
        entry("acl", ACL, action("deny"), priority=1), entry("acl", ACL, action("permit"), priority=2)
    )
    assert [e.priority for e in bench.read(entry("acl", ACL))] == [1, 2]
    assert [e.priority for e in bench.read(entry("acl", ACL, priority=2))] == [2]
    assert bench.write(DELETE, entry("acl", ACL, priority=1)) is None
    assert [e.priority for e in bench.read(entry("acl"))] == [2]


def test_a_full_table_refuses_more(bench: Bench) -> None:
    bench.insert(*(l2(i) for i in range(1, 5)))
    assert bench.write(INSERT, l2(5)) == (
        "RESOURCE_EXHAUSTED",
        "FeaturesIngress.l2 is full: it holds 4 entries",
    )
    assert bench.write(DELETE, l2(1)) is None
    assert bench.write(INSERT, l2(5)) is None


def test_the_kernels_refusal_leaves_no_entry(bench: Bench) -> None:
    bench.datapath.failing = "the kernel says no"
    assert bench.write(INSERT, l2(1)) == ("INTERNAL", "the kernel says no")
    bench.datapath.failing = None
    assert bench.write(INSERT, l2(1)) is None


def test_constant_entries_are_read_and_never_written(bench: Bench) -> None:
    read = bench.read(entry("fixed"))
    assert [(e.match[0].exact.value, e.action.action.action_id, e.is_const) for e in read] == [
        (b"\0", IDS["drop"], True),
        (b"\x01", IDS["drop"], True),
    ]
    for kind, message in (
        (INSERT, entry("fixed", {1: 2}, action("drop"))),
        (DELETE, entry("fixed", {1: 1})),
        (MODIFY, entry("fixed", {1: 1}, action("NoAction"))),
    ):
        refusal = bench.write(kind, message)
        assert refusal is not None
        assert refusal[0] == "PERMISSION_DENIED"
    assert bench.read(entry("fixed")) == read


def test_initial_entries_have_falling_priorities_and_can_be_changed(bench: Bench) -> None:
    assert [(e.match[0].ternary.value, e.priority) for e in bench.read(entry("preset"))] == [
        (b"\x10", 2),
        (b"\x20", 1),
    ]
    key = {1: ternary(0x20, 0xF0)}
    assert bench.write(MODIFY, entry("preset", key, action("to_port", 9), priority=1)) is None
    assert bench.write(DELETE, entry("preset", key, priority=1)) is None
    assert len(bench.read(entry("preset"))) == 1


def test_the_default_action_is_set_reset_and_read(bench: Bench) -> None:
    def default() -> object:
        return bench.read(entry("acl", is_default_action=True))

    initial = entry("acl", None, action("permit"), is_default_action=True)
    assert default() == [initial]
    changed = entry("acl", None, action("deny"), is_default_action=True, metadata=b"x")
    assert bench.write(MODIFY, changed) is None
    assert bench.datapath.defaults == {"FeaturesIngress.acl": ActionCall("FeaturesIngress.deny")}
    assert default() == [changed]
    assert bench.write(MODIFY, entry("acl", None, is_default_action=True)) is None
    assert bench.datapath.defaults == {"FeaturesIngress.acl": None}
    assert default() == [initial]


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        (INSERT, entry("acl", None, action("deny"), is_default_action=True), "INVALID_ARGUMENT"),
        (DELETE, entry("acl", None, is_default_action=True), "INVALID_ARGUMENT"),
        (MODIFY, entry("acl", None, action("deny"), is_default_action=True, priority=1), "INVALID_ARGUMENT"),
        (MODIFY, entry("acl", ACL, action("deny"), is_default_action=True), "INVALID_ARGUMENT"),
        (MODIFY, entry("l2", None, action("drop"), is_default_action=True), "PERMISSION_DENIED"),
        (MODIFY, entry("ecmp", None, action("drop"), is_default_action=True), "PERMISSION_DENIED"),
        (INSERT, entry("l2", {1: 1}, action("drop")), "PERMISSION_DENIED"),  # @defaultonly
    ],
)
def test_what_default_entries_and_scopes_forbid(bench: Bench, kind: int, message: object, code: str) -> None:
    refusal = bench.write(kind, message)
    assert refusal is not None
    assert refusal[0] == code


def test_reads_select(bench: Bench) -> None:
    bench.insert(
        l2(1, metadata=b"a"),
        l2(2, metadata=b"b"),
        entry("l2", {1: 3}, action("flood", 4), metadata=b"b"),
        entry("source", {1: 1, 2: 1}, action("learn")),
    )
    assert [e.match[0].exact.value for e in bench.read(entry("l2", metadata=b"b"))] == [b"\2", b"\3"]
    assert [e.match[0].exact.value for e in bench.read(entry("l2", {1: 3}))] == [b"\3"]
    flooding = p4r.TableEntry(table_id=IDS["l2"])
    flooding.action.action.action_id = IDS["flood"]
    assert [e.match[0].exact.value for e in bench.read(flooding)] == [b"\3"]
    everything = bench.read(p4r.TableEntry())
    assert {e.table_id for e in everything} == {IDS["l2"], IDS["source"], IDS["fixed"], IDS["preset"]}
    assert bench.read(entry("l2", {1: 9})) == []


def test_unknown_table(bench: Bench) -> None:
    refusal = bench.write(INSERT, p4r.TableEntry(table_id=0x02FFFFFF))
    assert refusal == ("INVALID_ARGUMENT", "no table has id 0x2ffffff")


def test_direct_counters_follow_their_entry(bench: Bench) -> None:
    written = entry("route", {1: lpm(0x0A000000, 8)}, action("set_nexthop", 1))
    written.counter_data.packet_count = 5
    bench.insert(written)
    asked = entry("route")
    asked.counter_data.SetInParent()
    assert bench.read(asked) == [written]
    direct = p4r.DirectCounterEntry(table_entry=entry("route", {1: lpm(0x0A000000, 8)}))
    assert [c.data.packet_count for c in bench.read(direct)] == [5]
    direct.data.packet_count, direct.data.byte_count = 1, 64
    assert bench.write(MODIFY, direct) is None
    assert bench.read(p4r.DirectCounterEntry()) == [direct]
    refusal = bench.write(INSERT, direct)
    assert refusal is not None
    assert refusal[0] == "INVALID_ARGUMENT"
    wrong = l2(1)
    wrong.counter_data.packet_count = 1
    assert bench.write(INSERT, wrong) == ("INVALID_ARGUMENT", "FeaturesIngress.l2 has no direct counter")


def test_direct_meters_are_reset_by_modify(bench: Bench) -> None:
    written = entry("acl", ACL, action("deny"), priority=7)
    written.meter_config.cir, written.meter_config.pir = 10, 20
    bench.insert(written)
    assert len(bench.datapath.meters) == 1
    asked = entry("acl")
    asked.meter_config.SetInParent()
    assert bench.read(asked) == [written]
    written.ClearField("meter_config")
    assert bench.write(MODIFY, written) is None
    assert bench.datapath.meters == {}
    assert bench.read(asked) == [written]
    direct = p4r.DirectMeterEntry(table_entry=entry("acl", ACL, priority=7))
    direct.config.cir, direct.config.pir = 20, 10
    refusal = bench.write(MODIFY, direct)
    assert refusal is not None
    assert "the peak rate 10 is below the committed rate 20" in refusal[1]


def test_canonical_bytes(bench: Bench) -> None:
    bench.insert(l2(0))
    assert bench.read(entry("l2"))[0].match[0].exact.value == octets(0) == b"\0"
