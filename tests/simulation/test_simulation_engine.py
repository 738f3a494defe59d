"""The engine: graphs of phases, several jobs at once, invariants at every event, the same result every
time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from machine.errors import BadInput
from schedulers.coflow.parrot import Parrot
from schedulers.coflow.rivals import FairSharing, Fifo, PriorityPolicy, Varys
from schedulers.coflow.view import View
from simulation.engine import Simulation, SimulationError
from simulation.experiments.parrot import check_theorem_4
from simulation.jobs import Coflow, Compute, Job, Task, chain, coflow
from simulation.policies import COFLOW_POLICIES, coflow_policy
from simulation.scheduled import ScheduledTransport
from simulation.sharing import SharedTransport
from simulation.topology import Topology, graph, leaf_spine, mix, switch, tree
from simulation.usage import Usage


def random_jobs(seed: int, hosts: int, n: int = 12) -> list[Job]:
    rng = np.random.default_rng(seed)
    jobs = []
    for j in range(n):
        works: list[Coflow | Compute] = []
        for _ in range(int(rng.integers(1, 4))):
            pairs = [rng.permutation(hosts)[:2] for _ in range(int(rng.integers(1, 6)))]
            works.append(coflow([(int(s), int(d), float(rng.uniform(1, 9))) for s, d in pairs]))
            if rng.random() < 0.5:
                works.append(Compute(float(rng.uniform(0, 5))))
        jobs.append(chain(str(j), float(rng.uniform(0, 30)), works, int(rng.integers(1, 4))))
    return jobs


TOPOLOGIES = [
    switch(6, 1.0),
    leaf_spine(3, 2, 2, 1.0, 1.5),
    leaf_spine(3, 2, 2, 1.0, 1.5, routing="source"),
    tree((3, 2, 2), (1.0, 2.0, 3.0)),
    graph(["a", "b", "c"], [("a", "x", 1.0), ("b", "x", 2.0), ("x", "y", 1.5), ("y", "c", 1.0)]),
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.name)
def test_max_min_sharing_agrees_with_filling_from_scratch(topology: Topology) -> None:
    """Two implementations: classes repaired locally, and all flows filled anew at each flow's end."""
    for seed in range(3):
        jobs = random_jobs(seed, topology.hosts)
        local = Simulation(jobs, SharedTransport(topology, check=True)).run()
        fresh = Simulation(jobs, ScheduledTransport(topology, FairSharing(), check=True)).run()
        assert [j.finish for j in local.jobs] == pytest.approx([j.finish for j in fresh.jobs])
        assert [c.finish for c in local.coflows] == pytest.approx([c.finish for c in fresh.coflows])


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.name)
def test_equal_sharing_respects_capacity(topology: Topology) -> None:
    outcome = Simulation(
        random_jobs(7, topology.hosts), SharedTransport(topology, sharing="equal", check=True)
    ).run()
    assert all(j.jct >= 0.0 for j in outcome.jobs)


@pytest.mark.parametrize("name", list(COFLOW_POLICIES))
@pytest.mark.parametrize("interval", [0.0, 0.5])
def test_every_policy_finishes_every_job_no_sooner_than_alone(name: str, interval: float) -> None:
    topology = switch(6, 1.0)
    jobs = random_jobs(3, 6)
    policy = coflow_policy(name)
    run = Simulation(jobs, ScheduledTransport(topology, policy, check=True, interval=interval)).run()
    for job, record in zip(jobs, run.jobs, strict=True):
        assert record.jct >= job.lower_bound(topology) * (1 - 1e-9)
        assert 0.0 <= record.waiting <= record.jct + 1e-9
    again = Simulation(jobs, ScheduledTransport(topology, coflow_policy(name), interval=interval)).run()
    assert [j.finish for j in again.jobs] == [j.finish for j in run.jobs]


@pytest.mark.parametrize("conservation", ["factor", "filling", "none"])
@pytest.mark.parametrize("theta", [0.5, 0.9])
def test_theorem_4_holds(conservation: str, theta: float) -> None:
    topology = switch(6, 1.0)
    for seed in range(8):
        jobs = [Job(j.ident, j.arrival, (j.tasks[0],), j.iterations) for j in random_jobs(seed, 6)]
        policy = Parrot(theta_max=theta, conservation=conservation)  # type: ignore[arg-type]
        outcome = Simulation(jobs, ScheduledTransport(topology, policy, check=True)).run()
        assert 1.0 <= check_theorem_4(outcome, jobs, topology, theta) <= len(jobs) / (1 - theta)


def test_a_graph_of_phases_waits_for_all_before() -> None:
    """Two computations of 2 and 3 s in parallel, then 4 bytes at rate 1, twice: 2 * (3 + 4)."""
    tasks = (Task(Compute(2.0)), Task(Compute(3.0)), Task(coflow([(0, 1, 4.0)]), after=(0, 1)))
    job = Job("g", 1.0, tasks, iterations=2)
    outcome = Simulation([job], SharedTransport(switch(2, 1.0), check=True)).run()
    assert outcome.jobs[0].finish == pytest.approx(15.0)
    assert job.lower_bound(switch(2, 1.0)) == pytest.approx(14.0)


def test_an_observing_interval_delays_to_the_next_tick() -> None:
    jobs = [chain("a", 0.1, [coflow([(0, 1, 1.0)]), coflow([(1, 0, 1.0)])])]
    outcome = Simulation(jobs, ScheduledTransport(switch(2, 1.0), Fifo(), interval=0.25, check=True)).run()
    # Seen at 0.25, sent at 1.25; the second coflow starts at that tick.
    assert [c.finish for c in outcome.coflows] == pytest.approx([1.25, 2.25])
    assert outcome.jobs[0].waiting == pytest.approx(0.15)


@pytest.mark.parametrize("name", list(COFLOW_POLICIES))
def test_each_coflow_takes_at_least_one_observing_interval(name: str) -> None:
    """However few its bytes: so 100 iterations of two coflows take 200 intervals of 10 ms, 2 s."""
    works = [coflow([(0, 1, 1e-6)]), coflow([(1, 0, 1e-6)])]
    transport = ScheduledTransport(switch(2, 1.0), coflow_policy(name), interval=0.010, check=True)
    outcome = Simulation([chain("a", 0.0, works, iterations=100)], transport).run()
    ends = [record.finish for record in outcome.coflows]
    assert np.diff(ends) == pytest.approx(0.010, rel=1e-3)
    assert outcome.jobs[0].finish == pytest.approx(2.0, abs=0.011)


def test_flow_times_are_those_of_their_rates() -> None:
    transport = ScheduledTransport(switch(3, 1.0), FairSharing(), flow_times=True, check=True)
    outcome = Simulation([chain("a", 0.0, [coflow([(0, 1, 1.0), (0, 2, 3.0)])])], transport).run()
    assert outcome.coflows[0].flow_times == pytest.approx([2.0, 4.0])


def test_usage_adds_up_to_the_bytes_sent() -> None:
    topology = switch(6, 1.0)
    usage = Usage(len(topology.capacity), 0.7)
    jobs = random_jobs(5, 6)
    outcome = Simulation(jobs, ScheduledTransport(topology, Varys(), usage=usage, check=True)).run()
    assert usage.carried.sum() == pytest.approx(2 * sum(job.bytes for job in jobs))
    end = max(j.finish for j in outcome.jobs)
    utilisation = usage.utilisation(topology.capacity, end)
    assert utilisation.min() >= 0.0
    assert utilisation.max() <= 1.0 + 1e-9


class Cheat(PriorityPolicy):
    """Gives every flow the same rate, whatever links can carry."""

    name = "cheat"

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def allocate(self, view: View) -> None:
        view.rate[view.active_flows()] = self.rate


@pytest.mark.parametrize("rate", [2.0, -1.0, math.nan])
def test_broken_policies_are_caught(rate: float) -> None:
    jobs = [chain("a", 0.0, [coflow([(0, 1, 1.0)])])]
    with pytest.raises(SimulationError):
        Simulation(jobs, ScheduledTransport(switch(2, 1.0), Cheat(rate), check=True)).run()


def test_starved_jobs_are_named() -> None:
    jobs = [chain("hungry", 0.0, [coflow([(0, 1, 1.0)])])]
    with pytest.raises(SimulationError, match="hungry"):
        Simulation(jobs, ScheduledTransport(switch(2, 1.0), Cheat(0.0))).run()


def test_cost_per_event_does_not_grow_with_flows_elsewhere() -> None:
    """The same pair of flows per pod: each event touches the classes of its pod only."""

    def touched(pods: int) -> float:
        jobs = [
            chain(f"{p}-{i}", i * 0.1 + p * 1e-3, [coflow([(2 * p, 2 * p + 1, 1.0)])])
            for p in range(pods)
            for i in range(3)
        ]
        transport = SharedTransport(switch(2 * pods, 1.0))
        return transport_cost(transport, jobs)

    def transport_cost(transport: SharedTransport, jobs: list[Job]) -> float:
        outcome = Simulation(jobs, transport).run()
        return transport.classes_touched / outcome.events

    assert touched(40) <= 1.2 * touched(4)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.name)
def test_routes_are_paths_from_source_to_destination(topology: Topology) -> None:
    pairs = [(s, d) for s in range(topology.hosts) for d in range(topology.hosts) if s != d]
    src, dst = (np.array(x) for x in zip(*pairs, strict=True))
    routes = topology.routes(src, dst, np.arange(len(src)))
    assert (topology.routes(src, dst, np.arange(len(src))) == routes).all()
    for route in routes:
        hops = route[route >= 0]
        assert len(set(hops.tolist())) == len(hops) >= 2
        assert hops.max() < len(topology.capacity)
    assert len(topology.link_names) == len(set(topology.link_names)) == len(topology.capacity)


def test_the_trees_routes_climb_only_as_far_as_needed() -> None:
    topology = tree()
    assert topology.hosts == 1000
    lengths = {(0, 9): 2, (0, 10): 4, (0, 99): 4, (0, 100): 6, (0, 999): 6}
    for (s, d), hops in lengths.items():
        route = topology.routes(np.array([s]), np.array([d]), np.zeros(1, np.int64))[0]
        names = [topology.link_names[link] for link in route if link >= 0]
        assert len(names) == hops
        assert names[0] == f"t0-{s}-up"
        assert names[-1] == f"t0-{d}-down"


def test_source_routing_maps_ports_one_to_one() -> None:
    topology = leaf_spine(2, 4, 4, 1.0, 1.0, routing="source")
    routes = topology.routes(np.arange(4), np.arange(4, 8), np.zeros(4, np.int64))
    assert len(set(routes[:, 1].tolist())) == 4


def test_hashing_is_seeded_and_spreads() -> None:
    keys = np.arange(4000)
    assert (mix(1, keys) == mix(1, keys)).all()
    assert (mix(1, keys) != mix(2, keys)).any()
    counts = np.bincount(mix(1, keys) % 4)
    assert counts.min() > 900


def test_explicit_routes_win() -> None:
    links = [("a", "x", 1.0), ("x", "b", 1.0), ("a", "b", 1.0)]
    topology = graph(["a", "b"], links, explicit={("a", "b"): ["a", "x", "b"]})
    route = topology.routes(np.array([0]), np.array([1]), np.zeros(1, np.int64))[0]
    assert [topology.link_names[i] for i in route] == ["a-x", "x-b"]


BAD: dict[str, Callable[[], object]] = {
    "negative size": lambda: coflow([(0, 1, -1.0)]),
    "zero bytes": lambda: coflow([(0, 1, 0.0)]),
    "size is no number": lambda: coflow([(0, 1, math.nan)]),
    "no flows": lambda: coflow([]),
    "negative compute": lambda: Compute(-1.0),
    "no tasks": lambda: Job("j", 0.0, ()),
    "no iterations": lambda: Job("j", 0.0, (Task(Compute(1.0)),), 0),
    "arrival is no number": lambda: Job("j", math.nan, (Task(Compute(1.0)),)),
    "cycle": lambda: Job("j", 0.0, (Task(Compute(1.0), (1,)), Task(Compute(1.0), (0,)))),
    "unknown predecessor": lambda: Job("j", 0.0, (Task(Compute(1.0), (4,)),)),
    "duplicate job": lambda: Simulation(
        [chain("j", 0.0, [Compute(1.0)])] * 2, SharedTransport(switch(2, 1.0))
    ),
    "no jobs": lambda: Simulation([], SharedTransport(switch(2, 1.0))),
    "port out of range": lambda: Simulation(
        [chain("j", 0.0, [coflow([(0, 5, 1.0)])])], SharedTransport(switch(2, 1.0))
    ).run(),
    "flow to itself": lambda: Simulation(
        [chain("j", 0.0, [coflow([(1, 1, 1.0)])])], SharedTransport(leaf_spine(2, 2, 2, 1.0, 1.0))
    ).run(),
    "unknown policy": lambda: coflow_policy("magic"),
    "unknown sharing": lambda: SharedTransport(switch(2, 1.0), sharing="most"),  # type: ignore[arg-type]
    "rate": lambda: switch(2, math.nan),
    "unknown routing": lambda: leaf_spine(2, 2, 2, 1.0, 1.0, routing="best"),  # type: ignore[arg-type]
    "no path": lambda: graph(["a", "b"], [("a", "x", 1.0), ("b", "y", 1.0)]).routes(
        np.array([0]), np.array([1]), np.zeros(1, np.int64)
    ),
    "host without link": lambda: graph(["a", "z"], [("a", "x", 1.0)]),
}


@pytest.mark.parametrize("what", list(BAD))
def test_bad_input_is_refused_with_a_remedy(what: str) -> None:
    with pytest.raises(BadInput, match=r"[;:]"):
        BAD[what]()


def test_invariants_are_asserted_in_tests_unless_switched_off() -> None:
    class Greedy(Fifo):
        def allocate(self, view: View) -> None:
            view.rate[:] = 10.0 * view.capacity[0]

    jobs = [chain("0", 0.0, [coflow([(0, 1, 1.0)])])]
    with pytest.raises(SimulationError, match="which carries"):
        Simulation(jobs, ScheduledTransport(switch(2, 1.0), Greedy())).run()
    Simulation(jobs, ScheduledTransport(switch(2, 1.0), Greedy(), check=False)).run()
