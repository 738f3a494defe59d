"""The experiment matrix: which remedy helps where. The same jobs run with each routing and each policy.

Four jobs ring over a leaf-spine network with as many uplinks as hosts, with one host on each leaf. Each
placement draws at which port of the leaf, in which order the ring visits leaves, and when the job starts. How
much of its iteration a job communicates alone is the load: its computation is set so.

Routing `ecmp` hashes flows, `source` binds each port of a leaf to an uplink, and `vclos` reserves links for
each job. Policies: `none` shares links max-min fairly; `mltcp` in proportion to F of the jobs' progress;
`cassini` plans when iterations start, jobs keep to it as live ones do, and links are shared
fairly; `slots` is the slot scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from schedulers.cassini.affinity import Link, interleave
from schedulers.cassini.pace import Follower, Pace, moves
from schedulers.cassini.plan import BOUND, later, plan
from schedulers.cassini.profile import Profile, up_down
from schedulers.compiled import Floats
from schedulers.mltcp import FAIR, Gain
from schedulers.placement.cluster import Cluster, Request, empty, reserve
from schedulers.placement.stages import vclos_on
from simulation.collectives import Pipelined, ring, training_job
from simulation.engine import Simulation
from simulation.experiments.experiment import Experiment, Point
from simulation.jobs import Job
from simulation.marks import Marking
from simulation.results import JobTimes, Remedy, Result
from simulation.slotted import SIMULATED, SlottedTransport
from simulation.tenancy import ClusterNetwork
from simulation.topology import GBIT

POLICIES = ("none", "mltcp", "cassini", "slots")
ROUTINGS = ("ecmp", "source", "vclos")
LOADS = (25, 45, 65)
"""Percent of an iteration that a job communicates alone."""
CLUSTER = Cluster(leaves=4, spines=4, servers_per_leaf=4, gpus_per_server=1)
RATE = 50 * GBIT
MODELS = (1200e6, 1200e6, 600e6, 600e6)
"""Bytes of each job's model: GPT-2's, as the slot scheduler's paper has it, and half of it. Iterations of the
small ones take half as long."""
ITERATIONS = 30
PLACEMENTS = 4
SETTLING = 0.25
"""The part of the iterations, from the first on, that iteration times leave out."""
SLOT_S = 0.015
STEP_S = 0.003
"""How often rates are set where there are no slots. A job's flows wait for the next time: up to 1 % of its
time alone."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A job of a placement: its flows, whose routes are set, its computation (s) and its start (s)."""

    name: str
    work: Pipelined
    compute_s: float
    start_s: float

    @property
    def send_s(self) -> float:
        """How long it communicates alone: its flows share no link with each other."""
        return float(self.work.size[0]) / RATE

    @property
    def alone_s(self) -> float:
        """Its iteration time alone, s."""
        return self.compute_s + self.send_s


def placed(network: ClusterNetwork, routing: str, load_percent: float, draw: int, seed: int) -> list[Placed]:
    """Return the jobs of placement number `draw`; the same ones for every routing."""
    c = network.cluster
    random = np.random.default_rng((seed, draw))
    ports = np.stack([random.permutation(c.gpus_per_leaf) for _ in range(c.leaves)])
    state, jobs = empty(c), []
    for number, model in enumerate(MODELS):
        leaves = random.permutation(c.leaves)
        gpus = leaves * c.gpus_per_leaf + ports[leaves, number]
        work = ring(gpus.tolist(), model)
        assert work is not None
        src, dst = work.src, work.dst
        if routing == "vclos":
            found = vclos_on(state, Request(f"j{number}", len(gpus), "ring"), gpus.tolist())
            assert found is not None  # each job fits one spine
            state = reserve(state, found)
            port = np.array([dict(zip(found.gpus, found.ports, strict=True))[gpu] for gpu in src.tolist()])
        elif routing == "ecmp":
            port = network.hashed(src, dst, seed, draw, number)
        else:
            port = src % c.gpus_per_leaf % c.uplinks
        nics = np.stack([src, c.gpus + dst], axis=1)
        routes = np.column_stack([nics[:, :1], network.over(src, dst, port), nics[:, 1:]]).astype(np.int32)
        send_s = float(work.size[0]) / network.rate
        compute_s = send_s * (100.0 / load_percent - 1.0)
        start_s = random.uniform(0.0, send_s + compute_s)
        jobs.append(Placed(f"j{number}", replace(work, routes=routes), compute_s, start_s))
    return jobs


def crossed(jobs: list[Placed], network: ClusterNetwork) -> list[Link]:
    """Return the links between switches that jobs cross, each with its jobs."""
    on: dict[int, list[str]] = {}
    for job in jobs:
        assert job.work.routes is not None
        for link in np.unique(job.work.routes[:, 1:-1]).tolist():
            on.setdefault(link, []).append(job.name)
    names = network.topology.link_names
    return [Link(names[link], network.rate, tuple(on[link])) for link in sorted(on)]


def profiles(jobs: list[Placed], network: ClusterNetwork) -> dict[str, Profile]:
    """Return what each job sends alone, by name."""
    return {job.name: up_down(job.compute_s, job.send_s, network.rate) for job in jobs}


def score(jobs: list[Placed], network: ClusterNetwork) -> float:
    """Return what Cassini says of the jobs beforehand."""
    return interleave(profiles(jobs, network), crossed(jobs, network)).score


class Paces:
    """When iterations start under Cassini, as of live jobs: a plan, followers, and grids that move where a
    job is late."""

    def __init__(self, jobs: list[Placed], network: ClusterNetwork) -> None:
        starts = {job.name: job.start_s for job in jobs}
        its = plan(profiles(jobs, network), crossed(jobs, network), starts, bound=BOUND)
        self._names = [job.name for job in jobs]
        self._grids = dict(its.grids)
        self._group_of = {job: group for group in its.groups for job in group}
        self._followers = [Follower() for _ in jobs]

    def start(self, job: int, now: float) -> float:
        """Return when the job's next iteration starts, which could start `now` (s)."""
        name = self._names[job]
        begins = self._followers[job].start(self._pace(name), round(now * 1e9))
        late = begins.late_ns / 1e9
        if name in self._grids and moves(late, BOUND * self._grids[name].period):
            self._grids.update(later({each: self._grids[each] for each in self._group_of[name]}, late))
        return max(begins.at_ns / 1e9, now)

    def _pace(self, job: str) -> Pace | None:
        if job not in self._grids:
            return None
        grid = self._grids[job]
        period = round(grid.period * 1e9)
        return Pace(round(grid.anchor * 1e9), period, round(BOUND * period))


def run_point(point: Point) -> Result:
    """Run one point: its placements, one after another."""
    network = ClusterNetwork(CLUSTER, rate=RATE)
    policy, count = point["policy"], point["limit"] or ITERATIONS
    over: list[Floats] = []
    slowest, scores, jct, marks, most = [], [], [], [], []
    times = []
    for draw in range(point.get("placements", PLACEMENTS)):
        jobs = placed(network, point["routing"], point["sending_percent"], draw, point["seed"])
        pacing = Paces(jobs, network).start if policy == "cassini" else None
        transport = SlottedTransport(
            network.topology,
            "slots" if policy == "slots" else "fair",
            replace(SIMULATED, slot_s=SLOT_S if policy == "slots" else STEP_S),
            gain=Gain() if policy == "mltcp" else FAIR,
            marking=Marking(),
            seed=point["seed"],
            check=point.get("check"),
        )
        tasks: list[Job] = [
            training_job(job.name, job.start_s, job.compute_s, [job.work], count) for job in jobs
        ]
        outcome = Simulation(tasks, transport, pacing=pacing).run()
        iterations = np.zeros((len(jobs), count))
        for j, job in enumerate(jobs):
            ends = [each.finish for each in outcome.coflows if each.job == job.name]
            iterations[j] = np.diff([job.start_s, *ends])
        alone = np.array([job.alone_s for job in jobs])
        settled = iterations[:, int(SETTLING * count) :] / alone[:, None]
        over.append(settled)
        slowest.append(settled.mean(axis=1).max())
        scores.append(score(jobs, network))
        own = [record.finish - job.start_s for record, job in zip(outcome.jobs, jobs, strict=True)]
        jct += own
        marks.append(transport.marked / (count * len(jobs)))
        most.append(max(len(link.jobs) for link in crossed(jobs, network)))
        times += [
            JobTimes(f"{draw}/{job.name}", job.start_s, each, 0.0, count * job.alone_s)
            for job, each in zip(jobs, own, strict=True)
        ]
    every = np.concatenate([each.ravel() for each in over])
    return Result(
        Remedy(
            mean_to_alone=float(every.mean()),
            p99_to_alone=float(np.percentile(every, 99)),
            slowest_to_alone=float(np.mean(slowest)),
            mean_jct_s=float(np.mean(jct)),
            jct_to_alone=float(sum(jct) / sum(each.lower_bound_s for each in times)),
            marks_per_iteration=float(np.mean(marks)),
            jobs_on_a_link=max(most),
            score=float(np.mean(scores)),
        ),
        tuple(times),
    )


def points(base: Point, policies: tuple[str, ...]) -> list[Point]:
    """Return the points to run: one for each load, routing and policy. The point's limit is the number of
    iterations."""
    return [
        {**base, "policy": policy, "routing": routing, "sending_percent": load}
        for load in LOADS
        for routing in ROUTINGS
        for policy in policies
    ]


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "matrix",
        "Which routing and policy bring iterations back to their time alone?",
        None,
        POLICIES,
        points,
        run_point,
        sends_flows=False,
    ),
)
