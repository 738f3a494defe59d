"""What may be asked of a controller: the messages of `api.proto`, checked."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import AfterValidator, Field, model_validator

from controlplane.routing import Routing
from machine.requests import Finite, Request
from machine.toml import NAME, NAME_PATTERN, NAME_WORDS, matching, one_of

LEAST_INTERVAL_MS = 10
"""Each reading of the load tables asks every switch."""


def _interval(value: int) -> int:
    if 0 < value < LEAST_INTERVAL_MS:
        raise ValueError(f"must be at least {LEAST_INTERVAL_MS}, or 0 for once")
    return value


_Name = Annotated[str, NAME]
_NameOrEmpty = Annotated[str, matching(f"({NAME_PATTERN})?", NAME_WORDS)]
_Path = Annotated[str, matching(r"[^\0]*", "must be a path")]
_Seconds = Annotated[Finite, Field(gt=0)]


class Deploy(Request):
    """A routing (empty: as before), and the files of a program (empty: as before)."""

    routing: Annotated[str, one_of(lambda: ("", *get_args(Routing)))]
    p4info: _Path
    program: _Path

    @model_validator(mode="after")
    def _files_go_together(self) -> Deploy:
        for given, missing in (("p4info", "program"), ("program", "p4info")):
            if getattr(self, given) and not getattr(self, missing):
                raise ValueError(f"{missing}: is empty; {given} needs it")
        return self


class WatchLoads(Request):
    """How often, and what."""

    interval_ms: Annotated[int, AfterValidator(_interval)]
    counters: bool


class Job(Request):
    """A job that is to run."""

    name: _Name
    gpus: Annotated[int, Field(ge=1)]
    pattern: _NameOrEmpty
    duration_s: _Seconds | None = None
    deadline_s: _Seconds | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_given(cls, message: Any) -> Any:
        return {
            field.name: getattr(message, field.name)
            for field in message.DESCRIPTOR.fields
            if not field.has_presence or message.HasField(field.name)
        }


class Cancel(Request):
    """A job that is to end, or has ended."""

    name: _Name
    ended: bool


class ListJobs(Request):
    """Which jobs."""

    past: bool


class WatchJobs(Request):
    """Which job (empty: all)."""

    name: _NameOrEmpty
