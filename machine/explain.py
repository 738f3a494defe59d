"""Explains pydantic's validation errors, naming the key and the remedy.

Pydantic models validate all user input, and this module words all of their errors. None of pydantic's own
messages reaches a user.
"""

from __future__ import annotations

import difflib
import json
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

_UNITS = {
    "mbps": "rates are in Mbit/s",
    "ms": "times are in milliseconds",
    "s": "this time is in seconds",
    "packets": "queues are in packets",
    "bytes": "sizes are in bytes",
}
_SUFFIXES = {*_UNITS, "bps", "kbps", "gbps", "mbit", "gbit", "us", "ns", "sec", "kb", "mb", "gb", "pkts"}

_WANTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "string": "text in quotes",
    "path": "a path in quotes",
    "ip_v4": "an IPv4 address, such as 10.1.1.2",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "model": "a table",
}
"""The expected kind of value, by the first part of pydantic's error type."""

_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
"""The wording of a bound and its key in the error's context, by pydantic's error type."""

_LENGTHS = {
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
}

_MOST = 30
"""Number of known words to list if none is close."""

_LONGEST = 60
"""Number of characters of a wrong value to show."""


def explained(model: type[BaseModel], data: object, error: ValidationError) -> list[str]:
    """Return one line for each error in `data` as a `model`."""
    wrong: list[dict[str, Any]] = [dict(line) for line in error.errors(include_url=False)]
    # A list whose every item is wrong also counts as too short, which is no help.
    locations: list[tuple[int | str, ...]] = [line["loc"] for line in wrong]
    return [
        _line(model, data, line)
        for line in wrong
        if line["type"] != "too_short"
        or not any(other != line["loc"] == other[: len(line["loc"])] for other in locations)
    ]


def explained_fields(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Return one line for each error in a message as a `model`, such as `rates[2].mbps: must be ...`."""
    lines = []
    for line in error.errors(include_url=False):
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in line["loc"])
        shown: object = line["input"] if isinstance(line["input"], (str, int, float)) else {}
        what = _what(model, line["loc"], {**line, "input": shown})
        lines.append(f"{where.removeprefix('.')}: {what}" if where else what)
    return lines


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the remedy for a word that is not among `known`: the closest one, or all."""
    lower = {each.lower(): each for each in known}
    if near := difflib.get_close_matches(word.lower(), lower, n=1):
        return f"did you mean {lower[near[0]]}?"
    few = list(lower.values())[:_MOST]
    return f"known are {', '.join(few)}" + (" and others" if len(lower) > _MOST else "")


def is_plain_list(annotation: Any) -> bool:
    """Return whether a field of this annotation is a list of any length, other than a list of tables."""
    if get_origin(annotation) in (Union, types.UnionType):
        return any(map(is_plain_list, get_args(annotation)))
    if get_origin(annotation) is Annotated:
        return is_plain_list(get_args(annotation)[0])
    is_list = get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,)
    return is_list and _find_model(annotation) is None


def _line(model: type[BaseModel], data: object, error: Mapping[str, Any]) -> str:
    location: tuple[int | str, ...] = error["loc"]
    what = _what(model, location, error)
    where = _where(model, data, location)
    return f"{where}: {what}" if where else what


def _what(model: type[BaseModel], location: tuple[int | str, ...], error: Mapping[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        owner = _model_at(model, location[:-1])
        return f"unknown key; {_known_key(str(location[-1]), sorted(owner.model_fields) if owner else [])}"
    if kind == "missing":
        return "a value is missing" if isinstance(location[-1], int) else "this key is missing"
    shown = _shown(error["input"])
    if kind == "value_error":
        message = str(context["error"])
        return f"{message}, is {shown}" if location and shown else message
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        if not choices:
            return f"must be {context['expected']}, is {shown}"
        return _choice(error["input"], choices, shown)
    if kind in _LENGTHS:
        words, bound, unit = _LENGTHS[kind]
        number, length = context[bound], context.get("actual_length", len(error["input"]))
        return f"needs {words} {number} {unit}{'' if number == 1 else 's'}, has {length}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        limit = context[bound]
        return f"must be {words} {f'{limit:g}' if isinstance(limit, float) else limit}, is {shown}"
    if kind in ("tuple_type", "list_type") and location and _model_at(model, location):
        return f"must be tables, as [[{location[-1]}]]"
    if kind == "model_type" and location:
        return f"must be a table, as [{location[-1]}]"
    wanted = max((each for each in _WANTED if kind.startswith(each)), key=len, default=None)
    return f"must be {_WANTED[wanted]}, is {shown}" if wanted else f"{shown} cannot stand here"


def _choice(value: object, choices: Sequence[str], shown: str) -> str:
    quoted = [f'"{each}"' for each in choices]
    wanted = f"{', '.join(quoted[:-1])} or {quoted[-1]}" if quoted[1:] else quoted[0]
    near = suggestion(value, choices) if isinstance(value, str) else ""
    return f"must be {wanted}, is {shown}" + (f"; {near}" if near.startswith("did") else "")


def _shown(value: object) -> str:
    """Return a value as written in the file; empty for a whole table."""
    if isinstance(value, (dict, BaseModel)):
        return ""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _known_key(key: str, known: list[str]) -> str:
    stem, _, suffix = key.rpartition("_")
    if suffix.lower() in _SUFFIXES:
        for name in known:
            other_stem, _, unit = name.rpartition("_")
            if other_stem == stem and unit in _UNITS:
                return f"{_UNITS[unit]}: use {name}"
    for name in known:  # the unit is missing
        if name.rpartition("_")[0] == key and name.rpartition("_")[2] in _UNITS:
            return f"{_UNITS[name.rpartition('_')[2]]}: use {name}"
    return suggestion(key, known)


def _where(model: type[BaseModel], data: object, location: tuple[int | str, ...]) -> str:
    """Format a location: `("link", 2, "rate_mbps")` as `[[link]] 3, rate_mbps`, a plain item as `item 3`."""
    parts: list[str] = []
    current: Any = data
    for index, part in enumerate(location):
        if isinstance(part, int):
            if isinstance(current, (list, tuple)):  # otherwise a single value stands for a list
                if _model_at(model, location[:index]):
                    parts[-1] = f"[[{parts[-1].strip('[]')}]] {part + 1}"
                else:
                    parts.append(f"item {part + 1}")
                current = current[part] if part < len(current) else None
            continue
        parts.append(f"[{part}]" if index == 0 and len(location) > 1 and _is_table(model, part) else part)
        current = current.get(part) if isinstance(current, dict) else None
    return ", ".join(parts)


def _is_table(model: type[BaseModel], key: str) -> bool:
    return _model_at(model, (key,)) is not None


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Return the model of the table, or of the items of the list of tables, at `location` within `model`."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            continue
        field: FieldInfo | None = current.model_fields.get(part) if current else None
        current = _find_model(field.annotation) if field else None
    return current


def _find_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for arg in get_args(annotation) if (found := _find_model(arg))), None)
