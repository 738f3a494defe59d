"""Loads from emulated switches: which of them a flow passes, and asking them all at once (flow-scheduling
paper, V).

    deadline_ms = 20

    [[path]]
    destination = "10.2.0.0/16"        # an address, or all addresses of a network
    hops = [{ switch = "10.0.0.5:9700", port = 5 }, { switch = "10.0.0.7:9700", port = 2 }]
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, Any

import grpc
import numpy as np
from pydantic import Field, field_validator, model_validator

from hostbpf.emulated.server import Address
from hostbpf.rpc import calls as rpc
from hostbpf.rpc import emulated_switch_pb2 as pb
from hostbpf.rpc.emulated_switch_pb2_grpc import EmulatedSwitchStub
from hostbpf.scheduling.loads import RATE_UNIT, OwnLink, PathLoads, Receivers, in_units, unloaded
from machine import tls
from machine.toml import Strict, check, read_toml
from schedulers.compiled import Floats
from schedulers.slots.table import in_window
from wire.flow import Flow
from wire.slot_header import LANES

_CHANNEL = (
    # A switch that is away is tried again soon: the default goes up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class HopTable(Strict):
    """Where a path leaves a switch: the emulated switch's address, and the port of the real one."""

    switch: Address
    port: Annotated[int, Field(ge=0)]
    name: str | None = None
    """The switch's name in its certificate; default: its address."""


class PathTable(Strict):
    """A `[[path]]` table: the way from this host to a destination."""

    destination: str
    hops: Annotated[tuple[HopTable, ...], Field(strict=False)]

    @field_validator("destination")
    @classmethod
    def _is_network(cls, text: str) -> str:
        try:
            ipaddress.IPv4Network(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is no IPv4 address or network; write 10.1.1.2 or 10.1.0.0/16"
            ) from None
        return text

    @field_validator("hops")
    @classmethod
    def _passes_once(cls, hops: tuple[HopTable, ...]) -> tuple[HopTable, ...]:
        for switch, times in Counter(hop.switch for hop in hops).items():
            if times > 1:
                raise ValueError(f"passes {switch} {times} times; a path leaves each switch once")
        return hops


class PathsFile(Strict):
    """Which emulated switches the flows of one host pass."""

    deadline_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20.0
    certificates: Annotated[Path, Field(strict=False)] | None = None
    host: str | None = None
    """The name of this host's certificate."""
    path: Annotated[tuple[PathTable, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _certificate_has_a_name(self) -> PathsFile:
        if (self.certificates is None) != (self.host is None):
            raise ValueError("certificates and host: give both, or neither")
        return self


def channel(hop: HopTable, paths: PathsFile) -> Any:
    """Return a channel to the emulated switch of `hop`: over TLS where the file names certificates."""
    own = tls.identity_of(paths.certificates, paths.host) if paths.certificates and paths.host else None
    return tls.open_channel(grpc, hop.switch, _CHANNEL, own, hop.name or "")


def load_paths(path: Path) -> PathsFile:
    """The paths of one host; raises BadInput that names file, key and remedy."""
    found = check(PathsFile, read_toml(path), str(path))
    if found.certificates is None:
        return found
    return found.model_copy(update={"certificates": path.parent / found.certificates})


@dataclass(frozen=True)
class _Plan:
    """Rate units (up to K) that a flow plans on a port, the first one for `slot`."""

    port: int
    slot: int
    rates: Floats


@dataclass(frozen=True)
class _Question:
    """Flows that ask a switch, with the ports by which they leave it, for the K slots from `slot` on."""

    slot: int
    hops: Sequence[tuple[Flow, int]]


@dataclass(frozen=True)
class _Answer:
    """Capacity of each flow's port and what others plan there; nothing where the switch did not answer."""

    switch: str
    question: _Question
    loads: Mapping[Flow, tuple[int, Floats]]
    told: Mapping[Flow, _Plan]
    """What the switch knew of this host's plans."""
    at: float


class _Switch:
    """This host's side of one emulated switch: a thread that tells what is new, and then asks."""

    def __init__(
        self, address: str, channel: Any, deadline_s: float, deliver: Callable[[_Answer], None]
    ) -> None:
        self.plans: dict[Flow, _Plan] = {}  # changed by the scheduler's thread alone
        self.counts: Counter[str] = Counter()
        self.problem = ""
        self._address = address
        self._deadline_s = deadline_s
        self._deliver = deliver
        self._channel = channel
        self._stub = EmulatedSwitchStub(self._channel)
        self._instance: int | None = None
        self._slot = 0
        self._lock = threading.Lock()  # of plans, and of what the thread is to do:
        self._new: set[Flow] = set()
        self._ended: set[Flow] = set()
        self._question: _Question | None = None
        self._work = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"emulated switch {address}", daemon=True)
        self._thread.start()

    def tell(self, flow: Flow, plan: _Plan) -> None:
        with self._lock:
            self.plans[flow] = plan
            self._new.add(flow)
            self._ended.discard(flow)
        self._work.set()

    def forget(self, flow: Flow) -> None:
        with self._lock:
            if self.plans.pop(flow, None) is None:
                return
            self._new.discard(flow)
            self._ended.add(flow)
        self._work.set()

    def ask(self, question: _Question) -> None:
        with self._lock:
            self._question = question
        self._work.set()

    def close(self) -> None:
        self._closed = True
        self._work.set()
        self._channel.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            if self._closed:
                return
            with self._lock:
                ended, self._ended = self._ended, set()
                new, self._new = self._new, set()
                question, self._question = self._question, None
                told = dict(self.plans)
            if question is not None:
                self._slot = question.slot
            loads: Mapping[Flow, tuple[int, Floats]] = {}
            try:
                self._tell(ended, {flow: told[flow] for flow in new})
                if question is not None:
                    loads, again = self._fetch(question)
                    if again:  # it knows only what was told just now
                        told = {flow: told[flow] for flow in new}
                self.problem = ""
            except (grpc.RpcError, ValueError) as error:  # ValueError: the channel is closed
                self.counts["failed"] += 1
                self.problem = _reason(error)
                if not _is_refusal(error):
                    with self._lock:  # comes ahead of the next question
                        self._ended |= ended - self.plans.keys()
                        self._new |= new & self.plans.keys()
            if question is not None:
                self._deliver(_Answer(self._address, question, loads, told, time.monotonic()))

    def _tell(self, ended: Collection[Flow], plans: Mapping[Flow, _Plan]) -> None:
        """What has changed. Slots that have passed are left out: they may be too old for the switch."""
        if ended:
            self._call(self._stub.ForgetFlow, pb.ForgetFlowRequest(flows=map(rpc.message_of, ended)))
        schedules = [
            pb.Schedule(
                hop=pb.Hop(flow=rpc.message_of(flow), port=plan.port),
                slot=max(plan.slot, self._slot),
                rates=plan.rates[max(self._slot - plan.slot, 0) :].astype(int).tolist(),
            )
            for flow, plan in plans.items()
        ]
        if schedules:
            self._call(self._stub.UpdateSchedule, pb.UpdateScheduleRequest(schedules=schedules))

    def _fetch(self, question: _Question) -> tuple[Mapping[Flow, tuple[int, Floats]], bool]:
        """What the switch answers, and whether it has started again; then it will be told all plans."""
        hops = [pb.Hop(flow=rpc.message_of(flow), port=port) for flow, port in question.hops]
        request = pb.FetchFeedbackRequest(slot=question.slot, hops=hops)
        response = self._call(self._stub.FetchFeedback, request)
        again = self._instance not in (None, response.instance)
        self._instance = response.instance
        if again:
            with self._lock:
                self._new |= self.plans.keys()
            self._work.set()
        flows = (flow for flow, _ in question.hops)
        loads = ((each.capacity, np.array(each.load, float)) for each in response.loads)
        return dict(zip(flows, loads, strict=True)), again

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        response = method(request, timeout=self._deadline_s)
        self.counts["calls"] += 1
        self.counts["bytes"] += request.ByteSize() + response.ByteSize()
        return response


def _is_refusal(error: Exception) -> bool:
    """Whether the switch would not take the same again, as plans of slots that are far from the present."""
    return isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.INVALID_ARGUMENT


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.Call):
        return str(error.details() or error.code().name)
    return str(error)


class Emulated:
    """Load tables of emulated switches, one call per switch for all flows that are asked about at once.

    A switch that does not answer within the deadline leaves its flows without an answer; it is asked again
    the next time. Use as a context manager.
    """

    def __init__(self, paths: PathsFile, capacity: float) -> None:
        """`capacity` (bytes/s) is that of the host's link."""
        self._link = OwnLink(capacity)
        self._receivers = Receivers()
        self.awaits, self.deliver = self._receivers.awaits, self._receivers.deliver
        self._networks = sorted(
            ((ipaddress.IPv4Network(each.destination), each.hops) for each in paths.path),
            key=lambda entry: -entry[0].prefixlen,
        )
        self._paths: dict[str, tuple[HopTable, ...] | None] = {}  # by destination
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        hops = {hop.switch: hop for each in paths.path for hop in each.hops}
        self._switches = {
            address: _Switch(address, channel(hop, paths), paths.deadline_ms / 1e3, self._answers.put)
            for address, hop in hops.items()
        }
        self._slot = 0
        self._asked_at = 0.0
        self._questions: dict[str, _Question] = {}  # by switch
        self._asked: dict[Flow, dict[str, _Answer]] = {}  # with the answers so far, by switch

    def __enter__(self) -> Emulated:
        return self

    def __exit__(self, *_: object) -> None:
        for switch in self._switches.values():
            switch.close()

    def problems(self) -> dict[str, str]:
        """See LoadSource; by the address of the switch."""
        return {address: each.problem for address, each in self._switches.items() if each.problem}

    def counts(self) -> dict[str, int]:
        """Calls that were answered, the bytes of their messages, and failed calls, since the start."""
        total = sum((each.counts for each in self._switches.values()), Counter[str]())
        return {name: total[name] for name in ("calls", "bytes", "failed")}

    def ask(self, flows: Sequence[Flow], slot: int) -> None:
        """See LoadSource; a flow without a path gets no answer."""
        self._link.begin(slot)
        self._receivers.expect(flows)
        self._slot = slot
        self._asked_at = time.monotonic()
        self._asked = {flow: {} for flow in flows if self._hops(flow) is not None}
        hops: dict[str, list[tuple[Flow, int]]] = defaultdict(list)
        for flow in self._asked:
            for hop in self._hops(flow) or ():
                hops[hop.switch].append((flow, hop.port))
        self._questions = {address: _Question(slot, asking) for address, asking in hops.items()}
        for address, question in self._questions.items():
            self._switches[address].ask(question)

    def answers(self, timeout_s: float) -> Iterator[PathLoads]:
        """See LoadSource. Answers come in the order asked; flows of a switch that is late come last."""
        deadline = time.monotonic() + timeout_s
        while self._asked:
            flow = next(iter(self._asked))
            if self._is_complete(flow):
                yield self._path_loads(flow)
                continue
            try:
                answer = self._answers.get(timeout=max(deadline - time.monotonic(), 0.0))
            except Empty:
                break
            self._take(answer)
        for flow in [each for each in self._asked if self._is_complete(each)]:
            yield self._path_loads(flow)

    def _is_complete(self, flow: Flow) -> bool:
        return len(self._asked[flow]) == len(self._hops(flow) or ())

    def _take(self, answer: _Answer) -> None:
        """Also what comes late in the slot, to an earlier question; only the last one's failure counts."""
        if not answer.loads and answer.question is self._questions.get(answer.switch):
            for flow, _ in answer.question.hops:
                self._asked.pop(flow, None)
        elif answer.question.slot == self._slot:
            for flow in answer.loads.keys() & self._asked.keys():
                self._asked[flow][answer.switch] = answer

    def _hops(self, flow: Flow) -> tuple[HopTable, ...] | None:
        """Where `flow` leaves switches, by the longest prefix of its destination; None: no path is given."""
        if flow.destination not in self._paths:
            address = ipaddress.IPv4Address(flow.destination)
            hops = next((hops for network, hops in self._networks if address in network), None)
            self._paths[flow.destination] = hops
        return self._paths[flow.destination]

    def _path_loads(self, flow: Flow) -> PathLoads:
        answers = self._asked.pop(flow)
        load, headroom = np.zeros(LANES), np.full(LANES, np.inf)
        for hop in self._hops(flow) or ():
            answer = answers[hop.switch]
            capacity, others = answer.loads[flow]
            others = np.maximum(others + self._told_since(flow, hop, answer), 0.0)
            load += others
            headroom = np.minimum(headroom, np.maximum(capacity - others, 0.0))
        delay_s = max((each.at for each in answers.values()), default=self._asked_at) - self._asked_at
        rest = unloaded(flow, self._slot)._replace(
            load=load * RATE_UNIT, headroom=headroom * RATE_UNIT, delay_s=delay_s
        )
        return self._receivers.added(self._link.before(rest))

    def _told_since(self, flow: Flow, hop: HopTable, answer: _Answer) -> Floats:
        """By how much this host's other flows have changed the link's load since the answer (K,)."""
        change = np.zeros(LANES)
        now = self._switches[hop.switch].plans
        for plans, sign in ((now, 1.0), (answer.told, -1.0)):
            for other, plan in plans.items():
                if other != flow and plan.port == hop.port:
                    change += sign * in_window(plan.rates, plan.slot, self._slot, LANES)
        return change

    def tell(self, flow: Flow, slot: int, rates: Floats) -> None:
        """See LoadSource; emulated switches get the schedule ahead of the next question."""
        self._link.tell(flow, slot, rates)
        for hop in self._hops(flow) or ():
            self._switches[hop.switch].tell(flow, _Plan(hop.port, slot, in_units(rates)))

    def forget(self, flow: Flow) -> None:
        """See LoadSource."""
        self._link.forget(flow)
        self._receivers.forget(flow)
        self._asked.pop(flow, None)
        for hop in self._hops(flow) or ():
            self._switches[hop.switch].forget(flow)
