"""Pollux' goodput: how fast a job trains on some GPUs with the batch size that suits them best (Pollux, OSDI
2021, sections 3 and 4.1).

Goodput is throughput times statistical efficiency. A job's agent fits the throughput to the steps that it has
seen, and learns the efficiency from the noise of its gradients.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize

from schedulers.compiled import Floats, Ints, compiled
from simulation.clusters.applications import Application

SIZES = 50
"""Batch sizes tried, in geometric steps from the initial one to the largest."""
_LEAST = 1e-8
_GAMMA_MOST = 10.0

# Parameters of the throughput, by their place: computing takes a constant and a time per sample (s);
# synchronising over several nodes, and within one, takes a constant and a time per GPU beyond two (s);
# GAMMA is how much of both overlaps, from 1 (nothing) to 10 (nearly all).
COMPUTE, SAMPLE, NODES, NODES_GPU, LOCAL, LOCAL_GPU, GAMMA = range(7)


@compiled
def times(fit: Floats, distributed: bool, replicas: int, local: float) -> tuple[float, float]:
    """Return the time of computing the gradients of a local batch, and of a whole step, s (3.2)."""
    compute = fit[0] + fit[1] * local
    sync = 1e-16
    if replicas > 1:
        first = 2 if distributed else 4
        sync = fit[first] + fit[first + 1] * max(replicas - 2, 1e-8)
    high, low = max(compute, sync), min(compute, sync)
    return compute, high * (1.0 + (low / high) ** fit[6]) ** (1.0 / fit[6])


@compiled
def efficiency(square: float, variance: float, scale: float) -> float:
    """Return the progress per sample with `scale` times the initial batch, relative to it, in (0, 1] (3.1).

    `square` is the squared norm of the gradient, `variance` its variance at the initial batch.
    """
    if variance <= 0.0 or scale <= 1.0:
        return 1.0 / max(scale, 1.0)
    return (variance + square) / (variance + square * scale)


@compiled
def best(
    fit: Floats, square: float, variance: float, limits: Ints, distributed: bool, replicas: int
) -> tuple[float, int, int]:
    """Return the largest goodput on `replicas` GPUs in samples of the initial batch per second,
    and the local batch and steps of accumulation that have it.

    `limits` are the initial and the largest batch, and the smallest and largest local batch. Goodput 0: the
    smallest batch is too large.
    """
    initial, most, least_local, most_local = limits
    found, batch, steps = 0.0, 0, 0
    low = max(initial, least_local * replicas)
    for i in range(SIZES):
        local = low * (most / low) ** (i / (SIZES - 1.0)) / replicas
        accumulate = math.ceil(local / most_local - 1e-8) - 1
        if replicas == 1 and local > initial + 1e-8:
            # The noise of gradients cannot be estimated from one gradient.
            accumulate = max(accumulate, 1)
        size = math.ceil(local / (accumulate + 1) - 1e-8)
        if size < least_local or size > most_local or low > most:
            continue
        compute, step = times(fit, distributed, replicas, float(size))
        total = replicas * size * (accumulate + 1)
        goodput = total / (accumulate * compute + step) * efficiency(square, variance, total / initial)
        if goodput > found:
            found, batch, steps = goodput, size, accumulate
    return found, batch, steps


@compiled
def table(fit: Floats, square: float, variance: float, limits: Ints, gpus: int) -> Floats:
    """Return the largest goodput within a node and over several, by number of GPUs, shape (2, gpus + 1)."""
    found = np.zeros((2, gpus + 1))
    for distributed in range(2):
        for replicas in range(1, gpus + 1):
            found[distributed, replicas] = best(fit, square, variance, limits, distributed == 1, replicas)[0]
    return found


@compiled
def loss(fit: Floats, seen: Floats) -> tuple[float, Floats]:
    """Return how far `fit` is from the steps `seen`, and the gradient of that.

    A row of `seen` has the nodes, the GPUs, the local batch, and the logarithms of the times of computing and
    of the step. The loss is the sum of both root mean squared logarithmic errors (4.1), plus the terms by
    which the authors' code prefers little overlap, and synchronisation that does not grow with the GPUs.
    """
    count = len(seen)
    first, second = 0.0, 0.0
    slopes, others = np.zeros(7), np.zeros(7)
    gamma = fit[6]
    for row in seen:
        distributed, replicas, local = row[0] > 1.0, row[1], row[2]
        compute = fit[0] + fit[1] * local
        sync, at, more = 1e-16, 0, 0.0
        if replicas > 1:
            at, more = (2 if distributed else 4), max(replicas - 2.0, 1e-8)
            sync = fit[at] + fit[at + 1] * more
        high, low = max(compute, sync), min(compute, sync)
        part = (low / high) ** gamma
        step = math.log(high) + math.log1p(part) / gamma
        weight = (1.0 if compute >= sync else part) / (1.0 + part)
        wrong = math.log(compute) - row[3]
        first += wrong * wrong
        slopes[0] += wrong / compute
        slopes[1] += wrong * local / compute
        wrong = step - row[4]
        second += wrong * wrong
        others[0] += wrong * weight / compute
        others[1] += wrong * weight * local / compute
        if at:
            others[at] += wrong * (1.0 - weight) / sync
            others[at + 1] += wrong * (1.0 - weight) * more / sync
        inner = weight * math.log(compute) + (1.0 - weight) * math.log(sync)
        others[6] += wrong * (inner - step) / gamma
    first, second = math.sqrt(first / count), math.sqrt(second / count)
    slope = slopes / (count * max(first, 1e-9)) + others / (count * max(second, 1e-9))
    slope[6] += 2e-3 * (gamma - 1.0)
    total = first + second + 1e-3 * (gamma - 1.0) ** 2
    for at in (2, 4):
        ratio = fit[at + 1] / fit[at]
        total += 1e-2 * ratio * ratio
        slope[at] -= 2e-2 * ratio * ratio / fit[at]
        slope[at + 1] += 2e-2 * ratio / fit[at]
    return total, slope


def fitted(seen: Floats) -> Floats:
    """Return the parameters that fit the steps `seen` (as for `loss`), shape (7,).

    What was never seen is taken to cost nothing, so that the scheduler tries it (4.1): overlapping
    several nodes, or several GPUs, or more than two of them.
    """
    start = np.array([1e-1, 1e-2] * 3 + [1.0 + 1e-3])
    low = np.array([_LEAST] * 6 + [1.0])
    high = np.array([math.inf] * 6 + [_GAMMA_MOST])
    distributed, replicas = seen[:, 0] > 1.0, seen[:, 1]
    if len(np.unique(seen[:, 2])) == 1:
        start[COMPUTE] = low[COMPUTE] = high[COMPUTE] = np.exp(seen[:, 3]).mean() / 2.0
    unseen = set()
    if not distributed.any():
        unseen |= {NODES, NODES_GPU}
    if not (~distributed & (replicas > 1)).any():
        unseen |= {LOCAL, LOCAL_GPU}
    if not (replicas > 2).any():
        unseen |= {NODES_GPU, LOCAL_GPU}
    for place in unseen:
        start[place] = high[place] = low[place]
    found = optimize.minimize(
        loss, start, (seen,), "TNC", jac=True, bounds=optimize.Bounds(low, high), options={"maxfun": 300}
    )
    fit: Floats = found.x
    if not distributed.any():
        fit[NODES] = max(fit[NODES], 1.1 * fit[LOCAL])
        fit[NODES_GPU] = max(fit[NODES_GPU], 1.1 * fit[LOCAL_GPU])
    return fit


class Agent:
    """What a job learns about itself (PolluxAgent, 4.1): its throughput and its gradients."""

    def __init__(self, application: Application, gpus: int, *, batch: int | None = None) -> None:
        """`gpus` are those of the cluster. With `batch` the job keeps to this batch."""
        self.application = application
        self.batch = batch
        self._gpus = gpus
        self._limits = np.array(
            [
                application.initial_batch,
                application.most_batch,
                application.least_local,
                application.most_local,
            ]
        )
        self._seen: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._fit: Floats | None = None
        self._gradient = (0.0, 0.0)
        self._table: Floats | None = None

    @property
    def most(self) -> int:
        """The most GPUs to give it: twice as many as it has ever had (4.1)."""
        if self.batch is not None:
            return 1
        had = max((replicas for _, replicas, _ in self._seen), default=0)
        possible = self.application.most_batch // self.application.least_local
        return min(max(2 * had, 1), self._gpus, possible)

    def observe(
        self, nodes: int, replicas: int, local: int, step: float, sync: float, gradient: tuple[float, float]
    ) -> None:
        """Learn from a step that took `step` s, `sync` s of them for synchronising, and from its gradients'
        squared norm and variance."""
        if gradient != self._gradient:
            self._gradient, self._table = gradient, None
        key = (nodes, replicas, local)
        if key in self._seen:
            return
        self._seen[key] = (step - sync, step)
        self._fit = fitted(np.array([[*at, *np.log(times)] for at, times in self._seen.items()]))
        self._table = None

    def goodput(self, nodes: int, replicas: int) -> float:
        """Return its goodput on some GPUs as far as it knows: at first, as many times that of one GPU."""
        if self._fit is None:
            return float(replicas)
        if self._table is None:
            self._table = table(self._fit, *self._gradient, self._limits, self._gpus)
        return float(self._table[int(nodes > 1), replicas])

    def sizes(self, nodes: int, replicas: int) -> tuple[int, int]:
        """Return the local batch, and the steps that are accumulated before each that synchronises."""
        held, batch = self.application, self.batch
        if batch is None and self._fit is None:
            batch = max(held.initial_batch, held.least_local * replicas)
        if batch is None:
            assert self._fit is not None
            _, local, steps = best(self._fit, *self._gradient, self._limits, nodes > 1, replicas)
        else:
            share = math.ceil(batch / replicas)
            steps = math.ceil(share / held.most_local) - 1
            if replicas == 1 and batch > held.initial_batch:
                steps = max(1, steps)
            local = math.ceil(share / (steps + 1))
        return min(local, held.most_batch // (replicas * (steps + 1))), steps
