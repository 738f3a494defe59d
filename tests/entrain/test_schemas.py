"""JSON schemas: every file of the repository is valid by them, and a key that is misspelt is not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from entrain.schemas import KINDS, schema

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    path.name: tomllib.loads(path.read_text(encoding="utf-8"))
    for path in (ROOT / "experiments").glob("*.toml")
}


def kind_of(tables: dict[str, Any]) -> str | None:
    if "experiment" in tables:
        return "experiment"
    if "topology" in tables:
        return "topology"
    return "job" if isinstance(tables.get("job"), dict) else None


BY_KIND = {name: kind for name, tables in FILES.items() if (kind := kind_of(tables)) is not None}


def test_every_kind_has_a_file() -> None:
    assert set(BY_KIND.values()) == set(KINDS)


@pytest.mark.parametrize("name", sorted(BY_KIND))
def test_files_of_the_repository_are_valid(name: str) -> None:
    Draft202012Validator(schema(BY_KIND[name])).validate(FILES[name])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_unknown_keys_and_words_are_not(kind: str) -> None:
    name = next(name for name, of in BY_KIND.items() if of == kind)
    validator = Draft202012Validator(schema(kind))
    table = {"experiment": "experiment", "topology": "topology", "job": "job"}[kind]
    for wrong in ({"nmae": "x"}, {"pattern": "rnig"} if kind == "job" else {"name": 7}):
        changed = {**FILES[name], table: {**FILES[name][table], **wrong}}
        assert not validator.is_valid(changed)


def test_schemas_complete_the_words_of_plugins_and_lists() -> None:
    shown = schema("job")["$defs"]["JobTable"]["properties"]["pattern"]
    assert "ring" in shown["enum"]
    tables = schema("experiment")["$defs"].values()
    seed = next(table["properties"]["seed"] for table in tables if "seed" in table.get("properties", {}))
    assert {part.get("type") for part in seed["anyOf"]} >= {"array", "integer"}
