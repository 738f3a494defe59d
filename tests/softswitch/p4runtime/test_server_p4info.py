"""P4Info: what it must say, and that it must belong to the program."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from finsy.proto import p4i

from softswitch.p4runtime.fits import fitted
from softswitch.p4runtime.p4info import P4Info, decode, encode
from softswitch.p4runtime.status import Refused
from tests.softswitch.harness import P4INFO, PROGRAM


def changed(change: Callable[[Any], object]) -> Any:
    info = p4i.P4Info()
    info.CopyFrom(P4INFO)
    change(info)
    return info


def test_p4info_fits_the_json_of_its_own_compilation() -> None:
    fitted(P4Info(P4INFO), PROGRAM)


def _rename(message: Any, name: str) -> None:
    message.preamble.name = name


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda i: _rename(i.tables[0], "X.l2"), "no table 'X.l2'"),
        (lambda i: _rename(i.counters[0], "X.c"), "no counter 'X.c'"),
        (lambda i: _rename(i.meters[0], "X.m"), "no meter 'X.m'"),
        (lambda i: _rename(i.registers[0], "X.r"), "no register 'X.r'"),
        (lambda i: _rename(i.digests[0], "X.d"), "no digest 'X.d'"),
        (lambda i: _rename(i.value_sets[0], "X.v"), "no value set 'X.v'"),
        (lambda i: _rename(i.direct_counters[0], "X.dc"), "no direct counter 'X.dc'"),
        (lambda i: _rename(i.action_profiles[0], "X.p"), "no action profile 'X.p'"),
        (lambda i: setattr(i.tables[0].match_fields[0], "bitwidth", 47), "width of key 'dst'"),
        (lambda i: setattr(i.tables[0].match_fields[0], "match_type", 3), "match kind of key 'dst'"),
        (lambda i: i.tables[0].match_fields.add(id=2, bitwidth=1, match_type=2), "number of keys"),
        (lambda i: setattr(i.actions[2].params[0], "bitwidth", 10), "parameters' widths"),
        (lambda i: setattr(i.counters[0], "size", 1), "'FeaturesIngress.port_in': size"),
        (lambda i: setattr(i.registers[0].type_spec.bitstring.bit, "bitwidth", 8), "width"),
        (lambda i: setattr(i.meters[0].spec, "unit", p4i.MeterSpec.BYTES), "unit"),
        (lambda i: setattr(i.controller_packet_metadata[0].metadata[0], "bitwidth", 16), "packet_in"),
    ],
)
def test_what_differs_from_the_json_is_named(change: Callable[[Any], object], named: str) -> None:
    with pytest.raises(Refused, match="P4Info does not fit the JSON") as refusal:
        fitted(P4Info(changed(change)), PROGRAM)
    assert named in refusal.value.message


def _without(*names: str) -> bytes:
    """The feature program as if p4c had found these tables to be unreachable, with all that is theirs."""
    config = json.loads(PROGRAM)
    for pipeline in config["pipelines"]:
        pipeline["tables"] = [t for t in pipeline["tables"] if t["name"] not in names]
    used = {id_ for p in config["pipelines"] for t in p["tables"] for id_ in t["action_ids"]}
    config["actions"] = [a for a in config["actions"] if a["id"] in used]
    for kind in ("counter_arrays", "meter_arrays"):
        config[kind] = [c for c in config[kind] if c.get("binding") not in names]
    return json.dumps(config).encode()


def test_what_the_compiler_removed_is_not_there() -> None:
    """P4Info is written before p4c optimizes. What it names and the JSON lacks cannot be used."""
    names = {table.name for table in P4Info(P4INFO).tables.values()}
    for name in names:
        info = fitted(P4Info(P4INFO), _without(name))
        assert {table.name for table in info.tables.values()} == names - {name}
    info = fitted(P4Info(P4INFO), _without(*names))
    assert not info.tables and not info.actions


def test_an_action_that_the_json_lacks_is_no_action_of_a_table() -> None:
    config = json.loads(PROGRAM)
    table = next(t for p in config["pipelines"] for t in p["tables"] if t["name"] == "FeaturesIngress.l2")
    kept = len(table["actions"]) - 1
    table["actions"], table["action_ids"] = table["actions"][:kept], table["action_ids"][:kept]
    info = fitted(P4Info(P4INFO), json.dumps(config).encode())
    left = next(t for t in info.tables.values() if t.name == "FeaturesIngress.l2")
    assert {info.actions[id_].name for id_ in left.actions} == set(table["actions"])


def test_a_controller_header_that_no_packet_has_may_be_missing() -> None:
    config = json.loads(PROGRAM)
    wanted = [field.name for field in P4INFO.controller_packet_metadata[0].metadata]
    types = config["header_types"]
    config["header_types"] = [t for t in types if [f[0] for f in t["fields"]] != wanted]
    assert len(config["header_types"]) < len(types)
    assert fitted(P4Info(P4INFO), json.dumps(config).encode()).packet_in is not None


def test_keys_and_parameters_of_type_error_have_32_bits() -> None:
    """p4c gives them no width in P4Info; in the JSON they have 32 bits."""
    config = json.loads(PROGRAM)
    for action in config["actions"]:
        for parameter in action["runtime_data"]:
            parameter["bitwidth"] = 32
    info = p4i.P4Info()
    info.CopyFrom(P4INFO)
    for declared in info.actions:
        for declared_parameter in declared.params:
            declared_parameter.ClearField("bitwidth")
    for made in fitted(P4Info(info), json.dumps(config).encode()).actions.values():
        assert all(param.width == 32 for param in made.params)


@pytest.mark.parametrize("program", [b"", b"{", b"[]", b"{}", b'{"pipelines": [{}]}', b"\xff\xfe"])
def test_what_is_not_bmv2_json_is_refused(program: bytes) -> None:
    with pytest.raises(Refused, match="not BMv2 JSON"):
        fitted(P4Info(P4INFO), program)


def test_every_section_of_the_json_may_be_missing_but_is_told() -> None:
    """Never a KeyError, whatever is cut from the JSON."""
    whole = json.loads(PROGRAM)
    for key in whole:
        cut = json.dumps({k: v for k, v in whole.items() if k != key}).encode()
        try:
            fitted(P4Info(P4INFO), cut)
        except Refused as refusal:
            assert refusal.message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda i: i.tables[0].action_refs.add(id=1), "action 0x1 is not in P4Info"),
        (lambda i: setattr(i.tables[3], "implementation_id", 1), "action profile 0x1 is not in P4Info"),
        (lambda i: i.tables[0].direct_resource_ids.append(1), "direct resource 0x1 is not in P4Info"),
        (lambda i: setattr(i.tables[0].match_fields[0], "other_match_type", "fuzzy"), "'fuzzy'"),
        (lambda i: i.externs.add(extern_type_name="E"), "extern type 'E'"),
    ],
)
def test_broken_p4info_is_refused(change: Callable[[Any], object], named: str) -> None:
    with pytest.raises(Refused) as refusal:
        P4Info(changed(change))
    assert named in refusal.value.message


@pytest.mark.parametrize(
    ("data", "width", "value"), [(b"\0\x63", 16, 99), (b"\x63", 12, 99), (b"\0\0\x63", 8, 99)]
)
def test_bytestrings_may_be_padded(data: bytes, width: int, value: int) -> None:
    assert decode(data, width, "x") == value
    assert encode(value) == b"\x63"


@pytest.mark.parametrize(
    ("data", "width"), [(b"", 8), (b"\1\x63", 8), (b"\x10\x63", 12), (b"\0\x40\x63", 12)]
)
def test_bytestrings_that_do_not_fit_are_refused(data: bytes, width: int) -> None:
    with pytest.raises(Refused):
        decode(data, width, "x")
