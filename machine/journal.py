"""Validates a record's file. What it names will be removed, so no line is trusted unchecked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from machine.record import VERSION, Owned, Resource


class BrokenRecord(Exception):
    """A file is not a valid record. The message says where."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Resource(_Line):
    name: Annotated[str, Field(min_length=1)]
    netns: str
    detail: str


class _Thing(_Resource):
    kind: Literal["netns", "link", "qdisc", "filter", "sysctl"]


class _Numbered(_Resource):
    kind: Literal["process", "struct_ops"]
    name: Annotated[str, Field(pattern=r"^[1-9][0-9]*$")]


class _Path(_Resource):
    kind: Literal["path"]
    name: Annotated[str, Field(pattern=r"^/")]


_AnyResource = Annotated[_Thing | _Numbered | _Path, Field(discriminator="kind")]


class _Header(_Line):
    version: int
    owner: _Numbered
    name: str


class _Own(_Line):
    own: _AnyResource
    namespace: int
    pid_namespace: int


class _Released(_Line):
    released: _AnyResource
    namespace: int
    pid_namespace: int


_ENTRY: TypeAdapter[_Own | _Released] = TypeAdapter(_Own | _Released)


def parse(text: str) -> tuple[str, Resource, list[Owned]]:
    """Return a record's name, its owner, and what it still owns, in the order of creation.

    After a crash, the last line may be cut off, and is then ignored, or the file may be empty. Raises
    BrokenRecord for anything else that this version would not write.
    """
    if not text:
        return "", Resource("process", "0"), []
    lines = text.split("\n")[:-1]
    if not lines:
        raise BrokenRecord("it has no first line")
    owned: dict[Owned, None] = {}
    number = 1
    try:
        header = _Header.model_validate_json(lines[0])
        if header.version != VERSION:
            raise BrokenRecord(f"it has format {header.version}, not {VERSION}")
        for line in lines[1:]:
            number += 1
            entry = _ENTRY.validate_json(line)
            what = entry.own if isinstance(entry, _Own) else entry.released
            thing = Owned(_resource(what), entry.namespace, entry.pid_namespace)
            if isinstance(entry, _Own):
                owned[thing] = None
            else:
                owned.pop(thing, None)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BrokenRecord(f"line {number}{', ' if place else ''}{place}: {first['msg']}") from error
    return header.name, _resource(header.owner), list(owned)


def _resource(line: _Thing | _Numbered | _Path) -> Resource:
    return Resource(line.kind, line.name, line.netns, line.detail)
