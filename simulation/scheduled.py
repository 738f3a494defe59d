"""Transport with rates set by a coflow policy such as Parrot, Varys or Aalo.

Rates are constant between two decisions, so a flow that ends early needs no event of its own. Its completion
time is computed when its coflow is next visited. The cost of a decision grows with the flows whose rates it
sets.
"""

from __future__ import annotations

import math

import numpy as np

from schedulers.coflow.allocation import bottleneck_time
from schedulers.coflow.filling import link_loads, squeeze
from schedulers.coflow.view import CoflowPolicy, View
from schedulers.compiled import Floats, Ints, Routes, clock_s
from simulation.engine import SAME, Finished, SimulationError, checking
from simulation.flows import CoflowTable, FlowTable
from simulation.jobs import Coflow, links_of
from simulation.settling import predict, settle
from simulation.topology import Topology
from simulation.usage import Usage


class ScheduledTransport:
    """Move coflows at the rates of `policy`.

    `interval` (η, s) is how often events are observed: a decision follows at its next multiple, or at once if
    it is 0. `check` asserts capacity, conservation and non-negativity at each decision and completion.
    `usage` records link usage.
    """

    def __init__(
        self,
        topology: Topology,
        policy: CoflowPolicy,
        *,
        interval: float = 0.0,
        check: bool | None = None,
        flow_times: bool = False,
        blind: bool = False,
        usage: Usage | None = None,
    ) -> None:
        if not math.isfinite(interval) or interval < 0.0:
            raise ValueError(f"the observation interval is {interval} s; give a number of at least 0")
        self.topology = topology
        self.policy = policy
        self.interval = interval
        self.check = checking(check)
        self.flow_times = flow_times
        self.usage = usage
        self.blind = blind
        self.decision_seconds: list[float] = []
        self._flows = FlowTable(hops=2)
        self._coflows = CoflowTable()
        self._job_bytes: dict[int, float] = {}
        self._job_completed: dict[int, int] = {}
        self._due = math.inf
        self._scratch = np.zeros(len(topology.capacity))
        self._order = 0

    def start(self, handle: int, job: int, coflow: Coflow, now: float) -> None:
        """See Transport."""
        links = links_of(coflow, self.topology)
        first, last = self._flows.add(links, coflow.size)
        gamma = bottleneck_time(
            self._flows.links, self._flows.size, first, last, self.topology.capacity, self._scratch
        )
        self._coflows.add(
            handle=handle,
            first=first,
            last=last,
            order=self._order,
            job=job,
            bottleneck=gamma,
            total=float(coflow.size.sum()),
            since=now,
            finish=math.inf,
        )
        self._order += 1
        self._observe(now)

    def next_event(self) -> float:
        """See Transport."""
        finish = self._coflows.floats("finish")
        return min(self._due, float(finish.min()) if len(finish) else math.inf)

    def advance(self, now: float) -> list[Finished]:
        """See Transport."""
        rows = np.flatnonzero(self._coflows.floats("finish") <= now + SAME * abs(now))
        if not len(rows):
            return []
        # Sorted by time, then by validity, so that results do not depend on rows of the table.
        rows = rows[np.lexsort((self._coflows.ints("order")[rows], self._coflows.floats("finish")[rows]))]
        handles = [int(h) for h in self._coflows.ints("handle")[rows]]
        settle(rows, now, self._coflows, self._flows, self.usage)
        finished = [self._complete(handle, now) for handle in handles]
        self._observe(now)
        return finished

    def decide(self, now: float) -> None:
        """See Transport."""
        if self._due > now + SAME * abs(now):
            return
        self._due = math.inf
        if not len(self._coflows):
            return
        settle(np.arange(len(self._coflows)), now, self._coflows, self._flows, self.usage)
        view = self.view()
        begin = clock_s()
        self.policy.allocate(view)
        if self.blind:
            squeeze(view.active_flows(), self._flows.links, self.topology.capacity, view.rate)
        self.decision_seconds.append(clock_s() - begin)
        if self.check:
            self._assert_feasible(view)
        predict(self._coflows, self._flows)
        self._due = now + self.policy.review_after(view)
        if self.interval and math.isfinite(self._due):
            self._due = self._tick(self._due)

    def job_done(self, job: int) -> None:
        """See Transport."""
        self._job_bytes.pop(job, None)
        self._job_completed.pop(job, None)

    def view(self) -> View:
        """Return what the policy can see now."""
        ints, floats = self._coflows.ints, self._coflows.floats
        job = ints("job")
        jobs, index = np.unique(job, return_inverse=True)
        base = np.array([self._job_bytes.get(int(j), 0.0) for j in jobs])
        sent: Floats = base + np.bincount(index, weights=floats("sent"), minlength=len(jobs))
        completed = np.array([self._job_completed.get(int(j), 0) for j in jobs], np.int64)
        return View(
            self.topology.capacity,
            self._edges() if self.blind else self._flows.links,
            self._flows.size,
            self._flows.remaining,
            self._flows.rate,
            ints("first"),
            ints("last"),
            ints("order"),
            ints("handle"),
            floats("bottleneck"),
            floats("sent"),
            job,
            sent[index],
            completed[index],
        )

    def _edges(self) -> Routes:
        links = self._flows.links
        final = np.maximum((links >= 0).sum(axis=1) - 1, 0)
        return np.stack([links[:, 0], links[np.arange(len(links)), final]], axis=1)

    def _observe(self, now: float) -> None:
        self._due = min(self._due, self._tick(now) if self.interval else now)

    def _tick(self, now: float) -> float:
        tick = math.ceil(now / self.interval * (1.0 - SAME)) * self.interval
        return tick if tick >= now else now

    def _complete(self, handle: int, now: float) -> Finished:
        coflows = self._coflows
        row = int(np.flatnonzero(coflows.ints("handle") == handle)[0])
        first, last = int(coflows.ints("first")[row]), int(coflows.ints("last")[row])
        total, job = float(coflows.floats("total")[row]), int(coflows.ints("job")[row])
        if self.check:
            left = self._flows.remaining[first:last]
            if left.min() < 0.0 or left.sum() > 1e-6 * total:
                raise SimulationError(
                    f"conservation: coflow {handle} ends with {left.sum()} of {total} bytes left"
                )
        done = self._flows.done[first:last]
        times = np.where(np.isnan(done), now, done) if self.flow_times else None
        finished = Finished(handle, now, float(coflows.floats("waiting")[row]), times)
        self._job_bytes[job] = self._job_bytes.get(job, 0.0) + total
        self._job_completed[job] = self._job_completed.get(job, 0) + 1
        self._flows.remove(first, last)
        coflows.remove(row)
        return finished

    def _assert_feasible(self, view: View) -> None:
        flows = view.active_flows()
        assert_feasible(self._flows.links, flows, view.rate, self.topology, self.policy.name)


def assert_feasible(links: Routes, flows: Ints, rate: Floats, topology: Topology, who: str) -> None:
    """Raise SimulationError if a rate is negative or NaN, or if a link carries more than its capacity."""
    rates = rate[flows]
    if not np.isfinite(rates).all() or (rates < 0.0).any():
        raise SimulationError(f"{who} returns a rate that is negative or not a number")
    load = np.zeros(len(topology.capacity))
    link_loads(links, flows, rate, load)
    over = np.flatnonzero(load > topology.capacity * (1.0 + 1e-6))
    if len(over):
        link = int(over[0])
        raise SimulationError(
            f"{who} puts {load[link]:.6g} bytes/s on {topology.link_names[link]}, "
            f"which carries {topology.capacity[link]:.6g}"
        )
