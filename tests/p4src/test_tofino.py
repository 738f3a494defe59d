"""The program for Tofino: its outputs are of these sources, and the controller sees v1model's program."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from finsy.proto import p4i
from google.protobuf import text_format

from p4src.compile import BUILD, sources, sources_hash
from p4src.tofino import ARCHITECTURES, FABRIC, HASH, P4INFO, compile_for, p4c, read
from wire.slot_header import LANES

_MADE = re.compile(rb'"build_date":"[^"]*"|"run_id":"[^"]*"|run_id\x00.{4}[0-9a-f]{16}', re.DOTALL)
"""What differs from one compilation to the next: the date, and a random number."""

_SNAPSHOTS = "pipe.snapshot.cfg"
"""A table for debugging. p4c orders ingress and egress by chance, and takes its id from the first."""

targets = pytest.mark.parametrize("target", ARCHITECTURES)


def fixed(name: str, content: bytes) -> bytes:
    """What is the same in every compilation."""
    if name == "bfrt.json":
        document = json.loads(content)
        tables = sorted(document.pop("tables"), key=lambda table: str(table["name"]))
        return json.dumps([document, [each for each in tables if each["name"] != _SNAPSHOTS]]).encode()
    return _MADE.sub(b"", content)


@targets
def test_committed_output_is_of_these_sources(target: str) -> None:
    assert (BUILD / target / HASH).read_text() == sources_hash(FABRIC), "run `make p4`"


@targets
@pytest.mark.slow
@pytest.mark.skipif(p4c() is None, reason="needs p4c with its Tofino back end")
def test_committed_output_is_what_p4c_makes(target: str) -> None:
    for name, content in compile_for(target).items():
        assert fixed(name, content) == fixed(name, read(target, name)), name


def test_p4c_is_sought_behind_a_folder_that_cannot_be_looked_into(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for program in ("p4c", "p4c-barefoot"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"/{300 * 'x'}:{tmp_path}")
    assert p4c() == tmp_path / "p4c"


def test_hash_covers_what_both_architectures_share() -> None:
    names = {f"{path.parent.name}/{path.name}" for path in sources(FABRIC)}
    assert {"shared/headers.p4", "shared/slot_header.p4", "tna/load_table.p4"} <= names


def seen(path: Path) -> dict[str, Any]:
    """What the controller sees of a program, with names in place of ids.

    Left out is what may differ: ids; the architecture; the type of a register's cells (a pair on a Tofino,
    bits in v1model), which nobody reads over P4Runtime.
    """
    info = text_format.Parse(path.read_text(), p4i.P4Info())
    named = (*info.tables, *info.actions, *info.action_profiles)
    names = {each.preamble.id: each.preamble.name for each in named}

    def table(each: Any) -> Any:
        keys = [(f.id, f.name, f.bitwidth, f.match_type) for f in each.match_fields]
        actions = sorted((names[ref.id], ref.scope) for ref in each.action_refs)
        default = names.get(each.const_default_action_id)
        return keys, actions, each.size, names.get(each.implementation_id), default, each.is_const_table

    def profile(each: Any) -> Any:
        users = sorted(names[id_] for id_ in each.table_ids)
        return users, each.size, each.with_selector, each.max_group_size

    return {
        "tables": {each.preamble.name: table(each) for each in info.tables},
        "actions": {
            each.preamble.name: [(p.id, p.name, p.bitwidth) for p in each.params] for each in info.actions
        },
        "action profiles": {each.preamble.name: profile(each) for each in info.action_profiles},
        "counters": {each.preamble.name: (each.size, each.spec.unit) for each in info.counters},
        "registers": {each.preamble.name: each.size for each in info.registers},
        "packet metadata": {
            each.preamble.name: [(m.id, m.name, m.bitwidth) for m in each.metadata]
            for each in info.controller_packet_metadata
        },
    }


LEFT_OUT = {
    "FabricIngress.guard.clock",
    "FabricIngress.guard.set_clock",
    *(f"FabricIngress.guard.announced{lane}" for lane in range(LANES)),
    "FabricIngress.answers.owed",
}
"""What the program for Tofino lacks: it does not check slots and loads (docs/tofino.md)."""

DOUBLE = "FabricIngress.guard.carriers"
"""A Tofino has two cells of it per port: one counts answers, and it does not know who has asked for them."""


@targets
def test_the_controller_sees_v1models_program(target: str) -> None:
    ours, v1model = seen(BUILD / target / P4INFO), seen(BUILD / P4INFO)
    names = {name for entities in v1model.values() for name in entities}
    assert names >= LEFT_OUT
    ours["registers"][DOUBLE] //= 2
    for what, entities in v1model.items():
        assert ours[what] == {name: each for name, each in entities.items() if name not in LEFT_OUT}
