"""Seeded workloads with the papers' distributions, for a non-blocking switch (Parrot) and a cluster of GPU
servers (slots)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from machine.errors import BadInput
from simulation.collectives import (
    parameter_server,
    push_pull,
    ring,
    ring_flows,
    ring_steps,
    training_job,
)
from simulation.jobs import Coflow, Job, chain
from simulation.traces import TrainingJob

MEGABYTE = 1e6


@dataclass(frozen=True)
class ParrotScale:
    """What Parrot's description leaves open. Iterations and arrivals are divided by these values
    (docs/results.md says why). A coflow's length, of which flow sizes are a random part, applies either to
    each flow or to the whole coflow, which its flows then share."""

    iterations: float = 110.0
    arrivals: float = 10.0
    longest_mb: float = 1000.0
    length_of: Literal["flow", "coflow"] = "flow"


def parrot_jobs(
    trace: Sequence[TrainingJob],
    *,
    servers: int = 128,
    scale: ParrotScale | None = None,
    max_servers_per_job: int | None = None,
    seed: int = 0,
) -> list[Job]:
    """Return Parrot's workload (6.1) from its 60-job trace: chains of all-to-all push and pull coflows.

    A job has twice as many workers as GPUs in the trace, and as many parameter servers (with
    `max_servers_per_job` Δ: a random number from 1 to Δ). Each is placed on a random server of its own.
    Coflow length is proportional to iteration time; the longest is `scale.longest_mb`; flow sizes are uniform
    in (0, length], drawn once per job and phase.
    """
    scale = scale or ParrotScale()
    if min(scale.iterations, scale.arrivals, scale.longest_mb) <= 0:
        raise BadInput(f"scales must be positive: {scale}")
    rng = np.random.default_rng(seed)
    per_iteration = np.array([job.duration_s / job.iterations for job in trace])
    lengths = scale.longest_mb * MEGABYTE * per_iteration / per_iteration.max()
    jobs = []
    for job, length in zip(trace, lengths, strict=True):
        workers = 2 * job.gpus
        pss = workers if max_servers_per_job is None else int(rng.integers(1, max_servers_per_job + 1))
        if workers + pss > servers:
            raise BadInput(
                f"line {job.line}, column num_gpu: job {job.ident} needs {workers + pss} servers, there "
                f"are {servers}; give it fewer GPUs"
            )
        places = rng.permutation(servers)[: workers + pss]
        worker, ps = (a.ravel() for a in np.meshgrid(places[:workers], places[workers:], indexing="ij"))
        longest = length if scale.length_of == "flow" else length / len(worker)
        sizes = longest * (1.0 - rng.random((2, len(worker))))
        works = [Coflow(worker, ps, sizes[0]), Coflow(ps, worker, sizes[1])]
        iterations = max(1, round(job.iterations / scale.iterations))
        jobs.append(chain(job.ident, job.arrival_s / scale.arrivals, works, iterations))
    return jobs


def sample_jobs(jobs: Sequence[Job], count: int, mean_gap_s: float, *, seed: int = 0) -> list[Job]:
    """Return `count` jobs drawn from `jobs`, arriving as a Poisson process with a mean gap of `mean_gap_s`
    (μ)."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(mean_gap_s, count)) if mean_gap_s > 0 else np.zeros(count)
    picks = rng.integers(0, len(jobs), count)
    return [
        Job(f"{i}-{jobs[p].ident}", float(at), jobs[p].tasks, jobs[p].iterations)
        for i, (p, at) in enumerate(zip(picks, arrivals, strict=True))
    ]


@dataclass(frozen=True)
class Model:
    """A model of the slot scheduler's evaluation (VI-A): its bytes, and its computation time (s) per full
    batch, which is our choice."""

    name: str
    bytes: float
    batch_seconds: float
    collective: str


MODELS = (
    Model("vgg19", 549 * MEGABYTE, 2.0, "ring"),
    Model("vgg16", 528 * MEGABYTE, 1.8, "ps"),
    Model("resnet50", 98 * MEGABYTE, 1.3, "ps"),
    Model("gpt2", 1200 * MEGABYTE, 4.0, "ring"),
)


@dataclass(frozen=True)
class ClusterJob:
    """A job of the cluster workload before its flows are made: the servers of its workers and parameter
    servers."""

    ident: str
    arrival_s: float
    model: Model
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    iterations: int

    @property
    def compute_s(self) -> float:
        """Computation time of an iteration, s: that of a full batch divided by the workers (VII)."""
        return self.model.batch_seconds / len(self.workers)

    def pipelined(self) -> Job:
        """Return the job with flows that follow one another byte by byte."""
        flows = (
            ring(self.workers, self.model.bytes)
            if self.model.collective == "ring"
            else parameter_server(self.workers, self.servers, self.model.bytes)
        )
        return training_job(self.ident, self.arrival_s, self.compute_s, [flows], self.iterations)

    def staged(self, *, steps: bool = False) -> Job:
        """Return the job as coflow schedulers see it: coflows that start one after another.

        A ring flow starts when its predecessor has ended, as the paper says of MCS. With `steps`, all members
        send at once, one chunk per step, and each step starts after the previous one.
        """
        in_stages = ring_steps if steps else ring_flows
        coflows = (
            in_stages(self.workers, self.model.bytes)
            if self.model.collective == "ring"
            else push_pull(self.workers, self.servers, self.model.bytes)
        )
        return training_job(self.ident, self.arrival_s, self.compute_s, coflows, self.iterations)


def cluster_jobs(
    count: int,
    *,
    servers: int = 1000,
    gpus_per_server: int = 8,
    arrival_window_s: float = 60.0,
    iterations: tuple[int, int] = (20, 60),
    workers: tuple[int, int] = (2, 8),
    domain: int = 10,
    models: Sequence[Model] = MODELS,
    seed: int = 0,
) -> list[ClusterJob]:
    """Return `count` jobs on a cluster: random `models` on random free GPUs.

    Arrivals are a Poisson process over `arrival_window_s`. Ring jobs have `workers` (from, to) workers,
    parameter-server jobs half as many workers and as many servers. A job's GPUs are random free ones within
    one group of `domain` servers (10: a rack; all servers: anywhere). GPUs are never freed: the cluster must
    hold all jobs at once.
    """
    if count < 1:
        raise BadInput(f"the workload has {count} jobs; give at least 1")
    if servers % domain:
        raise BadInput(f"{servers} servers cannot be divided into groups of {domain}; choose a divisor")
    rng = np.random.default_rng(seed)
    free = [
        [int(s) for s in rng.permutation(np.repeat(np.arange(d, d + domain), gpus_per_server))]
        for d in range(0, servers, domain)
    ]
    arrivals = np.sort(rng.uniform(0.0, arrival_window_s, count))
    jobs = []
    for i in range(count):
        model = models[int(rng.integers(len(models)))]
        size = int(rng.integers(workers[0], workers[1] + 1))
        n_workers = size if model.collective == "ring" else max(1, size // 2)
        n_servers = 0 if model.collective == "ring" else n_workers
        need = n_workers + n_servers
        fitting = [d for d in range(len(free)) if len(free[d]) >= need]
        if not fitting:
            raise BadInput(
                f"the cluster's GPUs hold only {i} of {count} jobs; use more servers or fewer jobs"
            )
        group = free[fitting[int(rng.integers(len(fitting)))]]
        places = [group.pop() for _ in range(need)]
        n_iterations = int(rng.integers(iterations[0], iterations[1] + 1))
        jobs.append(
            ClusterJob(
                str(i),
                float(arrivals[i]),
                model,
                tuple(places[:n_workers]),
                tuple(places[n_workers:]),
                n_iterations,
            )
        )
    return jobs
