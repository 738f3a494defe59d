"""What may be asked of the agent and of an emulated switch: the messages of both services, checked."""

from __future__ import annotations

import socket
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, GetPydanticSchema, model_validator
from pydantic_core import core_schema

from machine.requests import Finite, IPv4, Printable, Request
from schedulers.cassini.pace import Pace
from wire.flow import Flow
from wire.progress import JOB_BYTES

PERIOD_NS_LEAST, PERIOD_NS_MOST = 1_000_000, 86_400_000_000_000
ANCHOR_NS_MOST = (1 << 61) - 1
"""What `wire/progress.h` follows."""

_Port = Annotated[int, Field(ge=1, le=65535)]


class _Flow(Request):
    source: IPv4
    source_port: _Port
    destination: IPv4
    destination_port: _Port
    protocol: Literal[0, 6, 17]

    def flow(self) -> Flow:
        protocol = self.protocol or socket.IPPROTO_TCP
        return Flow(self.source, self.source_port, self.destination, self.destination_port, protocol)


_FlowField = Annotated[
    Flow,
    GetPydanticSchema(
        lambda _, schema: core_schema.no_info_after_validator_function(_Flow.flow, schema(_Flow))
    ),
]


def _fits(job: str) -> str:
    if not 0 < len(job.encode()) <= JOB_BYTES:
        raise ValueError(f"must be a name of at most {JOB_BYTES} bytes")
    return job


_Job = Annotated[str, AfterValidator(_fits), Printable]


class SetSchedule(Request):
    """A flow's rates from a slot on; slot 0 is the present one."""

    flow: _FlowField
    slot: int
    rates_mbps: tuple[Annotated[Finite, Field(ge=0)], ...]


class ClearSchedule(Request):
    """A flow."""

    flow: _FlowField


class WatchFlows(Request):
    """How long bins are."""

    bin_ms: Finite


class _Params(Request):
    slope: Finite
    intercept: Finite
    total_bytes: int
    gap_ms: Finite
    scale_decrease: bool


class SetJob(Request):
    """Parameters of MLTCP for a job."""

    job: int
    params: _Params


class RemoveJob(Request):
    """A job of MLTCP."""

    job: int


class _Pace(Request):
    anchor_ns: Annotated[int, Field(ge=0, le=ANCHOR_NS_MOST)]
    period_ns: Annotated[int, Field(ge=PERIOD_NS_LEAST, le=PERIOD_NS_MOST)]
    bound_ns: int

    def pace(self) -> Pace:
        """Raises ValueError for a bound that is half a period or longer."""
        return Pace(self.anchor_ns, self.period_ns, self.bound_ns)


_PaceField = Annotated[
    Pace,
    GetPydanticSchema(
        lambda _, schema: core_schema.no_info_after_validator_function(_Pace.pace, schema(_Pace))
    ),
]


class SetPace(Request):
    """A job's pace."""

    job: _Job
    pace: _PaceField


class ClearPace(Request):
    """A job."""

    job: _Job


class _FlowRate(Request):
    flow: _FlowField
    mbps: Annotated[Finite, Field(ge=0)]


class SetRates(Request):
    """Rates of flows, each given once, and for how long they hold."""

    lease_ms: Annotated[Finite, Field(gt=0)]
    rates: tuple[_FlowRate, ...]

    @model_validator(mode="after")
    def _flows_are_unique(self) -> SetRates:
        flows: set[Flow] = set()
        for index, each in enumerate(self.rates):
            if each.flow in flows:
                raise ValueError(f"rates[{index}].flow: is given twice; remove one")
            flows.add(each.flow)
        return self


class _Hop(Request):
    flow: _FlowField
    port: int


class FetchFeedback(Request):
    """Which links are asked for, in the K slots from a slot on."""

    slot: int
    hops: tuple[_Hop, ...]


class _Schedule(Request):
    hop: _Hop
    slot: int
    rates: tuple[int, ...]


class UpdateSchedule(Request):
    """What flows plan."""

    schedules: tuple[_Schedule, ...]


class ForgetFlow(Request):
    """Flows that have ended."""

    flows: tuple[_FlowField, ...]
