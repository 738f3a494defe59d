"""Schedules of collectives as pure descriptions: what they compute, and which flows run at the same time."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workloads.collectives import COLLECTIVES, Options, Program, contributors, program_of, steps, tasks

ALLREDUCE = ("ring", "hierarchical-ring", "halving-doubling", "double-binary-trees", "pipeline")
EXCHANGE = ("all-to-all", "all-to-all-xor")


@st.composite
def shapes(draw: st.DrawFn, collectives: tuple[str, ...] = tuple(COLLECTIVES)) -> Program:
    """Any collective on 2 to 33 ranks with any parameters that fit."""
    name = draw(st.sampled_from(collectives))
    ranks = 2 ** draw(st.integers(1, 5)) if name == "all-to-all-xor" else draw(st.integers(2, 33))
    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    options = Options(
        group=draw(st.sampled_from([0, *divisors])),
        servers=draw(st.integers(0, ranks - 1)),
        microbatches=draw(st.integers(0, 9)),
        parts=draw(st.integers(0, 9)),
    )
    return program_of(name, ranks, options)


def execute(program: Program, values: np.ndarray) -> np.ndarray:
    """Run a schedule on values of shape (ranks, units); returns what all ranks hold at the end."""
    held = values.copy()
    arrived = np.zeros_like(held) if program.exchange else held
    for step in program.steps:
        moving = [(t, held[t.src, t.first : t.first + t.units].copy()) for t in step]
        for t, data in moving:
            target = arrived[t.dst, t.into : t.into + t.units]
            target[:] = target + data if t.reduce else data
    return arrived


@given(shapes(ALLREDUCE), st.integers(0, 2**32))
def test_an_allreduce_leaves_the_sum_of_all_ranks_on_every_rank(program: Program, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-1000, 1000, (program.ranks, program.units))
    assert (execute(program, values) == values.sum(axis=0)).all()


@given(shapes(EXCHANGE), st.integers(0, 2**32))
def test_an_all_to_all_transposes(program: Program, seed: int) -> None:
    values = np.random.default_rng(seed).integers(1, 1000, (program.ranks, program.ranks))
    np.fill_diagonal(values, 0)  # what a rank has for itself does not travel
    assert (execute(program, values) == values.T).all()


@given(shapes(("parameter-server",)), st.integers(0, 2**32))
def test_workers_get_the_sum_of_the_workers_and_each_server_has_its_share(
    program: Program, seed: int
) -> None:
    values = np.random.default_rng(seed).integers(-1000, 1000, (program.ranks, program.units))
    servers = program.sources[0]
    values[:servers] = 0
    result, total = execute(program, values), values.sum(axis=0)
    assert (result[servers:] == total).all()
    for server, share in enumerate(np.split(total, servers)):
        assert (np.split(result[server], servers)[server] == share).all()


@given(shapes(("parameter-server",)))
def test_servers_send_back_a_part_while_the_next_one_comes(program: Program) -> None:
    servers, workers = program.sources[0], len(program.sources)
    parts = program.units // servers
    pairs = {(w, s) for w in program.sources for s in range(servers)}
    assert len(program.steps) == parts + 1
    for k, step in enumerate(program.steps):
        assert len(step) == workers * servers * ((k < parts) + (k > 0))
        assert {(t.src, t.dst) for t in step if t.reduce} == (pairs if k < parts else set())
        assert {(t.dst, t.src) for t in step if not t.reduce} == (pairs if k else set())


@given(shapes())
def test_every_transfer_is_in_the_programs_of_both_its_ranks(program: Program) -> None:
    transfers = Counter((k, t) for k, step in enumerate(program.steps) for t in step)
    found = Counter(
        (task.step, task.transfer) for rank in range(program.ranks) for task in tasks(program, rank)
    )
    assert found == Counter({each: 2 * count for each, count in transfers.items()})


@given(shapes(tuple(COLLECTIVES.keys() - {"parameter-server"})))
def test_in_lockstep_a_rank_waits_for_the_step_before(program: Program) -> None:
    assume(program.lockstep)
    assert all(task.after == task.step for rank in range(program.ranks) for task in tasks(program, rank))


@given(shapes(("ring",)))
def test_a_ring_member_passes_each_part_on_as_soon_as_it_has_it(program: Program) -> None:
    assume(not program.lockstep)
    parts = program.units // program.ranks
    for rank in range(program.ranks):
        own = list(tasks(program, rank))
        received: defaultdict[int, list[int]] = defaultdict(list)
        for step, _, transfer in own:
            if transfer.dst == rank:
                received[transfer.into].append(step)
        for step, after, sent in own:
            if sent.src == rank:
                came = [k for k in received[sent.first] if k < step]
                assert after == (max(came) + 1 if came else 0)
                assert bool(came) == (step >= parts)  # but for its own chunk


@given(shapes(("parameter-server",)))
def test_a_worker_waits_for_nothing_and_a_server_for_all_workers_gradients(program: Program) -> None:
    for worker in program.sources:
        assert all(task.after == 0 for task in tasks(program, worker))
    for server in range(program.sources[0]):
        own = list(tasks(program, server))
        for step, after, sent in own:
            if sent.src == server:
                came = [t for k, _, t in own if t.dst == server and k < after and t.into == sent.first]
                assert sorted(t.src for t in came) == list(program.sources)
                assert after <= step


@given(shapes())
def test_contributors_are_what_execution_finds(program: Program) -> None:
    masks = contributors(program)
    for source in program.sources:
        marked = np.zeros((program.ranks, program.units), dtype=int)
        marked[source] = 1
        found = execute(program, marked) != 0
        if program.exchange:
            found[source, source] = False
        assert (found == [[bool(mask >> source & 1) for mask in row] for row in masks]).all()


@given(shapes())
def test_a_rank_never_sends_and_receives_the_same_units_in_a_step(program: Program) -> None:
    for step in program.steps:
        sent, received = Counter(), Counter()
        for t in step:
            sent.update((t.src, u) for u in range(t.first, t.first + t.units))
            received.update((t.dst, u, t.reduce) for u in range(t.into, t.into + t.units))
        if not program.exchange:
            assert not sent.keys() & {(rank, unit) for rank, unit, _ in received}
        assert all(count == 1 or reduce for (_, _, reduce), count in received.items())


@given(shapes(("double-binary-trees",)))
def test_inner_nodes_of_one_tree_are_leaves_of_the_other(program: Program) -> None:
    inner: list[set[int]] = [set(), set()]
    sent: Counter[int] = Counter()
    for step in program.steps:
        for t in step:
            sent[t.src] += t.reduce
            inner[t.first >= program.units // 2].update([t.dst] if t.reduce else [])
    roots = [rank for rank in range(program.ranks) if sent[rank] < program.units]
    assert len(roots) == 2  # each sends up one half only
    assert (inner[0] & inner[1]) <= set(roots)


@given(shapes(tuple(COLLECTIVES.keys() - {"parameter-server", "double-binary-trees"})))
def test_a_rank_has_one_partner_at_most_in_each_direction(program: Program) -> None:
    for step in program.steps:
        assert len({t.src for t in step}) == len({t.dst for t in step}) == len(step)


@given(shapes(("ring", "halving-doubling", "hierarchical-ring")))
def test_an_allreduce_is_bandwidth_optimal(program: Program) -> None:
    sent = Counter()
    for step in program.steps:
        for t in step:
            sent[t.src] += t.units
    if program.collective == "halving-doubling" and program.units != program.ranks:
        return  # the ranks beyond the power of two cost extra
    assert set(sent.values()) == {2 * (program.ranks - 1) * program.units // program.ranks}


@given(shapes())
def test_steps_are_the_schedule_as_flows(program: Program) -> None:
    flows = steps(program.collective, program.ranks)
    default = program_of(program.collective, program.ranks)
    assert len(flows) == len(default.steps)
    for step, transfers in zip(flows, default.steps, strict=True):
        assert [(f.src, f.dst) for f in step] == [(t.src, t.dst) for t in transfers]
        assert all(0 < f.fraction <= 1 for f in step)


def is_leafwise_permutation(step: list[tuple[int, int]], hosts_per_leaf: int) -> bool:
    """vClos, definition 1: flows of different leaves over the same uplink index go to different leaves."""
    taken: dict[tuple[int, int], int] = {}
    for src, dst in step:
        leaf, uplink = divmod(src, hosts_per_leaf)
        target = dst // hosts_per_leaf
        if leaf != target and taken.setdefault((uplink, target), leaf) != leaf:
            return False
    return True


def most_flows_on_a_link(step: list[tuple[int, int]], hosts_per_leaf: int) -> int:
    """The most flows on an uplink or a downlink under source routing, uplink i for the leaf's host i."""
    links: Counter[tuple[str, int, int]] = Counter()
    for src, dst in step:
        leaf, uplink = divmod(src, hosts_per_leaf)
        if leaf != dst // hosts_per_leaf:
            links["up", leaf, uplink] += 1
            links["down", uplink, dst // hosts_per_leaf] += 1
    return max(links.values(), default=0)


def check_one_flow_per_link(program: Program, hosts_per_leaf: int) -> None:
    for step in program.steps:
        flows = [(t.src, t.dst) for t in step]
        assert is_leafwise_permutation(flows, hosts_per_leaf)
        assert most_flows_on_a_link(flows, hosts_per_leaf) <= 1


@given(shapes(("ring", "pipeline")), st.integers(1, 17))
def test_source_routing_puts_one_flow_of_neighbours_on_a_link(program: Program, hosts_per_leaf: int) -> None:
    check_one_flow_per_link(program, hosts_per_leaf)


@given(st.integers(1, 9), st.integers(1, 9))
def test_so_it_does_for_an_all_to_all_that_fills_its_leaves(leaves: int, hosts_per_leaf: int) -> None:
    if leaves * hosts_per_leaf > 1:
        check_one_flow_per_link(program_of("all-to-all", leaves * hosts_per_leaf), hosts_per_leaf)


def test_but_not_for_one_that_leaves_ports_empty() -> None:
    flows = [(t.src, t.dst) for t in program_of("all-to-all", 5).steps[2]]  # 4 and 0 share an uplink's number
    assert most_flows_on_a_link(flows, 2) == 2


@given(st.integers(1, 6), st.integers(1, 4), st.integers(2, 6), st.booleans())
def test_so_it_does_for_groups_within_leaves_or_of_leaves(
    size: int, ratio: int, groups: int, whole_leaves: bool
) -> None:
    group, hosts_per_leaf = (size * ratio, size) if whole_leaves else (size, size * ratio)
    program = program_of("hierarchical-ring", group * groups, Options(group=group))
    check_one_flow_per_link(program, hosts_per_leaf)


@given(shapes(("halving-doubling", "all-to-all-xor")), st.integers(0, 4))
def test_so_it_does_for_partners_by_xor_when_leaves_have_a_power_of_two_of_hosts(
    program: Program, exponent: int
) -> None:
    check_one_flow_per_link(program, 2**exponent)


def test_a_parameter_server_is_no_leafwise_permutation() -> None:
    push = [(t.src, t.dst) for t in program_of("parameter-server", 16).steps[0]]
    assert most_flows_on_a_link(push, 4) > 1


def test_ring_of_three_step_by_step() -> None:
    sent = [[(t.src, t.first) for t in step] for step in program_of("ring", 3).steps]
    assert sent == [
        [(0, 0), (1, 1), (2, 2)],  # vClos 5.3: in round t rank i sends chunk i - t
        [(0, 2), (1, 0), (2, 1)],
        [(0, 1), (1, 2), (2, 0)],  # then its aggregate, chunk i + 1 - t
        [(0, 0), (1, 1), (2, 2)],
    ]


def test_partners_of_halving_doubling() -> None:
    partners = [{t.src: t.dst for t in step}[0] for step in program_of("halving-doubling", 8).steps]
    assert partners == [1, 2, 4, 4, 2, 1]
    units = [step[0].units for step in program_of("halving-doubling", 8).steps]
    assert units == [4, 2, 1, 1, 2, 4]


@pytest.mark.parametrize(
    ("name", "ranks", "options", "key"),
    [
        ("rings", 4, Options(), "collective"),
        ("ring", 1, Options(), "hosts"),
        ("hierarchical-ring", 8, Options(group=3), "group"),
        ("all-to-all-xor", 6, Options(), "hosts"),
        ("parameter-server", 4, Options(servers=4), "servers"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(name: str, ranks: int, options: Options, key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        program_of(name, ranks, options)
