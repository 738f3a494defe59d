"""CoflowSim's decisions where they are not its papers': on our engine, to tell what its results differ by.

Read from its source (coflow/coflowsim at its HEAD). With these and its time step every coflow of the first
hundred of FB2010 ends within the same step under all three policies.
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
"""It decides and completes coflows at multiples of this."""


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
    """Return by when, in its ms, CoflowSim wants each coflow done, though its user set no deadlines.

    It is the arrival and 1 to 2 times the bottleneck time, by java.util.Random(17).
    """
    alone = np.array([job.lower_bound(topology) for job in jobs])
    arrival = np.array([job.arrival for job in jobs])
    # Bytes over 2^27 bytes/s, times 1,000: its second has 1,024 ms elsewhere.
    return 1000.0 * (arrival + alone * 1000.0 / 1024.0 * (1.0 + java_random(17, len(jobs))))


class _ByDeadline:
    """What is left goes to single flows by deadline. Coflows' numbers must be the jobs' places."""

    deadline: Floats

    def backfill_ranking(self, view: View, ranking: Ints) -> Ints:
        """By deadline, else as `ranking`."""
        result: Ints = ranking[np.argsort(self.deadline[view.ident[ranking]], kind="stable")]
        return result


class FifoOfCoflowSim(_ByDeadline, Fifo):
    """FIFO; see the base."""


class VarysOfCoflowSim(_ByDeadline, Varys):
    """SEBF by the bottleneck at arrival; see the base."""


class DarkOfCoflowSim(DClas):
    """Aalo: a coflow changes its queue only when another one arrives or ends, goes to the end of its new
    queue, and nothing of what is left is given away."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: list[list[int]] = [[] for _ in range(len(self.thresholds) + 1)]

    def ranking(self, view: View) -> Ints:
        """By queue, then by when the coflow came there."""
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
        """Each coflow in turn, and no more."""
        equal_in_order(self.ranking(view), view.network(view.capacity.copy()))

    def review_after(self, view: View) -> float:
        """Never."""
        return float(np.inf)


def as_coflowsim(policy: str, jobs: Sequence[Job], topology: Topology) -> CoflowPolicy:
    """Return `policy` ("varys", "aalo" or "fifo") as CoflowSim has it."""
    if policy == "aalo":
        return DarkOfCoflowSim()
    chosen = VarysOfCoflowSim(dynamic=False) if policy == "varys" else FifoOfCoflowSim()
    chosen.deadline = deadlines(jobs, topology)
    return chosen
