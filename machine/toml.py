"""TOML files checked by pydantic models; an error names the file, the key, and what would be right."""

from __future__ import annotations

import difflib
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from machine.errors import BadInput

_UNITS = {
    "mbps": "rates are in Mbit/s",
    "ms": "times are in milliseconds",
    "s": "this time is in seconds",
    "packets": "queues are in packets",
    "bytes": "sizes are in bytes",
}
_SUFFIXES = {*_UNITS, "bps", "kbps", "gbps", "mbit", "gbit", "us", "ns", "sec", "kb", "mb", "gb", "pkts"}


class Strict(BaseModel):
    """A table of a TOML file: unknown keys are errors, values are not converted between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; raises BadInput where it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path}: is not valid TOML: {error}") from error


def check(model: type[Model], data: Mapping[str, Any], source: str) -> Model:
    """`data` as a `model`; raises BadInput that lists every wrong key of `source` with its remedy."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        wrong: list[dict[str, Any]] = [dict(line) for line in error.errors()]
        # A list whose every item is wrong counts as too short, too: that helps nobody.
        wrong = [
            line
            for line in wrong
            if line["type"] != "too_short"
            or not any(
                line["loc"] == other["loc"][: len(line["loc"])] for other in wrong if other is not line
            )
        ]
        lines = [f"{source}: {_explain(model, line)}" for line in wrong]
        raise BadInput("\n".join(lines)) from error


def _explain(model: type[BaseModel], error: dict[str, Any]) -> str:
    location: tuple[int | str, ...] = error["loc"]
    kind, where = error["type"], _where(location)
    if kind == "extra_forbidden":
        owner = _model_at(model, location[:-1])
        return (
            f"{where}: unknown key; {_remedy(str(location[-1]), sorted(owner.model_fields) if owner else [])}"
        )
    if kind == "missing":
        return f"{where}: this key is missing"
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    if kind in ("tuple_type", "model_type", "list_type"):
        message = "should be tables, as [[x]]" if kind != "model_type" else "should be a table, as [x]"
        message = message.replace("x", str(location[-1]))
    if kind == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where}: {message}, is {error['input']!r}"


def _remedy(key: str, known: list[str]) -> str:
    stem, _, suffix = key.rpartition("_")
    if suffix.lower() in _SUFFIXES:
        for name in known:
            other_stem, _, unit = name.rpartition("_")
            if other_stem == stem and unit in _UNITS:
                return f"{_UNITS[unit]}: use {name}"
    for name in known:  # the unit was left out
        if name.rpartition("_")[0] == key and name.rpartition("_")[2] in _UNITS:
            return f"{_UNITS[name.rpartition('_')[2]]}: use {name}"
    if near := difflib.get_close_matches(key, known, n=1):
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(known)}"


def _where(location: tuple[int | str, ...]) -> str:
    """`("link", 2, "rate_mbps")` as `[[link]] 3, rate_mbps`; an item of a plain list as `item 3`."""
    parts: list[str] = []
    for index, part in enumerate(location):
        if isinstance(part, int) and index == 1:
            parts[-1] = f"[[{parts[-1].strip('[]')}]] {part + 1}"
        elif isinstance(part, int):
            parts.append(f"item {part + 1}")
        elif index == 0 and len(location) > 1:
            parts.append(f"[{part}]")
        else:
            parts.append(part)
    return ", ".join(parts)


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model of the table at `location` within `model`, so that its keys can be suggested."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if current else None
        current = _find_model(field.annotation) if field else None
    return current


def _find_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    if get_origin(annotation) in (list, tuple, Union, types.UnionType):
        return next((found for arg in get_args(annotation) if (found := _find_model(arg))), None)
    return None
