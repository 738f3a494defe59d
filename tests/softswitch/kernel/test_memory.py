"""A program's state is bounded before anything is compiled or allocated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ebpf import Map
from ebpf.btf import kernel_members
from machine.errors import BadInput
from softswitch.compiler.build import generate
from softswitch.compiler.ir import load_program
from softswitch.contract import Full
from softswitch.kernel import memory
from softswitch.kernel.datapath import Datapath
from tests.softswitch.harness import PROGRAM
from tests.softswitch.minimal import program

P4 = Path(__file__).parents[2] / "p4" / "programs" / "build"
LIMIT = 64 << 20
HUGE = 1 << 30
EMPTY = program({"h": [("a", 8)]}, ["h"], [])


def things(root: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(what it is called, its JSON, the key of its size) of everything that has a size."""
    for kind in ("register", "counter", "meter"):
        for each in root[f"{kind}_arrays"]:
            if not each.get("is_direct"):
                yield f"{kind} {each['name']}", each, "size"
    for each in root.get("parse_vsets", []):
        yield f"value set {each['name']}", each, "max_size"
    for pipeline in root["pipelines"]:
        for each in pipeline["tables"]:
            if each["key"] and each["type"] == "simple":
                yield f"table {each['name']}", each, "max_size"
        for each in pipeline.get("action_profiles", []):
            yield f"action profile {each['name']}", each, "max_size"


@pytest.mark.parametrize(
    "raw",
    [PROGRAM, *((P4 / f"{name}.json").read_bytes() for name in ("state", "match", "meter", "selector"))],
    ids=["features", "state", "match", "meter", "selector"],
)
def test_whatever_is_too_large_is_refused_by_name(raw: bytes) -> None:
    names = [name for name, _, _ in things(json.loads(raw))]
    assert names
    memory.check(generate(load_program(raw)), LIMIT)
    for number, name in enumerate(names):
        root = json.loads(raw)
        _, thing, key = list(things(root))[number]
        thing[key] = HUGE
        with pytest.raises(Full, match="--max-state-mib") as refused:
            memory.check(generate(load_program(json.dumps(root).encode())), LIMIT)
        assert name in str(refused.value)


def test_direct_counters_and_headers_count() -> None:
    root = json.loads(PROGRAM)
    counted = next(t for p in root["pipelines"] for t in p["tables"] if t.get("with_counters"))
    before = sum(memory.uses(generate(load_program(PROGRAM), cpus=64)).values())
    counted["max_size"] += 1000
    after = sum(memory.uses(generate(load_program(json.dumps(root).encode()), cpus=64)).values())
    assert after - before > 1000 * 16 * 64


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r["register_arrays"].append({"name": "r", "id": 0, "size": -1, "bitwidth": 8}),
        lambda r: r["register_arrays"].append({"name": "r", "id": 0, "size": 1, "bitwidth": 1 << 40}),
        lambda r: r["actions"][0]["runtime_data"].append({"name": "p", "bitwidth": 1 << 40}),
        lambda r: r["header_types"][1]["fields"].append(["x", -8]),
    ],
)
def test_sizes_and_widths_that_cannot_be_are_bad_input(damage: Callable[[Any], None]) -> None:
    root = json.loads(EMPTY)
    damage(root)
    with pytest.raises(BadInput, match="not in 0"):
        load_program(json.dumps(root).encode())


@pytest.mark.bpf
def test_nothing_is_compiled_for_a_program_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softswitch.kernel.datapath.build", lambda _: pytest.fail("compiled"))
    with pytest.raises(Full):
        Datapath.load(load_program(PROGRAM), name="large", netless=True, max_state=1 << 20)


def allocated(datapath: Datapath) -> int:
    """Bytes of kernel memory in a datapath's maps."""

    def of(each: Map) -> int:
        lines = Path(f"/proc/self/fdinfo/{each.fd}").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("memlock:"))

    return sum(of(each) for each in datapath.object.maps.values())


@pytest.mark.bpf
@pytest.mark.skipif(
    b"map_mem_usage" not in (kernel_members(b"bpf_map_ops") or ()),
    reason="before Linux 6.4 the kernel does not say what a map takes, only the sizes of its entries",
)
@pytest.mark.parametrize("name", ["features", "match", "state", "selector"])
def test_the_estimate_is_what_the_kernel_allocates(name: str) -> None:
    root = json.loads(PROGRAM if name == "features" else (P4 / f"{name}.json").read_bytes())
    for what, thing, key in things(root):
        if not what.startswith("value set"):  # these are searched in a loop, which the verifier unrolls
            thing[key] = 20_000
    raw = json.dumps(root).encode()
    with (
        closing(Datapath.load(load_program(EMPTY), name="empty", netless=True)) as empty,
        closing(Datapath.load(load_program(raw), name=name, netless=True)) as datapath,
    ):
        uses = memory.uses(datapath.code)
        tries = sum(
            uses[f"table {n}"] for n, t in datapath.code.tables.items() if t.method == "lpm"
        )  # these grow
        more = allocated(datapath) - allocated(empty)
        fixed = 512 << 10  # what a map, and what clones, take in any case
        assert sum(uses.values()) - tries - fixed < 1.02 * more
        assert more < 1.02 * sum(uses.values()) + fixed
