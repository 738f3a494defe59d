"""Programs from which the compiler removed what P4Info still names, and keys without a width there."""

from __future__ import annotations

import grpc
import pytest
from finsy import P4TableAction, P4TableEntry, P4TableMatch
from finsy.proto import p4r

from tests.p4.conftest import Start
from tests.p4.packets import ether
from tests.p4.runtime import refusals
from tests.p4.targets import Target

NO_MATCH = 2  # the error's number


def error_entry(target: Target) -> p4r.Entity:
    """Frames with the parser error NoMatch get another EtherType. (The key has no width in P4Info.)"""
    schema = target.client.schema
    entity = p4r.Entity()
    entry = entity.table_entry
    entry.table_id = schema.tables["errors"].id
    entry.match.add(field_id=1).exact.value = bytes([NO_MATCH])
    entry.action.action.action_id = schema.actions["mark"].id
    entry.action.action.params.add(param_id=1, value=b"\x43\x21")
    return entity


def test_the_program_runs(start: Start) -> None:
    packet = ether(0x5678, b"payload")
    assert start("removed").send(2, packet) == [(2, packet)]


def test_a_table_that_the_compiler_removed_takes_no_entries(start: Start) -> None:
    never = P4TableEntry("never", match=P4TableMatch({"src": 1}), action=P4TableAction("gone", x=1))
    with pytest.raises(grpc.RpcError):
        start("removed").client.insert(never)


def test_a_key_can_be_an_error(start: Start, kind: str) -> None:
    target = start("removed")
    packet = ether(0x1234, b"payload")
    assert target.send(2, packet) == [(2, packet)]
    entity = error_entry(target)
    try:
        target.client.insert(entity)
    except grpc.RpcError as error:
        if kind == "bmv2" and refusals(error):
            pytest.skip("P4Runtime on BMv2 takes no entries with keys that have no width in P4Info")
        raise
    assert target.send(2, packet) == [(2, ether(0x4321, b"payload"))]
    target.client.delete(entity)
    assert target.send(2, packet) == [(2, packet)]
