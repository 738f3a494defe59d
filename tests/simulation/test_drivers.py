"""The agents and the simulator run one algorithm: for the same inputs both drivers get the same plans."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from hostbpf.carriers.carriers import Feedback
from hostbpf.clock import SlotClock
from hostbpf.scheduling.loads import PathLoads
from hostbpf.scheduling.monitor import Direction, FlowProgress, Phase
from hostbpf.scheduling.thread import GRAIN, HostScheduler
from schedulers.compiled import Floats, Ints
from schedulers.slots.host import Parameters
from schedulers.slots.kernels import Flows
from schedulers.slots.roles import Role
from schedulers.slots.table import LoadTable, in_window
from simulation.collectives import parameter_server, ring, training_job
from simulation.engine import Simulation
from simulation.jobs import Job, chain, coflow
from simulation.slotted import SlottedTransport
from simulation.topology import switch
from wire.flow import Flow
from wire.slot_header import LANES

LINE = 1e6  # bytes/s
SLOT_S = 1e6
SLOT_NS = round(SLOT_S * 1e9)
SPREAD = 1e-10  # all hosts decide at the slot's boundary, but for rounding, and still one after the other
HOSTS = 5


@dataclass(frozen=True)
class Row:
    """A flow of the simulator before and after its hosts' decisions in a slot."""

    flow: Flow
    links: Ints
    coflow: int
    job: str
    process: int
    group: int
    role: Role
    chunk: float
    total: float
    sent: float
    place: float
    upstream: tuple[Flow, ...]
    reach: float
    """Bytes sent by the slot's end, as announced before the slot."""
    plan: Floats
    """What the simulated host decided."""


@dataclass
class Slot:
    """A slot of the simulator: its flows, and the order in which they decided."""

    number: int
    rows: dict[Flow, Row] = field(default_factory=dict)
    order: list[Flow] = field(default_factory=list)


class Recorded(SlottedTransport):
    """The simulator's driver, which keeps what its flows had and what they decided."""

    def __init__(self, parameters: Parameters, seed: int) -> None:
        super().__init__(switch(HOSTS, LINE), "slots", parameters, seed=seed, check=True)
        self.slots: list[Slot] = []

    def _decide_slots(self, rows: Ints, slot: int, part: float) -> None:
        announced = self._own[:, slot % LANES].copy()
        order: list[Ints] = []
        begin_round = self._scheduler.round

        def remembered(flows: Flows, due: Ints, planned: Floats, passed: float = 1.0) -> object:
            these = begin_round(flows, due, planned, passed)
            order.append(these.order)
            return these

        self._scheduler.round = remembered  # type: ignore[method-assign, assignment]
        try:
            super()._decide_slots(rows, slot, part)
        finally:
            self._scheduler.round = begin_round  # type: ignore[method-assign]
        flows, now = self._decided, Slot(slot)
        names = {f: self._name(int(f), handle) for handle, f in self._active()}
        for (handle, f), job in zip(self._active(), self._jobs(), strict=True):
            begin, end = self._upstream[f]
            role = Role(int(flows["role"][f]))
            now.rows[names[f]] = Row(
                names[f],
                self._flows.links[f].astype(np.int64),
                handle,
                f"{self.seed} {job}",
                int(self._process[f]) + 1,
                0 if role in (Role.RING, Role.FREE) else self._server(f, role),
                role,
                float(flows["chunk"][f]),
                float(flows["total"][f]),
                float(flows["sent"][f]),
                float(self._scheduler.places(flows["rank"][f])),
                tuple(names[row] for row in range(begin, end)),
                float(min(flows["sent"][f] + announced[f] * SLOT_S, flows["total"][f])),
                np.roll(self._own[f], -(slot % LANES)),
            )
        now.order = [names[f] for f in order[0].tolist()]
        self.slots.append(now)

    def _active(self) -> list[tuple[int, int]]:
        handles = self._coflows.ints("handle").tolist()
        spans = zip(handles, self._spans(), strict=True)
        return [(handle, f) for handle, (first, last) in spans for f in range(first, last)]

    def _jobs(self) -> list[int]:
        jobs = zip(self._coflows.ints("job").tolist(), self._spans(), strict=True)
        return [job for job, (first, last) in jobs for _ in range(first, last)]

    def _name(self, f: int, handle: int) -> Flow:
        up, down = self._flows.links[f]
        names = self.topology.link_names
        return Flow(names[up], f, names[down], handle)

    def _server(self, f: int, role: Role) -> int:
        link = self._flows.links[f][1 if role is Role.AGGREGATION else 0]
        return int(link) % HOSTS


class Network:
    """Load tables of all links, and what the hosts have announced."""

    def __init__(self) -> None:
        self.table = LoadTable(switch(HOSTS, LINE).capacity, LANES)
        self.announced: dict[Flow, tuple[int, Floats]] = {}
        self.now = Slot(0)

    def rate(self, flow: Flow, slot: int) -> float:
        first, rates = self.announced.get(flow, (slot, np.zeros(1)))
        return float(rates[slot - first]) if 0 <= slot - first < len(rates) else 0.0

    def reach(self, row: Row) -> float:
        return min(row.sent + self.rate(row.flow, self.now.number) * SLOT_S, row.total)


class Tables:
    """A host's load source that reads the network's tables."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._asked: list[Flow] = []

    def ask(self, flows: Sequence[Flow], slot: int) -> None:
        assert slot == self._network.now.number
        self._asked = list(flows)

    def answers(self, timeout_s: float) -> Iterator[PathLoads]:
        network = self._network
        for flow in self._asked:
            row = network.now.rows[flow]
            load, headroom = network.table.ask(flow, row.links)
            own = network.table.ask(flow, row.links[:1])[1]
            follows = (network.reach(network.now.rows[each]) for each in row.upstream)
            onward = round(max(follows, default=0.0)) if row.role is Role.AGGREGATION else 0
            yield PathLoads(flow, network.now.number, load, headroom, own, onward=onward)

    def tell(self, flow: Flow, slot: int, rates: Floats) -> None:
        self._network.announced[flow] = slot, rates
        if flow in self._network.now.rows:
            self._network.table.update(flow, self._network.now.rows[flow].links, rates, slot)

    def forget(self, flow: Flow) -> None:
        self._network.announced.pop(flow, None)
        self._network.table.remove(flow)

    def problems(self) -> dict[str, str]:
        return {}

    def awaits(self, flow: Flow) -> bool:
        return False

    def deliver(self, feedback: Feedback) -> None:
        raise AssertionError("nobody sends feedback here")


class Agent:
    """A host's agent on that network: progress, kernel and clock are the test's."""

    def __init__(self, name: str, network: Network, parameters: Parameters) -> None:
        self.name = name
        self.network = network
        self.refused: Counter[str] = Counter()
        self.known: set[Flow] = set()
        self.now_ns = 0
        self.scheduler = HostScheduler(
            self,
            Tables(network),
            self,
            lambda: SlotClock(SLOT_NS, 0),
            LINE,
            wait=lambda _: None,
            parameters=parameters,
            now_ns=lambda: self.now_ns,
        )

    def round(self, place: float) -> None:
        """The round in which the turn of the flows at `place` comes; new ones appear no earlier."""
        self.now_ns = self.network.now.number * SLOT_NS + round(place * SLOT_NS) + 1
        rows = self.network.now.rows.values()
        self.known = {
            row.flow
            for row in rows
            if row.flow.source == self.name and (row.flow in self.known or row.place <= place)
        }
        self.scheduler.round()

    def read(self) -> list[FlowProgress]:
        rows = self.network.now.rows
        entries = []
        for flow in sorted(self.known, key=lambda flow: flow.source_port):  # as the simulator numbers them
            row = rows[flow]
            ready = row.total
            if row.role is Role.BROADCAST:
                ready = min((rows[each].sent for each in row.upstream), default=row.total)
            entries.append(self._entry(row, row, Direction.SENT, ready))
            for each in row.upstream if row.role in (Role.BROADCAST, Role.RING) else ():
                entries.append(self._entry(rows[each], row, Direction.RECEIVED, rows[each].total))
        return list(dict.fromkeys(entries))

    def _entry(self, row: Row, own: Row, direction: Direction, ready: float) -> FlowProgress:
        done = round(row.sent)
        sends = done < round(row.total)
        return FlowProgress(
            own.job,
            own.process,
            row.flow,
            direction,
            row.role,
            row.group,
            Phase.COMMUNICATING if sends else Phase.COMPUTING,
            0,
            round(row.total),
            round(ready),
            done,
            done,
            max(round(row.chunk) - GRAIN, 0),
            0,
        )

    def arriving(self, received: Flow, slot: int) -> float | None:
        return self.network.rate(received, slot)

    def begin(self, flow: Flow) -> None: ...

    def end(self, flow: Flow) -> None: ...

    def limit(self, flow: Flow, slot: int, rates: Floats) -> None: ...

    def pause(self, flow: Flow, slot: int, rate: float) -> None: ...

    def wake(self, flow: Flow) -> None: ...

    def release(self, flow: Flow) -> None: ...

    def set_onward(self, received: Flow, carried: int) -> None: ...


def jobs(seed: int) -> list[Job]:
    """A parameter-server job, a ring and transfers that meet on links, of random sizes."""
    draw = np.random.default_rng(seed)

    def some(least: float, most: float) -> float:
        return float(draw.uniform(least, most)) * LINE * SLOT_S

    return [
        training_job("ps", 0.0, 1.7 * SLOT_S, [parameter_server([0], [2, 3], some(2, 8))], 3),
        training_job("ring", 0.0, 2.3 * SLOT_S, [ring([0, 1, 4], some(2, 6))], 3),
        chain("bulk", 0.5 * SLOT_S, [coflow([(1, 0, some(1, 9)), (1, 4, some(1, 9))])]),
        chain("more", 3.5 * SLOT_S, [coflow([(1, 0, some(1, 5)), (4, 0, some(1, 5))])]),
    ]


def _interleave(hosts: Sequence[str]) -> bool:
    changes = sum(one != other for one, other in itertools.pairwise(hosts))
    return changes >= len(set(hosts))


@pytest.mark.parametrize("reserved", [2, LANES])
def test_agents_plan_as_the_simulator_does(monkeypatch: pytest.MonkeyPatch, reserved: int) -> None:
    """In every slot each agent is given the progress that the simulator's flows have; loads are those that
    the agents have announced themselves."""
    monkeypatch.setattr("hostbpf.scheduling.thread.FULL", 0.0)  # no decisions between the jobs' turns
    monkeypatch.setattr("hostbpf.scheduling.thread.SAME", 0.0)  # every change is announced
    monkeypatch.setattr("hostbpf.scheduling.thread.STILL_NS", 10 * LANES * SLOT_NS)  # nobody stands still
    for patience in ("CROWDED_S", "STARVED_S"):  # all believe what is announced
        monkeypatch.setattr(f"schedulers.slots.host.{patience}", 1e9)
    parameters = Parameters(
        SLOT_S, reserved=reserved, begin=0.0, spread=SPREAD, redraw=3, hasten=False, window=1000
    )  # no path is found to carry less than planned
    compared: Counter[Role] = Counter()
    for seed in range(12):
        recorded = Recorded(parameters, seed)
        Simulation(jobs(seed), recorded).run()
        compared += _compare(recorded, parameters)
    assert all(compared[role] >= 100 for role in Role)


def _compare(recorded: Recorded, parameters: Parameters) -> Counter[Role]:
    """Have agents decide in the recorded slots; return how many plans are the same, by role."""
    network = Network()
    agents = {name: Agent(name, network, parameters) for name in recorded.topology.link_names[:HOSTS]}
    compared: Counter[Role] = Counter()
    for slot in recorded.slots:
        network.now = slot
        network.table.advance(slot.number)
        turns: defaultdict[float, list[str]] = defaultdict(list)
        for flow in slot.order:
            turns[slot.rows[flow].place].append(flow.source)
        if any(_interleave(hosts) for hosts in turns.values()):
            break  # hosts whose turns come at one moment decide in any order
        for place in sorted(turns):
            for name in dict.fromkeys(turns[place]):
                agents[name].round(place)
        for flow in slot.order:
            row = slot.rows[flow]
            first, rates = network.announced.get(flow, (slot.number, np.zeros(LANES)))
            plan = in_window(rates, first, slot.number, LANES)
            assert plan == pytest.approx(row.plan, abs=1e-6 * LINE), (slot.number, row)
            compared[row.role] += bool(row.plan.any())
    return compared
