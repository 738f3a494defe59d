"""The coordinator of coflow policies, with agents that are objects of the test."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from entrain.coordinator import (
    MBPS,
    RENEWALS,
    CoflowKey,
    Coordinator,
    Decider,
    Transfer,
    seen,
)
from entrain.policies.coflow import Coordinated
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.calls import flow_of, message_of
from machine.errors import EntrainError
from schedulers.coflow.parrot import Parrot
from schedulers.coflow.rivals import LeastCompletedCoflows
from schedulers.coflow.view import View
from schedulers.slots.roles import Role
from tests.attempts import undisturbed
from wire.flow import Flow

PUSH, PULL = Role.AGGREGATION, Role.BROADCAST


def flow(source: int, destination: int, port: int = 1) -> Flow:
    return Flow(f"10.0.0.{source}", port, f"10.0.0.{destination}", 7000)


def links_of(each: Flow) -> tuple[str, str]:
    return f"up {each.source}", f"down {each.destination}"


def capacity(hosts: int, rate: float = 1.0) -> dict[str, float]:
    return {f"{way} 10.0.0.{host}": rate for host in range(1, hosts + 1) for way in ("up", "down")}


def transfer(
    each: Flow,
    job: str,
    *,
    iteration: int = 0,
    total: int = 100,
    ready: int = -1,
    done: int = 0,
    role: int = PUSH,
) -> Transfer:
    ready = total if ready < 0 else ready
    return Transfer(each, job, role, iteration, total, ready, done, iteration * total + done)


def test_a_coflow_is_what_the_flows_of_a_role_send_in_an_iteration() -> None:
    found = seen(
        [
            transfer(flow(1, 3), "a", iteration=2, done=40),
            transfer(flow(2, 3), "a", iteration=2, ready=0),  # its rank computes: it counts, and sends later
            transfer(flow(3, 1), "a", iteration=1, done=100, role=PULL),
            transfer(flow(3, 2), "a", iteration=1, done=100, role=PULL),
        ]
    )
    (coflow,) = found.coflows
    assert coflow.key == CoflowKey("a", PUSH, 2)
    assert coflow.remaining == (60, 100)
    assert found.completed == {"a": 4}  # two pushes, two pulls
    assert found.sent == {"a": 240 + 200 + 200 + 200}


def test_a_coflow_is_complete_when_the_last_of_its_flows_is() -> None:
    first, second = flow(1, 3), flow(2, 3)
    late = seen([transfer(first, "a", iteration=1, ready=0), transfer(second, "a", done=30)])
    assert late.completed == {"a": 0}
    assert late.coflows[0].key == CoflowKey("a", PUSH, 0)
    assert late.coflows[0].remaining == (0, 70)
    done = seen([transfer(first, "a", iteration=1, ready=0), transfer(second, "a", done=100)])
    assert done.completed == {"a": 1}
    assert done.coflows == ()  # the next one is not valid before somebody can send
    begun = seen([transfer(first, "a", iteration=1), transfer(second, "a", done=100)])
    assert begun.coflows[0].remaining == (100, 100)


class Recorded(Parrot):
    """Parrot, and the views that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.views: list[View] = []
        self.review = math.inf

    def allocate(self, view: View) -> None:
        self.views.append(view)
        super().allocate(view)

    def review_after(self, view: View) -> float:
        return self.review


MOTIVATING = {
    "J1": {PUSH: ((3, 3), (2, 2)), PULL: ((6, 6), (5, 5))},
    "J2": {PUSH: ((1, 1), (1, 1)), PULL: ((4, 4), (3, 3))},
}
"""Parrot's example (2.4): coflows C1 and C2, and C3 and C4; megabytes from machine i to machine j."""


def test_the_papers_example_has_its_event_times() -> None:
    """Flows send at the rates that the coordinator decides, over links of 1 MB/s."""
    left: dict[tuple[str, int, int, int], float] = {
        (job, role, i, j): 1e6 * matrix[i][j]
        for job, coflows in MOTIVATING.items()
        for role, matrix in coflows.items()
        for i in (0, 1)
        for j in (0, 1)
    }
    total = {key: round(size) for key, size in left.items()}
    flows = {key: flow(key[2] + 1, key[3] + 1, port) for port, key in enumerate(left)}

    def transfers() -> list[Transfer]:
        pulling = {job for job in MOTIVATING if not any(left[key] for key in left if key[:2] == (job, PUSH))}
        return [
            Transfer(
                flows[key],
                key[0],
                key[1],
                0,
                total[key],
                total[key] if key[1] == PUSH or key[0] in pulling else 0,
                total[key] - round(left[key]),
                total[key] - round(left[key]),
            )
            for key in left
        ]

    decider = Decider(Parrot(), links_of, capacity(2, 1e6))
    now, ends = 0.0, {}
    while any(left.values()):
        found = seen(transfers())
        rates = decider.rates(found, now)
        keys = {each.key: [key for key in left if flows[key] in each.flows] for each in found.coflows}
        until = {
            coflow: max(left[key] / rates[flows[key]] for key in some if left[key])
            for coflow, some in keys.items()
        }
        first = min(until.values())
        for coflow, some in keys.items():
            for key in some:
                sent = rates.get(flows[key], 0.0) * first
                left[key] = 0.0 if until[coflow] == first else max(left[key] - sent, 0.0)
            if until[coflow] == first:
                ends[coflow.job, coflow.role] = now + first
        now += first
    assert ends == {
        ("J2", PUSH): pytest.approx(4.0),
        ("J2", PULL): pytest.approx(4.0 + 8.0 / 0.9),
        ("J1", PUSH): pytest.approx(16.0),
        ("J1", PULL): pytest.approx(28.0),
    }


def test_a_policy_decides_when_coflows_come_and_go_and_when_it_asks_for_it() -> None:
    policy = Recorded()
    decider = Decider(policy, links_of, capacity(3))
    one = transfer(flow(1, 3), "a")
    decider.rates(seen([one]), 0.0)
    decider.rates(seen([one._replace(done=50)]), 1.0)
    assert len(policy.views) == 1
    policy.review = 5.0
    decider.rates(seen([one, transfer(flow(2, 3), "b")]), 2.0)
    decider.rates(seen([one, transfer(flow(2, 3), "b")]), 6.0)
    assert len(policy.views) == 2
    decider.rates(seen([one, transfer(flow(2, 3), "b")]), 7.0)
    assert len(policy.views) == 3
    assert decider.rates(seen([transfer(flow(2, 3), "b", done=100)]), 8.0) == {}


def test_flows_that_have_sent_everything_are_not_limited_any_more() -> None:
    decider = Decider(LeastCompletedCoflows(), links_of, capacity(4))
    two = [transfer(flow(1, 3), "a"), transfer(flow(2, 4), "a")]
    assert decider.rates(seen(two), 0.0).keys() == {flow(1, 3), flow(2, 4)}
    two[0] = two[0]._replace(done=100)
    assert decider.rates(seen(two), 1.0).keys() == {flow(2, 4)}


class Refused(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """What a call raises whose agent does not answer."""

    def details(self) -> str:
        return "no answer"


class FakeAgent:
    """An agent whose flows never get on; it keeps the leases that it was told."""

    def __init__(self, transfers: list[Transfer], after: Callable[[], None]) -> None:
        self.transfers, self._after = transfers, after
        self.calls: list[str] = []
        self.asked = threading.Event()
        self.rates: list[dict[Flow, float]] = []
        self.leases_ms: set[float] = set()
        self.dead = False
        self.ListTransfers = _Method(self._list)
        self.SetRates = _Method(self._set)

    def _list(self, request: Any) -> Any:
        self._answer("ListTransfers")
        return pb.Transfers(
            transfers=[
                pb.Transfer(**{**each._asdict(), "flow": message_of(each.flow)}) for each in self.transfers
            ]
        )

    def _set(self, request: Any) -> Any:
        self._answer("SetRates")
        self.leases_ms.add(request.lease_ms)
        self.rates.append({flow_of(each.flow): each.mbps for each in request.rates})
        return pb.SetRatesResponse()

    def _answer(self, method: str) -> None:
        self.calls.append(method)
        self.asked.set()
        self._after()
        if self.dead:
            raise Refused


class _Method:
    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer

    def future(self, request: Any, timeout: float) -> Any:
        return _Future(lambda: self._answer(request))


class _Future:
    def __init__(self, result: Callable[[], Any]) -> None:
        self.result = result


def coordinated(
    agents: dict[str, FakeAgent], decider: Decider, stop: threading.Event, interval_s: float = 0.04
) -> Coordinator:
    coordinator = Coordinator(agents, decider, interval_s)  # type: ignore[arg-type]
    coordinator.run(stop)
    return coordinator


def test_rates_are_renewed_twice_an_interval_for_an_interval() -> None:

    def decisions_and_renewals() -> tuple[int, int]:
        stop = threading.Event()

        def enough() -> None:
            if len(agent.rates) >= 5:
                stop.set()

        agent = FakeAgent([transfer(flow(1, 2), "a")], enough)
        decider = Decider(Parrot(), links_of, capacity(2, 8e6))
        coordinator = coordinated({"h1": agent}, decider, stop, 0.2)
        assert agent.leases_ms == {200.0}
        assert agent.rates[0] == {flow(1, 2): pytest.approx(8e6 / MBPS)}
        assert coordinator.told.updates == len(agent.rates)
        assert coordinator.told.unanswered == 0
        return agent.calls.count("ListTransfers"), len(agent.rates)

    # a coordinator that had no processor for some turns decides early
    undisturbed(decisions_and_renewals, lambda found: found[0] <= found[1] / RENEWALS + 1)


def test_an_agent_that_does_not_answer_does_not_stop_the_others() -> None:
    stop = threading.Event()

    def enough() -> None:
        other.dead = len(agent.rates) >= 1
        if len(agent.rates) >= 5:
            stop.set()

    agent = FakeAgent([transfer(flow(1, 3), "a")], enough)
    other = FakeAgent([transfer(flow(2, 3), "b")], lambda: None)
    decider = Decider(LeastCompletedCoflows(), links_of, capacity(3, 8e6))
    coordinator = coordinated({"h1": agent, "h2": other}, decider, stop)
    assert len(agent.rates) >= 5
    assert coordinator.told.unanswered > 0
    assert list(coordinator.told.events) == ["the agent of h2 does not answer: no answer"]
    # What the silent agent said last still counts: its coflow keeps its place.
    assert agent.rates[-1] == agent.rates[0]


class Broken(Parrot):
    """A policy that raises."""

    def allocate(self, view: View) -> None:
        raise ZeroDivisionError("of the test")


def test_a_coordinator_that_fails_fails_the_run(tmp_path: Path) -> None:
    """Else the run would go on as plain TCP, and count as one of the policy."""
    agent = FakeAgent([transfer(flow(1, 2), "a")], lambda: None)
    decider = Decider(Broken(), links_of, capacity(2))
    session = Coordinated(Coordinator({"h1": agent}, decider, 0.04), {}, tmp_path)  # type: ignore[dict-item]
    with session.working():
        agent.asked.wait(60)
        with pytest.raises(EntrainError, match="the coordinator failed: ZeroDivisionError"):
            session.report()
