"""The traces of Cassini's evaluation (4.5.1): jobs of random models that arrive at a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from schedulers.cassini.profile import Profile
from simulation.clusters.models import DATA_PARALLEL, MODEL_PARALLEL, MODELS, Model

ITERATIONS = (200, 1000)
WORKERS = (1, 12)
BURST_S = 60.0
"""When the new jobs of a dynamic trace arrive."""


@dataclass(frozen=True)
class ModelJob:
    """A job that asks for `wanted` GPUs and would need `iterations` with them, with `batch` samples on each
    GPU. With other numbers of GPUs it needs more or fewer: the samples stay the same."""

    ident: str
    model: Model
    batch: int
    iterations: int
    wanted: int
    arrival_s: float
    measured: Profile | None = None
    """Its profile on any number of GPUs, in place of the model's."""

    def profile(self, workers: int) -> Profile:
        """Return its profile on so many GPUs."""
        return self.measured or self.model.profile(self.batch, workers)

    @property
    def work(self) -> float:
        """All iterations of all workers."""
        return float(self.iterations * self.wanted)

    @property
    def alone_s(self) -> float:
        """How long it takes with the GPUs that it asks for, if nobody slows it down."""
        return self.iterations * self.profile(self.wanted).period


def _job(random: np.random.Generator, number: int, model: Model) -> ModelJob:
    return ModelJob(
        f"{number}-{model.name}",
        model,
        int(random.choice(model.batches)),
        int(random.integers(*ITERATIONS, endpoint=True)),
        int(random.integers(max(WORKERS[0], model.least), WORKERS[1], endpoint=True)),
        arrival_s=0.0,
    )


def poisson(models: Sequence[Model], count: int, load: float, gpus: int, *, seed: int) -> list[ModelJob]:
    """Return `count` jobs of random models, which arrive as a Poisson process. If no job waited or were
    slowed down, the part `load` of the GPUs would be in use on average."""
    random = np.random.default_rng(seed)
    drawn = [_job(random, n, models[int(random.integers(len(models)))]) for n in range(count)]
    gap = float(np.mean([job.wanted * job.alone_s for job in drawn])) / (gpus * load)
    arrivals = np.cumsum(random.exponential(gap, count)).tolist()
    return [replace(job, arrival_s=at) for job, at in zip(drawn, arrivals, strict=True)]


def dynamic(present: Sequence[Model], new: Sequence[Model], gpus: int, *, seed: int) -> list[ModelJob]:
    """Return jobs of the models `present`, which hold 3/4 of the GPUs, and jobs of the models `new`, which
    arrive at `BURST_S` and ask for the others. All have `ITERATIONS[1]` iterations.

    Until shortly before, jobs of one GPU hold the others. They arrive between the present ones, so that they
    leave GPUs in several racks.
    """
    random = np.random.default_rng(seed)
    rest = gpus // 4
    jobs: list[ModelJob] = []

    def add(model: Model, workers: int, at: float, iterations: int) -> None:
        name = f"{len(jobs)}-{model.name}"
        jobs.append(ModelJob(name, model, int(random.choice(model.batches)), iterations, workers, at))

    def sizes(count: int, total: int) -> list[int]:
        """Two each, and the others at random."""
        even = np.full(count, 1.0 / count)
        return [2 + more for more in random.multinomial(total - 2 * count, even).tolist()]

    short = MODELS["ResNet50"]
    lasting = int(0.9 * BURST_S / short.profile(short.batches[0], 1).period)
    order = [present[n] for n in random.permutation(len(present))]
    for n, (model, workers) in enumerate(zip(order, sizes(len(order), gpus - rest), strict=True)):
        add(model, workers, float(n), ITERATIONS[1])
        for _ in range(n * rest // len(order), (n + 1) * rest // len(order)):
            add(short, 1, n + 0.5, lasting)
    for model, workers in zip(new, sizes(len(new), rest), strict=True):
        add(model, workers, BURST_S, ITERATIONS[1])
    return jobs


MIXED = (*DATA_PARALLEL, MODELS["DLRM"])
"""The models of figure 4.11: DLRM is model parallel, all others data parallel."""
TRACES = {"mixed": MIXED, "model parallel": MODEL_PARALLEL}
