"""Generates modules of this package: `python -m controlplane.generate`.

`constants.py` comes from the program. P4Info has names and sizes of tables, match fields, actions,
parameters, counters and registers. `headers.p4` has reasons, which P4Info omits. So a
renamed table causes an import error instead of a wrong entry. `api_pb2*` and `bf_pipeline_pb2*` come from
their .proto files, if grpcio-tools, a development dependency, is installed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import finsy as fy
from finsy.proto import p4i

from machine.errors import MissingTool
from machine.protoc import grpc_modules

_HERE = Path(__file__).resolve().parent
P4INFO = _HERE.parent / "p4src/build/fabric.p4info.txtpb"
HEADERS = _HERE.parent / "p4src/shared/headers.p4"
CONSTANTS = _HERE / "constants.py"
PROTOS = (_HERE / "api.proto", _HERE / "bf_pipeline.proto")

_HEADER = '''"""Names and sizes of the switch program; made by `python -m controlplane.generate`."""

from enum import IntEnum
from typing import Final'''

_REASON = re.compile(r"^const bit<\d+> (DROP|REFUSED)_(\w+) = (\d+); *// (.+)$", re.MULTILINE)


def constants(p4info: p4i.P4Info, headers: str) -> str:
    """Return the text of a Python module with a constant for each name, size and drop reason.

    `p4info` describes the program, and `headers` is the text of `HEADERS`.
    """
    lines = (*_lines(p4info), "", "", *_reasons(headers))
    return _HEADER + "".join(f"\n{line}" if line else "\n" for line in lines) + "\n"


def _reasons(headers: str) -> Iterator[str]:
    found = _REASON.findall(headers)
    yield "class DropReason(IntEnum):"
    yield '    """Why the switch program dropped a packet: an index into the counter `COUNTER_DROPS`."""'
    yield from _members(found, "DROP")
    yield from ("", "", "class RefusedReason(IntEnum):")
    yield '    """Why it refused what a port announced; with the port, an index into `COUNTER_REFUSED`."""'
    yield from _members(found, "REFUSED")


def _members(found: list[tuple[str, str, str, str]], prefix: str) -> Iterator[str]:
    for kind, name, index, meaning in found:
        if kind == prefix:
            yield ""
            yield f"    {name} = {index}"
            yield f'    """{meaning[0].upper()}{meaning[1:]}."""'


def _lines(p4info: p4i.P4Info) -> Iterator[str]:
    for table in p4info.tables:
        name = _upper(table.preamble.alias)
        yield ""
        yield from _text(f"TABLE_{name}", table.preamble.name)
        yield f"TABLE_{name}_SIZE: Final = {table.size}"
        for field in table.match_fields:
            yield from _text(f"MATCH_{name}_{_upper(field.name)}", field.name)
    for action in p4info.actions:
        name = _upper(action.preamble.alias)
        yield ""
        yield from _text(f"ACTION_{name}", action.preamble.name)
        for param in action.params:
            yield from _text(f"PARAM_{name}_{_upper(param.name)}", param.name)
    for kind, entities in (
        ("PROFILE", p4info.action_profiles),
        ("COUNTER", p4info.counters),
        ("REGISTER", p4info.registers),
    ):
        yield ""
        for entity in entities:
            name = _upper(entity.preamble.alias)
            yield from _text(f"{kind}_{name}", entity.preamble.name)
            yield f"{kind}_{name}_SIZE: Final = {entity.size}"
            if kind == "PROFILE":
                yield f"{kind}_{name}_GROUP_SIZE: Final = {entity.max_group_size}"
    yield ""
    for header in p4info.controller_packet_metadata:
        for field in header.metadata:
            yield from _text(f"{_upper(header.preamble.alias)}_{_upper(field.name)}", field.name)


def _text(name: str, value: str) -> Iterator[str]:
    yield f'{name}: Final = "{value}"'


def _upper(alias: str) -> str:
    return alias.replace(".", "_").upper()


def main() -> None:
    """Write the constants of the fabric program, and the modules of the .proto files."""
    outputs = {CONSTANTS: constants(fy.P4Schema(P4INFO).p4info, HEADERS.read_text(encoding="utf-8"))}
    with contextlib.suppress(MissingTool):
        for proto in PROTOS:
            outputs |= grpc_modules(proto)
    for path, text in outputs.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
