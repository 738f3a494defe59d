"""Whether P4Info and BMv2 JSON are one compilation's output; what differs is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from softswitch.p4info import P4Info, Table
from softswitch.status import Refused, invalid


def check_fits(info: P4Info, program: bytes) -> None:
    """Raises Refused (INVALID_ARGUMENT) naming the first thing that the JSON lacks or has otherwise."""
    try:
        _check(info, json.loads(program))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise invalid(f"p4_device_config is not BMv2 JSON: {type(error).__name__} {error}") from error


def _check(info: P4Info, config: Any) -> None:
    tables = {t["name"]: t for p in config["pipelines"] for t in p["tables"]}
    profiles = {a["name"]: a for p in config["pipelines"] for a in p.get("action_profiles", [])}
    # Tables have copies of their actions, under one name.
    actions = {a["name"]: [d["bitwidth"] for d in a["runtime_data"]] for a in config["actions"]}
    counters = _by_name(config, "counter_arrays")
    meters = _by_name(config, "meter_arrays")
    registers = _by_name(config, "register_arrays")
    width = _width_of(config)

    for action in info.actions.values():
        _same("action", action.name, "parameters' widths", [p.width for p in action.params], actions)
    for table in info.tables.values():
        _table(table, _find("table", table.name, tables), info, width)
        if table.direct_counter is not None:
            _direct("direct counter", table.direct_counter, table.name, counters)
        if table.direct_meter is not None:
            _direct("direct meter", table.direct_meter, table.name, meters)
    for profile in info.profiles.values():
        found = _find("action profile", profile.name, profiles)
        _equal("action profile", profile.name, "selector", profile.with_selector, "selector" in found)
    for kind, ours, theirs in (
        ("counter", info.counters, counters),
        ("meter", info.meters, meters),
        ("register", info.registers, registers),
    ):
        for array in ours.values():
            found = _find(kind, array.name, theirs)
            _equal(kind, array.name, "size", array.size, found.get("size"))
            if kind == "register":
                _equal(kind, array.name, "width", array.width, found["bitwidth"])
            if kind == "meter":
                _equal(kind, array.name, "unit", "bytes" if array.by_bytes else "packets", found["type"])
    digests = {d["name"]: d for d in config.get("learn_lists", [])}
    for digest in info.digests.values():
        found = _find("digest", digest.name, digests)
        _equal("digest", digest.name, "number of fields", len(digest.widths), len(found["elements"]))
    value_sets = _by_name(config, "parse_vsets")
    for value_set in info.value_sets.values():
        _find("value set", value_set.name, value_sets)
    for name, header in (("packet_in", info.packet_in), ("packet_out", info.packet_out)):
        if header is not None:
            wanted = [(field.name, field.width) for field in header.fields]
            if not any([(f[0], f[1]) for f in t["fields"]] == wanted for t in config["header_types"]):
                raise invalid(f"P4Info does not fit the JSON: no header has the fields of {name}, {wanted}")


def _by_name(config: Any, key: str) -> dict[str, Any]:
    return {item["name"]: item for item in config.get(key, [])}


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


def _same(kind: str, name: str, what: str, info: object, found: dict[str, Any]) -> None:
    _equal(kind, name, what, info, _find(kind, name, found))


def _direct(kind: str, name: str, table: str, found: dict[str, Any]) -> None:
    _equal(kind, name, "table", table, _find(kind, name, found).get("binding"))


def _table(table: Table, found: Any, info: P4Info, width: Callable[[Any], int | None]) -> None:
    keys = found["key"]
    _equal("table", table.name, "number of keys", len(table.keys), len(keys))
    for key, theirs in zip(table.keys, keys, strict=True):
        what = f"match kind of key {key.name!r}"
        # p4c writes optional keys as ternary ones.
        kinds = {"optional": ("optional", "ternary")}.get(key.kind, (key.kind,))
        if theirs["match_type"] not in kinds:
            raise _differs("table", table.name, what, key.kind, theirs["match_type"])
        bits = width(theirs)
        if bits is not None:
            _equal("table", table.name, f"width of key {key.name!r}", key.width, bits)
    missing = {info.actions[id_].name for id_ in table.actions} - set(found["actions"])
    if missing:
        raise invalid(
            f"P4Info does not fit the JSON: table {table.name!r} has no action {min(missing)!r} in the JSON"
        )
    _equal("table", table.name, "action profile", table.profile, found.get("action_profile"))


def _width_of(config: Any) -> Callable[[Any], int | None]:
    """The width of a table's key in the JSON, or None where it does not tell (validity bits, slices)."""
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
