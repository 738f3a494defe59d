"""Describe collectives: which rank sends what to which rank in each step. This module does no I/O.

Every rank has a buffer of equal *units*. A step is a set of concurrent transfers. A rank completes a step
when it has sent and received everything that belongs to it; there is no other barrier. Parameter servers and
workers do not have even this one: a transfer starts as soon as its data is there. Arriving units are added to
the receiver's units (`reduce`) or replace them.

If a job's hosts are on consecutive ports of equal leaves, each step of every collective except the parameter
server and the double binary trees is a *leaf-wise permutation* (vClos, definition 1; in testable form: two
flows that leave different leaves over the same local uplink never go to the same leaf). Source routing then
puts at most one of its flows on a link. This requires that an all-to-all fills its last leaf, that partners
by XOR have a power of two of hosts per leaf, and that each group of a hierarchical ring is part of a leaf or
consists of whole leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from machine.explain import suggestion
from machine.plugins import extended


class Transfer(NamedTuple):
    """A transfer of `units` units: from unit `first` of rank `src` to unit `into` of rank `dst`."""

    src: int
    dst: int
    first: int
    into: int
    units: int
    reduce: bool


class RankFlow(NamedTuple):
    """A transfer as the network sees it: `fraction` of the collective's bytes from rank to rank."""

    src: int
    dst: int
    fraction: float


Step = tuple[Transfer, ...]


@dataclass(frozen=True)
class Program:
    """The steps of a collective on `ranks` ranks, whose buffers have `units` units.

    `sources` are the ranks that contribute data; the others' buffers start at zero. With `exchange`, arriving
    units are stored in a second buffer (its unit *i* is from rank *i*), otherwise in the same buffer. With
    `lockstep`, a rank completes a step before it begins the next. Otherwise it waits only for the units that
    it sends on.
    """

    collective: str
    ranks: int
    units: int
    steps: tuple[Step, ...]
    sources: tuple[int, ...]
    exchange: bool = False
    lockstep: bool = True


@dataclass(frozen=True)
class Options:
    """The parameters of the collectives. 0 stands for the default."""

    group: int = 0
    """Consecutive ranks per group of a hierarchical ring (default: largest divisor up to the square root)."""
    servers: int = 0
    """Number of parameter servers, which are the first ranks (default: half of the ranks)."""
    microbatches: int = 0
    """Number of microbatches in a pipeline's batch (default: 4)."""
    parts: int = 0
    """Number of parts of a parameter server's share, or of what a ring sends in a step (default: 1), or of a
    tree's half of the buffer (default: 8)."""


def ring(ranks: int, options: Options = Options()) -> Program:
    """Return the ring allreduce: N-1 steps of scatter-reduce (rank i sends unit i-t), N-1 of all-gather.

    `parts` divides each step. A rank then forwards each part as soon as it has it, like NCCL's pipeline.
    Neighbours may differ by a whole chunk, and steps overlap.

    Source: vClos 5.3.
    """
    parts = options.parts or 1
    steps = []
    for step in range(2 * (ranks - 1)):
        reduce = step < ranks - 1
        chunks = [(i - step) % ranks if reduce else (i + ranks - step) % ranks for i in range(ranks)]
        for part in range(parts):
            units = [chunk * parts + part for chunk in chunks]
            steps.append(tuple(Transfer(i, (i + 1) % ranks, u, u, 1, reduce) for i, u in enumerate(units)))
    lockstep = parts == 1
    return Program("ring", ranks, ranks * parts, tuple(steps), tuple(range(ranks)), lockstep=lockstep)


def hierarchical_ring(ranks: int, options: Options = Options()) -> Program:
    """Return the hierarchical ring: scatter-reduce in groups, rings among groups, all-gather in groups.

    The i-th ranks of all groups form a ring. These rings run in parallel, each as an independent
    communication plane (vClos 5.3). Raises ValueError if `group` does not divide the number of ranks.
    """
    group = options.group or max(d for d in range(1, ranks + 1) if ranks % d == 0 and d * d <= ranks)
    if ranks % group:
        raise ValueError(f"group: {group} does not divide {ranks} ranks")
    groups = ranks // group
    within, among = ring(group).steps, ring(groups).steps

    def inner(step: Step) -> Step:
        return tuple(
            Transfer(
                g * group + t.src, g * group + t.dst, t.first * groups, t.into * groups, groups, t.reduce
            )
            for g in range(groups)
            for t in step
        )

    def outer(step: Step) -> Step:
        # after the scatter-reduce rank i of a group owns the group's part i+1
        return tuple(
            Transfer(t.src * group + i, t.dst * group + i, part + t.first, part + t.into, 1, t.reduce)
            for i in range(group)
            for part in [(i + 1) % group * groups]
            for t in step
        )

    steps = (
        *map(inner, within[: group - 1]),
        *map(outer, among),
        *map(inner, within[group - 1 :]),
    )
    return Program("hierarchical-ring", ranks, ranks, steps, tuple(range(ranks)))


def halving_doubling(ranks: int, options: Options = Options()) -> Program:
    """Return recursive halving-doubling: in step t rank i exchanges with i XOR 2^t, then in reverse order.

    If N is not a power of two, each rank beyond the largest power first sends all its data to a rank below
    it, and receives the result at the end (vClos 5.3).
    """
    power = 1 << (ranks.bit_length() - 1)
    bits = power.bit_length() - 1
    extra = range(power, ranks)
    halving: list[Step] = []
    for t in range(bits):
        width = power >> (t + 1)  # units that are sent in this step
        halving.append(
            tuple(
                Transfer(i, i ^ 1 << t, u, u, width, True)
                for i in range(power)
                for u in [_range(i ^ 1 << t, t + 1, power)]
            )
        )
    doubling = [
        tuple(
            Transfer(i, i ^ 1 << t, u, u, power >> (t + 1), False)
            for i in range(power)
            for u in [_range(i, t + 1, power)]
        )
        for t in reversed(range(bits))
    ]
    before = [tuple(Transfer(i, i - power, 0, 0, power, True) for i in extra)] if extra else []
    after = [tuple(Transfer(i - power, i, 0, 0, power, False) for i in extra)] if extra else []
    steps = (*before, *halving, *doubling, *after)
    return Program("halving-doubling", ranks, power, steps, tuple(range(ranks)))


def _range(rank: int, depth: int, units: int) -> int:
    """Return the first unit of `rank` after `depth` halvings: bit t of the rank selects step t's half."""
    return sum((rank >> t & 1) * (units >> (t + 1)) for t in range(depth))


def all_to_all(ranks: int, options: Options = Options()) -> Program:
    """Return the pairwise all-to-all: in step t rank i sends to rank i+t+1 modulo N (vClos 5.3)."""
    return _exchange("all-to-all", ranks, lambda i, step: (i + step + 1) % ranks)


def all_to_all_xor(ranks: int, options: Options = Options()) -> Program:
    """Return the pairwise all-to-all with exchanging partners: in step t rank i's partner is i XOR t+1.

    Raises ValueError if the number of ranks is not a power of two.
    """
    if ranks & (ranks - 1):
        raise ValueError(f"hosts: all-to-all-xor needs a power of two of ranks, not {ranks}; use all-to-all")
    return _exchange("all-to-all-xor", ranks, lambda i, step: i ^ (step + 1))


def _exchange(name: str, ranks: int, peer: Callable[[int, int], int]) -> Program:
    steps = tuple(
        tuple(Transfer(i, peer(i, step), peer(i, step), i, 1, False) for i in range(ranks))
        for step in range(ranks - 1)
    )
    return Program(name, ranks, ranks, steps, tuple(range(ranks)), exchange=True)


def parameter_server(ranks: int, options: Options = Options()) -> Program:
    """Return push and pull: every worker sends share s of its gradients to server s, which returns the sum.

    Shares are sent in parts: while a server returns the sum of part k-1, the workers send part k. This uses
    both directions of the links, as in BytePS, which partitions tensors. Workers do not wait between parts,
    because all their gradients are there.

    Servers are ranks 0 to servers-1. The default is half of the ranks: as many servers as workers (Parrot
    6.1), two of four (slot scheduler, VI-A). Raises ValueError if no worker is left.
    """
    servers = options.servers or ranks // 2
    if servers >= ranks:
        raise ValueError(f"servers: {servers} of {ranks} ranks leave no worker")
    parts = options.parts or 1
    pairs = [(w, s) for w in range(servers, ranks) for s in range(servers)]

    def push(part: int) -> Step:
        return tuple(Transfer(w, s, u, u, 1, True) for w, s in pairs for u in [s * parts + part])

    def pull(part: int) -> Step:
        return tuple(Transfer(s, w, u, u, 1, False) for w, s in pairs for u in [s * parts + part])

    steps = (push(0), *(push(k) + pull(k - 1) for k in range(1, parts)), pull(parts - 1))
    workers = tuple(range(servers, ranks))
    return Program("parameter-server", ranks, servers * parts, steps, workers, lockstep=False)


def pipeline(ranks: int, options: Options = Options()) -> Program:
    """Return pipeline parallelism: microbatches go forward from stage to stage, then backward.

    To make the result checkable, each stage adds its values on the way forward, and the sum goes backward.

    Sources: vClos 5.3, Cassini 4.1.
    """
    parts = options.microbatches or 4
    forward = [
        tuple(Transfer(i, i + 1, k - i, k - i, 1, True) for i in range(ranks - 1) if 0 <= k - i < parts)
        for k in range(ranks - 2 + parts)
    ]
    backward = [
        tuple(
            Transfer(ranks - 1 - i, ranks - 2 - i, k - i, k - i, 1, False)
            for i in range(ranks - 1)
            if 0 <= k - i < parts
        )
        for k in range(ranks - 2 + parts)
    ]
    return Program("pipeline", ranks, parts, (*forward, *backward), tuple(range(ranks)))


def double_binary_trees(ranks: int, options: Options = Options()) -> Program:
    """Return the allreduce over two binary trees, each of which sums up one half of the buffer and then hands
    the sum down.

    Ranks that are inner nodes of one tree are leaves of the other one: the second tree is the first one
    mirrored, or shifted by a rank if N is odd. A half goes in `parts`, so that all levels of a tree send at
    the same time, each another part.

    Sources: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
    (2009); NCCL; vClos 5.3.
    """
    parts = options.parts or 8
    levels = (ranks - 1).bit_length()
    edges: list[tuple[int, int, int]] = []  # level, child, parent; a rank's level is its number of low zeros
    for rank in range(1, ranks):
        bit = rank & -rank
        parent = (rank ^ bit) | bit << 1
        edges.append((bit.bit_length() - 1, rank, parent if parent < ranks else rank ^ bit))

    def other(rank: int) -> int:
        return (rank + 1) % ranks if ranks % 2 else ranks - 1 - rank

    trees = (edges, [(level, other(child), other(parent)) for level, child, parent in edges])
    moments = range(levels + parts - 1)

    def at(moment: int, level: int) -> bool:
        return 0 <= moment - level < parts

    up = [
        tuple(
            Transfer(child, parent, unit, unit, 1, True)
            for half, tree in enumerate(trees)
            for level, child, parent in tree
            if at(moment, level)
            for unit in [half * parts + moment - level]
        )
        for moment in moments
    ]
    down = [
        tuple(
            Transfer(parent, child, unit, unit, 1, False)
            for half, tree in enumerate(trees)
            for level, child, parent in tree
            if at(moment, levels - 1 - level)
            for unit in [half * parts + moment - (levels - 1 - level)]
        )
        for moment in moments
    ]
    return Program("double-binary-trees", ranks, 2 * parts, (*up, *down), tuple(range(ranks)))


COLLECTIVES: dict[str, Callable[[int, Options], Program]] = {
    "ring": ring,
    "hierarchical-ring": hierarchical_ring,
    "halving-doubling": halving_doubling,
    "double-binary-trees": double_binary_trees,
    "all-to-all": all_to_all,
    "all-to-all-xor": all_to_all_xor,
    "parameter-server": parameter_server,
    "pipeline": pipeline,
}


GROUP = "entrain.collectives"
"""Entry point group through which other distributions register collectives."""


def collectives() -> dict[str, Callable[[int, Options], Program]]:
    """Return all collectives by name. Raises EntrainError if a registered one cannot be loaded."""
    return extended(GROUP, COLLECTIVES)


DDP = "ddp"
"""The collective that PyTorch runs (`torch_training`): DistributedDataParallel over Gloo, a ring."""


@lru_cache(maxsize=64)
def program_of(collective: str, ranks: int, options: Options = Options()) -> Program:
    """Return the program of a collective by its name on `ranks` >= 2 ranks.

    Raises ValueError for an unknown name or for parameters that do not fit the number of ranks.
    """
    if collective == DDP:
        collective = "ring"
    known = collectives()
    if collective not in known:
        near = suggestion(collective, (*known, DDP))
        raise ValueError(f"collective: there is no {collective!r}; {near}")
    if ranks < 2:
        raise ValueError(f"hosts: a {collective} needs at least two ranks, not {ranks}")
    return known[collective](ranks, options)


def steps(collective: str, ranks: int, options: Options = Options()) -> list[list[RankFlow]]:
    """Return the flows (source rank, destination rank, fraction of the collective's bytes) of each step."""
    program = program_of(collective, ranks, options)
    return [[RankFlow(t.src, t.dst, t.units / program.units) for t in step] for step in program.steps]


class Task(NamedTuple):
    """A transfer as one of its ranks sees it."""

    step: int
    after: int
    """The transfer may start when the rank has completed (without lockstep: received) this many steps."""
    transfer: Transfer


def tasks(program: Program, rank: int) -> Iterator[Task]:
    """Yield all transfers of a rank in the order of steps, which is also their order for each peer."""
    arrived: dict[int, int] = {}  # by unit: the number of steps after which the rank has it
    for index, step in enumerate(program.steps):
        own = [t for t in step if rank in (t.src, t.dst)]
        for t in own:
            after = index
            if not program.lockstep:  # a unit's result cannot arrive before the unit was sent
                sent = range(t.first, t.first + t.units) if t.src == rank else ()
                after = max((arrived.get(unit, 0) for unit in sent), default=0)
            yield Task(index, after, t)
        for t in own:
            if t.dst == rank:
                arrived.update(dict.fromkeys(range(t.into, t.into + t.units), index + 1))


def contributors(program: Program) -> list[list[int]]:
    """Return the ranks whose data end up in unit u of rank r, as bit mask `[r][u]`; 0: the unit stays zero.

    For an exchange, the masks are those of the second buffer. They are computed by running the program on
    sets. Raises ValueError if a program adds a rank's data twice.
    """
    if program.exchange:
        arrived = [[0] * program.units for _ in range(program.ranks)]
        for step in program.steps:
            for t in step:
                arrived[t.dst][t.into] |= 1 << t.src
        return arrived
    held = [[1 << rank if rank in program.sources else 0] * program.units for rank in range(program.ranks)]
    for step in program.steps:
        moving = [(t, held[t.src][t.first : t.first + t.units]) for t in step]
        for t, masks in moving:
            for unit, mask in enumerate(masks, t.into):
                if not t.reduce:
                    held[t.dst][unit] = mask
                elif held[t.dst][unit] & mask:
                    raise ValueError(
                        f"{program.collective}: unit {unit} of rank {t.dst} would count a rank twice"
                    )
                else:
                    held[t.dst][unit] |= mask
    return held
