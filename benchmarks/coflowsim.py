"""CoflowSim's decisions where they differ from the papers, on our engine, to explain differences in results.

They follow its source (coflow/coflowsim at HEAD). With these decisions and its time step, each of the first
hundred coflows of FB2010 ends within the same step under all three policies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedulers.coflow.allocation import equal_in_order
from schedulers.coflow.rivals import DClas, Fifo, Varys
from schedulers.coflow.view import CoflowPolicy, View
from schedulers.compiled import Floats, Ints
from simulation.jobs import Job
from simulation.topology import Topology

STEP_S = 0.008
"""CoflowSim decides and completes coflows at multiples of this."""


def java_random(seed: int, count: int) -> Floats:
    """Return the first `count` values of java.util.Random(seed).nextDouble()."""
    state, values = (seed ^ 0x5DEECE66D) % 2**48, []
    for _ in range(count):
        bits = []
        for width in (26, 27):
            state = (state * 0x5DEECE66D + 0xB) % 2**48
            bits.append(state >> (48 - width))
        values.append(((bits[0] << 27) + bits[1]) / 2**53)
    return np.array(values)


def deadlines(jobs: Sequence[Job], topology: Topology) -> Floats:
    """Return CoflowSim's deadline for each coflow in its ms, which it sets even if its user does not.

    A deadline is the arrival plus 1 to 2 times the bottleneck time, drawn from java.util.Random(17).
    """
    alone = np.array([job.lower_bound(topology) for job in jobs])
    arrival = np.array([job.arrival for job in jobs])
    # Bytes over 2^27 bytes/s, times 1,000; elsewhere its second has 1,024 ms.
    return 1000.0 * (arrival + alone * 1000.0 / 1024.0 * (1.0 + java_random(17, len(jobs))))


class _ByDeadline:
    """Give the remaining bandwidth to single flows by deadline. Coflow numbers must be the jobs' indices."""

    deadline: Floats

    def backfill_ranking(self, view: View, ranking: Ints) -> Ints:
        """Rank by deadline, then as in `ranking`."""
        result: Ints = ranking[np.argsort(self.deadline[view.ident[ranking]], kind="stable")]
        return result


class FifoOfCoflowSim(_ByDeadline, Fifo):
    """FIFO, with remaining bandwidth given away by deadline."""


class VarysOfCoflowSim(_ByDeadline, Varys):
    """SEBF by the bottleneck at arrival, with remaining bandwidth given away by deadline."""


class DarkOfCoflowSim(DClas):
    """Aalo. A coflow changes its queue only when another coflow arrives or ends, and joins its new queue at
    the end. Remaining bandwidth is not given away."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: list[list[int]] = [[] for _ in range(len(self.thresholds) + 1)]

    def ranking(self, view: View) -> Ints:
        """Rank by queue, then by when the coflow joined it."""
        here = {int(ident): c for c, ident in enumerate(view.ident)}
        due = np.searchsorted(self.thresholds, view.sent, side="left")
        known = {ident for queue in self._queues for ident in queue}
        queues = [[ident for ident in queue if ident in here] for queue in self._queues]
        queues[0] += sorted(here.keys() - known)
        for q in range(len(queues) - 1):
            queues[q + 1] += [ident for ident in queues[q] if due[here[ident]] > q]
            queues[q] = [ident for ident in queues[q] if due[here[ident]] <= q]
        self._queues = queues
        return np.array([here[ident] for queue in queues for ident in queue], np.int64)

    def allocate(self, view: View) -> None:
        """Serve each coflow in turn, without backfilling."""
        equal_in_order(self.ranking(view), view.network(view.capacity.copy()))

    def review_after(self, view: View) -> float:
        """Return infinity: queues change only when coflows arrive or end."""
        return float(np.inf)


def as_coflowsim(policy: str, jobs: Sequence[Job], topology: Topology) -> CoflowPolicy:
    """Return `policy` ("varys", "aalo" or "fifo") as CoflowSim implements it."""
    if policy == "aalo":
        return DarkOfCoflowSim()
    chosen = VarysOfCoflowSim(dynamic=False) if policy == "varys" else FifoOfCoflowSim()
    chosen.deadline = deadlines(jobs, topology)
    return chosen
