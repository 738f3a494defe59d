"""The agent's API: who may do what, and how much of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import grpc
import pytest

from controlplane.topology import dumbbell
from entrain.certificates import issue
from hostbpf.agent import rights, service
from hostbpf.agent.paces import Paces
from hostbpf.agent.service import HostService
from hostbpf.agent.transfers import Transfers
from hostbpf.carriers.carriers import Feedback
from hostbpf.clock import SlotClock
from hostbpf.rates import sockets
from hostbpf.rates.sockets import Socket
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc import calls as rpc
from hostbpf.rpc import emulated_switch_pb2 as switch_pb2
from hostbpf.rpc import requests
from hostbpf.rpc.agent_pb2_grpc import HostStub, add_HostServicer_to_server
from hostbpf.rpc.calls import message_of
from hostbpf.scheduling.monitor import Direction, Phase, Publisher, Role
from machine import callers
from machine.callers import Caller
from machine.errors import BadInput, EntrainError
from machine.patience import patience
from machine.record import Record
from machine.requests import Nothing, checked
from machine.tls import OPERATORS, identity_of, open_channel
from tests.hostbpf.agent.in_memory import agent_of, schedules
from tests.silent import silent
from wire.flow import Flow
from wire.slot_header import LANES, Lane, SlotHeader

pytestmark = pytest.mark.sockets

ROOT, ANN, BOB, NOBODY = 0, 1001, 1002, 65534
CHECKOUT = Path(__file__).parents[3]
FLOWS = {Flow("10.0.0.1", port, "10.0.0.2", 7000): user for port, user in ((1, ROOT), (2, ANN), (3, BOB))}
OF_ROOT, OF_ANN, OF_BOB = FLOWS
FEEDBACKS = 20_000  # more than any buffer on the way holds
OK = grpc.StatusCode.OK
INVALID = grpc.StatusCode.INVALID_ARGUMENT
DENIED, EXHAUSTED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED


class BareAgent:
    """An agent's schedules, jobs and listeners without a network."""

    def __init__(self, progress: Path) -> None:
        self.options = SimpleNamespace(netns=None)
        self.paces = Paces(progress, None)
        self.schedules: dict[Flow, list[float]] = {}
        self.params: dict[int, object] = {}
        self.rates: dict[Flow, float] = {}
        self.transfers = Transfers(progress, None)
        self.listeners: list[tuple[Callable[[Feedback], None], Callable[[Flow], bool]]] = []

    def set_schedule(self, flow: Flow, slot: int | None, rates: list[float]) -> tuple[int, int]:
        self.schedules[flow] = list(rates)
        return 1, slot or 0

    def set_rates(self, lease_ms: float, rates: dict[Flow, float]) -> dict[Flow, str]:
        self.rates = dict(rates)
        return dict.fromkeys(rates, "no such flow")

    def clear_schedule(self, flow: Flow) -> None:
        if self.schedules.pop(flow, None) is None:
            raise BadInput("has no schedule")

    def jobs(self) -> dict[int, Any]:
        return {job: (params, {}) for job, params in self.params.items()}

    def set_job(self, job: int, params: object) -> None:
        self.params[job] = params

    def remove_job(self, job: int) -> None:
        if self.params.pop(job, None) is None:
            raise BadInput("has no parameters")

    @contextlib.contextmanager
    def listening(
        self, callback: Callable[[Feedback], None], wanted: Callable[[Flow], bool]
    ) -> Iterator[None]:
        self.listeners.append((callback, wanted))
        yield
        self.listeners.remove((callback, wanted))

    def deliver(self, flow: Flow) -> None:
        for callback, wanted in self.listeners:
            if wanted(flow):
                callback(Feedback(flow, SlotHeader(base_slot=0, lanes=(Lane(),) * LANES)))


class Served:
    """A served agent, and the calls of users."""

    def __init__(
        self, agent: BareAgent, connect: Callable[[], HostStub], owners: dict[Flow, int], address: str
    ) -> None:
        self.agent, self.owners, self.address = agent, owners, address
        self._stubs: dict[int, HostStub] = defaultdict(connect)  # each user has a connection

    def call(self, user: int, name: str, request: object) -> Any:
        return getattr(self._stubs[user], name)(request, metadata=[("user", str(user))], timeout=patience(30))

    def status(self, user: int, name: str, request: object) -> grpc.StatusCode:
        """How a call ends."""
        try:
            self.call(user, name, request)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
            return code
        return grpc.StatusCode.OK

    def set_schedule(self, user: int, flow: Flow) -> grpc.StatusCode:
        return self.status(
            user, "SetSchedule", pb.SetScheduleRequest(flow=message_of(flow), rates_mbps=[1.0])
        )

    def clear_schedule(self, user: int, flow: Flow) -> grpc.StatusCode:
        return self.status(user, "ClearSchedule", pb.ClearScheduleRequest(flow=message_of(flow)))

    def set_job(self, user: int, job: int) -> grpc.StatusCode:
        params = pb.Params(slope=1, intercept=1)
        return self.status(user, "SetJob", pb.SetJobRequest(job=job, params=params))

    def remove_job(self, user: int, job: int) -> grpc.StatusCode:
        return self.status(user, "RemoveJob", pb.RemoveJobRequest(job=job))

    def watch(self, user: int) -> Any:
        """A stream of feedback that has begun; RpcError where it is refused."""
        stream = self.call(user, "WatchFeedback", pb.WatchFeedbackRequest())
        if not stream.initial_metadata():
            next(stream)  # raises
        return stream


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    owners = dict(FLOWS)
    monkeypatch.setattr(
        sockets, "find", lambda flow, _: Socket(flow, "", 1, owners[flow]) if flow in owners else None
    )
    agent = BareAgent(tmp_path / "progress")

    def user(context: Any) -> int:
        return int(dict(context.invocation_metadata())["user"])

    def who(context: Any, method: str) -> Caller:
        return Caller(f"user {user(context)}", operator=user(context) == ROOT)

    def add(server: Any) -> None:
        add_HostServicer_to_server(HostService(agent, user), server)  # type: ignore[arg-type]

    address = f"unix:{tmp_path}/agent.sock"
    streams = service.PLACES.streams
    with (
        rpc.serving(add, address, streams.of_all + 1, who=who, places=replace(service.PLACES, burst=10_000)),
        contextlib.ExitStack() as stack,
    ):

        def connect() -> HostStub:
            options = [("grpc.use_local_subchannel_pool", 1)]
            return HostStub(stack.enter_context(grpc.insecure_channel(address, options)))

        stack.callback(agent.paces.close)
        stack.callback(agent.transfers.close)
        yield Served(agent, connect, owners, address)


def test_huge_requests_are_refused_and_the_next_is_served(served: Served) -> None:
    rates = [1.0] * (rpc.MAX_REQUEST // 8 + 1)
    huge = pb.SetScheduleRequest(flow=message_of(OF_ANN), rates_mbps=rates)
    assert served.status(ANN, "SetSchedule", huge) == EXHAUSTED
    assert served.set_schedule(ANN, OF_ANN) == OK


def test_users_schedule_their_own_flows_and_root_all(served: Served) -> None:
    assert served.set_schedule(ANN, OF_ANN) == OK
    for flow in (OF_ROOT, OF_BOB, OF_BOB._replace(source_port=99)):
        assert served.set_schedule(ANN, flow) == DENIED
        assert served.clear_schedule(ANN, flow) == DENIED
    assert served.agent.schedules.keys() == {OF_ANN}
    for flow in FLOWS:
        assert served.set_schedule(ROOT, flow) == OK
    assert served.clear_schedule(BOB, OF_ANN) == DENIED
    assert served.clear_schedule(ANN, OF_ANN) == OK
    assert served.clear_schedule(ROOT, OF_BOB) == OK
    assert served.agent.schedules.keys() == {OF_ROOT}


def test_only_root_sets_rates_and_hears_of_transfers(served: Served) -> None:
    request = pb.SetRatesRequest(lease_ms=100, rates=[pb.FlowRate(flow=message_of(OF_ANN), mbps=5)])
    assert served.status(ANN, "SetRates", request) == DENIED
    assert served.status(ANN, "ListTransfers", pb.ListTransfersRequest()) == DENIED
    assert served.agent.rates == {}
    (refused,) = served.call(ROOT, "SetRates", request).refused
    assert (rpc.flow_of(refused.flow), refused.reason) == (OF_ANN, "no such flow")
    assert served.agent.rates == {OF_ANN: 5}
    assert list(served.call(ROOT, "ListTransfers", pb.ListTransfersRequest()).transfers) == []


def test_transfers_are_what_processes_publish_of_what_they_send(served: Served, tmp_path: Path) -> None:
    with Publisher("vgg16", directory=tmp_path / "progress") as publisher:
        sent = publisher.flow(OF_ANN, Direction.SENT, Role.AGGREGATION)
        sent.update(0, Phase.COMMUNICATING, 900, 900, 900)
        sent.update(1, Phase.COMMUNICATING, 900, 600, 300)
        publisher.flow(OF_BOB, Direction.RECEIVED, Role.BROADCAST)
        served.owners[OF_ANN] = os.geteuid()  # who publishes is the one whose flow it is
        (found,) = served.call(ROOT, "ListTransfers", pb.ListTransfersRequest()).transfers
    assert rpc.flow_of(found.flow) == OF_ANN
    assert (found.job, found.role, found.iteration) == ("vgg16", Role.AGGREGATION, 1)
    assert (found.total, found.ready, found.done, found.carried) == (900, 600, 300, 1200)


def test_a_user_has_some_flows_with_a_schedule(served: Served) -> None:
    flows = [OF_ANN._replace(destination_port=port) for port in range(1, rights.FLOWS_PER_USER + 2)]
    served.owners.update(dict.fromkeys(flows, ANN))
    *first, last = flows
    assert all(served.set_schedule(ANN, flow) == OK for flow in first)
    assert served.set_schedule(ANN, last) == EXHAUSTED
    assert served.set_schedule(ANN, first[0]) == OK
    assert served.set_schedule(BOB, OF_BOB) == OK
    del served.owners[first[7]]  # its connection is closed: there is room
    assert served.set_schedule(ANN, last) == OK
    assert first[7] not in served.agent.schedules


def test_a_job_is_the_users_who_sets_it_first(served: Served) -> None:
    assert served.set_job(ANN, 5) == OK
    assert served.set_job(ANN, 5) == OK
    assert served.set_job(BOB, 5) == served.remove_job(BOB, 5) == DENIED
    assert served.set_job(ROOT, 5) == OK
    assert served.set_job(ANN, 5) == DENIED  # it is root's now
    assert served.remove_job(ROOT, 5) == OK
    assert served.set_job(BOB, 5) == OK
    assert served.remove_job(BOB, 5) == OK
    assert served.set_job(ANN, 0) == DENIED  # of all sockets without a mark
    assert served.set_job(ROOT, 0) == OK
    assert served.agent.params.keys() == {0}


def test_only_root_sees_what_all_flows_send(served: Served) -> None:
    stream = served.call(ANN, "WatchFlows", pb.WatchFlowsRequest(bin_ms=2.0))
    with pytest.raises(grpc.RpcError) as refused:
        next(stream)
    assert refused.value.code() is DENIED  # type: ignore[attr-defined]


def test_one_user_leaves_room_for_the_jobs_of_others(served: Served) -> None:
    results = [served.set_job(ANN, job) for job in range(1, 1025)]
    assert results.count(OK) == len(served.agent.params) == rights.JOBS_PER_USER
    assert set(results) == {OK, EXHAUSTED}
    assert served.set_job(BOB, 2000) == OK
    assert served.remove_job(ANN, 1) == OK
    assert served.set_job(ANN, 1024) == OK


def test_a_pace_needs_a_period_and_a_smaller_bound(served: Served) -> None:
    for pace in (pb.Pace(), pb.Pace(period_ns=10**8, bound_ns=5 * 10**7)):
        assert served.status(ROOT, "SetPace", pb.SetPaceRequest(job="one", pace=pace)) == INVALID
    pace = pb.Pace(anchor_ns=7, period_ns=10**8, bound_ns=49_999_999)
    assert served.status(ANN, "SetPace", pb.SetPaceRequest(job="one", pace=pace)) == OK
    assert served.status(BOB, "ClearPace", pb.ClearPaceRequest(job="one")) == INVALID
    assert served.status(ANN, "ClearPace", pb.ClearPaceRequest(job="one")) == OK


def test_every_field_of_every_call_is_checked() -> None:
    host = pb.DESCRIPTOR.services_by_name["Host"]
    switch = switch_pb2.DESCRIPTOR.services_by_name["EmulatedSwitch"]
    pairs = [
        (method.input_type, getattr(requests, method.name, Nothing))
        for method in [*host.methods, *switch.methods]
    ]
    pairs += [
        (pb.Flow.DESCRIPTOR, requests._Flow),
        (pb.Pace.DESCRIPTOR, requests._Pace),
        (pb.Params.DESCRIPTOR, requests._Params),
        (pb.FlowRate.DESCRIPTOR, requests._FlowRate),
        (switch_pb2.Hop.DESCRIPTOR, requests._Hop),
        (switch_pb2.Schedule.DESCRIPTOR, requests._Schedule),
    ]
    for message, model in pairs:
        assert model.model_fields.keys() == {field.name for field in message.fields}, message.name


def flow_with(**fields: Any) -> Any:
    return pb.Flow(**{**OF_ROOT._asdict(), **fields})


def rates(lease_ms: float = 100.0, mbps: float = 5.0, **fields: Any) -> Any:
    return pb.SetRatesRequest(lease_ms=lease_ms, rates=[pb.FlowRate(flow=flow_with(**fields), mbps=mbps)])


def schedule(slot: int = 0, rate: float = 1.0, **fields: Any) -> Any:
    return pb.SetScheduleRequest(flow=flow_with(**fields), slot=slot, rates_mbps=[rate])


def pace(job: str = "one", period_ns: int = 10**8, **fields: int) -> Any:
    return pb.SetPaceRequest(job=job, pace=pb.Pace(period_ns=period_ns, **fields))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        *(
            (make(**{field: address}), f"flow.{field}: must be an IPv4 address, such as 10.1.1.2")
            for make in (rates, schedule)
            for field in ("source", "destination")
            for address in ("one", "::1", "10.9.0.1/24", "", "j\n\x1b[2K")
        ),
        (rates(protocol=5001), "rates[0].flow.protocol: must be 0, 6 or 17, is 5001"),
        (schedule(source_port=70000), "flow.source_port: must be at most 65535, is 70000"),
        (schedule(destination_port=0), "flow.destination_port: must be at least 1, is 0"),
        (schedule(rate=float("nan")), "rates_mbps[0]: must be a finite number, is NaN"),
        (schedule(rate=-1), "rates_mbps[0]: must be at least 0, is -1.0"),
        (schedule(slot=1 << 63), f"slot {1 << 63}: must be at most 65536 slots after the present one"),
        (rates(mbps=float("-inf")), "rates[0].mbps: must be a finite number, is -Infinity"),
        (rates(lease_ms=-1e308), "lease_ms: must be above 0, is -1e+308"),
        (rates(lease_ms=1e308), "lease_ms 1e+308: must be from one slot"),
        (rates(lease_ms=float("inf")), "lease_ms: must be a finite number"),
        (pb.SetRatesRequest(lease_ms=100, rates=[*rates().rates, *rates().rates]), "rates[1].flow: is given"),
        (pace(period_ns=80), "pace.period_ns: must be at least 1000000, is 80"),
        (pace(period_ns=1 << 64 - 1), "pace.period_ns: must be at most 86400000000000"),
        (pace(anchor_ns=-7), "pace.anchor_ns: must be at least 0, is -7"),
        (pace(bound_ns=5 * 10**7), "pace: bound 50000000 ns: must be from 0 to half a period"),
        (pace(job="a\x1b[2K"), 'job: must be of printable characters, is "a\\u001b[2K"'),
        (pace(job="x" * 64), "job: must be a name of at most 63 bytes"),
        (pace(job=""), 'job: must be a name of at most 63 bytes, is ""'),
    ],
)
def test_a_bad_request_is_refused_with_the_field_and_what_it_may_be(
    tmp_path: Path, request_: Any, words: str
) -> None:
    agent = agent_of(schedules(), mock.Mock(), SlotClock.shared(10.0), tmp_path / "progress")
    method = type(request_).__name__.removesuffix("Request")
    context = mock.Mock(abort=mock.Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        getattr(HostService(agent, lambda _: ROOT), method)(request_, context)
    agent.paces.close()
    code, said = context.abort.call_args.args
    assert code == INVALID
    assert words in said


def test_a_refusal_of_many_fields_is_short(tmp_path: Path) -> None:
    many = pb.SetRatesRequest(lease_ms=1, rates=[pb.FlowRate(mbps=-1)] * 1000)
    with pytest.raises(BadInput) as refused:
        checked(requests.SetRates, many)
    assert len(str(refused.value)) < 2000
    assert str(refused.value).endswith("more")


def test_watchers_that_do_not_read_keep_nobody_from_an_answer(served: Served) -> None:
    """As many as there can be, with more feedback than their streams hold."""
    bound = service.PLACES.streams
    users = range(ANN, ANN + bound.of_all // bound.of_one)
    streams = [served.watch(user) for user in users for _ in range(bound.of_one)]
    streams += [served.watch(ROOT) for _ in range(bound.of_one)]
    for user, flow in ((ROOT, OF_ROOT), (BOB, OF_BOB)):
        assert served.set_schedule(user, flow) == OK
        for _ in range(FEEDBACKS):
            served.agent.deliver(flow)
    streams += [served.watch(ROOT) for _ in range(bound.of_operators - bound.of_one)]
    for user in (BOB, ROOT) * 10:
        assert served.status(user, "ListJobs", pb.ListJobsRequest()) == OK
    for user in (ROOT, ANN, NOBODY):
        with pytest.raises(grpc.RpcError) as refused:
            served.watch(user)
        assert refused.value.code() == EXHAUSTED  # type: ignore[attr-defined]
    for stream in streams:
        stream.cancel()


def test_calls_of_a_user_without_a_message_leave_room_for_root_and_other_users(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MESSAGE_S", 1e4)
    over = 20
    nobody = (("user", str(NOBODY)),)

    async def test() -> None:
        for method, bound in (
            ("GetStatus", service.PLACES.calls.of_one),
            ("WatchFeedback", service.PLACES.streams.of_one),
        ):
            path = f"/entrain.host.v1.Host/{method}"
            async with silent(served.address, path, bound + over, metadata=nobody) as held:
                await held.until(lambda ended: len(ended) == over)
                assert {code for code, _ in held.statuses} == {EXHAUSTED}
                assert f"user {NOBODY} has {bound} " in held.statuses[0][1]
                for user in (ROOT, ANN):
                    asked = pb.ListJobsRequest()
                    assert await asyncio.to_thread(served.status, user, "ListJobs", asked) == OK
                    stream = await asyncio.to_thread(served.watch, user)
                    stream.cancel()
                assert len(held.statuses) == over

    asyncio.run(test())


def test_feedback_goes_to_root_and_to_whom_the_flow_belongs(served: Served) -> None:
    for user, flow in ((ANN, OF_ANN), (BOB, OF_BOB)):
        assert served.set_schedule(user, flow) == OK
    streams = {user: served.watch(user) for user in (ROOT, ANN, BOB)}
    for flow in FLOWS:
        served.agent.deliver(flow)
    ports = {user: next(stream).flow.source_port for user, stream in streams.items()}
    assert ports == {ROOT: OF_ROOT.source_port, ANN: OF_ANN.source_port, BOB: OF_BOB.source_port}
    for stream in streams.values():
        stream.cancel()


def test_sockets_are_not_served_in_a_directory_that_others_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    agents.chmod(0o777)  # whatever the umask
    monkeypatch.setattr(service, "_RUNTIME", agents)
    monkeypatch.setattr(service, "RECORDS", tmp_path)
    with Record("agent", records=tmp_path) as record:
        agent: Any = SimpleNamespace(record=record)
        with (
            pytest.raises(EntrainError, match=f"{agents}: other users can change it"),
            service.serving(agent, f"unix:{agents}/eth0.sock"),
        ):
            pass
    assert list(agents.iterdir()) == []


def _agent(*options: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hostbpf", "--interface", "lo", *options]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, user=user)


@pytest.mark.parametrize(
    "options",
    [
        ["--listen", ":99999"],
        ["--listen", "127.0.0.1:0", "--allow-users"],
        ["--listen", "0.0.0.0:0"],
        ["--certificates", "certs", "h1"],
    ],
)
def test_the_agent_refuses_such_an_address(options: list[str]) -> None:
    done = _agent(*options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("entrain-agent: ")
    assert len(done.stderr.splitlines()) == 1


def test_an_ordinary_user_is_told_what_the_agent_needs() -> None:
    done = _agent(user=NOBODY if os.getuid() == 0 else None)
    assert (done.returncode, done.stdout) == (1, "")
    assert "root" in done.stderr and "sudo" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_with_certificates_operators_command_and_other_hosts_only_read(
    tmp_path: Path,
) -> None:
    issue(dumbbell(hosts_per_side=1), tmp_path, days=1)
    agent = BareAgent(tmp_path / "progress")

    def add(server: Any) -> None:
        add_HostServicer_to_server(HostService(agent, service.as_root), server)  # type: ignore[arg-type]

    request = pb.SetJobRequest(job=3, params=pb.Params(slope=1, intercept=1))
    with rpc.serving(add, "127.0.0.1:0", 1, identity_of(tmp_path, "h1"), who=service.certified) as port:

        def call(identity: str, method: str = "SetJob", request: Any = request) -> grpc.StatusCode:
            own = identity_of(tmp_path, identity)
            with open_channel(grpc, f"127.0.0.1:{port}", (), own, "h1") as channel:
                try:
                    getattr(HostStub(channel), method)(request, timeout=patience(10))
                except grpc.RpcError as error:
                    code: grpc.StatusCode = error.code()
                    return code
            return OK

        assert call("h2") == DENIED
        assert agent.params == {}
        assert call("h2", "ListJobs", pb.ListJobsRequest()) == OK
        assert call(OPERATORS) == OK
        assert agent.params.keys() == {3}
