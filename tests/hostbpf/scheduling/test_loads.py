"""Where hosts learn what others plan: in-band, from emulated switches, and host-only agree."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostbpf.carriers.carriers import Feedback
from hostbpf.emulated.client import Emulated, HopTable, PathsFile, PathTable
from hostbpf.emulated.server import PortTable, SwitchFile, serving
from hostbpf.scheduling.loads import RATE_UNIT, HostOnly, InBand, LoadSource, PathLoads, in_units, others
from machine.errors import EntrainError
from machine.patience import patience
from schedulers.compiled import Floats
from schedulers.slots.table import LoadTable
from tests.p4.load_table import Link
from tests.schedulers.slots.deciding import decide_one, whole_horizon
from wire.flow import Flow
from wire.slot_header import HEADROOM_OFFSET, LANES, Kind, SlotHeader, announcement

pytestmark = pytest.mark.sockets

ROOT = Path(__file__).parents[3]
ENOUGH_S = 60.0
LINE = 1000 * RATE_UNIT  # of the hosts' links, bytes/s
SCHEDULER = whole_horizon(0.06, LANES)

# h1 and h2 on the left, h3 and h4 on the right, one link between them
HOSTS = {"h1": "10.1.1.2", "h2": "10.1.2.2", "h3": "10.2.1.2", "h4": "10.2.2.2"}
CAPACITIES = {"left": {1: 1000, 2: 1000, 3: 700}, "right": {1: 1000, 2: 400, 3: 700}}
TO = {"h1": ("left", 1), "h2": ("left", 2), "h3": ("right", 1), "h4": ("right", 2)}
Hops = Sequence[tuple[str, int]]


def path(source: str, destination: str) -> Hops:
    """The switches' ports by which a flow leaves them."""
    last = TO[destination]
    return [last] if TO[source][0] == last[0] else [(TO[source][0], 3), last]


def flow(source: str, destination: str, port: int = 7000) -> Flow:
    return Flow(HOSTS[source], port, HOSTS[destination], 7000)


NAMES = {address: name for name, address in HOSTS.items()}


def path_of(each: Flow) -> Hops:
    return path(NAMES[each.source], NAMES[each.destination])


@dataclass
class Clock:
    """The present slot; it only goes on, so that what one example left has aged before the next."""

    slot: int = 1_000_000

    def present(self) -> int:
        return self.slot


CLOCK = Clock()


# --- the switches as P4 programs ---


@dataclass
class Fabric:
    """The links of programmable switches."""

    links: dict[tuple[str, int], Link] = field(
        default_factory=lambda: {
            (switch, port): Link(HEADROOM_OFFSET + capacity)
            for switch, ports in CAPACITIES.items()
            for port, capacity in ports.items()
        }
    )

    def carry(self, header: SlotHeader, hops: Hops) -> SlotHeader:
        for hop in hops:
            header = self.links[hop].pass_(header)
        return header


class Announcing:
    """The carriers of one host, as carrier.bpf.c makes and answers them."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.plans: dict[Flow, tuple[int, Floats]] = {}
        self.announced: dict[Flow, dict[int, int]] = defaultdict(dict)
        self.deliver: Callable[[Feedback], None] = lambda _: None
        self.probes: list[Flow] = []
        self.lose: set[Flow] = set()

    def probe(self, flow: Flow) -> None:
        self.probes.append(flow)
        base, (slot, rates) = CLOCK.slot, self.plans.get(flow, (0, np.zeros(0)))
        changes, parts = [], [0] * LANES
        for each in range(base, base + LANES):
            part = int(in_units(rates)[each - slot]) if 0 <= each - slot < len(rates) else 0
            changes.append(part - self.announced[flow].get(each, 0))
            self.announced[flow][each] = parts[each % LANES] = part
        header = self.fabric.carry(announcement(base, changes), path_of(flow))
        if flow not in self.lose:
            self.deliver(Feedback(flow, header, tuple(parts)))

    def put(self, flow: Flow, slot: int, rates: Floats) -> None:
        """As the agent does: with the schedule, send a carrier."""
        self.plans[flow] = slot, rates
        self.probe(flow)

    def end(self, flow: Flow) -> None:
        self.plans.pop(flow, None)
        self.probe(flow)
        self.announced.pop(flow)


# --- one run, with any source ---


@dataclass
class Host:
    """A host's scheduler: each flow decides once per slot, in order, as its path answers."""

    source: LoadSource
    put: Callable[[Flow, int, Floats], None] = lambda flow, slot, rates: None
    end: Callable[[Flow], None] = lambda flow: None
    line: float = LINE

    def decide(self, flows: Sequence[Flow], left: Mapping[Flow, float]) -> dict[Flow, Floats]:
        self.source.ask(flows, CLOCK.slot)
        schedules = {}
        for answer in self.source.answers(ENOUGH_S):
            rates = decide_one(SCHEDULER, self.line, answer.load, answer.headroom, 0.0, left[answer.flow])
            self.put(answer.flow, answer.slot, rates)
            self.source.tell(answer.flow, answer.slot, rates)
            schedules[answer.flow] = rates
        assert list(schedules) == list(flows)
        self.settle(flows)
        return schedules

    def settle(self, flows: Sequence[Flow]) -> None:
        """Return when the switches know what was told: a question comes behind it."""
        self.source.ask(flows, CLOCK.slot)
        assert len(list(self.source.answers(ENOUGH_S))) == len(flows)


Hosts = Mapping[str, Host]


@contextlib.contextmanager
def in_band(line: float = LINE) -> Iterator[Hosts]:
    fabric = Fabric()
    hosts = {}
    for name in HOSTS:
        carriers = Announcing(fabric)
        source = InBand(carriers, line, time.sleep)
        carriers.deliver = source.deliver
        hosts[name] = Host(source, carriers.put, carriers.end, line)
    yield hosts


def paths_file(addresses: Mapping[str, str], source: str) -> PathsFile:
    return PathsFile(
        deadline_ms=ENOUGH_S * 1e3,
        path=tuple(
            PathTable(
                destination=HOSTS[destination],
                hops=tuple(
                    HopTable(switch=addresses[switch], port=port)
                    for switch, port in path(source, destination)
                ),
            )
            for destination in HOSTS
            if destination != source
        ),
    )


def switch_file(name: str, listen: str = "127.0.0.1:0") -> SwitchFile:
    ports = tuple(PortTable(number=n, rate_mbps=float(rate)) for n, rate in CAPACITIES[name].items())
    return SwitchFile(name=name, listen=listen, port=ports)


@pytest.fixture(scope="module")
def switches() -> Iterator[Mapping[str, str]]:
    """The emulated switches' addresses, by name."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(serving(switch_file(name), CLOCK.present)) for name in CAPACITIES}


@contextlib.contextmanager
def emulated(addresses: Mapping[str, str], line: float = LINE) -> Iterator[Hosts]:
    with contextlib.ExitStack() as stack:
        yield {
            name: Host(stack.enter_context(Emulated(paths_file(addresses, name), line)), line=line)
            for name in HOSTS
        }


@contextlib.contextmanager
def host_only(line: float) -> Iterator[Hosts]:
    yield {name: Host(HostOnly(line), line=line) for name in HOSTS}


@dataclass(frozen=True)
class Transfer:
    """A flow that begins in a slot of the run, with its bytes."""

    source: str
    destination: str
    port: int
    begin: int
    volume: float

    @property
    def flow(self) -> Flow:
        return flow(self.source, self.destination, self.port)


def run(hosts: Hosts, transfers: Sequence[Transfer], slots: int = 8) -> list[tuple[int, Flow, list[float]]]:
    """Every decision: the slot of the run, the flow, and its schedule in rate units."""
    CLOCK.slot += 10 * LANES
    decisions = []
    left = {each.flow: each.volume for each in transfers}
    active: dict[str, list[Flow]] = defaultdict(list)
    for slot in range(slots):
        for each in transfers:
            if each.begin == slot:
                active[each.source].append(each.flow)
        for name, flows in active.items():
            for each_flow, rates in hosts[name].decide(flows, left).items():
                decisions.append((slot, each_flow, (rates / RATE_UNIT).tolist()))
                left[each_flow] -= rates[0] * 0.06
        for name, flows in active.items():
            for ended in [each for each in flows if left[each] <= 1.0]:
                flows.remove(ended)
                hosts[name].source.forget(ended)
                hosts[name].end(ended)
                hosts[name].settle([ended])
        CLOCK.slot += 1
    return decisions


volumes = st.floats(1e5, 2 * LINE * 0.06 * LANES)
pairs = st.permutations(list(HOSTS)).map(lambda names: names[:2])


@st.composite
def workloads(draw: st.DrawFn) -> list[Transfer]:
    """Flows among four hosts, several on one pair of hosts among them."""
    count = draw(st.integers(1, 6))
    return [
        Transfer(*draw(pairs), 7000 + number, draw(st.integers(0, 4)), draw(volumes))
        for number in range(count)
    ]


EXAMPLES = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EXAMPLES
@given(workloads())
def test_switches_in_band_and_emulated_give_the_same_schedules(
    switches: Mapping[str, str], transfers: list[Transfer]
) -> None:
    with in_band() as hosts:
        expected = run(hosts, transfers)
    with emulated(switches) as hosts:
        assert run(hosts, transfers) == expected


@EXAMPLES
@given(st.lists(st.tuples(st.integers(0, 4), volumes), min_size=3, max_size=3))
def test_all_three_agree_where_flows_share_the_hosts_link_only(
    switches: Mapping[str, str], drawn: Sequence[tuple[int, float]]
) -> None:
    transfers = [
        Transfer(source, destination, 7000, begin, volume)
        for (source, destination), (begin, volume) in zip(
            (("h1", "h2"), ("h1", "h3"), ("h4", "h1")), drawn, strict=True
        )
    ]
    slow = 300 * RATE_UNIT  # so that no other link is narrower
    with host_only(slow) as hosts:
        expected = run(hosts, transfers)
    with in_band(slow) as hosts:
        assert run(hosts, transfers) == expected
    with emulated(switches, slow) as hosts:
        assert run(hosts, transfers) == expected


# --- the flow's own part ---

plans = st.lists(st.integers(0, 900), min_size=LANES, max_size=LANES)


@settings(max_examples=100)
@given(st.lists(st.tuples(pairs, plans), min_size=1, max_size=5))
def test_feedback_without_the_own_part_is_the_load_tables(flows: list[tuple[list[str], list[int]]]) -> None:
    """Links may be overbooked: what is left of them for the flow itself is known all the same."""
    fabric, ports = Fabric(), [(switch, port) for switch in CAPACITIES for port in CAPACITIES[switch]]
    table = LoadTable(np.array([CAPACITIES[switch][port] for switch, port in ports], float))
    base = CLOCK.slot = CLOCK.slot + 10 * LANES
    table.advance(base)
    announcing = Announcing(fabric)
    seen: list[Feedback] = []
    announcing.deliver = seen.append
    asking = []
    for number, ((source, destination), units) in enumerate(flows):
        each = flow(source, destination, number)
        rates = np.array(units, float)
        announcing.plans[each] = base, rates * RATE_UNIT
        announcing.probe(each)
        links = np.array([ports.index(hop) for hop in path_of(each)])
        table.update(each, links, rates)
        asking.append((each, links))
    for each, links in asking:
        announcing.probe(each)
        load, headroom = table.ask(each, links)
        found = others(seen[-1])
        assert (found.load / RATE_UNIT).tolist() == load.tolist()
        assert (found.headroom / RATE_UNIT).tolist() == headroom.tolist()


# --- in-band ---


@pytest.fixture
def probing() -> tuple[Announcing, InBand]:
    CLOCK.slot += 10 * LANES
    carriers = Announcing(Fabric())
    source = InBand(carriers, LINE, time.sleep)
    carriers.deliver = source.deliver
    return carriers, source


def test_the_next_flow_is_probed_when_the_plan_before_is_announced(
    probing: tuple[Announcing, InBand],
) -> None:
    carriers, source = probing
    first, second = flow("h1", "h3", 1), flow("h1", "h3", 2)
    source.ask([first, second], CLOCK.slot)
    answers = source.answers(ENOUGH_S)
    assert next(answers).flow == first
    rates = np.full(LANES, 600 * RATE_UNIT)
    carriers.put(first, CLOCK.slot, rates)
    source.tell(first, CLOCK.slot, rates)
    answer = next(answers)
    assert answer.flow == second
    assert answer.headroom.tolist() == [100 * RATE_UNIT] * LANES  # of 700
    assert carriers.probes == [first, first, second]
    assert list(answers) == []


def test_a_lost_carrier_leaves_its_flow_without_an_answer_and_no_other(
    probing: tuple[Announcing, InBand],
) -> None:
    carriers, source = probing
    lost, other = flow("h1", "h3", 1), flow("h1", "h3", 2)
    carriers.lose = {lost}
    source.ask([lost, other], CLOCK.slot)
    assert [each.flow for each in source.answers(0.2)] == [other]
    carriers.lose = set()
    carriers.probe(lost)
    assert [each.flow for each in source.answers(0.0)] == [lost], "a late answer is one"


def test_on_a_long_path_all_flows_have_the_same_time_for_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later ones are asked about after the patience for those before them."""
    CLOCK.slot += 10 * LANES
    now_s, way_s, timeout_s = 0.0, 0.008, 0.01
    under_way: deque[tuple[float, Feedback]] = deque()

    def wait(longest_s: float) -> None:
        nonlocal now_s
        end_s = now_s + longest_s
        if under_way and under_way[0][0] <= end_s:
            now_s, feedback = under_way.popleft()
            source.deliver(feedback)
        else:
            now_s = end_s

    monkeypatch.setattr("hostbpf.scheduling.loads.time", SimpleNamespace(monotonic=lambda: now_s))
    carriers = Announcing(Fabric())
    carriers.deliver = lambda feedback: under_way.append((now_s + way_s, feedback))
    source = InBand(carriers, LINE, wait)
    asked = [flow("h1", "h3", port) for port in range(3)]
    source.ask(asked, CLOCK.slot)
    assert [each.flow for each in source.answers(timeout_s)] == asked
    carriers.lose = set(asked)
    source.ask(asked, CLOCK.slot)
    assert not list(source.answers(timeout_s))
    assert now_s < 4 * timeout_s, "it ends"


def test_feedback_of_a_slot_before_is_no_answer(probing: tuple[Announcing, InBand]) -> None:
    carriers, source = probing
    asked = flow("h1", "h3")
    carriers.lose = {asked}
    source.ask([asked], CLOCK.slot + 1)
    carriers.lose = set()
    carriers.probe(asked)
    assert list(source.answers(0.0)) == []
    CLOCK.slot += 1
    carriers.probe(asked)
    assert [each.slot for each in source.answers(0.0)] == [CLOCK.slot]


def test_feedback_to_a_carrier_before_is_no_answer(probing: tuple[Announcing, InBand]) -> None:
    carriers, source = probing
    asked, other = flow("h1", "h3", 1), flow("h1", "h3", 2)
    source.ask([asked], CLOCK.slot)
    carriers.probe(asked)  # as the flow's own packets do; its feedback is one too many
    assert len(list(source.answers(0.0))) == 1
    carriers.plans[other] = CLOCK.slot, np.full(LANES, 300 * RATE_UNIT)
    carriers.probe(other)
    answer = answer_of(source, asked)
    assert answer is not None
    assert answer.headroom.tolist() == [400 * RATE_UNIT] * LANES


def test_a_probe_that_cannot_be_sent_is_told(probing: tuple[Announcing, InBand]) -> None:
    carriers, source = probing
    asked = flow("h1", "h3")

    def refuse(flow: Flow) -> None:
        raise EntrainError("network is down")

    carriers.probe = refuse  # type: ignore[method-assign]
    source.ask([asked], CLOCK.slot)
    assert list(source.answers(0.0)) == []
    assert list(source.problems().values()) == ["network is down"]


def test_the_own_link_is_forgotten_when_the_clock_is_set_back() -> None:
    source, mine, other = HostOnly(LINE), flow("h1", "h3", 1), flow("h1", "h3", 2)
    source.ask([mine], 500)
    source.tell(mine, 500, np.full(LANES, LINE))
    source.ask([other], 400)
    assert [each.headroom.tolist() for each in source.answers(0.0)] == [[LINE] * LANES]


# --- emulated switches ---


def answer_of(source: LoadSource, flow: Flow, timeout_s: float = ENOUGH_S) -> PathLoads | None:
    source.ask([flow], CLOCK.slot)
    return next(iter(source.answers(timeout_s)), None)


def test_a_switch_that_is_away_leaves_flows_without_an_answer_and_comes_back(tmp_path: Path) -> None:
    CLOCK.slot += 10 * LANES
    addresses = {name: f"unix:{tmp_path}/{name}.sock" for name in CAPACITIES}
    local, far, sibling = flow("h1", "h2"), flow("h1", "h3", 1), flow("h1", "h3", 2)
    rates = np.full(LANES, 200 * RATE_UNIT)
    with (
        serving(switch_file("left", addresses["left"]), CLOCK.present),
        Emulated(paths_file(addresses, "h1"), LINE) as source,
        Emulated(paths_file(addresses, "h2"), LINE) as neighbour,
    ):
        source.ask([far, local], CLOCK.slot)
        assert [each.flow for each in source.answers(ENOUGH_S)] == [local], "the others go on"
        assert list(source.problems()) == [addresses["right"]]
        source.tell(far, CLOCK.slot, rates)  # cannot reach the right switch yet
        for _ in range(3):  # it is started again, with an empty table
            with serving(switch_file("right", addresses["right"]), CLOCK.present):
                while (answer := answer_of(source, sibling)) is None:
                    pass
                assert not source.problems()
                assert answer.headroom.tolist() == [500 * RATE_UNIT] * LANES
                while (answer_of(neighbour, flow("h2", "h3"))) is None:
                    pass
                seen = answer_of(neighbour, flow("h2", "h3"))
                assert seen is not None
                assert seen.load.tolist() == [2 * 200 * RATE_UNIT] * LANES


def test_what_siblings_plan_after_the_switch_has_answered_counts(switches: Mapping[str, str]) -> None:
    CLOCK.slot += 10 * LANES
    first, second = flow("h1", "h3", 1), flow("h1", "h3", 2)
    with Emulated(paths_file(switches, "h1"), LINE) as source:
        source.ask([first, second], CLOCK.slot)
        answers = source.answers(ENOUGH_S)
        assert next(answers).flow == first
        source.tell(first, CLOCK.slot, np.full(LANES, 650 * RATE_UNIT))
        answer = next(answers)
        assert answer.headroom.tolist() == [50 * RATE_UNIT] * LANES
        assert answer.load.tolist() == [3 * 650 * RATE_UNIT] * LANES
        source.forget(first)
        source.forget(second)


def test_plans_that_a_switch_refuses_keep_no_answer_away(switches: Mapping[str, str]) -> None:
    """A host's clock was wrong, and has been set right."""
    CLOCK.slot += 10 * LANES
    wrong, right = flow("h1", "h3", 1), flow("h1", "h3", 2)
    with Emulated(paths_file(switches, "h1"), LINE) as source:
        source.tell(wrong, CLOCK.slot + 500, np.full(LANES, LINE))
        answers = [answer_of(source, right) for _ in range(3)]
        assert answers[-1] is not None
        source.ask([right], CLOCK.slot + 500)
        assert not list(source.answers(ENOUGH_S))
        assert all("500 slots from the present" in each for each in source.problems().values())
        source.forget(wrong)


def test_feedback_tells_how_far_receivers_are_whoever_is_asked(switches: Mapping[str, str]) -> None:
    CLOCK.slot += 10 * LANES
    asked = flow("h1", "h3")
    header = SlotHeader(kind=Kind.FEEDBACK, base_slot=CLOCK.slot, bytes_received=70, bytes_onward=30)
    with Emulated(paths_file(switches, "h1"), LINE) as emulated:
        for source in (emulated, HostOnly(LINE)):
            answer_of(source, asked)
            source.deliver(Feedback(asked, header))
            known = answer_of(source, asked)
            assert known is not None
            assert (known.received, known.onward) == (70, 30)
            source.forget(asked)
            source.deliver(Feedback(asked, header))  # late
            unknown = answer_of(source, asked)
            assert unknown is not None
            assert (unknown.received, unknown.onward) == (0, 0)


def test_flows_without_a_path_get_no_answer(switches: Mapping[str, str]) -> None:
    with Emulated(paths_file(switches, "h1"), LINE) as source:
        assert answer_of(source, Flow("10.1.1.2", 1, "192.0.2.1", 2)) is None


@pytest.mark.root
@pytest.mark.parametrize("target", ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_a_running_fabric_and_emulated_switches_give_the_same_schedules(target: str) -> None:
    """Flows among four hosts on two leaves and two spines, which start, plan anew and end."""
    command = [sys.executable, "-m", "tests.hostbpf.scheduling.loads_on_fabric", target]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=patience(120)
    )
    assert result.returncode == 0, result.stderr
    decisions = json.loads(result.stdout.splitlines()[-1])
    assert len(decisions) >= 40
    for each in decisions:
        assert each["in_band"] == each["emulated"]
    assert any(min(each["in_band"]) == 0 for each in decisions), "some links are full"
