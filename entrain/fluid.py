"""The jobs of live experiments as fluid, by the simulator: what sharing, or an order of the jobs, can gain.

Jobs, arrivals, GPUs and cross traffic are those of the live run. Rates are exact, and there are no packets.
Links carry the part of their rate that the slot scheduler gives away. A parameter server sends back what it
has of all workers, part by part. Cross traffic has its max-min share.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from controlplane.topology import Topology
from entrain.bound import MBPS
from entrain.cluster import Arrival, ClusterPlan
from entrain.experiment import Experiment
from entrain.run.cross import draw
from schedulers.placement.cluster import Placement
from schedulers.slots.host import PAYLOAD
from simulation.collectives import in_parts, parameter_server, ring, training_job
from simulation.crossing import CrossedTransport, CrossFlow
from simulation.engine import Simulation
from simulation.gpu_queue import GpuQueue, Queued
from simulation.jobs import Job
from simulation.policies import coflow_policy
from simulation.scheduled import ScheduledTransport
from simulation.topology import switch
from workloads.jobs import JobSpec
from workloads.strategies import strategies

BOUNDS = {"fair": "max-min, fluid", "varys": "least left first, fluid"}
"""The simulator's policies that live runs are compared with, and their names in tables."""

PATTERNS = {"ring", "parameter-server"}
"""The collectives that the simulator has as one fluid transfer per iteration."""


def has_bounds(experiment: Experiment) -> bool:
    """Return whether the jobs can be fluid: rings and parameter servers alone, between hosts or servers that
    have one link each and no other bottleneck."""
    if (plan := experiment.cluster) is None:
        patterns = {job.spec.collective for job in experiment.jobs}
        uncapped = all(table.rate_mbps is None for table in experiment.cross)
        return uncapped and patterns <= PATTERNS and _is_one_switch(experiment.topology)
    table, drawn = plan.table, plan.drawn
    one_link = (table.servers_per_leaf, table.spines, table.links_per_pair) == (1, 1, 1)
    patterns = {job.collective for job in plan.listed} if drawn is None else set(drawn.collectives)
    return one_link and patterns <= PATTERNS


def _is_one_switch(topology: Topology) -> bool:
    """Return whether hosts have equal links, and at most two switches a link that carries all of one side."""
    rates = topology.host_rates_mbps
    sides = [sum(rates[host.name] for host in topology.hosts_of(each.name)) for each in topology.switches]
    between = [
        link
        for link in topology.links
        if link.a in topology.switch_by_name and link.b in topology.switch_by_name
    ]
    ample = all(link.rate_mbps >= min(sides) and not link.delay_ms for link in between)
    return len(set(rates.values())) == 1 and len(sides) <= 2 and ample


def mean_jct_s(experiment: Experiment, seed: int, policy: str) -> float:
    """Return the mean completion time of the jobs under `seed` and a policy of the simulator, s.

    On a cluster, the first strategy places the jobs.
    """
    plan = experiment.cluster
    if plan is not None:
        return _queued_jct_s(plan, seed, policy)
    number = {host.name: place for place, host in enumerate(experiment.topology.hosts)}
    (rate_mbps,) = set(experiment.topology.host_rates_mbps.values())
    jobs = []
    for job in experiment.jobs:
        start_s = (job.spec.start_ms + experiment.start_offset_ms(seed, job)) / 1e3
        hosts = [number[name] for name in job.hosts]
        jobs.append(_fluid(job.name, start_s, job.spec, hosts, job.spec.iterations))
    cross = [
        CrossFlow(number[each.source], number[each.destination], each.start_s, each.start_s + each.duration_s)
        for each in draw(experiment, seed)
    ]
    topology = switch(len(number), PAYLOAD * rate_mbps * MBPS)
    transport = CrossedTransport(topology, coflow_policy(policy), cross)
    return fmean(record.jct for record in Simulation(jobs, transport, keep_coflows=False).run().jobs)


def _queued_jct_s(plan: ClusterPlan, seed: int, policy: str) -> float:
    table, arrivals, strategy = plan.table, plan.arrivals(seed), plan.table.strategy[0]
    topology = switch(len(plan.servers.hosts), PAYLOAD * table.rate_mbps * MBPS)
    jobs = [_arriving(plan, arrival, range(arrival.gpus)) for arrival in arrivals]
    waiting = [
        Queued(arrival.request, arrival.arrival_s, job.lower_bound(topology), partial(_placed, plan, arrival))
        for arrival, job in zip(arrivals, jobs, strict=True)
    ]
    queue = GpuQueue(waiting, plan.cluster(strategy), strategies()[strategy], table.queue, table.backfill)
    transport = ScheduledTransport(topology, coflow_policy(policy))
    outcome = Simulation(jobs, transport, admission=queue, keep_coflows=False).run()
    return fmean(record.jct for record in outcome.jobs)


def _placed(plan: ClusterPlan, arrival: Arrival, placement: Placement) -> Job:
    return _arriving(plan, arrival, [gpu // plan.table.gpus_per_server for gpu in placement.gpus])


def _arriving(plan: ClusterPlan, arrival: Arrival, servers: Sequence[int]) -> Job:
    spec = plan.spec(0, arrival, [f"10.0.0.{rank + 1}" for rank in range(arrival.gpus)])
    return _fluid(arrival.name, arrival.arrival_s, spec, servers, plan.iterations(arrival))


def _fluid(name: str, start_s: float, spec: JobSpec, hosts: Sequence[int], iterations: int) -> Job:
    """Return the job with rank i on host `hosts[i]`."""
    if spec.collective == "ring":
        return training_job(name, start_s, spec.compute_s(), [ring(hosts, spec.total_bytes())], iterations)
    first = spec.servers or len(hosts) // 2
    flows = parameter_server(hosts[first:], hosts[:first], spec.total_bytes())
    return in_parts(name, start_s, spec.compute_s(), flows, spec.parts or 1, iterations)
