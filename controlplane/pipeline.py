"""The switches' program: P4Info and the compiled target configuration, checked to match."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import finsy as fy
from google.protobuf.text_format import ParseError

from controlplane import constants as p4
from controlplane import tofino
from controlplane.network import TOFINOS, Target
from machine.errors import BadInput

BUILD = Path(__file__).resolve().parents[1] / "p4src/build"
FABRIC = Path("fabric")
"""As a program without a P4Info: the fabric's own."""


@dataclass(frozen=True)
class Pipeline:
    """P4Info as a schema, and the target's configuration as bytes: BMv2 JSON, or what Stratum takes."""

    name: str
    schema: fy.P4Schema

    @classmethod
    def load(
        cls,
        p4info: Path = BUILD / "fabric.p4info.txtpb",
        config: Path = BUILD / "fabric.json",
    ) -> Pipeline:
        """Read both files. Raises BadInput if one is unreadable, or if they are from different programs.

        `config` is the JSON that p4c writes for BMv2 and softswitch, or its `.conf` for Tofino.
        """
        for path, made_by in ((p4info, "--p4runtime-files"), (config, "-o")):
            if not os.path.isfile(path):  # noqa: PTH113 (names that no file can have)
                raise BadInput(f"{path}: there is no such file; it is what p4c writes with {made_by}")
        if config.suffix == tofino.SUFFIX:
            packed = tofino.pack(config)
            schema = _schema(p4info, packed)
            tofino.check_names(schema, packed, p4info, config)
            return cls(config.stem, schema)
        try:
            program = json.loads(config.read_bytes())
        except ValueError as error:
            raise BadInput(f"{config}: is not the JSON that p4c-bm2-ss writes ({error})") from error
        schema = _schema(p4info, config.read_bytes())
        for what, name in _missing(schema, program):
            raise BadInput(
                f"{p4info}: does not fit {config}: it has {what} {name}, the JSON has not; "
                f"compile both from one program"
            )
        return cls(config.stem, schema)

    @classmethod
    def of_target(cls, target: Target) -> Pipeline:
        """The fabric's own program for `target`. Raises BadInput if its files are missing."""
        program, p4info = _fabric_files(target)
        return cls.load(p4info, program)

    @property
    def cookie(self) -> int:
        """A hash of P4Info and configuration. A switch returns it, so that no pipeline is set twice."""
        return self.schema.p4cookie

    @property
    def is_fabric(self) -> bool:
        """Whether this is a version of the fabric's program, for which we have entries."""
        names = {table.name for table in self.schema.tables}
        return {p4.TABLE_VRF, p4.TABLE_ROUTE, p4.TABLE_LINK} <= names

    @property
    def counts_ports(self) -> bool:
        """Whether the program counts what each port receives and sends, as the fabric's does."""
        return {p4.COUNTER_PORT_IN, p4.COUNTER_PORT_OUT} <= {counter.name for counter in self.schema.counters}

    @property
    def limits_hosts(self) -> bool:
        """Whether the program limits what hosts do by carriers."""
        return any(table.name == p4.TABLE_LIMITS for table in self.schema.tables)

    @property
    def checks_slots(self) -> bool:
        """Whether the program compares carriers' slots with its clock (a Tofino cannot)."""
        return any(table.name == p4.TABLE_CLOCK for table in self.schema.tables)


def given_files(program: Path | None, p4info: Path | None, target: Target) -> tuple[Path, Path] | None:
    """Return the absolute paths of a program and its P4Info, or None if neither is given.

    `FABRIC` without a P4Info stands for the fabric's own program for `target`. Raises BadInput if one is
    missing.
    """
    if program == FABRIC and p4info is None:
        return _fabric_files(target)
    if program is None and p4info is None:
        return None
    if program is None or p4info is None:
        raise BadInput(
            "program and p4info: give both or neither; they come from the same compilation. Only the program "
            "`fabric`, entrain's own, needs no P4Info"
        )
    return program.resolve(), p4info.resolve()


def _fabric_files(target: Target) -> tuple[Path, Path]:
    folder, program = (BUILD / target, "fabric.conf") if target in TOFINOS else (BUILD, "fabric.json")
    return folder / program, folder / "fabric.p4info.txtpb"


def _schema(p4info: Path, config: bytes) -> fy.P4Schema:
    try:
        return fy.P4Schema(p4info, config)
    except (ParseError, ValueError, KeyError) as error:
        raise BadInput(f"{p4info}: is not P4Info in protobuf's text format ({error})") from error


def _missing(schema: fy.P4Schema, program: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what P4Info names and the JSON lacks."""
    tables = {
        table["name"]: table for pipeline in program.get("pipelines", []) for table in pipeline["tables"]
    }
    for table in schema.tables:
        keys = len(tables.get(table.name, {}).get("key", []))
        # The JSON has selector fields in the selector, not in the key.
        if table.name not in tables or keys != len(table.match_fields):
            yield "table", table.name
    for what, section, entities in (
        ("action", "actions", schema.actions),
        ("register", "register_arrays", schema.registers),
    ):
        known = {entity["name"] for entity in program.get(section, [])}
        for entity in entities:
            if entity.name not in known:
                yield what, entity.name
