"""Jobs that queue for the testbed's GPUs: the load, the queue, where jobs run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from schedulers.placement.strategies import STRATEGIES
from simulation.engine import Simulation
from simulation.experiments.experiment import Point
from simulation.experiments.registry import points
from simulation.experiments.slots import LIVE_SERVERS, live_topology, live_transport
from simulation.experiments.slots_load import CLUSTER, queued, run_load, workers_of, workload
from simulation.gpu_queue import GpuQueue
from simulation.jobs import Coflow, Job
from simulation.results import Completion

JOBS = 10


def point(load: int, policy: str = "fair") -> Point:
    (found,) = [
        each for each in points("slots-load", None, policy, JOBS, 0)[1] if each["load_percent"] == load
    ]
    return {**found, "iterations": 5, "draws": 2}


@pytest.mark.parametrize("load", [60, 90])
def test_arrivals_are_scaled_to_the_load(load: int) -> None:
    topology = live_topology(10)
    jobs = workload(point(load), 1, topology)
    assert len(jobs) == JOBS
    gpu_s = sum(workers_of(job) * job.staged().lower_bound(topology) for job in jobs)
    assert gpu_s / (CLUSTER.gpus * jobs[-1].arrival_s) == pytest.approx(load / 100.0)
    assert [job.model for job in jobs] == [job.model for job in workload(point(75), 1, topology)]
    assert [job.arrival_s for job in jobs] != [job.arrival_s for job in workload(point(load), 2, topology)]


@dataclass
class Watched(GpuQueue):
    """A queue that knows which jobs run."""

    hosts: list[int] = field(default_factory=list)
    """How many each job has, parameter servers included."""
    running: set[int] = field(default_factory=set)

    def started(self, now: float) -> Iterator[tuple[int, Job]]:
        for index, job in super().started(now):
            self.running.add(index)
            sent = [task.work for task in job.tasks if isinstance(task.work, Coflow)]
            assert {int(host) for each in sent for host in each.src} <= set(range(LIVE_SERVERS))
            assert all(len(set(each.src.tolist())) == self.hosts[index] for each in sent)
            yield index, job
        held = sum(self.jobs[index].request.gpus for index in self.running)
        assert int(self.queue.state.gpus.sum()) == CLUSTER.gpus - held >= 0

    def ended(self, job: int) -> None:
        super().ended(job)
        self.running.remove(job)


def test_jobs_start_in_order_on_servers_of_their_own_with_free_gpus() -> None:
    topology = live_topology(10)
    drawn = workload(point(90), 1, topology)
    waiting = [queued(job, "slots-15", topology) for job in drawn]
    queue = Watched(waiting, CLUSTER, STRATEGIES["apart"], hosts=[len(job.hosts) for job in drawn])
    jobs = [job.pipelined() for job in drawn]
    transport = live_transport("slots-15", topology, 1, True)
    starts = [each.start for each in Simulation(jobs, transport, admission=queue).run().jobs]
    assert starts == sorted(starts)
    assert not queue.running


def test_more_load_means_longer_queues() -> None:
    """The same jobs, which arrive the faster the higher the load; the same twice."""

    def figures(load: int) -> Completion:
        found = run_load(point(load)).figures
        assert isinstance(found, Completion)
        assert found.to_bound >= 1.0
        return found

    low, high = figures(60), figures(90)
    assert low.mean_queued_s is not None
    assert high.mean_queued_s is not None
    assert low.mean_queued_s < high.mean_queued_s
    assert low.mean_alone_s == pytest.approx(high.mean_alone_s)
    assert figures(60) == low
