"""The agent: its API, one per interface, and what its death leaves behind (nothing)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from ebpf import TypedMap
from hostbpf.controls import DIRECTORY
from hostbpf.flow import KEY, flow_key, netns_cookie
from hostbpf.rates.enforcers import choose, kernel_has
from hostbpf.rates.schedules import SCHEDULE, pinned_schedules
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc import agent_pb2_grpc as rpc
from machine.patience import patience
from machine.record import clean_stale, records
from tests.hostbpf.conftest import Connection, Pair
from tests.hostbpf.taps import wait_until
from wire.flow import Flow

pytestmark = [pytest.mark.root, pytest.mark.sockets]
ROOT = Path(__file__).parents[3]


@dataclass
class Started:
    """A running agent: its process, and what it said when it was ready."""

    process: subprocess.Popen[str]
    ready: str
    stub: rpc.HostStub


@pytest.fixture
def start(pair: Pair, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts agents of hosts of the pair; they are ended with the test."""
    started: list[Started] = []

    def run(netns: str, *options: str, address: str | None = "") -> Started:
        """`address` None: the agent's default; empty: one of the test's own."""
        command = [sys.executable, "-m", "hostbpf", "--interface", "eth0", "--netns", netns]
        if address == "":
            address = f"unix:{tmp_path}/agent-{len(started)}.sock"
            command += ["--listen", address]
        process = subprocess.Popen(
            [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        channel = grpc.insecure_channel(address or "unix:/run/entrain/agents/eth0.sock")
        result = Started(process, process.stdout.readline(), rpc.HostStub(channel))
        started.append(result)
        return result

    yield run
    for each in started:
        each.process.terminate()
        each.process.communicate(timeout=patience(100))


def message(flow: Flow) -> pb.Flow:
    return pb.Flow(
        source=flow.source,
        source_port=flow.source_port,
        destination=flow.destination,
        destination_port=flow.destination_port,
    )


def test_schedule_is_announced_and_feedback_arrives(
    pair: Pair, connect: Callable[..., Connection], start: Callable[..., Started]
) -> None:
    # Slots of a second: a schedule of 30 s that no delay of the test outlasts.
    sender, receiver = (start(netns, "--slot-ms", "1000") for netns in (pair.a, pair.b))
    assert sender.ready.startswith("ready"), sender.process.communicate()[1]
    assert receiver.ready.startswith("ready"), receiver.process.communicate()[1]
    connection = connect("slot_cubic")
    flow = Flow.of(connection.sender)
    watch = sender.stub.WatchFeedback(pb.WatchFeedbackRequest(), timeout=patience(60))
    assert ("subscribed", "true") in watch.initial_metadata()
    sender.stub.SetSchedule(pb.SetScheduleRequest(flow=message(flow), rates_mbps=[200.0] * 30))

    def answered() -> bool:
        connection.transfer(100_000)
        return bool(sender.stub.GetStatus(pb.GetStatusRequest()).carriers["received_feedback"])

    wait_until(answered)
    feedback = next(iter(watch))
    watch.cancel()
    assert (
        Flow(
            feedback.flow.source,
            feedback.flow.source_port,
            feedback.flow.destination,
            feedback.flow.destination_port,
        )
        == flow
    )
    assert len(feedback.slots) == 10
    status = sender.stub.GetStatus(pb.GetStatusRequest())
    assert status.flows == 1
    assert status.carrier_bytes > 0
    assert receiver.stub.GetStatus(pb.GetStatusRequest()).carriers["received"] >= 1
    sender.stub.ClearSchedule(pb.ClearScheduleRequest(flow=message(flow)))
    assert sender.stub.GetStatus(pb.GetStatusRequest()).flows == 0


def test_rates_that_nobody_renews_end_within_their_lease(
    pair: Pair, connect: Callable[..., Connection], start: Callable[..., Started]
) -> None:
    agent = start(pair.a, "--slot-ms", "100", "--link-mbps", "1000")
    assert agent.ready.startswith("ready"), agent.process.communicate()[1]
    connection = connect("slot_cubic")
    flow = Flow.of(connection.sender)
    gone = flow._replace(source_port=1)
    rates = [pb.FlowRate(flow=message(each), mbps=0) for each in (flow, gone)]
    lease_ns = 400_000_000
    before_ns = time.monotonic_ns()
    (refused,) = agent.stub.SetRates(pb.SetRatesRequest(lease_ms=lease_ns / 1e6, rates=rates)).refused
    after_ns = time.monotonic_ns()
    assert refused.flow.source_port == gone.source_port
    with pinned_schedules(DIRECTORY) as found:
        schedule = TypedMap(found, KEY, SCHEDULE)[flow_key(flow, netns_cookie(pair.a))]
    end_ns = schedule.start_ns + schedule.slots * schedule.slot_ns
    assert before_ns + 3 * schedule.slot_ns <= end_ns <= after_ns + lease_ns
    assert len(connection.transfer(1_000_000)) == 1_000_000  # at rate 0 nothing would arrive
    with pytest.raises(grpc.RpcError, match="lease_ms 50: must be from one slot"):
        agent.stub.SetRates(pb.SetRatesRequest(lease_ms=50, rates=rates))


_CALLS = """
import sys, grpc
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.agent_pb2_grpc import HostStub
flow = pb.Flow(source=sys.argv[2], source_port=int(sys.argv[3]), destination=sys.argv[4],
               destination_port=int(sys.argv[5]))
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = HostStub(channel)
    for call, request in (
        (stub.GetStatus, pb.GetStatusRequest()),
        (stub.SetSchedule, pb.SetScheduleRequest(flow=flow, rates_mbps=[0.0])),
    ):
        try:
            call(request, timeout=20)
            print("OK")
        except grpc.RpcError as error:
            print(error.code().name)
"""


def calls_of_nobody(address: str, flow: Flow) -> list[str]:
    """How a status and a rate of 0 for `flow` end when an ordinary user asks for them."""
    command = [sys.executable, "-c", _CALLS, address, *map(str, flow[:4])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, user=65534)
    return done.stdout.split()


def test_by_default_root_alone_commands_the_agent_and_users_their_own_flows_if_let_in(
    pair: Pair, connect: Callable[..., Connection], start: Callable[..., Started]
) -> None:
    connection = connect("reno")
    flow = Flow.of(connection.sender)
    closed = start(pair.a, address=None)
    address = closed.ready.partition("grpc=")[2].split()[0]
    assert address == "unix:/run/entrain/agents/eth0.sock"
    path = Path(address.removeprefix("unix:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert calls_of_nobody(address, flow) == ["UNAVAILABLE"] * 2
    closed.process.terminate()
    closed.process.wait()
    assert not path.exists()
    opened = start(pair.a, "--allow-users", address=None)
    assert calls_of_nobody(address, flow) == ["OK", "PERMISSION_DENIED"]
    assert opened.process.poll() is None


def test_jobs_are_shared_by_the_hosts_of_a_machine(pair: Pair, start: Callable[..., Started]) -> None:
    first, second = start(pair.a), start(pair.b)
    params = pb.Params(slope=1.5, intercept=0.5, total_bytes=1000, gap_ms=20)
    second.stub.SetJob(pb.SetJobRequest(job=3, params=params))
    (job,) = first.stub.ListJobs(pb.ListJobsRequest()).jobs
    assert (job.job, job.params) == (3, params)
    first.stub.RemoveJob(pb.RemoveJobRequest(job=3))
    assert not second.stub.ListJobs(pb.ListJobsRequest()).jobs


def test_bad_requests_are_refused_by_name(pair: Pair, start: Callable[..., Started]) -> None:
    agent = start(pair.a, "--link-mbps", "100")
    flow = pb.Flow(source="10.77.0.1", source_port=1, destination="10.77.0.2", destination_port=2)
    requests: list[tuple[Callable[[], object], str]] = [
        (
            lambda: agent.stub.SetSchedule(pb.SetScheduleRequest(flow=flow, rates_mbps=[101])),
            "the link's 100",
        ),
        (lambda: agent.stub.SetSchedule(pb.SetScheduleRequest(flow=flow, rates_mbps=[-1])), "rates_mbps[0]"),
        (
            lambda: agent.stub.SetSchedule(pb.SetScheduleRequest(flow=flow, slot=5, rates_mbps=[1])),
            "have passed",
        ),
        (lambda: agent.stub.ClearSchedule(pb.ClearScheduleRequest(flow=flow)), "has no schedule"),
        (lambda: agent.stub.RemoveJob(pb.RemoveJobRequest(job=77)), "job 77: unknown"),
        (lambda: agent.stub.SetJob(pb.SetJobRequest(job=1, params=pb.Params(slope=1))), "intercept"),
    ]
    for request, words in requests:
        with pytest.raises(grpc.RpcError) as caught:
            request()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        assert words in caught.value.details()  # type: ignore[attr-defined]


def test_enforcer_is_chosen_or_told_and_reported(pair: Pair, start: Callable[..., Started]) -> None:
    status = start(pair.a).stub.GetStatus(pb.GetStatusRequest())
    assert status.enforcer == str(choose())
    assert status.enforcer_reason == choose().reason
    forced = start(pair.b, "--enforcer", "pacing")
    assert forced.stub.GetStatus(pb.GetStatusRequest()).enforcer == "pacing"
    flow = pb.Flow(
        source="10.77.0.2", source_port=1, destination="10.77.0.1", destination_port=2, protocol=17
    )
    with pytest.raises(grpc.RpcError) as caught:
        forced.stub.SetSchedule(pb.SetScheduleRequest(flow=flow, rates_mbps=[1]))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]
    assert "UDP does not keep to schedules" in caught.value.details()  # type: ignore[attr-defined]


def test_enforcer_that_the_kernel_lacks_is_an_error(pair: Pair, start: Callable[..., Started]) -> None:
    if kernel_has("edt"):
        pytest.skip("this kernel has fq")
    agent = start(pair.a, "--enforcer", "edt")
    assert "this kernel lacks the qdisc fq" in agent.process.communicate()[1]
    assert agent.process.returncode == 1


def test_second_agent_and_missing_interface_say_so(pair: Pair, start: Callable[..., Started]) -> None:
    first = start(pair.a)
    second = start(pair.a)
    assert second.ready == ""
    assert f"serves it already (process {first.process.pid})" in second.process.communicate()[1]
    assert second.process.returncode == 1
    other = start(pair.b, "--interface", "eth7")
    assert "interface eth7: there is none; there are lo, eth0" in other.process.communicate()[1]
    assert other.process.returncode == 2


def test_killed_agent_leaves_nothing_and_another_one_starts(
    pair: Pair, connect: Callable[..., Connection], start: Callable[..., Started]
) -> None:
    first = start(pair.a)
    connection = connect("slot_cubic")
    flow = Flow.of(connection.sender)
    first.stub.SetSchedule(pb.SetScheduleRequest(flow=message(flow), rates_mbps=[0.1] * 32))
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    connection.transfer(5_000_000)  # at 0.1 Mbit/s this would take minutes
    second = start(pair.a)
    assert second.ready.startswith("ready"), second.process.communicate()[1]
    assert second.stub.GetStatus(pb.GetStatusRequest()).flows == 0
    connect("slot_cubic").transfer(1_000_000)


def owns_setting(agent: Started) -> bool:
    """Whether an agent has changed the setting, which a thread of it does after the first schedule."""
    pid = str(agent.process.pid)
    return any(
        owner.name == pid and any(each.kind == "sysctl" for each in owned) for _, owner, owned, _ in records()
    )


@pytest.mark.parametrize("cleaner", ["entrain clean", "the next agent"])
def test_killed_agents_setting_and_record_are_removed(
    pair: Pair, connect: Callable[..., Connection], start: Callable[..., Started], cleaner: str
) -> None:
    setting = ("cat", "/proc/sys/net/ipv4/tcp_slow_start_after_idle")
    assert pair.run(pair.a, *setting) == "1\n"
    agent = start(pair.a)
    flow = Flow.of(connect("slot_cubic").sender)
    agent.stub.SetSchedule(pb.SetScheduleRequest(flow=message(flow), rates_mbps=[10.0] * 32))
    wait_until(lambda: owns_setting(agent))
    assert pair.run(pair.a, *setting) == "0\n"
    owned = [path for path, owner, _, _ in records() if owner.name == str(agent.process.pid)]
    assert len(owned) == 1
    agent.process.kill()
    agent.process.wait()
    if cleaner == "entrain clean":
        clean_stale()
        assert not owned[0].exists()
    else:
        other = start(pair.a)
        assert other.ready.startswith("ready"), other.process.communicate()[1]
        assert [owner.name for path, owner, _, _ in records() if path == owned[0]] == [str(other.process.pid)]
    assert pair.run(pair.a, *setting) == "1\n"


def test_the_last_agent_of_a_namespace_restores_the_setting(
    pair: Pair, connect: Callable[..., Connection], start: Callable[..., Started]
) -> None:
    setting = ("cat", "/proc/sys/net/ipv4/tcp_slow_start_after_idle")
    assert pair.run(pair.a, *setting) == "1\n"
    agents = [start(pair.a, "--interface", interface) for interface in ("eth0", "lo")]
    for agent in agents:
        flow = Flow.of(connect("slot_cubic").sender)
        agent.stub.SetSchedule(pb.SetScheduleRequest(flow=message(flow), rates_mbps=[10.0] * 32))
    wait_until(lambda: all(map(owns_setting, agents)))
    for agent, left in zip(agents, ("0\n", "1\n"), strict=True):
        assert pair.run(pair.a, *setting) == "0\n"
        agent.process.terminate()
        assert agent.process.wait(patience(100)) == 0
        assert pair.run(pair.a, *setting) == left


def test_agents_that_start_at_once_share_the_controls(pair: Pair, tmp_path: Path) -> None:
    places = [(netns, interface) for netns in (pair.a, pair.b) for interface in ("eth0", "lo")]
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "hostbpf", "--interface", interface, "--netns", netns),
                *("--listen", f"unix:{tmp_path}/at-once-{number}.sock"),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, (netns, interface) in enumerate(places)
    ]
    lines = [process.stdout.readline() for process in processes if process.stdout is not None]
    for process in processes:
        process.terminate()
    errors = [process.communicate(timeout=patience(100))[1] for process in processes]
    assert all(line.startswith("ready") for line in lines), errors
    assert [process.returncode for process in processes] == [0] * 4


def test_metrics(pair: Pair, start: Callable[..., Started]) -> None:
    schedules = ("--schedule", "--link-mbps", "100", "--loads", "host-only")
    agent = start(pair.a, "--metrics-port", "0", *schedules)
    address = agent.ready.partition("metrics=")[2].split()[0]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=patience(60)) as answer:
        text = answer.read().decode()
    assert 'entrain_scheduling_total{event="decisions"} 0' in text
    assert "# TYPE entrain_skew_seconds gauge" in text
    assert "# TYPE entrain_carriers_total counter" in text
    assert 'entrain_carriers_total{event="sent"} 0' in text
