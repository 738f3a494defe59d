"""The coordinator of coflow policies: it hears what the hosts' flows have carried, and sets their rates.

Every interval η it asks the agents of all hosts. When a coflow has become valid or has completed since, or
when the policy wants to decide again, the policy that the simulator runs (`schedulers.coflow`) decides rates
for all coflows (Parrot, Algorithm 1). The agents put them in force for one η at most. Half of an η later the
coordinator renews them, so flows whose coordinator has died are plain TCP within one η.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import numpy as np

from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.agent_pb2_grpc import HostStub
from hostbpf.rpc.calls import flow_of, message_of
from machine.patience import patience
from schedulers.coflow.allocation import bottleneck_time
from schedulers.coflow.view import CoflowPolicy, View
from schedulers.compiled import Floats, Routes
from wire.flow import Flow

SLOTS = 4
"""Slots of the agents in an η. A lease ends with a slot, so it lasts three to four of them."""
RENEWALS = 2
"""How often rates are put in force in an η."""
TIMEOUT_S = patience(2.0)
"""How long an agent may take to answer."""
SAMPLES = 4096
"""Number of latest times of which quantiles are taken."""
EVENTS = 200
"""Number of latest events that are kept."""
MBPS = 125_000
"""Bytes/s of a Mbit/s."""


class Transfer(NamedTuple):
    """A flow, as its sender's agent tells: of an iteration's `total` bytes `ready` may be sent by now, and
    `done` are sent; `carried` is the sum over all iterations."""

    flow: Flow
    job: str
    role: int
    iteration: int
    total: int
    ready: int
    done: int
    carried: int

    @property
    def completed(self) -> int:
        """In how many iterations it has sent everything."""
        return self.iteration + (self.done >= self.total > 0)


class CoflowKey(NamedTuple):
    """A coflow: what all flows of one role of a job send in one iteration."""

    job: str
    role: int
    iteration: int


@dataclass(frozen=True)
class Coflow:
    """A valid coflow: some of it may be sent, and not all of it is. `sizes` and `remaining` are in bytes, by
    flow; flows of ranks that are late count, although they cannot send yet."""

    key: CoflowKey
    flows: tuple[Flow, ...]
    sizes: tuple[int, ...]
    remaining: tuple[int, ...]


class Seen(NamedTuple):
    """What agents tell: valid coflows, and by job its bytes sent (S) and coflows completed (Z)."""

    coflows: tuple[Coflow, ...]
    sent: Mapping[str, int]
    completed: Mapping[str, int]


def seen(transfers: Iterable[Transfer]) -> Seen:
    """Return what `transfers`, those of all hosts, say of coflows.

    A coflow of a role is complete when all flows of that role have sent it, however far single ranks are.
    """
    groups: dict[tuple[str, int], list[Transfer]] = {}
    sent: dict[str, int] = {}
    for each in transfers:
        if each.total:
            groups.setdefault((each.job, each.role), []).append(each)
            sent[each.job] = sent.get(each.job, 0) + each.carried
    completed = dict.fromkeys(sent, 0)
    coflows = []
    for (job, role), members in groups.items():
        number = min(each.completed for each in members)
        completed[job] += number
        if any(each.iteration >= number and each.ready for each in members):
            coflows.append(
                Coflow(
                    CoflowKey(job, role, number),
                    tuple(each.flow for each in members),
                    tuple(each.total for each in members),
                    tuple(_remaining(each, number) for each in members),
                )
            )
    return Seen(tuple(coflows), sent, completed)


def _remaining(transfer: Transfer, iteration: int) -> int:
    """Return what the flow has yet to send in `iteration`, bytes."""
    if transfer.completed > iteration:
        return 0
    return transfer.total - (transfer.done if transfer.iteration == iteration else 0)


class Decider:
    """A coflow policy on a real network.

    `links_of` returns the names of a flow's links; `capacity` has what each link carries of payload, bytes/s.
    """

    def __init__(
        self,
        policy: CoflowPolicy,
        links_of: Callable[[Flow], Sequence[str]],
        capacity: Mapping[str, float],
    ) -> None:
        self._policy = policy
        self._links_of = links_of
        self._numbers = {name: number for number, name in enumerate(capacity)}
        self._capacity: Floats = np.array(list(capacity.values()), float)
        self._routes: dict[Flow, tuple[int, ...]] = {}
        self._jobs: dict[str, int] = {}  # in the order of their first coflows
        self._orders: dict[CoflowKey, int] = {}  # of the valid coflows
        self._next = 0
        self._due = math.inf
        self._rates: dict[Flow, float] = {}
        self.decisions = 0
        self.decision_s: deque[float] = deque(maxlen=SAMPLES)

    def rates(self, found: Seen, now: float) -> Mapping[Flow, float]:
        """Return the rates of the flows that have something left, bytes/s; those of before, unless a coflow
        became valid or completed, or the policy wanted to decide again by `now` (s)."""
        valid = {each.key for each in found.coflows}
        if valid != self._orders.keys() or now >= self._due:
            self._decide(found, now)
        left = {
            flow
            for each in found.coflows
            for flow, rest in zip(each.flows, each.remaining, strict=True)
            if rest
        }
        return {flow: rate for flow, rate in self._rates.items() if flow in left}

    def _decide(self, found: Seen, now: float) -> None:
        valid = {each.key for each in found.coflows}
        self._orders = {key: order for key, order in self._orders.items() if key in valid}
        for each in found.coflows:
            self._jobs.setdefault(each.key.job, len(self._jobs))
            if each.key not in self._orders:
                self._orders[each.key] = self._next
                self._next += 1
        self._rates, self._due = {}, math.inf
        if not found.coflows:
            return
        view = self._view(found)
        began = time.perf_counter()
        self._policy.allocate(view)
        self.decision_s.append(time.perf_counter() - began)
        self.decisions += 1
        self._due = now + self._policy.review_after(view)
        flows = (flow for each in found.coflows for flow in each.flows)
        self._rates = dict(zip(flows, view.rate.tolist(), strict=True))

    def _view(self, found: Seen) -> View:
        coflows = found.coflows
        counts = np.array([len(each.flows) for each in coflows])
        last = np.cumsum(counts)
        size: Floats = np.array([size for each in coflows for size in each.sizes], float)
        remaining: Floats = np.array([rest for each in coflows for rest in each.remaining], float)
        links = self._links([flow for each in coflows for flow in each.flows])
        need = np.zeros(len(self._capacity))
        first = last - counts
        gamma = [
            bottleneck_time(links, size, a, b, self._capacity, need) for a, b in zip(first, last, strict=True)
        ]
        return View(
            self._capacity,
            links,
            size,
            remaining,
            np.zeros(len(size)),
            first,
            last,
            np.array([self._orders[each.key] for each in coflows]),
            np.array([self._orders[each.key] for each in coflows]),
            np.array(gamma),
            np.add.reduceat(size - remaining, first),
            np.array([self._jobs[each.key.job] for each in coflows]),
            np.array([found.sent[each.key.job] for each in coflows], float),
            np.array([found.completed[each.key.job] for each in coflows]),
        )

    def _links(self, flows: Sequence[Flow]) -> Routes:
        for flow in flows:
            if flow not in self._routes:
                self._routes[flow] = tuple(self._numbers[name] for name in self._links_of(flow))
        routes = [self._routes[flow] for flow in flows]
        links = np.full((len(routes), max(map(len, routes))), -1, np.int32)
        for row, route in zip(links, routes, strict=True):
            row[: len(route)] = route
        return links


@dataclass
class Told:
    """What a coordinator did."""

    updates: int = 0
    """How often rates were put in force."""
    late: int = 0
    """Updates that came when rates of the one before may have ended."""
    refused: int = 0
    """Rates that agents refused, as of connections that were closed meanwhile."""
    unanswered: int = 0
    """Calls that agents did not answer."""
    update_s: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """From asking agents until the last of them had put rates in force; without renewals."""
    cpu_s: float = 0.0
    """Processor time of the coordinator's thread."""
    events: deque[str] = field(default_factory=lambda: deque(maxlen=EVENTS))


class Coordinator:
    """Asks agents every `interval_s`, and has them put in force what `decider` decides.

    `stubs` are the agents' by host; an agent that does not answer counts with its last answer.
    """

    def __init__(self, stubs: Mapping[str, HostStub], decider: Decider, interval_s: float) -> None:
        self._stubs = stubs
        self.decider = decider
        self.interval_s = interval_s
        self._transfers: dict[str, tuple[Transfer, ...]] = dict.fromkeys(stubs, ())
        self._silent: set[str] = set()
        self._refusing: set[str] = set()  # that have refused a rate
        self._set_at = math.nan
        self.told = Told()

    def run(self, stop: threading.Event) -> None:
        """Coordinate until `stop` is set. Rates in force then end by themselves."""
        begin, turn = time.monotonic(), 0
        rates: Mapping[Flow, float] = {}
        while not stop.wait(max(begin + turn * self.interval_s / RENEWALS - time.monotonic(), 0.0)):
            began, decides = time.monotonic(), turn % RENEWALS == 0
            if decides:
                self._hear()
                transfers = [each for some in self._transfers.values() for each in some]
                rates = self.decider.rates(seen(transfers), began)
            self._put_in_force(rates)
            if decides and rates:
                self.told.update_s.append(time.monotonic() - began)
            # After more than one turn that it missed, the next one decides.
            passed = math.floor((time.monotonic() - begin) / self.interval_s * RENEWALS)
            self.told.cpu_s = time.thread_time()
            turn = turn + 1 if passed <= turn + 1 else math.ceil(passed / RENEWALS) * RENEWALS

    def _hear(self) -> None:
        requests = dict.fromkeys(self._stubs, pb.ListTransfersRequest())
        for host, answer in self._ask("ListTransfers", requests).items():
            self._transfers[host] = tuple(
                Transfer(
                    flow_of(each.flow),
                    each.job,
                    each.role,
                    each.iteration,
                    each.total,
                    each.ready,
                    each.done,
                    each.carried,
                )
                for each in answer.transfers
            )

    def _put_in_force(self, rates: Mapping[Flow, float]) -> None:
        requests = {}
        for host, transfers in self._transfers.items():
            own = [
                pb.FlowRate(flow=message_of(each.flow), mbps=rates[each.flow] / MBPS)
                for each in transfers
                if each.flow in rates
            ]
            if own:
                requests[host] = pb.SetRatesRequest(lease_ms=self.interval_s * 1e3, rates=own)
        if not requests:
            self._set_at = math.nan
            return
        for host, answer in self._ask("SetRates", requests).items():
            self.told.refused += len(answer.refused)
            if answer.refused and host not in self._refusing:
                self._refusing.add(host)
                first = answer.refused[0]
                self.told.events.append(f"the agent of {host} refused a rate, first of all: {first.reason}")
        now = time.monotonic()
        self.told.updates += 1
        self.told.late += now - self._set_at > self.interval_s * (1 - 1 / SLOTS)
        self._set_at = now

    def _ask(self, method: str, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Call all agents at once; return the answers by host."""
        calls = {
            host: getattr(self._stubs[host], method).future(request, timeout=TIMEOUT_S)
            for host, request in requests.items()
        }
        answers = {}
        for host, call in calls.items():
            try:
                answers[host] = call.result()
                self._silent.discard(host)
            except grpc.RpcError as error:
                self.told.unanswered += 1
                if host not in self._silent:
                    self._silent.add(host)
                    reason = error.details() if isinstance(error, grpc.Call) else error
                    self.told.events.append(f"the agent of {host} does not answer: {reason}")
        return answers
