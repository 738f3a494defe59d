"""Mutated requests to the four gRPC servers, each a process that runs as the product starts it.

Requests go over gRPC, as an operator's. A status that says nothing of the request (INTERNAL, UNKNOWN and the
like), a traceback in the server's log, or its end is an accident, and so is a refusal that changed something.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import p4r, p4r_grpc, rpc_status
from google.protobuf.message_factory import GetMessageClass

from controlplane import api_pb2 as api
from controlplane.client import NETWORKS, SOCKET
from hostbpf.clock import SlotClock
from hostbpf.rpc import agent_pb2 as agent_pb
from hostbpf.rpc import emulated_switch_pb2 as switch_pb
from hostbpf.rpc.calls import message_of
from machine.errors import EntrainError
from machine.packages import run_module
from machine.patience import patience
from machine.record import Record
from machine.tls import open_channel
from robustness.found import Found, of_tests
from robustness.mutations import mutated
from robustness.servers import LONG_SLOT_MS, START_S, Place, Server, free_port
from wire.flow import Flow

REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""How a server says that a request is wrong, or asks too much."""

SELDOM = {"Deploy": 0.02, "WatchLoads": 0.1, "ListDrops": 0.05, "WatchFlows": 0.02, "WatchFeedback": 0.02}
"""How often a server gets these requests (others: 1). Each asks every switch, or loads programs."""
USERS = 0.02
"""The part of the agent's requests that a user makes, whose refusals the agent slows down."""
AS_MEANT = 0.25
"""The part of the requests that are not mutated: they give a server something to do."""
MOST_JOBS = 3
"""Jobs of the cluster; of more, some are cancelled."""
RESET, READS, LOOKS = 2000, 0.1, 50
"""Of a switch: inputs until its program is set anew, the part that reads, and inputs between comparisons."""
STREAM_S = 0.2
"""Seconds (times `patience`) in which a stream has something to say, or has not."""
ANSWER_S = 60.0
"""Seconds (times `patience`) in which a call has to end."""
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
NETWORK = """
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
grpc_port = {port}

[cluster]
gpus_per_server = 1
strategy = "vclos"
"""


_NAMES = {status.value[0]: status.name for status in grpc.StatusCode}


class Refused(Exception):
    """A server has refused a request."""


@dataclass(frozen=True)
class Client:
    """Calls the methods of a service by name."""

    channel: Any
    service: Any

    def call(self, name: str, request: Any) -> Any:
        """Return the answer, or the first one of a stream (None if there is none). Raises Refused."""
        method = self.service.methods_by_name[name]
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        make = kind(
            f"/{self.service.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        try:
            if not method.server_streaming:
                return make(request, timeout=patience(ANSWER_S))
            answers = make(request, timeout=patience(STREAM_S))
            try:
                return next(answers, None)
            finally:
                answers.cancel()
        except grpc.RpcError as error:
            if method.server_streaming and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return None
            if error.code() in REFUSALS:
                raise Refused(error.details()) from error
            raise AssertionError(f"{error.code()}: {error.details()}") from error


@contextlib.contextmanager
def _serving(
    kind: Callable[[Place], contextlib.AbstractContextManager[Server]], tally: Found
) -> Iterator[Any]:
    """Within, a server of the product runs; yields the place, the server and an operator's channel."""
    with tempfile.TemporaryDirectory() as directory, Record("fuzz") as record:
        Path(directory).chmod(0o755)
        place = Place(Path(directory), record)
        with kind(place) as server:
            assert server.child is not None and server.child.log is not None
            with open_channel(grpc, server.address, _CHANNEL, server.operator, server.name) as channel:
                try:
                    grpc.channel_ready_future(channel).result(patience(START_S))
                except grpc.FutureTimeoutError:
                    raise server.child.failure(f"was not ready within {patience(START_S):g} s") from None
                yield place, server, channel
            try:
                server.child.check()
            except EntrainError as error:
                tally.accident(str(error))
            _look_at_log(server.child.log, tally)


def _look_at_log(path: Path, tally: Found) -> None:
    text = path.read_text(errors="replace", encoding="utf-8")
    if "Traceback" in text:
        tally.accident(text[text.index("Traceback") :][:2000])


def _draw(rng: random.Random, requests: Mapping[str, Any]) -> tuple[str, Any]:
    names = list(requests)
    [name] = rng.choices(names, [SELDOM.get(name, 1.0) for name in names])
    return name, _perhaps_mutated(rng, requests[name])


def _perhaps_mutated(rng: random.Random, message: Any) -> Any:
    return message if rng.random() < AS_MEANT else mutated(rng, message)


def agent(rng: random.Random, count: int, tally: Found) -> None:
    """Call every method of the agent of an interface in a network namespace, as root and as a user."""
    flow = message_of(Flow("10.0.0.1", 1, "10.0.0.2", 2))
    requests = {
        "GetStatus": agent_pb.GetStatusRequest(),
        "SetSchedule": agent_pb.SetScheduleRequest(flow=flow, rates_mbps=[1.0, 2.0]),
        "ClearSchedule": agent_pb.ClearScheduleRequest(flow=flow),
        "WatchFeedback": agent_pb.WatchFeedbackRequest(),
        "WatchFlows": agent_pb.WatchFlowsRequest(bin_ms=10),
        "SetJob": agent_pb.SetJobRequest(job=3, params=agent_pb.Params(slope=1, intercept=1)),
        "RemoveJob": agent_pb.RemoveJobRequest(job=3),
        "ListJobs": agent_pb.ListJobsRequest(),
        "SetPace": agent_pb.SetPaceRequest(
            job="a", pace=agent_pb.Pace(anchor_ns=1, period_ns=10_000_000, bound_ns=3)
        ),
        "ClearPace": agent_pb.ClearPaceRequest(job="a"),
        "ListStarts": agent_pb.ListStartsRequest(),
        "ListTransfers": agent_pb.ListTransfersRequest(),
        "SetRates": agent_pb.SetRatesRequest(lease_ms=100, rates=[agent_pb.FlowRate(flow=flow, mbps=5)]),
    }
    service = agent_pb.DESCRIPTOR.services_by_name["Host"]
    assert requests.keys() == set(service.methods_by_name)
    with (
        _serving(Place.agent, tally) as (place, server, channel),
        place.publishing("a"),
        place.as_user(server) as address,
        open_channel(grpc, address, _CHANNEL, None, "") as users,
    ):
        root, user = Client(channel, service), Client(users, service)
        for _ in range(count):
            name, asked = _draw(rng, requests)
            client = user if rng.random() < USERS else root
            with tally.trying(lambda n=name, a=asked: f"{n} {a}", Refused):  # type: ignore[misc]
                client.call(name, asked)


def emulated(rng: random.Random, count: int, tally: Found) -> None:
    """Ask and tell an emulated switch. What it refuses changes no load."""
    nobody = message_of(Flow("10.9.9.9", 1, "10.9.9.9", 2))
    hops = [
        switch_pb.Hop(flow=message_of(Flow("10.0.0.1", port, "10.0.0.2", 2)), port=1 + port % 2)
        for port in range(1, 5)
    ]
    clock = SlotClock.shared(LONG_SLOT_MS)
    with _serving(Place.emulated_for_anybody, tally) as (_, _, channel):
        client = Client(channel, switch_pb.DESCRIPTOR.services_by_name["EmulatedSwitch"])

        def loads(slot: int) -> list[list[int]]:
            asked = [switch_pb.Hop(flow=nobody, port=port) for port in (1, 2)]
            answer = client.call("FetchFeedback", switch_pb.FetchFeedbackRequest(slot=slot, hops=asked))
            return [list(link.load) for link in answer.loads]

        for _ in range(count):
            slot = clock.slot()
            plans = [switch_pb.Schedule(hop=hop, slot=slot, rates=[10] * 4) for hop in hops]
            requests = {
                "FetchFeedback": switch_pb.FetchFeedbackRequest(hops=hops, slot=slot),
                "UpdateSchedule": switch_pb.UpdateScheduleRequest(schedules=plans),
                "ForgetFlow": switch_pb.ForgetFlowRequest(flows=[hop.flow for hop in hops]),
            }
            name, asked = _draw(rng, requests)
            with tally.trying(lambda n=name, a=asked: f"{n} {a}"):  # type: ignore[misc]
                before = loads(slot)
                try:
                    client.call(name, asked)
                except Refused:
                    tally.refused += 1
                    assert loads(slot) == before, "what was refused has changed a load"


def controller(rng: random.Random, count: int, tally: Found) -> None:
    """Ask the controller of a cluster of softswitches that is up for all but to shut down."""
    requests = {
        name: request
        for name, request in of_tests("controlplane.test_roles").REQUESTS.items()
        if name != "Shutdown"
    }
    name = f"fuzz{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / f"{name}.toml"
        file.write_text(NETWORK.format(port=free_port()), encoding="utf-8")
        subprocess.run([*run_module("entrain.cli"), "up", str(file)], check=True, stdout=subprocess.DEVNULL)
        try:
            with open_channel(grpc, f"unix:{NETWORKS / name / SOCKET}", _CHANNEL, None, "") as channel:
                client = Client(channel, api.DESCRIPTOR.services_by_name["Controller"])
                for _ in range(count):
                    method, asked = _draw(rng, requests)
                    with tally.trying(lambda m=method, a=asked: f"{m} {a}", Refused):  # type: ignore[misc]
                        client.call(method, asked)
                    jobs = client.call("ListJobs", api.ListJobsRequest()).jobs
                    if len(jobs) > MOST_JOBS:
                        client.call("Cancel", api.CancelRequest(name=rng.choice(jobs).name))
                for log in (NETWORKS / name).rglob("*.log"):
                    _look_at_log(log, tally)
        finally:
            subprocess.run(
                [*run_module("entrain.cli"), "down", "--network", name], check=True, stdout=subprocess.DEVNULL
            )


class _Switch:
    """A switch with the tests' program, of which this process is the primary controller."""

    _KINDS = (
        p4r.TableEntry(),
        p4r.ActionProfileMember(),
        p4r.ActionProfileGroup(),
        p4r.PacketReplicationEngineEntry(),
        p4r.MeterEntry(),
        p4r.CounterEntry(),
        p4r.DirectCounterEntry(),
        p4r.RegisterEntry(),
    )

    def __init__(self, channel: Any) -> None:
        self._stub = p4r_grpc.P4RuntimeStub(channel)
        self._said: queue.Queue[Any] = queue.Queue()
        self._stream = self._stub.StreamChannel(iter(self._said.get, None))
        begin = p4r.StreamMessageRequest()
        begin.arbitration.election_id.low = 1
        self._said.put(begin)
        next(self._stream)
        self._harness = of_tests("softswitch.harness")

    def close(self) -> None:
        """End the stream."""
        self._said.put(None)

    def reset(self) -> None:
        """Set the program anew, without entries."""
        request = p4r.SetForwardingPipelineConfigRequest(config=self._harness.config())
        request.action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        request.election_id.low = 1
        self._stub.SetForwardingPipelineConfig(request)

    def write(self, updates: Sequence[Any]) -> list[str]:
        """Return the code of each update, OK or that of its refusal. An accident is an AssertionError."""
        request = p4r.WriteRequest(updates=updates)
        request.election_id.low = 1
        try:
            self._stub.Write(request, timeout=patience(ANSWER_S))
        except grpc.RpcError as error:
            codes = _codes(error)
            assert len(codes) == len(updates), error.details()
            return codes
        return ["OK"] * len(updates)

    def read(self, entity: Any) -> list[bytes]:
        """Return what there is. Raises Refused."""
        try:
            answers = self._stub.Read(p4r.ReadRequest(entities=[entity]), timeout=patience(ANSWER_S))
            return [there.SerializeToString() for answer in answers for there in answer.entities]
        except grpc.RpcError as error:
            if error.code() not in REFUSALS:
                _codes(error)
            raise Refused(error.details()) from error

    def state(self) -> list[bytes]:
        """Return all that controllers have written."""
        return [there for kind in self._KINDS for there in self.read(self._harness.entity(kind))]


def _codes(error: Any) -> list[str]:
    """Return the codes of a batch, of which some have failed. Raises AssertionError for any other status."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    said = f"{error.code()}: {error.details()}"
    assert error.code() == grpc.StatusCode.UNKNOWN and details is not None, said
    codes = []
    for packed in rpc_status.Status.FromString(details).details:
        status = p4r.Error()
        packed.Unpack(status)
        codes.append(_NAMES[status.canonical_code])
    assert "INTERNAL" not in codes and "UNKNOWN" not in codes, said
    return codes


def p4runtime(rng: random.Random, count: int, tally: Found) -> None:
    """Write to a switch, and read from it. What it refuses changes nothing."""
    harness = of_tests("softswitch.harness")
    mutants = of_tests("softswitch.p4runtime.test_server_fuzz")
    with (
        _serving(Place.softswitch, tally) as (_, _, channel),
        contextlib.closing(_Switch(channel)) as switch,
    ):
        for number in range(count):
            if number % RESET == 0:
                switch.reset()
            updates = [
                _perhaps_mutated(rng, harness.update(rng.choice(mutants.KINDS), mutants.message(rng)))
                for _ in range(rng.choice((1, 1, 1, 3)))
            ]
            with tally.trying(lambda u=updates: str(u), Refused):  # type: ignore[misc]
                if rng.random() < READS:
                    switch.read(updates[0].entity)
                    continue
                before = switch.state() if number % LOOKS == 0 else None
                codes = switch.write(updates)
                tally.refused += "OK" not in codes
                assert before is None or "OK" in codes or switch.state() == before, (
                    "what was refused has changed something"
                )
