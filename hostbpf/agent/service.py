"""The agent over gRPC."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hostbpf.agent import metrics, rights
from hostbpf.agent.agent import Agent
from hostbpf.agent.paces import Starts
from hostbpf.carriers.carriers import Feedback
from hostbpf.counting import FlowCounter
from hostbpf.mltcp import VARIANTS, Params
from hostbpf.rates import sockets
from hostbpf.rates.schedules import PACED
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc import calls as rpc
from hostbpf.rpc import requests
from hostbpf.rpc.agent_pb2_grpc import HostServicer, add_HostServicer_to_server
from hostbpf.rpc.calls import answers, message_of, streams
from hostbpf.rpc.counts import counts_message
from hostbpf.scheduling.monitor import FlowProgress
from hostbpf.scheduling.thread import HostScheduler
from machine import peers
from machine.address import check_address
from machine.callers import Bound, Caller, Denied, Places, anybody, certificate_of
from machine.errors import BadInput
from machine.record import RECORDS, Resource
from machine.requests import Nothing
from machine.state import own_directory
from machine.tls import OPERATOR, Identity, names_of
from wire.slot_header import RATE_UNIT_MBPS

_ANSWERING = 8
"""Calls other than streams that are answered at a time, of users and of root, however many watch."""
PLACES = Places(
    calls=Bound(of_one=8, of_all=64, of_operators=256),
    streams=Bound(of_one=4, of_all=16, of_operators=16),
    rate=100.0,
    burst=100,
)
"""What users and operators can have of an agent. A user's calls beyond `_ANSWERING` wait for threads."""
_OPEN_TO_READ = ("GetStatus", "ListJobs")
"""The methods that a client with any certificate may call."""
_RUNTIME = RECORDS / "agents"
_QUEUED = 10_000
"""Feedback that a slow watcher may leave unread; more is dropped for it."""
_WATCH_POLL_S = 0.2
_LOOK_S = 0.005
"""How often those that count look for iterations that have begun; computing mostly takes longer."""
_COUNTED_S = 0.2
"""How often watchers of flows get what was counted."""
_SUBSCRIBED = (("subscribed", "true"),)
"""Initial metadata of a stream: from now on the caller gets everything."""


class HostService(HostServicer):
    """Service `Host` of agent.proto. Users other than root may change their own flows and jobs alone."""

    def __init__(self, agent: Agent, user: Callable[[Any], int]) -> None:
        """`user` returns the number of the user who makes a call, from its context."""
        self._agent = agent
        self._user = user
        self._changing = threading.Lock()
        self._flows = rights.Flows(lambda flow: sockets.find(flow, agent.options.netns))
        self._jobs = rights.Jobs()

    @answers(Nothing)
    def GetStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        counts = self._agent.counts()
        enforcers = self._agent.enforcers
        return pb.Status(
            interface=self._agent.options.interface,
            process_id=os.getpid(),
            slot_ns=self._agent.clock.slot_ns,
            slot=self._agent.clock.slot(),
            flows=counts.pop("flows"),
            carriers=counts,
            carrier_bytes=self._agent.carrier_bytes(),
            controls=[*PACED, *VARIANTS],
            enforcer=str(enforcers.choice),
            enforcer_reason=f"{enforcers.choice.reason}{enforcers.failure and '; ' + enforcers.failure}",
            scheduling=_scheduling(self._agent.scheduler),
            skews={
                peer: pb.Skew(low_ms=low / 1e6, high_ms=high / 1e6)
                for peer, (low, high) in self._agent.skews().items()
            },
        )

    @answers(requests.SetSchedule)
    def SetSchedule(self, request: Any, context: Any) -> Any:  # noqa: N802
        user, flow = self._user(context), request.flow
        with self._changing:
            self._flows.check(user, flow)
            for gone in self._flows.make_room(user, flow):
                self._flows.remove(gone)
                with contextlib.suppress(BadInput):  # somebody has cleared it
                    self._agent.clear_schedule(gone)
            number, slot = self._agent.set_schedule(flow, request.slot or None, request.rates_mbps)
            self._flows.add(user, flow)
            return pb.SetScheduleResponse(number=number, slot=slot)

    @answers(requests.ClearSchedule)
    def ClearSchedule(self, request: Any, context: Any) -> Any:  # noqa: N802
        flow = request.flow
        with self._changing:
            self._flows.check(self._user(context), flow)
            self._agent.clear_schedule(flow)
            self._flows.remove(flow)
        return pb.ClearScheduleResponse()

    @streams(Nothing)
    def WatchFeedback(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        user = self._user(context)
        waiting: queue.Queue[Feedback] = queue.Queue(_QUEUED)

        def put(feedback: Feedback) -> None:
            with contextlib.suppress(queue.Full):
                waiting.put_nowait(feedback)

        with self._agent.listening(put, partial(self._flows.sees, user)):
            context.send_initial_metadata(_SUBSCRIBED)
            while context.is_active():
                with contextlib.suppress(queue.Empty):
                    yield _feedback(waiting.get(timeout=_WATCH_POLL_S))

    @streams(requests.WatchFlows)
    def WatchFlows(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        _check_root(self._user(context), "see what all flows of the host send")
        with self._agent.counting(request.bin_ms) as counter:
            context.send_initial_metadata(_SUBSCRIBED)
            yield from _counted(counter, context)

    @answers(requests.SetJob)
    def SetJob(self, request: Any, context: Any) -> Any:  # noqa: N802
        given = request.params
        params = Params(
            given.slope,
            given.intercept,
            given.total_bytes or None,
            given.gap_ms or None,
            given.scale_decrease,
        )
        user = self._user(context)
        with self._changing:
            present = self._agent.jobs().keys()
            self._jobs.check(user, request.job, present)
            self._jobs.add(user, request.job, present)
            self._agent.set_job(request.job, params)
        return pb.SetJobResponse()

    @answers(requests.RemoveJob)
    def RemoveJob(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._changing:
            self._jobs.check(self._user(context), request.job, self._agent.jobs().keys())
            self._agent.remove_job(request.job)
        return pb.RemoveJobResponse()

    @answers(requests.SetPace)
    def SetPace(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._agent.paces.set(self._user(context), request.job, request.pace)
        return pb.SetPaceResponse()

    @answers(requests.ClearPace)
    def ClearPace(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._agent.paces.clear(self._user(context), request.job)
        return pb.ClearPaceResponse()

    @answers(Nothing)
    def ListStarts(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = self._agent.paces.starts(self._user(context))
        return pb.Starts(now_ns=time.monotonic_ns(), processes=[_starts(each) for each in found])

    @answers(Nothing)
    def ListTransfers(self, request: Any, context: Any) -> Any:  # noqa: N802
        _check_root(self._user(context), "see what all jobs of the host send")
        return pb.Transfers(transfers=[_transfer(each) for each in self._agent.transfers.read()])

    @answers(requests.SetRates)
    def SetRates(self, request: Any, context: Any) -> Any:  # noqa: N802
        _check_root(self._user(context), "limit the flows of all jobs")
        rates = {each.flow: each.mbps for each in request.rates}
        refused = self._agent.set_rates(request.lease_ms, rates)
        return pb.SetRatesResponse(
            refused=[pb.RefusedRate(flow=message_of(flow), reason=why) for flow, why in refused.items()]
        )

    @answers(Nothing)
    def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.Jobs(
            jobs=[
                pb.Job(
                    job=job,
                    params=pb.Params(
                        slope=params.slope,
                        intercept=params.intercept,
                        total_bytes=params.total_bytes or 0,
                        gap_ms=params.gap_ms or 0.0,
                        scale_decrease=params.scale_decrease,
                    ),
                    states=[
                        pb.JobState(
                            netns=key.netns,
                            iteration=state.iteration,
                            bytes=state.bytes,
                            last_bytes=state.last_bytes,
                            learned_total_bytes=state.total_bytes,
                            learned_gap_ms=state.gap_ns / 1e6,
                        )
                        for key, state in states.items()
                    ],
                )
                for job, (params, states) in self._agent.jobs().items()
            ]
        )


def _counted(counter: FlowCounter, context: Any) -> Iterator[Any]:
    """Yield what `counter` has counted, several times a second, while somebody listens."""
    while context.is_active():
        until = time.monotonic() + _COUNTED_S
        while time.monotonic() < until and context.is_active():
            counter.look()
            time.sleep(_LOOK_S)
        yield counts_message(counter.take())


def _scheduling(scheduler: HostScheduler | None) -> Any:
    if scheduler is None:
        return None
    return pb.Scheduling(
        counts=scheduler.status(),
        events=list(scheduler.events),
        negotiation_ms=[1e3 * each for each in list(scheduler.delays.negotiation)],
        decision_ms=[1e3 * each for each in list(scheduler.delays.decision)],
        late_ms=[1e3 * each for each in list(scheduler.delays.late)],
        link_s=asdict(scheduler.link),
    )


def _feedback(feedback: Feedback) -> Any:
    flow, header = feedback.flow, feedback.header
    return pb.Feedback(
        flow=message_of(flow),
        base_slot=header.base_slot,
        hops=header.hops,
        bytes_received=header.bytes_received,
        bytes_onward=header.bytes_onward,
        slots=[
            pb.PathSlot(
                slot=header.slot_in(number),
                load_mbps=lane.load * RATE_UNIT_MBPS,
                headroom_mbps=-1 if lane.left is None else max(lane.left, 0) * RATE_UNIT_MBPS,
            )
            for number, lane in enumerate(header.lanes)
        ],
    )


def _check_root(user: int, what: str) -> None:
    if user != rights.ROOT:
        raise Denied(f"only root may {what}")


def _transfer(found: FlowProgress) -> Any:
    return pb.Transfer(
        flow=message_of(found.flow),
        job=found.job,
        role=found.role,
        iteration=found.iteration,
        total=found.total,
        ready=found.ready,
        done=found.done,
        carried=found.carried,
    )


def _starts(found: Starts) -> Any:
    return pb.ProcessStarts(
        job=found.job,
        process_id=found.pid,
        paced=found.paced,
        starts=found.said.starts,
        started_ns=found.said.started_ns,
        waited_ms=found.said.waited_ns / 1e6,
        shifts=found.said.shifts,
        corrections=found.said.corrections,
        recent=[
            pb.Start(number=each.number, lasted_ms=each.lasted_s * 1e3, drift_ms=each.drift_s * 1e3)
            for each in found.recent
        ],
    )


def default_address(interface: str) -> str:
    """Where the agent of an interface listens if nothing else is asked for."""
    return f"unix:{_RUNTIME / interface}.sock"


@contextlib.contextmanager
def serving(
    agent: Agent,
    address: str,
    metrics_port: int | None = None,
    *,
    users: bool = False,
    identity: Identity | None = None,
) -> Iterator[int | None]:
    """Within, the agent answers at `address` (`unix:PATH` or HOST:PORT); yields the metrics' port.

    A Unix socket is open to root alone, or with `users` to all users of the machine. At HOST:PORT everybody
    has root's rights, because TCP does not tell who calls; with an `identity`, operators have them, and other
    clients with a certificate may only read. `metrics_port` 0 takes a free one, None serves no
    metrics. Raises BadInput for an address that cannot be, EntrainError when an address is taken.
    """
    check_address(address)
    with contextlib.ExitStack() as stack:
        if address.startswith("unix:"):
            stack.enter_context(_admitting(agent, Path(address.removeprefix("unix:")), users))
        else:
            who = anybody if identity is None else certified
            stack.enter_context(_answering(agent, address, as_root, who, identity))
        if metrics_port is None:
            yield None
            return
        yield stack.enter_context(metrics.serving(metrics.Counters(agent), metrics_port))


@contextlib.contextmanager
def _admitting(agent: Agent, path: Path, users: bool) -> Iterator[None]:
    private = RECORDS / f"agent-{secrets.token_hex(8)}"
    agent.record.own(Resource("path", str(private)))
    private.mkdir(0o700)
    if path.parent == _RUNTIME:
        own_directory(_RUNTIME)
    server = private / "server.sock"
    with (
        _answering(agent, f"unix:{server}", _user, _known),
        peers.admitting(path, 0o666 if users else 0o600, server),
    ):
        agent.record.own(Resource("path", str(path)))  # not before it is ours
        yield


def _user(context: Any) -> int:
    return peers.user_of(context.peer())


def _known(context: Any, method: str) -> Caller:
    """Return who calls on a Unix socket."""
    user = _user(context)
    return Caller(f"user {user}", operator=user == rights.ROOT)


def as_root(context: Any) -> int:
    """Return root's number: the caller has been checked, or cannot be."""
    return rights.ROOT


def certified(context: Any, method: str) -> Caller:
    """Return who calls over TLS: operators may make all calls, and others those that read."""
    name = certificate_of(context)
    if OPERATOR in names_of(context):
        return Caller(name, operator=True)
    reads = method in _OPEN_TO_READ
    return Caller(
        name, refusal="" if reads else f"{method}: the certificate is for {name}; this takes {OPERATOR}"
    )


def _answering(
    agent: Agent,
    address: str,
    user: Callable[[Any], int],
    who: Callable[[Any, str], Caller],
    identity: Identity | None = None,
) -> contextlib.AbstractContextManager[int]:
    def add(server: Any) -> None:
        add_HostServicer_to_server(HostService(agent, user), server)

    threads = PLACES.streams.of_all + _ANSWERING
    return rpc.serving(add, address, threads, identity, who=who, places=PLACES)
