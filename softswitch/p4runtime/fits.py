"""Check that P4Info and BMv2 JSON come from one compilation, and drop what the compiler optimized away.

p4c writes P4Info before it optimizes the program. P4Info may therefore list what the JSON lacks: a table in a
branch that is never taken, with its actions and direct resources, or a controller header that no packet
carries. BMv2 runs such programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from softswitch.p4runtime.p4info import P4Info, Table
from softswitch.p4runtime.status import Refused, invalid


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_T = TypeVar("_T", bound=_Named)


def fitted(info: P4Info, program: bytes) -> P4Info:
    """Check P4Info against the program's JSON, and remove from P4Info what the compiler optimized away.

    Raises Refused (INVALID_ARGUMENT), naming the first difference.
    """
    try:
        _fit(info, json.loads(program))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise invalid(f"p4_device_config is not BMv2 JSON: {type(error).__name__} {error}") from error
    return info


def _fit(info: P4Info, config: Any) -> None:
    tables = {t["name"]: t for p in config["pipelines"] for t in p["tables"]}
    profiles = {a["name"]: a for p in config["pipelines"] for a in p.get("action_profiles", [])}
    # The JSON has a copy of an action for each of its tables, all under one name.
    actions = {a["name"]: [d["bitwidth"] for d in a["runtime_data"]] for a in config["actions"]}
    counters = _by_name(config, "counter_arrays")
    meters = _by_name(config, "meter_arrays")
    registers = _by_name(config, "register_arrays")
    digests = {d["name"]: d for d in config.get("learn_lists", [])}
    value_sets = _by_name(config, "parse_vsets")
    width = _width_of(config)

    info.actions = {id_: action for id_, action in info.actions.items() if action.name in actions}
    info.tables = {
        id_: replace(table, actions=_actions_left(table, info, tables[table.name]))
        for id_, table in _left("table", info.tables, tables).items()
    }
    info.profiles = _left("action profile", info.profiles, profiles)
    info.counters = _left("counter", info.counters, _indirect(counters))
    info.meters = _left("meter", info.meters, _indirect(meters))
    info.registers = _left("register", info.registers, registers)
    info.digests = _left("digest", info.digests, digests)
    info.value_sets = _left("value set", info.value_sets, value_sets)

    for action in info.actions.values():
        widths = [param.width for param in action.params]
        _equal("action", action.name, "parameters' widths", widths, actions[action.name])
    for table in info.tables.values():
        _table(table, tables[table.name], width)
        if table.direct_counter is not None:
            _direct("direct counter", table.direct_counter, table.name, counters)
        if table.direct_meter is not None:
            _direct("direct meter", table.direct_meter, table.name, meters)
    for profile in info.profiles.values():
        selects = "selector" in profiles[profile.name]
        _equal("action profile", profile.name, "selector", profile.with_selector, selects)
    for kind, ours, theirs in (
        ("counter", info.counters, counters),
        ("meter", info.meters, meters),
        ("register", info.registers, registers),
    ):
        for array in ours.values():
            found = theirs[array.name]
            _equal(kind, array.name, "size", array.size, found.get("size"))
            if kind == "register":
                _equal(kind, array.name, "width", array.width, found["bitwidth"])
            if kind == "meter":
                _equal(kind, array.name, "unit", "bytes" if array.by_bytes else "packets", found["type"])
    for digest in info.digests.values():
        count = len(digests[digest.name]["elements"])
        _equal("digest", digest.name, "number of fields", len(digest.widths), count)
    for name, header in (("packet_in", info.packet_in), ("packet_out", info.packet_out)):
        if header is not None:
            _header(name, [(field.name, field.width) for field in header.fields], config["header_types"])


def _by_name(config: Any, key: str) -> dict[str, Any]:
    return {item["name"]: item for item in config.get(key, [])}


def _indirect(found: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in found.items() if not item.get("is_direct")}


def _left(kind: str, ours: Mapping[int, _T], theirs: dict[str, Any]) -> dict[int, _T]:
    """Return the objects that the JSON has, too. Raises Refused if each has one that the other lacks."""
    names = {item.name for item in ours.values()}
    missing = sorted(names - theirs.keys())
    made_by_p4c = {name for name in theirs if kind == "table" and "." not in name}
    extra = sorted(theirs.keys() - names - made_by_p4c)
    if missing and extra:
        raise invalid(
            f"P4Info does not fit the JSON: the JSON has no {kind} {missing[0]!r}, P4Info has no {extra[0]!r}"
        )
    return {id_: item for id_, item in ours.items() if item.name in theirs}


def _actions_left(table: Table, info: P4Info, found: Any) -> dict[int, int]:
    return {
        id_: scope
        for id_, scope in table.actions.items()
        if id_ in info.actions and info.actions[id_].name in found["actions"]
    }


def _find(kind: str, name: str, found: dict[str, Any]) -> Any:
    if name not in found:
        raise invalid(f"P4Info does not fit the JSON: the JSON has no {kind} {name!r}")
    return found[name]


def _equal(kind: str, name: str, what: str, info: object, config: object) -> None:
    if info != config:
        raise _differs(kind, name, what, info, config)


def _differs(kind: str, name: str, what: str, info: object, config: object) -> Refused:
    return invalid(
        f"P4Info does not fit the JSON: {kind} {name!r}: {what}: {info} in P4Info, {config} in the JSON"
    )


def _direct(kind: str, name: str, table: str, found: dict[str, Any]) -> None:
    _equal(kind, name, "table", table, _find(kind, name, found).get("binding"))


def _header(name: str, wanted: list[tuple[str, int]], types: Any) -> None:
    """Check a controller header. The JSON gives it no name and may lack it, so compare by field names."""
    found = [[(field[0], field[1]) for field in kind["fields"]] for kind in types]
    named_alike = [fields for fields in found if [f for f, _ in fields] == [f for f, _ in wanted]]
    if named_alike and wanted not in named_alike:
        raise _differs("controller header", name, "fields", wanted, named_alike[0])


def _table(table: Table, found: Any, width: Callable[[Any], int | None]) -> None:
    keys = found["key"]
    _equal("table", table.name, "number of keys", len(table.keys), len(keys))
    for key, theirs in zip(table.keys, keys, strict=True):
        what = f"match kind of key {key.name!r}"
        # p4c compiles optional keys to ternary ones.
        kinds = {"optional": ("optional", "ternary")}.get(key.kind, (key.kind,))
        if theirs["match_type"] not in kinds:
            raise _differs("table", table.name, what, key.kind, theirs["match_type"])
        bits = width(theirs)
        if bits is not None:
            _equal("table", table.name, f"width of key {key.name!r}", key.width, bits)
    _equal("table", table.name, "action profile", table.profile, found.get("action_profile"))


def _width_of(config: Any) -> Callable[[Any], int | None]:
    """Return a function from a table's key in the JSON to its width; None for validity bits and slices."""
    types: dict[str, Iterable[Any]] = {t["name"]: t["fields"] for t in config["header_types"]}
    widths = {
        (header["name"], field[0]): field[1]
        for header in config["headers"]
        for field in types.get(header["header_type"], [])
    }
    aliases = {tuple(source): alias for alias, source in config.get("field_aliases", [])}

    def width(key: Any) -> int | None:
        if key.get("mask") is not None or not isinstance(key["target"], list):
            return None
        target = tuple(key["target"])
        bits = widths.get(target) or widths.get(aliases.get(target, target))
        return bits if isinstance(bits, int) else None

    return width
