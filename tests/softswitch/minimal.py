"""Builds the BMv2 JSON of minimal programs: one header in, expressions of its fields into another header."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

STANDARD = [
    ("ingress_port", 9),
    ("egress_spec", 9),
    ("egress_port", 9),
    ("instance_type", 32),
    ("packet_length", 32),
    ("parser_error", 32),
    ("checksum_error", 1),
    ("mcast_grp", 16),
    ("egress_rid", 16),
    ("padding", 4),
]
Field = tuple[str, int] | tuple[str, int, bool]


def field(header: str, name: str) -> dict[str, Any]:
    return {"type": "field", "value": [header, name]}


def constant(value: int) -> dict[str, Any]:
    return {"type": "hexstr", "value": f"{'-' if value < 0 else ''}{abs(value):#x}"}


def operation(op: str, left: Any, right: Any, cond: Any = None) -> dict[str, Any]:
    node = {"op": op, "left": left, "right": right}
    if cond is not None:
        node["cond"] = cond
    return {"type": "expression", "value": node}


def primitive(op: str, *parameters: Any) -> dict[str, Any]:
    return {"op": op, "parameters": list(parameters)}


def assign(target: Any, source: Any) -> dict[str, Any]:
    return primitive("assign", target, source)


def program(
    headers: Mapping[str, Sequence[Field]],
    extracted: Sequence[str],
    primitives: Sequence[Mapping[str, Any]],
    *,
    order: Sequence[str] | None = None,
    **more: Any,
) -> bytes:
    """Extracts `extracted`, runs `primitives` in ingress, sends everything back to the port it came from."""

    def types() -> list[Any]:
        declared = {"standard_metadata": STANDARD, **headers}
        return [
            {"name": n, "id": i, "fields": [list(f) for f in fields]}
            for i, (n, fields) in enumerate(declared.items())
        ]

    names = ["standard_metadata", *headers]
    send = assign(field("standard_metadata", "egress_spec"), field("standard_metadata", "ingress_port"))
    extract = [{"op": "extract", "parameters": [{"type": "regular", "value": n}]} for n in extracted]
    default = {"type": "default", "value": None, "mask": None, "next_state": None}
    start = {"name": "start", "id": 0, "parser_ops": extract, "transitions": [default], "transition_key": []}
    table = {
        "name": "everything",
        "id": 0,
        "key": [],
        "match_type": "exact",
        "type": "simple",
        "max_size": 1,
        "action_ids": [0],
        "actions": ["act"],
        "base_default_next": None,
        "next_tables": {"act": None},
        "default_entry": {
            "action_id": 0,
            "action_const": True,
            "action_data": [],
            "action_entry_const": True,
        },
    }
    pipelines = [
        {"name": "ingress", "id": 0, "init_table": "everything", "tables": [table], "conditionals": []},
        {"name": "egress", "id": 1, "init_table": None, "tables": [], "conditionals": []},
    ]
    root = {
        "__meta__": {"version": [2, 23]},
        "header_types": types(),
        "headers": [
            {"name": n, "id": i, "header_type": n, "metadata": n == "standard_metadata"}
            for i, n in enumerate(names)
        ],
        "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": [start]}],
        "deparsers": [{"name": "deparser", "id": 0, "order": list(order or headers)}],
        "actions": [{"name": "act", "id": 0, "runtime_data": [], "primitives": [send, *primitives]}],
        "pipelines": pipelines,
        **{n: [] for n in ("calculations", "checksums", "register_arrays", "counter_arrays", "meter_arrays")},
        "errors": [["NoError", 0], ["PacketTooShort", 1]],
        **more,
    }
    return json.dumps(root).encode()
