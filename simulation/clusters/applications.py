"""The training applications that Pollux' authors measured (Pollux, OSDI 2021, section 5.1): how long a step
takes on some GPUs, and how noisy gradients are in each epoch.

`data/pollux/` has the measurements, and its NOTICE their origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from machine.errors import BadInput
from schedulers.compiled import Floats, Ints
from simulation.traces import (
    INCLUDED,
    read_pollux_placements,
    read_pollux_scalability,
    read_pollux_validation,
)

POLLUX = INCLUDED / "pollux"
EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50}
"""The applications, and the epochs after which they are done."""
MOST_LOCAL = {"yolov3": 8}
"""The largest batch of a GPU where it is not the largest that was measured."""

Placement = tuple[int, ...]
"""GPUs on each node."""


@dataclass(frozen=True)
class Curve:
    """Measured times (s) over the batch of a GPU. A step's `sync` is the part that does not overlap with the
    computation of gradients."""

    batch: Floats
    step: Floats
    sync: Floats

    def at(self, batch: float) -> tuple[float, float]:
        """Return the step and sync times: linear between batches, beyond the last as between the last two."""
        if len(self.batch) == 1:
            return float(self.step[0]), float(self.sync[0])
        i = min(max(int(np.searchsorted(self.batch, batch)), 1), len(self.batch) - 1)
        part = (batch - self.batch[i - 1]) / (self.batch[i] - self.batch[i - 1])
        step, sync = (float(y[i - 1] + part * (y[i] - y[i - 1])) for y in (self.step, self.sync))
        return step, min(max(sync, 0.0), step)


@dataclass(frozen=True, eq=False)
class Application:
    """An application. Batches are samples per step of all its GPUs, local batches those of one GPU."""

    name: str
    curves: dict[Placement, Curve]
    """By placement, in its canonical rotation: nodes form a ring."""
    averages: dict[int, dict[int, Curve]]
    """By number of nodes and of GPUs."""
    batches: Ints
    """Batches with measured gradients, shape (B,)."""
    progress: Floats
    """Steps of the initial batch that the epochs up to each are worth, shape (B, epochs)."""
    squares: Floats
    """Squared norm of the gradient, shape (B, epochs)."""
    variances: Floats
    """Variance of the gradient at the initial batch, shape (B, epochs)."""
    least_local: int
    most_local: int

    @property
    def epochs(self) -> int:
        """After this many epochs it is done."""
        return EPOCHS[self.name]

    @property
    def initial_batch(self) -> int:
        """The batch that its user chose. No other is smaller."""
        return int(self.batches[0])

    @property
    def most_batch(self) -> int:
        """The largest batch that trains well."""
        return int(self.batches[-1])

    @cached_property
    def needed(self) -> Floats:
        """Progress at the end of each epoch, in steps of the initial batch, shape (epochs,)."""
        least: Floats = self.progress[:, : self.epochs].min(axis=0)
        return least

    def times(self, placement: Placement, local_batch: float) -> tuple[float, float]:
        """Return the step and sync times (s): those measured for the placement, else between those of the
        nearest numbers of nodes and GPUs."""
        found = self.curves.get(canonical(placement))
        if found is not None:
            return found.at(local_batch)
        replicas = sum(placement)
        count = min(len(placement), max(self.averages))
        (low, part), (high, other) = _around(count, sorted(self.averages))
        below, above = (self._average(nodes, replicas, local_batch) for nodes in (low, high))
        return part * below[0] + other * above[0], part * below[1] + other * above[1]

    def _average(self, nodes: int, replicas: int, local_batch: float) -> tuple[float, float]:
        curves = self.averages[nodes]
        (low, part), (high, other) = _around(replicas, sorted(curves))
        below, above = curves[low].at(local_batch), curves[high].at(local_batch)
        return part * below[0] + other * above[0], part * below[1] + other * above[1]

    def gradient(self, batch: float, epoch: int) -> tuple[float, float]:
        """Return the squared norm and the variance of gradients in `epoch`, linear between batches."""
        square, variance = (
            float(np.interp(batch, self.batches, each[:, epoch])) for each in (self.squares, self.variances)
        )
        return square, variance


def canonical(placement: Sequence[int]) -> Placement:
    """Return the smallest rotation of `placement`. Raises ValueError if it has no GPU."""
    held = tuple(count for count in placement if count)
    return min(held[i:] + held[:i] for i in range(len(held)))


def _around(value: int, known: Sequence[int]) -> tuple[tuple[int, float], tuple[int, float]]:
    """Return the two of `known` around `value`, with their weights."""
    value = min(max(value, known[0]), known[-1])
    for low, high in pairwise(known):
        if low <= value <= high:
            part = (high - value) / (high - low)
            return (low, part), (high, 1.0 - part)
    return (value, 1.0), (value, 0.0)


@cache
def application(name: str, directory: Path = POLLUX) -> Application:
    """Return the application called `name`. Raises BadInput if its files are missing or invalid."""
    placed = read_pollux_placements(directory / f"{name}-placements.csv")
    if not placed:
        raise BadInput(f"{directory / name}-placements.csv: has no rows; take the published file")
    curves: dict[Placement, list[Point]] = {}
    averages: dict[int, dict[int, list[Point]]] = {}
    for each in placed:
        point = (float(each.batch_size), each.step_s, each.sync_s)
        where = canonical([int(digit) for digit in each.placement])
        curves.setdefault(where, []).append(point)
        averages.setdefault(len(where), {}).setdefault(sum(where), []).append(point)
    for mean in read_pollux_scalability(directory / f"{name}-scalability.csv"):
        point = (float(mean.batch_size), mean.step_s, mean.sync_s)
        averages.setdefault(mean.nodes, {}).setdefault(mean.gpus, []).append(point)
    path = directory / f"{name}-validation.csv"
    epochs: dict[int, list[tuple[float, float, float]]] = {}
    for epoch in read_pollux_validation(path):
        found = (epoch.progress, epoch.square, epoch.variance)
        epochs.setdefault(epoch.batch_size, []).append(found)
    batches = sorted(epochs)
    if not batches or min(len(epochs[batch]) for batch in batches) < EPOCHS[name]:
        raise BadInput(f"{path}: a batch_size has fewer than {EPOCHS[name]} rows; take the published file")
    measured = np.array([epochs[batch][: EPOCHS[name]] for batch in batches])
    return Application(
        name,
        {where: _curve(points) for where, points in curves.items()},
        {
            nodes: {replicas: _curve(points) for replicas, points in each.items()}
            for nodes, each in averages.items()
        },
        np.array(batches),
        measured[..., 0],
        measured[..., 1],
        measured[..., 2],
        min(each.batch_size for each in placed),
        MOST_LOCAL.get(name, max(each.batch_size for each in placed)),
    )


Point = tuple[float, float, float]
"""Local batch, step time, sync time."""


def _curve(points: Iterable[Point]) -> Curve:
    """Return the curve through `points`, with means where batches are equal."""
    at: dict[float, list[Point]] = {}
    for point in points:
        at.setdefault(point[0], []).append(point)
    means = np.array([np.mean(at[batch], axis=0) for batch in sorted(at)])
    return Curve(*means.T)
