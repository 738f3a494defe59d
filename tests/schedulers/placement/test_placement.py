"""vClos and OCS-vClos: what a placement guarantees, and that none is missed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.placement.cluster import (
    DARK,
    Circuit,
    Cluster,
    Placement,
    Port,
    Request,
    State,
    changes,
    empty,
    release,
    reserve,
)
from schedulers.placement.search import FOUND, NONE, UNDECIDED, find
from schedulers.placement.shapes import leafwise_halving, shapes
from schedulers.placement.stages import Cause, ocs_vclos, unreserved, vclos
from schedulers.placement.strategies import STRATEGIES, Strategy
from workloads.collectives import Options, program_of

PATTERNS = ("ring", "hierarchical-ring", "halving-doubling", "all-to-all", "pipeline")
"""Those of vClos 5.3 on which source routing is free of contention."""

ISOLATED = [each for each in STRATEGIES.values() if each.isolated]


@st.composite
def clusters(draw: st.DrawFn, most_leaves: int = 6) -> Cluster:
    """Small clusters of any proportions, over- and undersubscribed ones too."""
    return Cluster(
        leaves=draw(st.integers(1, most_leaves)),
        spines=draw(st.integers(1, 8)),
        servers_per_leaf=draw(st.integers(1, 4)),
        gpus_per_server=draw(st.sampled_from([1, 2, 3, 4, 8])),
        links_per_pair=draw(st.integers(1, 3)),
        ocs=True,
    )


@st.composite
def states(draw: st.DrawFn, most_leaves: int = 6) -> State:
    """A cluster of which a random part of the servers and links is in use."""
    state = empty(draw(clusters(most_leaves)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    c = state.cluster
    servers = np.flatnonzero(random.random(c.leaves * c.servers_per_leaf) < draw(st.floats(0, 0.5)))
    links = np.argwhere(random.random((c.leaves, c.uplinks)) < draw(st.floats(0, 0.7)))
    ports = [Port("leaf", *map(int, link)) for link in links]
    far = [Port("spine", *divmod(int(state.uplink_peer[n, p]), c.spine_ports)) for _, n, p in ports]
    cut = random.integers(0, len(far) + 1)  # jobs take both ends, failures one
    return state.without(gpus=servers * c.gpus_per_server, ports=[*ports, *far[:cut]])


def running(
    draw: st.DrawFn, strategy: Strategy, cluster: Cluster, patterns: tuple[str, ...]
) -> dict[str, tuple[Placement, str]]:
    """Jobs that are in the cluster together after some have come and gone, with their patterns."""
    state = empty(cluster)
    held: dict[str, tuple[Placement, str]] = {}
    for number in range(draw(st.integers(1, 12))):
        if held and draw(st.integers(0, 3)) == 0:
            gone = draw(st.sampled_from(sorted(held)))
            state = release(state, held.pop(gone)[0])
        pattern = draw(st.sampled_from(patterns))
        request = Request(f"j{number}", draw(st.integers(1, max(1, cluster.gpus // 2))), pattern)
        placement = strategy.place(state, request)
        if isinstance(placement, Placement):
            state = reserve(state, placement)
            held[request.job] = placement, pattern
    return held


Flows = list[tuple[int, int]]


def steps_of(placement: Placement, pattern: str, cluster: Cluster) -> Iterator[Flows]:
    """The flows (rank, rank) of each step of the pattern over all the job's GPUs."""
    ranks = len(placement.gpus)
    if ranks < 2:
        return
    width, server = placement.shape[1], cluster.gpus_per_server
    group = 0
    if pattern == "hierarchical-ring" and width:  # groups are servers, or virtual leaves
        group = server if width % server == 0 else width
    for step in program_of(pattern, ranks, Options(group=group)).steps:
        yield [(transfer.src, transfer.dst) for transfer in step]


def load(placement: Placement, flows: Flows) -> Counter[tuple[int, int, str]]:
    """Flows on each link and direction, whose ways are whole."""
    spine = {
        (leaf, port): link.spine
        for leaf, port, link in zip(placement.leaves, placement.ports, placement.links, strict=False)
    }
    circuits = {each.a[1:]: each.b[1:] for each in placement.circuits}
    count: Counter[tuple[int, int, str]] = Counter()
    for source, destination in flows:
        hops = placement.hops(source, destination)
        ends = placement.leaves[source], placement.leaves[destination]
        if len(hops) == 2:  # up to a spine, and down from the same one
            (up, down) = hops
            assert spine[up[:2]] == spine[down[:2]]
            assert (up[0], down[0]) == ends
        elif hops:  # over a circuit
            near = hops[0][:2]
            far = circuits[near] if near in circuits else {b: a for a, b in circuits.items()}[near]
            assert (near[0], far[0]) == ends
        else:
            assert ends[0] == ends[1]
        count.update(hops)
    return count


@pytest.mark.parametrize("strategy", ISOLATED, ids=lambda each: each.name)
@pytest.mark.parametrize(("patterns", "most"), [(PATTERNS, 1), (("double-binary-trees",), 3)])
@given(data=st.data())
@settings(max_examples=150)
def test_a_link_carries_one_flow_of_all_jobs_or_three_of_a_job_with_trees(
    strategy: Strategy, patterns: tuple[str, ...], most: int, data: st.DataObject
) -> None:
    cluster = data.draw(clusters())
    used: dict[tuple[int, int, str], str] = {}
    for job, (placement, pattern) in running(data.draw, strategy, cluster, patterns).items():
        every: set[tuple[int, int, str]] = set()
        for flows in steps_of(placement, pattern, cluster):
            of_step = load(placement, flows)
            assert max(of_step.values(), default=0) <= most, (placement, pattern)
            every |= set(of_step)
        for hop in every:  # whatever steps other jobs are in
            assert used.setdefault(hop, job) == job


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=lambda each: each.name)
@given(data=st.data())
@settings(max_examples=60)
def test_a_placement_has_enough_gpus_of_its_own_and_release_undoes_reserve(
    strategy: Strategy, data: st.DataObject
) -> None:
    state = data.draw(states())
    request = Request("j", data.draw(st.integers(1, state.cluster.gpus)))
    placement = strategy.place(state, request)
    if not isinstance(placement, Placement):
        return
    assert len(set(placement.gpus)) == len(placement.gpus) >= request.gpus
    assert placement.leaves == tuple(gpu // state.cluster.gpus_per_leaf for gpu in placement.gpus)
    wanted = changes(state, placement)
    held = reserve(state, placement)
    assert changes(held, placement) == 0
    with pytest.raises(ValueError, match="is taken"):
        reserve(held, placement)
    after = release(held, placement)
    assert np.array_equal(after.gpus, state.gpus)
    assert np.array_equal(after.uplinks, state.uplinks)
    assert np.array_equal(after.spine_ports, state.spine_ports)
    assert wanted or after == state
    with pytest.raises(ValueError, match="is free"):
        release(after, placement)


@given(data=st.data())
@settings(max_examples=60)
def test_apart_takes_as_many_servers_as_there_are(data: st.DataObject) -> None:
    state = data.draw(states())
    request = Request(data.draw(st.text(max_size=3)), data.draw(st.integers(1, state.cluster.gpus)))
    placement = STRATEGIES["apart"].place(state, request)
    free = state.gpus.reshape(-1, state.cluster.gpus_per_server).sum(axis=1)
    most = -(-request.gpus // len(free))  # of one server
    assert isinstance(placement, Placement) == (np.minimum(free, most).sum() >= request.gpus)
    if isinstance(placement, Placement):
        servers = [gpu // state.cluster.gpus_per_server for gpu in placement.gpus]
        assert max(map(servers.count, servers)) <= most
        assert len(placement.gpus) == request.gpus


@given(data=st.data())
@settings(max_examples=150)
def test_circuits_join_each_port_once_and_leave_those_in_use_alone(data: st.DataObject) -> None:
    state = data.draw(states())
    c = state.cluster
    held: list[Placement] = []
    for number in range(8):
        if held and data.draw(st.booleans()):
            state = release(state, held.pop(data.draw(st.integers(0, len(held) - 1))))
        placement = ocs_vclos(state, Request(f"j{number}", data.draw(st.integers(1, c.gpus))))
        if isinstance(placement, Placement):
            state = reserve(state, placement)
            held.append(placement)
        assert all(changes(state, other) == 0 for other in held)
    up = state.uplink_peer
    for n, p in itertools.product(range(c.leaves), range(c.uplinks)):
        peer, own = int(up[n, p]), n * c.uplinks + p
        if peer >= 0:
            assert state.spine_peer.reshape(-1)[peer] == own
        elif peer <= -2:
            assert up.reshape(-1)[-2 - peer] == -2 - own


def test_a_port_that_gets_another_circuit_leaves_its_old_peer_dark() -> None:
    cluster = Cluster(leaves=3, spines=2, servers_per_leaf=1, gpus_per_server=2, ocs=True)
    state = empty(cluster)
    for one, other in ((1, 2), (0, 2)):
        circuit = Circuit(Port("leaf", one, 0), Port("leaf", other, 0))
        pair = (2 * one, 2 * other), (one, other)
        placement = Placement("j", 2, *pair, shape=(2, 1), ports=(0, 0), circuits=(circuit,))
        state = release(reserve(state, placement), placement)
    assert state.uplink_peer[:, 0].tolist() == [-2 - 4, DARK, -2]
    assert state.spine_peer[0].tolist() == [DARK, DARK, DARK]


def brute_force(state: State, gpus: int) -> bool:
    """Whether some shape of vClos' stage 2 exists, by trying all sets of leaves."""
    c = state.cluster
    unit, free, idle = c.gpus_per_server, state.free_links.sum(axis=2), state.idle_servers
    every = [
        (leaves, width)
        for leaves in range(2, c.leaves + 1)
        for width in range(unit, min(c.uplinks, c.gpus_per_leaf) + 1, unit)
        if leaves * width >= gpus
    ]
    smallest = min((leaves * width for leaves, width in every), default=0)
    return any(
        free[list(chosen)].min(axis=0).sum() >= width
        for leaves, width in every
        if leaves * width == smallest
        for chosen in itertools.combinations(np.flatnonzero(idle * unit >= width), leaves)
    )


@given(states(), st.data())
@settings(max_examples=300)
def test_vclos_finds_a_placement_whenever_there_is_one(state: State, data: st.DataObject) -> None:
    c = state.cluster
    gpus = data.draw(st.integers(1, c.gpus))
    found = vclos(state, Request("j", gpus))
    if gpus <= c.gpus_per_server:
        enough = (state.gpus.sum(axis=2) >= gpus).any()
        assert isinstance(found, Placement) == enough
        return
    one_leaf = (state.idle_servers * c.gpus_per_server >= gpus).any()
    assert isinstance(found, Placement) == (one_leaf or brute_force(state, gpus))


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(2, 7),
    width=st.integers(2, 7),
    density=st.floats(0.4, 0.9),
    links_per_pair=st.integers(1, 2),
)
@settings(max_examples=300)
def test_the_search_goes_back_where_its_first_choices_lead_nowhere(
    seed: int, count: int, width: int, density: float, links_per_pair: int
) -> None:
    random = np.random.default_rng(seed)
    free = (random.random((11, 11, links_per_pair)) < density).sum(axis=2)
    exists = any(
        free[list(chosen)].min(axis=0).sum() >= width
        for chosen in itertools.combinations(range(len(free)), count)
    )
    status, leaves = find(free, links_per_pair, count, width, 10**6)
    assert status == (FOUND if exists else NONE)
    if exists:
        assert len(set(leaves.tolist())) == count
        assert free[leaves].min(axis=0).sum() >= width


def test_a_search_that_takes_too_long_says_so() -> None:
    free = (np.random.default_rng(1).random((40, 40)) < 0.8).astype(np.int64)
    assert find(free, 1, 14, 14, 10)[0] == UNDECIDED


@pytest.mark.parametrize("place", [vclos, ocs_vclos])
@given(state=states(), data=st.data())
@settings(max_examples=150)
def test_the_search_finds_what_the_integer_program_finds(
    place: Callable[..., Placement | Cause], state: State, data: st.DataObject
) -> None:
    request = Request("j", data.draw(st.integers(1, state.cluster.gpus)))
    searched, solved = place(state, request), place(state, request, solver=True)
    if not isinstance(solved, Placement):
        assert searched == solved
        return
    assert isinstance(searched, Placement)
    assert (searched.stage, searched.shape) == (solved.stage, solved.shape)
    reserve(state, solved)


@given(states(), st.integers(1, 64))
@settings(max_examples=150)
def test_circuits_find_a_placement_wherever_fixed_links_do(state: State, gpus: int) -> None:
    """For as many GPUs. A job that is rounded up may be to fewer with circuits, and these may not fit."""
    found = vclos(state, Request("j", min(gpus, state.cluster.gpus)))
    if isinstance(found, Placement):
        assert isinstance(ocs_vclos(state, Request("j", len(found.gpus))), Placement)


def test_every_multiple_of_a_server_has_a_shape() -> None:
    """At 64 leaves and 32 spines; doubling the number of leaves would miss 53 of the 63."""

    def fits(leaves: int, width: int) -> bool:
        return leaves <= 64 and width <= 32

    for servers in range(2, 65):
        found = shapes(8 * servers, 8, "ring", fits)
        assert found
        wanted = [each for each in range(2, 65) if servers % each == 0 and 8 * servers // each <= 32]
        assert [leaves for leaves, _ in found] == wanted


def test_a_size_without_a_shape_gets_the_next_that_has_one() -> None:
    state = empty(Cluster(leaves=8, spines=8, servers_per_leaf=2, gpus_per_server=4))
    placement = vclos(state, Request("j", 41))  # 44 = 11 * 4 would need eleven leaves
    assert isinstance(placement, Placement)
    assert placement.shape == (6, 8)
    assert len(placement.gpus) == 48


def test_halving_doubling_gets_a_shape_on_which_partners_do_not_meet() -> None:
    assert not leafwise_halving(4, 20)
    state = empty(Cluster(leaves=8, spines=40, servers_per_leaf=5, gpus_per_server=4))
    ring, halving = (vclos(state, Request("j", 60, pattern)) for pattern in ("ring", "halving-doubling"))
    assert isinstance(ring, Placement)
    assert isinstance(halving, Placement)
    assert ring.shape == (3, 20)
    assert halving.shape[1] in (4, 20)
    assert leafwise_halving(*halving.shape)


def test_the_fullest_server_leaf_and_spine_that_suffice_are_taken() -> None:
    cluster = Cluster(3, spines=8, servers_per_leaf=3, gpus_per_server=4, links_per_pair=8, ocs=True)
    state = empty(cluster).without(gpus=[16, 17, 24])  # two of server 4, one of server 6
    small = vclos(state, Request("small", 2))
    assert isinstance(small, Placement)
    assert small.gpus == (18, 19)
    medium = vclos(state, Request("medium", 8))
    assert isinstance(medium, Placement)
    assert set(medium.leaves) == {1}
    spread = ocs_vclos(state.without(ports=[Port("spine", 5, 0)]), Request("wide", 20))
    assert isinstance(spread, Placement)
    assert (spread.stage, spread.shape, spread.spines) == (2, (20, 1), (5,))


def test_two_leaves_are_joined_without_a_spine() -> None:
    cluster = Cluster(leaves=4, spines=8, servers_per_leaf=2, gpus_per_server=4, ocs=True)
    placement = ocs_vclos(empty(cluster), Request("j", 16))
    assert isinstance(placement, Placement)
    assert (placement.spines, placement.links) == ((), ())
    assert len(placement.circuits) == 8
    assert {(each.a.switch, each.b.switch) for each in placement.circuits} == {(0, 1)}
    state = reserve(empty(cluster), placement)
    assert state.spine_ports.all()


def test_circuits_that_are_there_are_used_again() -> None:
    cluster = Cluster(4, spines=2, servers_per_leaf=2, gpus_per_server=4, links_per_pair=4, ocs=True)
    for gpus in (16, 24):
        placement = ocs_vclos(empty(cluster), Request("j", gpus))
        assert isinstance(placement, Placement)
        assert changes(empty(cluster), placement) > 0
        after = release(reserve(empty(cluster), placement), placement)
        again = ocs_vclos(after, Request("j", gpus))
        assert isinstance(again, Placement)
        assert changes(after, again) == 0


def test_a_job_that_waits_says_whether_gpus_or_the_network_are_missing() -> None:
    cluster = Cluster(leaves=2, spines=4, servers_per_leaf=2, gpus_per_server=2, ocs=True)
    # A server of each leaf and all links of leaf 0 are in use.
    no_links = empty(cluster).without(gpus=[2, 6], ports=[Port("leaf", 0, p) for p in range(4)])
    assert vclos(no_links, Request("j", 4)) == "network"
    assert ocs_vclos(no_links, Request("j", 4)) == "network"
    assert isinstance(unreserved(no_links, Request("j", 4)), Placement)
    no_servers = empty(cluster).without(gpus=[0, 2, 4])
    assert vclos(no_servers, Request("j", 4)) == "gpus"
    relaxed = STRATEGIES["ocs-relaxed"].place(no_servers, Request("j", 4))
    assert isinstance(relaxed, Placement)


def test_locality_keeps_a_small_job_in_one_server() -> None:
    state = empty(Cluster(leaves=1, spines=4, servers_per_leaf=2, gpus_per_server=2)).without(gpus=[0, 2])
    assert vclos(state, Request("j", 2)) == "gpus"
    relaxed = replace(STRATEGIES["vclos"], locality=False).place(state, Request("j", 2))
    assert isinstance(relaxed, Placement)
    assert relaxed.gpus == (1, 3)


def test_recmp_has_half_as_many_links_again_and_circuits_need_a_switch_for_them() -> None:
    cluster = Cluster(leaves=4, spines=8, servers_per_leaf=2, gpus_per_server=4)
    assert STRATEGIES["recmp"].cluster(cluster).uplinks == 12
    with pytest.raises(ValueError, match="set ocs = true"):
        STRATEGIES["ocs-vclos"].cluster(cluster)
    with pytest.raises(ValueError, match="leaves: is 0; give at least 1"):
        Cluster(0, 1, 1, 1)
