"""Reading programs: what is not understood is refused by name, and damage is bad input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from machine.errors import BadInput
from softswitch.compiler.build import generate
from softswitch.compiler.ir import Unsupported, load_program
from tests.softswitch.minimal import assign, constant, field, operation, primitive, program

HEADERS = {"h": [("a", 8), ("b", 24)]}
SOURCE = {"filename": "x.p4", "line": 7, "source_fragment": "the.construct()"}


def damaged(**changes: Any) -> bytes:
    return json.dumps({**json.loads(program(HEADERS, ["h"], [])), **changes}).encode()


def test_a_table_that_calls_its_actions_by_other_names_is_bad_input() -> None:
    whole = json.loads(program(HEADERS, ["h"], []))
    (table,) = whole["pipelines"][0]["tables"]
    names = {action["id"]: action["name"] for action in whole["actions"]}
    table["actions"] = [names[number] for number in table["action_ids"]]
    load_program(json.dumps(whole).encode())
    table["actions"][0] += "x"
    with pytest.raises(BadInput, match="calls its actions"):
        load_program(json.dumps(whole).encode())


@pytest.mark.parametrize(("size", "members"), [(2, [0, 0]), (2, [0]), (1, [0, 1])])
def test_a_stack_of_other_than_its_number_of_headers_is_bad_input(size: int, members: list[int]) -> None:
    whole = json.loads(program({"h": [("a", 8)], "i": [("a", 8)]}, ["h"], []))
    numbers = [header["id"] for header in whole["headers"] if header["name"] in ("h", "i")]
    stack = {"name": "s", "id": 0, "header_type": "h_t", "size": size}
    whole["header_stacks"] = [{**stack, "header_ids": [numbers[each] for each in members]}]
    with pytest.raises(BadInput, match="s has members"):
        load_program(json.dumps(whole).encode())


def test_names_and_types() -> None:
    read = load_program(program(HEADERS, ["h"], [assign(field("h", "a"), constant(1))]))
    assert [(f.name, f.bits) for f in read.headers["h"].type.fields] == HEADERS["h"]
    assert list(read.tables) == ["everything"]
    assert read.standard("standard_metadata.egress_spec") is not None
    assert read.standard("queueing_metadata.enq_qdepth") is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"not json", "not BMv2 JSON"),
        (b"{}", "not BMv2 JSON"),
        (damaged(parsers=[{"name": "parser"}]), "damaged"),
        (damaged(pipelines=[]), "no pipeline 'ingress'"),
        (damaged(actions=[]), "damaged"),
        (damaged(actions=[{"name": 0, "id": 0}]), "a name is 0, not text"),
    ],
)
def test_damage_is_bad_input(raw: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_program(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (damaged(__meta__={"version": [3, 0]}), "version"),
        (damaged(extern_instances=[{"name": "x", "type": "ext"}]), "extern 'x' of type 'ext'"),
        (
            program(HEADERS, ["h"], [{**primitive("teleport"), "source_info": SOURCE}]),
            r"'teleport' at x.p4\(7\)",
        ),
        (
            program(HEADERS, ["h"], [assign(field("h", "a"), operation("**", constant(1), constant(2)))]),
            r"'\*\*'",
        ),
        (program({"h": [("a", 3)]}, ["h"], []), "not whole bytes"),
        (program({"h": [("a", 4096)]}, ["h"], []), "4096 bits"),
        (
            program(HEADERS, ["h"], [], calculations=[{"name": "c", "algo": "md5", "input": []}]),
            "hash algorithm 'md5'",
        ),
    ],
)
def test_what_cannot_run_is_refused_by_name(raw: bytes, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        generate(load_program(raw))


def test_the_same_program_is_the_same_code() -> None:
    raw = program(HEADERS, ["h"], [assign(field("h", "b"), operation("+", field("h", "a"), constant(1)))])
    assert generate(load_program(raw)).source == generate(load_program(raw)).source
