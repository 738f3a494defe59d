"""No text of a program reaches the C that is made of it, whatever stands where a name is expected."""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from machine.errors import EntrainError
from softswitch.compiler.build import generate
from softswitch.compiler.ir import load_program

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted(
    [
        *(ROOT / "tests" / "softswitch" / "programs").glob("*.json"),
        *(ROOT / "tests" / "p4" / "programs" / "build").glob("*.json"),
        ROOT / "p4src" / "build" / "fabric.json",
    ],
    key=lambda path: path.stat().st_size,
)
MARK = "SWORDFISH"  # survives any escaping that keeps letters
HOSTILE = [
    f'*/ #include "/etc/{MARK}" /*',
    f'x"); SEC("tc") int {MARK}(struct __sk_buff *skb) {{ return 0; }} //',
    f"x\n#define {MARK} 1\n",
    f"x\r\n#pragma {MARK}\r\n",
    f"x\\\n{MARK}",
    f"x??/\n{MARK}",
    f"*??/\n/ int {MARK}; /*",
    f"\u2028\u00e9\u0660\u202e{MARK}\x00\x1b[2J",
    MARK,
]


New = dict[str, set[str | int | float]]

ENOUGH = 3
"""How many constants or numbers of one place are tried, and how many payloads as a name."""


def places(node: Any, path: str = "") -> Iterator[tuple[str, str | int | float]]:
    """Where each text and number stands (the keys on the way to it), but those that tell of the P4 source."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "next_tables":
                yield from ((f"{path}.{key}:", result) for result in value)
            if key != "source_info":
                yield from places(value, f"{path}.{key}")
    elif isinstance(node, list):
        for item in node:
            yield from places(item, path)
    elif isinstance(node, str | int | float) and not isinstance(node, bool):
        yield path, node


@functools.cache
def new_places() -> dict[Path, New]:
    """For each program, the texts and numbers that no smaller one has at the same place, by place.

    The compiler reads a text by where it stands, so trying it once there is enough.
    """
    seen: set[tuple[str, str | int | float]] = set()
    tried: Counter[str] = Counter()
    found: dict[Path, New] = {}
    for path in PROGRAMS:
        program = json.loads(path.read_text())
        names = declared(program)
        new = found[path] = defaultdict(set)
        for place, value in sorted(set(places(program)) - seen, key=str):
            if isinstance(value, str) and value in names:
                continue
            seen.add((place, value))
            if not isinstance(value, str) or value.startswith(("0x", "-0x")):
                tried[place] += 1
                if tried[place] > ENOUGH:
                    continue
            new[place].add(value)
    return found


def replaced(node: Any, change: Callable[[str | None, Any], Any], key: str | None = None) -> Any:
    """The JSON with `change(key, value)` in the place of each string and number, `next_tables` included."""
    if isinstance(node, dict):
        made = {k: replaced(v, change, k) for k, v in node.items()}
        return {change(None, k): v for k, v in made.items()} if key == "next_tables" else made
    if isinstance(node, list):
        return [replaced(item, change, key) for item in node]
    return node if node is None or isinstance(node, bool) else change(key, node)


def code_of(program: Any) -> str | None:
    """The C of a program, None where it is refused."""
    try:
        return generate(load_program(json.dumps(program).encode()), cpus=2).source
    except EntrainError:
        return None


def renamed(program: Any, names: dict[str, str]) -> str | None:
    return code_of(replaced(program, lambda _, v: names.get(v, v) if isinstance(v, str) else v))


@pytest.fixture(params=PROGRAMS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def program(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def new(path: Path) -> New:
    return new_places()[path]


def declared(program: Any) -> set[str]:
    """Names that things of the program were given, but for those that v1model gives."""
    found, taken = set(), {"standard_metadata", "intrinsic_metadata", "queueing_metadata"}
    for kind in ("actions", "calculations", "checksums", "header_stacks", "learn_lists", "parse_vsets"):
        found |= {each["name"] for each in program.get(kind, [])}
    for kind in ("register_arrays", "counter_arrays", "meter_arrays", "header_types", "headers"):
        found |= {each["name"] for each in program.get(kind, [])}
    for pipeline in program["pipelines"]:
        for kind in ("tables", "conditionals", "action_profiles"):
            found |= {each["name"] for each in pipeline.get(kind, [])}
    found |= {state["name"] for parser in program["parsers"] for state in parser["parse_states"]}
    found |= {each["name"] for action in program["actions"] for each in action["runtime_data"]}
    for kind in program["header_types"]:
        fields = {name for name, *_ in kind["fields"]}
        if kind["name"].startswith("standard_metadata"):
            taken |= fields
        else:
            found |= fields
    taken |= {name.rpartition(".")[2] for name, _ in program.get("field_aliases", [])}
    return found - taken - set(words(program))


def words(node: Any) -> Iterator[str]:
    """The format's own words, which a field may have for its name."""
    if isinstance(node, dict):
        for key in ("type", "op", "match_type", "algo"):
            if isinstance(node.get(key), str):
                yield node[key]
        for value in node.values():
            yield from words(value)
    elif isinstance(node, list):
        for item in node:
            yield from words(item)


def test_the_code_does_not_depend_on_names(program: Any) -> None:
    """All names at once are replaced, each by some payloads, and neighbours by others."""
    names = sorted(declared(program))
    before = code_of(program)
    for first in range(0, len(HOSTILE), ENOUGH):
        texts = (HOSTILE[(first + i) % len(HOSTILE)] for i in range(len(names)))
        hostile = {name: f"{text}{i}{text}" for i, (name, text) in enumerate(zip(names, texts, strict=True))}
        assert renamed(program, hostile) == before, f"payloads from {first} on"


def test_no_text_of_the_program_reaches_the_code(program: Any, new: New) -> None:
    """One text after the other, replaced wherever it stands: v1model's names, kinds, operators, constants."""
    found = {each for values in new.values() for each in values if isinstance(each, str)}
    for number, text in enumerate(sorted(found)):
        code = renamed(program, {text: HOSTILE[number % len(HOSTILE)]})
        assert code is None or MARK not in code, text


def test_the_code_does_not_depend_on_the_source(program: Any) -> None:
    def change(key: str | None, value: Any) -> Any:
        return HOSTILE[0] if key in ("filename", "line", "column", "source_fragment", "program") else value

    assert code_of(replaced(program, change)) == code_of(program)


def test_no_text_in_the_place_of_a_number_reaches_the_code(program: Any, new: New) -> None:
    numeric = {place: {v for v in values if not isinstance(v, str)} for place, values in new.items()}
    for number in set().union(*numeric.values()):
        evil = f"{number}; int {MARK};"
        code = code_of(replaced(program, lambda _, v, n=number, e=evil: e if v == n else v))  # type: ignore[misc]
        assert code is None or MARK not in code, number
    for key in {place.rpartition(".")[2] for place, values in numeric.items() if values}:

        def change(at: str | None, value: Any, key: str = key) -> Any:
            return f"{value}; int {MARK};" if at == key and isinstance(value, int | float) else value

        code = code_of(replaced(program, change))
        assert code is None or MARK not in code, key
