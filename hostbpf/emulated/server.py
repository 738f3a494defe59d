"""The emulated switch: a process that keeps the load table of a switch which cannot (flow-scheduling paper,
IV-A and V), asked by hosts over gRPC.

    name = "leaf1"
    listen = "10.0.0.5:9700"

    [[port]]
    number = 1
    rate_mbps = 10000
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from hostbpf.clock import SlotClock
from hostbpf.rpc import calls as rpc
from hostbpf.rpc import emulated_switch_pb2 as pb
from hostbpf.rpc import requests
from hostbpf.rpc.emulated_switch_pb2_grpc import EmulatedSwitchServicer, add_EmulatedSwitchServicer_to_server
from machine.callers import Bound, Caller, Denied, Places, anybody, certificate_of
from machine.errors import BadInput
from machine.tls import OPERATOR, check_local, identity_of, names_of
from machine.toml import Strict, check, read_toml
from schedulers.compiled import Floats
from schedulers.slots.table import LoadTable, warm_up
from wire.flow import Flow
from wire.slot_header import LANES, MAX_U32, RATE_UNIT_MBPS

TOLERANCE = 5
"""Slots by which the clock of a host may differ from the switch's."""

FLOWS_PER_HOST = 4096
"""Flows that a host plans at a time, on one switch."""

CALLS_PER_SLOT = 10
"""Calls that a host makes in a slot, at most; it needs a few."""

Address = Annotated[str, Field(pattern=r"^(unix:/.+|[^:]+:[0-9]+)$")]


class PortTable(Strict):
    """A `[[port]]` table: a port of the real switch, and the rate of its link."""

    number: Annotated[int, Field(ge=0)]
    rate_mbps: Annotated[float, Field(gt=0, lt=MAX_U32)]


class SwitchFile(Strict):
    """The file of an emulated switch."""

    name: str
    listen: Address
    certificates: Annotated[Path, Field(strict=False)] | None = None
    slot_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    port: Annotated[tuple[PortTable, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _ports_are_unique(self) -> SwitchFile:
        numbers: set[int] = set()
        for index, port in enumerate(self.port, 1):
            if port.number in numbers:
                raise ValueError(f"[[port]] {index}, number: {port.number} is listed twice; remove one")
            numbers.add(port.number)
        return self

    @property
    def places(self) -> Places:
        """What hosts, and operators, can have of the switch."""
        rate = CALLS_PER_SLOT * 1e3 / self.slot_ms
        return Places(Bound(8, 1024, 256), Bound(0, 0, 0), rate, burst=5 * CALLS_PER_SLOT)

    @property
    def capacities(self) -> dict[int, int]:
        """Capacity of each port in rate units."""
        return {port.number: round(port.rate_mbps / RATE_UNIT_MBPS) for port in self.port}


def load_switch(path: Path) -> SwitchFile:
    """The file of an emulated switch; raises BadInput that names file, key and remedy."""
    found = check(SwitchFile, read_toml(path), str(path))
    if found.certificates is not None:
        return found.model_copy(update={"certificates": path.parent / found.certificates})
    remedy = "add certificates (`entrain certs` makes them), or listen on loopback"
    check_local(found.listen, f"{path}: listen", remedy)
    return found


class EmulatedSwitch:
    """The load table of one switch, in rate units. Not for several threads at once."""

    def __init__(self, name: str, capacities: Mapping[int, int], present: Callable[[], int]) -> None:
        """`capacities` by port number, in rate units; `present` tells the present slot."""
        self.name = name
        self._present = present
        self._rows = {port: row for row, port in enumerate(capacities)}
        self._capacities = list(capacities.values())
        self._begin()

    def _begin(self) -> None:
        """Begin without plans. Hosts see another `instance`, and plan anew."""
        self.instance = secrets.randbits(64)
        self._flows: Counter[str] = Counter()  # by source
        # The window reaches as far as hosts may be behind or ahead.
        self._table = LoadTable(np.array(self._capacities, float), LANES + 2 * TOLERANCE)

    def load(self, hops: Iterable[tuple[Flow, int]], slot: int) -> list[tuple[int, Floats]]:
        """Of each flow's port: the capacity, and what others plan in the K slots from `slot` on.

        Raises BadInput for an unknown port, and for a slot that is too far from the present one.
        """
        begin = self._offset(slot)
        result = []
        for flow, port in hops:
            row = self._row(port)
            load, _ = self._table.ask(flow, np.array([row]))
            result.append((self._capacities[row], load[begin : begin + LANES]))
        return result

    def update(self, flow: Flow, port: int, slot: int, rates: Sequence[int]) -> None:
        """`rates` from `slot` on are what `flow` plans on `port`, in place of what it planned before.

        Raises BadInput as `load` does, and for too many rates; then nothing has changed.
        """
        self.check(flow, port, slot, rates)
        self._flows[flow.source] += flow not in self._table
        self._table.update(flow, np.array([self._row(port)]), np.asarray(rates, float), slot)

    def check(self, flow: Flow, port: int, slot: int, rates: Sequence[int]) -> None:
        """Raise what `update` with the same arguments would raise."""
        self._offset(slot)
        self._row(port)
        if flow not in self._table and self._flows[flow.source] >= FLOWS_PER_HOST:
            raise rpc.Exhausted(
                f"switch {self.name}: {flow.source} plans {FLOWS_PER_HOST} flows already; let some end first"
            )
        if len(rates) > LANES:
            raise BadInput(f"switch {self.name}, flow {flow}: {len(rates)} slots; plan at most {LANES}")

    def forget(self, flow: Flow) -> None:
        """Drop what `flow` plans; it is not an error that it plans nothing."""
        self._flows[flow.source] -= flow in self._table
        self._table.remove(flow)

    def _row(self, port: int) -> int:
        if port not in self._rows:
            known = ", ".join(map(str, sorted(self._rows)))
            raise BadInput(f"switch {self.name}: has no port {port}; there are {known}")
        return self._rows[port]

    def _offset(self, slot: int) -> int:
        """Bring the table to the present, and tell where in its window `slot` is."""
        present = self._present()
        if present < self._table.slot:
            back = self._table.slot + TOLERANCE - present
            print(
                f"{self.name}: the clock has been set back by {back} slots; plans are dropped",
                file=sys.stderr,
            )
            self._begin()
        begin = max(present - TOLERANCE, self._table.slot)  # the clock may step back a little
        if begin != self._table.slot:
            self._table.advance(begin)
            self._flows = Counter(flow.source for flow in self._table.flows() if isinstance(flow, Flow))
        if not 0 <= slot - begin <= 2 * TOLERANCE:
            raise BadInput(
                f"switch {self.name}: slot {slot} is {abs(slot - begin - TOLERANCE)} slots from the present "
                f"one; at most {TOLERANCE} are tolerated: check clocks and slot_ms of host and switch"
            )
        return slot - begin


def _host(context: Any, method: str) -> Caller:
    """Return who calls, by certificate: a host, an operator, or somebody who is refused."""
    names, name = names_of(context), certificate_of(context)
    if OPERATOR in names:
        return Caller(name, operator=True)
    if any(map(_is_address, names)):
        return Caller(name)
    return Caller(name, refusal=f"{method}: the certificate of {name} has no host's address")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Service(EmulatedSwitchServicer):
    """Service `EmulatedSwitch`. If it `knows` hosts by certificates, each plans for its own addresses."""

    def __init__(self, switch: EmulatedSwitch, knows: bool) -> None:
        self._switch = switch
        self._knows = knows

    def _check(self, context: Any, flows: Iterable[Flow]) -> None:
        if not self._knows:
            return
        names = names_of(context)
        for flow in flows:
            if flow.source not in names:
                raise Denied(
                    f"switch {self._switch.name}, flow {flow}: the certificate is for "
                    f"{', '.join(names) or 'nobody'}; a host plans for its own addresses only"
                )

    @rpc.answers(requests.FetchFeedback)
    def FetchFeedback(self, request: Any, context: Any) -> Any:  # noqa: N802
        hops = ((hop.flow, hop.port) for hop in request.hops)
        loads = [
            pb.LinkLoad(capacity=capacity, load=np.minimum(load, MAX_U32).astype(int).tolist())
            for capacity, load in self._switch.load(hops, request.slot)
        ]
        return pb.FetchFeedbackResponse(instance=self._switch.instance, loads=loads)

    @rpc.answers(requests.UpdateSchedule)
    def UpdateSchedule(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._check(context, (each.hop.flow for each in request.schedules))
        for each in request.schedules:  # all are refused, or none
            self._switch.check(each.hop.flow, each.hop.port, each.slot, each.rates)
        for each in request.schedules:
            self._switch.update(each.hop.flow, each.hop.port, each.slot, each.rates)
        return pb.UpdateScheduleResponse()

    @rpc.answers(requests.ForgetFlow)
    def ForgetFlow(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._check(context, request.flows)
        for flow in request.flows:
            self._switch.forget(flow)
        return pb.ForgetFlowResponse()


@contextlib.contextmanager
def serving(config: SwitchFile, present: Callable[[], int] | None = None) -> Iterator[str]:
    """Within, the emulated switch answers; yields its address. Calls are answered one after the other.

    `present` tells the present slot (default: by the shared clock). Raises EntrainError when the address is
    taken.
    """
    switch = EmulatedSwitch(config.name, config.capacities, present or SlotClock.shared(config.slot_ms).slot)
    warm_up()

    def add(server: Any) -> None:
        add_EmulatedSwitchServicer_to_server(_Service(switch, identity is not None), server)

    identity = identity_of(config.certificates, config.name) if config.certificates else None
    who = anybody if identity is None else _host
    with rpc.serving(add, config.listen, 0, identity, who=who, places=config.places) as port:
        host, colon, _ = config.listen.rpartition(":")
        yield config.listen if config.listen.startswith("unix:") else f"{host}{colon}{port}"
