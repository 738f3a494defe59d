"""A job's entries: every flow goes as its placement says, others are out of reach, and jobs do not meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.constants import DropReason
from controlplane.fabric import Fabric
from controlplane.network import Topology
from controlplane.routing import FabricPolicy
from controlplane.tables import Tables
from controlplane.tenants import Tenant, cluster_state, tenant_entries
from controlplane.topology import leaf_spine
from machine.errors import BadInput
from schedulers.placement.cluster import Cluster, Placement, Request, State, empty, release, reserve
from schedulers.placement.strategies import STRATEGIES, Strategy
from tests.controlplane.kinds import FakeKind
from tests.controlplane.model import Model, Wire
from tests.controlplane.test_fabric import run, switches

UNTIMED = settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
ISOLATED = [each for each in STRATEGIES.values() if each.isolated]
SHARED = [STRATEGIES["ecmp"], STRATEGIES["source"]]

Running = tuple[Topology, State, list[Tenant]]


def topology_of(cluster: Cluster) -> Topology:
    return leaf_spine(cluster.leaves, cluster.spines, cluster.gpus_per_leaf, cluster.links_per_pair)


@st.composite
def running(draw: st.DrawFn, strategy: Strategy) -> Running:
    """Jobs that are in a cluster together after some have come and gone, and how it is wired then."""
    cluster = Cluster(
        leaves=draw(st.integers(2, 4)),
        spines=draw(st.integers(1, 4)),
        servers_per_leaf=draw(st.integers(1, 2)),
        gpus_per_server=draw(st.sampled_from([1, 2, 4])),
        links_per_pair=draw(st.integers(1, 3)),
        ocs=strategy.ocs,
    )
    topology, state = topology_of(cluster), empty(cluster)
    jobs: list[Tenant] = []
    for number in range(draw(st.integers(2, 10))):
        if jobs and draw(st.integers(0, 2)) == 0:
            gone = jobs.pop(draw(st.integers(0, len(jobs) - 1)))
            state = release(state, gone.placement)
        request = Request(f"j{number}", draw(st.integers(1, cluster.gpus)), "ring")
        placement = strategy.place(state, request)
        if isinstance(placement, Placement):
            state = reserve(state, placement)
            hosts = tuple(topology.hosts[gpu].name for gpu in placement.gpus)
            jobs.append(Tenant(request.job, 1 + number, hosts, placement))
    return topology, state, jobs


def wiring(topology: Topology, state: State) -> Wire:
    """The links as the circuits make them."""
    cluster = state.cluster
    first = cluster.gpus_per_leaf + 1

    def uplink(code: int) -> tuple[str, int]:
        leaf, port = divmod(code, cluster.uplinks)
        return f"leaf{leaf + 1}", first + port

    def wire(switch: str, port: int) -> tuple[str, int] | None:
        number = int(switch.removeprefix("leaf").removeprefix("spine")) - 1
        if switch.startswith("spine"):
            code = int(state.spine_peer[number, port - 1])
            return None if code < 0 else uplink(code)
        if port < first:
            return topology.switch_by_name[switch].port(port).peer, 0
        code = int(state.uplink_peer[number, port - first])
        if code >= 0:
            spine, far = divmod(code, cluster.spine_ports)
            return f"spine{spine + 1}", 1 + far
        return None if code == -1 else uplink(-2 - code)

    return wire


def hops(path: list[tuple[str, int]], wire: Wire, cluster: Cluster) -> Iterator[tuple[int, int, str]]:
    """The (leaf, uplink port, direction) of a path, as `Placement.hops` has them."""
    for (switch, port), direction in zip(path[:-1], ("up", "down"), strict=False):
        leaf, number = (switch, port) if direction == "up" else wire(switch, port) or ("", 0)
        yield int(leaf.removeprefix("leaf")) - 1, number - cluster.gpus_per_leaf - 1, direction


@pytest.mark.parametrize("strategy", ISOLATED, ids=lambda each: each.name)
@UNTIMED
@given(data=st.data())
def test_every_flow_takes_the_hops_of_its_placement_and_nobody_else_is_reached(
    strategy: Strategy, data: st.DataObject
) -> None:
    topology, state, jobs = data.draw(running(strategy))
    wire = wiring(topology, state)
    model = Model(topology, cluster_state(topology, FabricPolicy("source"), jobs), wire)
    job_of = {host: job for job in jobs for host in job.hosts}
    for source, destination in itertools.permutations(topology.hosts, 2):
        job = job_of.get(source.name)
        path, dropped = model.walk(source, destination)
        if job is None or destination.name not in job.hosts:
            expected = DropReason.NO_VRF if job is None else DropReason.OTHER_VRF
            assert (path, dropped) == ([], expected)
            continue
        assert dropped is None
        ranks = job.hosts.index(source.name), job.hosts.index(destination.name)
        assert tuple(hops(path, wire, state.cluster)) == job.placement.hops(*ranks)


@pytest.mark.parametrize("strategy", SHARED, ids=lambda each: each.name)
@UNTIMED
@given(data=st.data())
def test_jobs_that_reserve_nothing_take_shortest_paths_among_themselves(
    strategy: Strategy, data: st.DataObject
) -> None:
    topology, _, jobs = data.draw(running(strategy))
    policy = FabricPolicy("source" if strategy.routing == "source" else "ecmp")
    model = Model(topology, cluster_state(topology, policy, jobs))
    alone = Model.of(topology, policy)
    job_of = {host: job for job in jobs for host in job.hosts}
    for source, destination in itertools.permutations(topology.hosts, 2):
        job = job_of.get(source.name)
        mine = job is not None and destination.name in job.hosts
        expected = alone.path(source, destination, choice=7) if mine else None
        assert model.path(source, destination, choice=7) == expected


@pytest.mark.parametrize("strategy", [*ISOLATED, *SHARED], ids=lambda each: each.name)
@UNTIMED
@given(data=st.data())
def test_a_job_that_comes_or_goes_changes_its_own_ports_and_vrf_only(
    strategy: Strategy, data: st.DataObject
) -> None:
    topology, state, jobs = data.draw(running(strategy))
    if not jobs:
        return
    job = data.draw(st.sampled_from(jobs))
    policy = FabricPolicy()
    others = [each for each in jobs if each is not job]
    before, after = (cluster_state(topology, policy, each) for each in (others, jobs))
    own = tenant_entries(topology, job)
    ports = held(topology, state, job)
    for switch in before:
        changed = [entry for entry in after[switch] if entry not in before[switch]]
        assert all(entry in own[switch] for entry in changed)
        gone = [entry for entry in before[switch] if entry not in after[switch]]
        for entry in [*changed, *gone]:
            match = entry.match or {}  # type: ignore[union-attr]
            assert match.get("vrf") == job.vrf or (switch, match.get("ingress_port")) in ports


def held(topology: Topology, state: State, job: Tenant) -> set[tuple[str, int]]:
    """The ports of the job's hosts and of both ends of its links."""
    wire = wiring(topology, state)
    hosts = [topology.host_by_name[name] for name in job.hosts]
    ports = {(host.leaf, host.leaf_port) for host in hosts}
    for host, port in zip(hosts, job.placement.ports, strict=False):
        uplink = host.leaf, state.cluster.gpus_per_leaf + 1 + port
        ports |= {uplink, wire(*uplink) or uplink}
    return ports


@pytest.mark.parametrize("strategy", ISOLATED[:2], ids=lambda each: each.name)
@settings(max_examples=3)
@given(data=st.data())
def test_switches_get_the_tables_of_exactly_the_jobs_that_are_there(
    kind: FakeKind, strategy: Strategy, data: st.DataObject
) -> None:
    topology, _, jobs = data.draw(running(strategy))

    async def test() -> None:
        async with switches(kind, topology) as (served, fakes), Fabric(served, kind.pipeline) as fabric:
            tables = Tables(fabric, FabricPolicy())
            for present in (jobs[:1], jobs, jobs[1:], ()):
                await tables.apply(present, present)
                expected = fabric.encoded(cluster_state(topology, FabricPolicy(), present))
                assert {name: fake.entities for name, fake in fakes.items()} == expected

    run(test)


def job(placement: Placement, vrf: int = 2, **changes: Any) -> Tenant:
    hosts = tuple(f"h{gpu + 1}" for gpu in placement.gpus)
    return replace(Tenant(placement.job, vrf, hosts, placement), **changes)


def test_what_does_not_fit_is_named() -> None:
    topology = leaf_spine(2, 2, 2)
    clos = Placement("a", 2, (0, 1, 2, 3), (0, 0, 1, 1), (2, 2), (0, 1, 0, 1), ())
    near = Placement("b", 0, (0,), (0,))
    apart = Placement("c", 2, (1, 2), (0, 1))
    policy = FabricPolicy()
    for jobs, message in (
        ([job(near, hosts=("h9",))], "job b: there is no host 'h9'"),
        ([job(near, hosts=("h1", "h2"))], "job b: 2 hosts for 1 ranks"),
        ([job(near, hosts=("h3",))], "job b: h3 is on leaf2, its placement says leaf1"),
        ([job(near, vrf=0)], "job b is in VRF 0; use 1 to"),
        ([job(near), job(apart)], "job c: VRF 2 is held by job b already"),
        ([job(near), job(replace(near, job="d"), vrf=3)], "job d: h1 is held by job b already"),
        ([job(replace(clos, ports=(0, 1, 0, 2)))], "job a: leaf2 has no uplink port 2, but 2 of them"),
        ([job(clos, hosts=("h1", "h2", "h3", "h4")), job(apart, vrf=3, hosts=("h5", "h6"))], "job c shares"),
    ):
        with pytest.raises(BadInput, match=message):
            cluster_state(topology, policy, jobs)
