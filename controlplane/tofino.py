"""The configuration that a Tofino gets: what p4c has written, in the form that Stratum takes.

p4c writes several files, and one that names them: `NAME.conf`, in JSON. Stratum takes them together as one
message `BfPipelineConfig` (stratum/hal/lib/barefoot/bf.proto), and refuses anything else.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

import finsy as fy
from pydantic import BaseModel, Field, ValidationError

from controlplane.bf_pipeline_pb2 import BfPipelineConfig
from machine.errors import BadInput

SUFFIX = ".conf"
"""How the file ends that names p4c's other outputs."""

COMPILE = (
    "p4c --target tofino2 --arch t2na -o OUT --bf-rt-schema OUT/bfrt.json --p4runtime-files OUT/p4info.txtpb "
    "--p4runtime-force-std-externs PROGRAM.p4 && p4c-gen-conf --conf-type BF-RT --p4-version p4-16 "
    "--device tofino2 --name PROGRAM --pipe pipe --bfrt-name OUT/bfrt.json --outputdir OUT --installdir OUT"
)
"""The commands that make all files that a deployment needs; the fabric's own are made by `make p4`."""


class _Pipeline(BaseModel):
    name: str = Field(alias="p4_pipeline_name", min_length=1)
    context: str
    config: str
    pipe_scope: tuple[int, ...] = Field(min_length=1)
    path: str = ""


class _Program(BaseModel):
    name: str = Field(alias="program-name", min_length=1)
    bfrt: str = Field(alias="bfrt-config")
    pipelines: tuple[_Pipeline, ...] = Field(alias="p4_pipelines", min_length=1)


class _Device(BaseModel):
    programs: tuple[_Program, ...] = Field(alias="p4_programs", min_length=1, max_length=1)


class _Conf(BaseModel):
    devices: tuple[_Device, ...] = Field(alias="p4_devices", min_length=1, max_length=1)


def pack(conf: Path) -> bytes:
    """Return the serialized BfPipelineConfig of the files that `conf` names.

    The same files give the same bytes. Names in `conf` count from where p4c was run, and the folder may have
    moved since. Raises BadInput if a file is missing, or if `conf` is not p4c's.
    """
    program = _read(conf).devices[0].programs[0]
    output = program.pipelines[0].path
    packed = BfPipelineConfig(
        p4_name=program.name, bfruntime_info=_artefact(conf, program.bfrt, output, "bfrt-config")
    )
    for pipeline in program.pipelines:
        packed.profiles.add(
            profile_name=pipeline.name,
            context=_artefact(conf, pipeline.context, output, "context"),
            binary=_artefact(conf, pipeline.config, output, "config"),
            pipe_scope=pipeline.pipe_scope,
        )
    return bytes(packed.SerializeToString(deterministic=True))


def check_names(schema: fy.P4Schema, config: bytes, p4info: Path, conf: Path) -> None:
    """Raise BadInput if the packed `config` lacks what P4Info names: the two are of different programs.

    The names in bfrt.json begin with the pipeline's. Stratum looks for them in the same way.
    """
    try:
        tables = json.loads(BfPipelineConfig.FromString(config).bfruntime_info)["tables"]
        known = [table["name"] for table in tables]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{conf}: its bfrt-config is not the JSON that p4c writes ({error!r})") from error
    for what, entities in (
        ("table", schema.tables),
        ("action profile", schema.action_profiles),
        ("counter", schema.counters),
        ("register", schema.registers),
    ):
        for entity in entities:
            if not any(name == entity.name or name.endswith(f".{entity.name}") for name in known):
                raise BadInput(
                    f"{p4info}: does not fit {conf}: it has {what} {entity.name}, the program has not; "
                    f"compile both from one program: {COMPILE}"
                )


def _read(conf: Path) -> _Conf:
    try:
        return _Conf.model_validate_json(conf.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BadInput(f"{conf}: {where}: {first['msg']}; it is what p4c writes: {COMPILE}") from error


def _artefact(conf: Path, name: str, output: str, key: str) -> bytes:
    """The content of what `conf` calls `name`, where p4c's output folder was called `output`.

    The file may be compressed by gzip, with `.gz` after its name.
    """
    beside = conf.parent / os.path.relpath(name, output) if output else conf.parent / name
    for path in (beside, conf.parent / name, Path(name)):
        if path.is_file():
            return path.read_bytes()
        if (packed := path.with_name(f"{path.name}.gz")).is_file():
            return _unpacked(packed)
    raise BadInput(f"{conf}: {key}: there is no {beside}; p4c makes it: {COMPILE}")


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: cannot be decompressed ({error}); p4c makes it: {COMPILE}") from error
