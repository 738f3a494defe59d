"""No text of a program reaches the C that is made of it, whatever stands where a name is expected."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from machine.errors import EntrainError
from softswitch.compiler.build import generate
from softswitch.compiler.ir import load_program

ROOT = Path(__file__).parents[3]
PROGRAMS = [
    *sorted((ROOT / "tests" / "softswitch" / "programs").glob("*.json")),
    *sorted((ROOT / "tests" / "p4" / "programs" / "build").glob("*.json")),
    ROOT / "p4src" / "build" / "fabric.json",
]
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


def texts(node: Any) -> Iterator[str]:
    """Every string of the JSON but those that tell of the P4 source."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "next_tables":
                yield from value
            if key != "source_info":
                yield from texts(value)
    elif isinstance(node, list):
        for item in node:
            yield from texts(item)
    elif isinstance(node, str):
        yield node


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
def program(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text())


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
    names = sorted(declared(program))
    before = code_of(program)
    for number, text in enumerate(HOSTILE):
        hostile = {name: f"{text}{i}{text}" for i, name in enumerate(names)}
        assert renamed(program, hostile) == before, f"payload {number}"


def test_no_text_of_the_program_reaches_the_code(program: Any) -> None:
    """One text after the other, replaced wherever it stands: v1model's names, kinds, operators, constants."""
    found = set(texts(program)) - declared(program)
    constants = sorted(text for text in found if text.startswith(("0x", "-0x")))
    for number, text in enumerate(sorted(found - set(constants[3:]))):
        code = renamed(program, {text: HOSTILE[number % len(HOSTILE)]})
        assert code is None or MARK not in code, text


def test_the_code_does_not_depend_on_the_source(program: Any) -> None:
    def change(key: str | None, value: Any) -> Any:
        return HOSTILE[0] if key in ("filename", "line", "column", "source_fragment", "program") else value

    assert code_of(replaced(program, change)) == code_of(program)


def test_no_text_in_the_place_of_a_number_reaches_the_code(program: Any) -> None:
    numbers: set[int | float] = set()
    keys: set[str | None] = set()

    def note(key: str | None, value: Any) -> Any:
        if isinstance(value, int | float):
            keys.add(key)
            if key not in ("line", "column"):
                numbers.add(value)
        return value

    replaced(program, note)
    for number in numbers:
        evil = f"{number}; int {MARK};"
        code = code_of(replaced(program, lambda _, v, n=number, e=evil: e if v == n else v))  # type: ignore[misc]
        assert code is None or MARK not in code, number
    for key in keys:

        def change(at: str | None, value: Any, key: str | None = key) -> Any:
            return f"{value}; int {MARK};" if at == key and isinstance(value, int | float) else value

        code = code_of(replaced(program, change))
        assert code is None or MARK not in code, key
