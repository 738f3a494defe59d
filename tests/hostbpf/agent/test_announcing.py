"""A host's agent alone announces schedules and takes them back, wherever loads are learnt."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from hostbpf.carriers.carriers import Feedback
from hostbpf.clock import SlotClock
from hostbpf.scheduling.loads import HostOnly, InBand, LoadSource
from hostbpf.scheduling.monitor import Direction, FlowProgress, Phase
from hostbpf.scheduling.thread import HostScheduler
from machine.errors import EntrainError
from schedulers.slots.roles import Role
from tests.hostbpf.agent.in_memory import Map, agent_of, schedules
from wire.flow import Flow
from wire.slot_header import LANES, Kind, SlotHeader

CLOCK = SlotClock.shared(3_600_000.0)  # one slot lasts longer than the test
LINE = 62_500_000.0
FLOW = Flow("10.0.0.1", 20000, "10.0.0.2", 7000)


class Recorded:
    """The kernel side of announcing: what it is told, and whether the flow was limited then."""

    def __init__(self, schedules: Map) -> None:
        self.schedules = schedules
        self.told: list[str] = []
        self.refuses = False

    def announce(self, flow: Flow) -> int:
        self.told.append("announce")
        return 1

    def probe(self, flow: Flow) -> None:
        self.told.append(f"carrier, {len(self.schedules)} limited")
        if self.refuses:
            raise EntrainError("network is down")

    def withdraw(self, flow: Flow) -> None:
        self.told.append("withdraw")


class Asked:
    """Carriers that only ask: there is no other way to send one."""

    deliver: Callable[[Feedback], None]

    def probe(self, flow: Flow) -> None:
        self.deliver(Feedback(flow, SlotHeader(kind=Kind.FEEDBACK, base_slot=CLOCK.slot()), (0,) * LANES))


def in_band() -> LoadSource:
    asked = Asked()
    source = InBand(asked, LINE, lambda _: None)
    asked.deliver = source.deliver
    return source


class Host:
    """An agent and its scheduler, with a flow's progress from the test."""

    def __init__(self, source: LoadSource) -> None:
        self.refused: Counter[str] = Counter()
        self.flows: list[FlowProgress] = []
        self.schedules = schedules()
        self.carriers = Recorded(self.schedules)
        self.agent = agent_of(self.schedules, self.carriers, CLOCK)
        self.scheduler = HostScheduler(self, source, self.agent, lambda: CLOCK, LINE, wait=time.sleep)

    def read(self) -> list[FlowProgress]:
        return self.flows

    def round(self, *flows: FlowProgress) -> list[str]:
        """What is announced in a round with this progress."""
        self.flows, self.carriers.told = list(flows), []
        self.scheduler.round()
        return self.carriers.told


def sending(done: int = 0) -> FlowProgress:
    total, phase = 10_000_000, Phase.COMMUNICATING
    return FlowProgress(
        "job", 1, FLOW, Direction.SENT, Role.FREE, 0, phase, 0, total, total, done, done, 0, 0
    )


@pytest.mark.parametrize("source", [in_band, lambda: HostOnly(LINE)], ids=["in-band", "host-only"])
def test_each_change_of_a_schedule_is_announced_once(source: Callable[[], LoadSource]) -> None:
    host = Host(source())
    assert host.round(sending()) == ["announce", "carrier, 1 limited"]
    assert host.round(sending(10_000_000)) == ["carrier, 1 limited"], "taken back; paced until it sends again"
    assert host.round(sending(10_000_000)) == []
    assert host.round() == ["withdraw"]
    assert not host.schedules


def test_a_carrier_that_cannot_be_sent_ends_no_round() -> None:
    """The flow's next packet announces instead."""
    host = Host(HostOnly(LINE))
    host.carriers.refuses = True
    host.round(sending())
    assert host.scheduler.counts["decisions"] == 1
    assert host.schedules


def test_a_flow_that_is_left_to_tcp_takes_its_announcement_back() -> None:
    host = Host(HostOnly(LINE))
    host.round(sending())
    host.carriers.told = []
    host.agent.release(FLOW)
    host.agent.release(FLOW)
    assert host.carriers.told == ["carrier, 0 limited"]
