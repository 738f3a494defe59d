"""Links of their own for jobs whose hosts an experiment file names: the vClos of each, on these hosts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from controlplane.admission import FIRST_VRF
from controlplane.cluster import cluster_of, hosts_by_gpu
from controlplane.tenants import Tenant
from controlplane.topology import Topology
from machine.errors import BadInput
from schedulers.placement.cluster import Request, empty, reserve
from schedulers.placement.stages import vclos_on

if TYPE_CHECKING:
    from entrain.experiment import Job


def reserved(topology: Topology, jobs: Iterable[Job]) -> tuple[Tenant, ...]:
    """Reserve links for each job in turn, on its own hosts.

    Each host is a server of one GPU. Raises BadInput for a job that has no virtual Clos on its hosts, with
    the links that those before it have left, and for a host of two jobs.
    """
    try:
        state = empty(cluster_of(topology, 1))
    except ValueError as error:
        raise BadInput(str(error)) from None
    hosts = hosts_by_gpu(topology)
    number = {name: gpu for gpu, name in enumerate(hosts)}
    tenants = []
    for vrf, job in enumerate(jobs, FIRST_VRF):
        own = {number[host] for host in job.hosts}
        if taken := [hosts[gpu] for gpu in sorted(own) if not state.gpus.reshape(-1)[gpu]]:
            raise BadInput(
                f"job {job.name}: {taken[0]} is another job's, too; give each job hosts of its own"
            )
        found = vclos_on(state, Request(job.name, len(own), job.spec.collective), own)
        if found is None:
            raise BadInput(
                f"job {job.name}: there is no virtual Clos on its hosts with links that no other job has; "
                f"give it as many hosts on each of its leaves, or fewer leaves"
            )
        state = reserve(state, found)
        tenants.append(Tenant(job.name, vrf, tuple(hosts[gpu] for gpu in found.gpus), found))
    return tuple(tenants)
