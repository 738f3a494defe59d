"""Compiled kernels of the slot scheduler: Algorithms 1 and 2 for one flow (flow-scheduling paper, IV).

Rates are in bytes/s. Slots count from the present one (0).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schedulers.compiled import Floats, Ints, compiled
from schedulers.slots.roles import Role

HORIZON = 10
"""Slots that a schedule and a load table cover (K)."""
AGGREGATION, BROADCAST, RING = int(Role.AGGREGATION), int(Role.BROADCAST), int(Role.RING)
"""Roles as the kernels compare them."""
SAME_LOAD = 1e-6
"""Part of the line rate by which rounding may tell apart loads that are the same."""
TINY = 1e-9
"""Part of a volume that counts as nothing: rounding."""
ALIKE = 1024.0
"""Steps per power of two to which flows are told apart by how much they plan for what they have left."""
ALL_OF_IT = 0.999
"""Part of what is left that a schedule must hold to count as the end of its flow."""
FLOOR = 0.5
"""The bound B is at least this part of the line rate: a fair share beside one flow that nobody plans. Without
it every slot in which that flow took more would lower what is asked for in the next."""
SHORT = 0.98
"""A flow that achieved less than this part of its plan was held back by its path."""

FLOW = np.dtype(
    [
        ("link", np.float64),  # rate of the host's link, headers included
        ("rank", np.float64),  # position in the order of decisions, 0 to 1: SlotScheduler.ranks
        ("siblings", np.int64),  # row that stands for the flows of the same process and role
        ("role", np.int64),
        ("sent", np.float64),  # bytes of this iteration that are sent
        ("total", np.float64),  # bytes of this iteration
        ("ready", np.float64),  # bytes of this iteration that the process has made available
        ("ahead", np.float64),  # aggregation: the most that its server has broadcast
        (
            "behind",
            np.float64,
        ),  # broadcast, ring: what the flows upstream will have brought by the slot's end
        ("chunk", np.float64),  # bytes passed on at once: a ring's lag; aggregation: 0 is unknown
        ("bound", np.float64),  # largest rate that the path carried of late: SlotScheduler.observed
        ("others", np.float64),  # written by `decide`: what others plan on the path's tightest link
    ]
)
"""What a decision needs to know of one flow."""

Flows = np.ndarray[Any, np.dtype[np.void]]
"""Rows of `FLOW`."""

RULES = np.dtype(
    [
        ("slot_s", np.float64),
        ("price", np.float64),
        ("payload", np.float64),
        ("partial", np.int64),
        ("hasten", np.bool_),
        ("classes", np.int64),
        ("staged", np.float64),
    ]
)
"""The parameters that decisions use; each is the field of that name in `schedulers.slots.host.Parameters`."""

Rules = np.ndarray[Any, np.dtype[np.void]]
"""One row of `RULES`."""


@compiled
def order(left: Floats, link: Floats, draw: Floats, role: Ints, rules: Rules, ranks: Floats) -> None:
    """Write the positions `ranks` (n,) in the order of decisions: see `SlotScheduler.ranks`."""
    its = rules[0]
    for i in range(len(left)):
        staged = role[i] == AGGREGATION or role[i] == BROADCAST
        counted = its.staged * left[i] if staged else left[i]
        slots = max(counted / (its.payload * link[i] * its.slot_s), 1.0)
        size = min(np.floor(2.0 * np.log2(slots)), its.classes - 1.0)
        ranks[i] = (size + draw[i]) / its.classes


@compiled
def observe(
    seen: Floats, link: Floats, planned: Floats, achieved: Floats, others: Floats, rules: Rules, after: Floats
) -> None:
    """Write `after`, which is `seen` (n, window) with one more observation: see `SlotScheduler.observed`."""
    for i in range(len(seen)):
        line = rules[0].payload * link[i]
        after[i, :-1] = seen[i, 1:]
        held_back = achieved[i] < SHORT * planned[i]
        after[i, -1] = min(max(achieved[i] + others[i], FLOOR * line), line) if held_back else line


@compiled
def _fill_slots(
    cap: Floats, volume: float, slot_s: float, begin: int, end: int, rank: Ints, rate: Floats
) -> float:
    """Put `volume` bytes into slots begin to end - 1 in the order of `rank`, each up to its cap.

    Return the bytes that do not fit.
    """
    left = volume
    for i in range(end - begin):
        slot = rank[i]
        if left <= 0.0:
            rate[slot] = 0.0
        else:
            rate[slot] = min(cap[slot], left / slot_s)
            left -= rate[slot] * slot_s
    return left


@compiled
def plan(
    path_load: Floats,
    cap: Floats,
    volume: float,
    line: float,
    begin: int,
    rules: Rules,
    schedule: Floats,
    trial: Floats,
    rank: Ints,
) -> bool:
    """Run Algorithm 1 for slots `begin` to K - 1: fill the least loaded slots up to the cheapest completion.

    The cost (right side of constraint 11) of completing in a slot is the number of slots until then plus the
    sum of rate times the dual price λ. λ is load / `line` times the price in `rules`, and rates count in
    units of `line`, so both terms are in slots. Equal loads go to the earlier slot, equal costs to the
    earlier completion.

    If the slots cannot hold `volume` (bytes), no schedule is feasible (constraint 3). Then the slots before
    `partial` are filled, so that a long flow does not block flows that fit.

    Write `schedule` (K,); `trial` and `rank` (K,) are scratch space. Return whether the flow completes.
    """
    its = rules[0]
    horizon = len(path_load)
    for slot in range(begin, horizon):
        schedule[slot] = 0.0
    if volume <= 0.0:
        return True
    best = np.inf
    tiny, same = TINY * volume, SAME_LOAD * line
    for end in range(begin + 1, horizon + 1):
        # Insert slot end - 1 behind all that are not more loaded.
        i = end - 1 - begin
        while i > 0 and path_load[rank[i - 1]] > path_load[end - 1] + same:
            rank[i] = rank[i - 1]
            i -= 1
        rank[i] = end - 1
        left = _fill_slots(cap, volume, its.slot_s, begin, end, rank, trial)
        if left <= tiny:
            cost = float(end - begin)
            for slot in range(begin, end):
                cost += its.price * trial[slot] / line * path_load[slot] / line
            if cost < best:
                best = cost
                for slot in range(begin, horizon):
                    schedule[slot] = trial[slot] if slot < end else 0.0
            elif best < end - begin:
                break  # later completions cost more than that already
    if best == np.inf:
        for slot in range(begin, horizon):
            schedule[slot] = trial[slot] if slot < its.partial else 0.0
        return False
    return True


@compiled
def adjust(
    path_load: Floats,
    cap: Floats,
    sent: float,
    volume: float,
    target: float,
    limit: float,
    line: float,
    rules: Rules,
    schedule: Floats,
    trial: Floats,
    rank: Ints,
) -> None:
    """Run Algorithm 2 for one flow: Algorithm 1, then fit the present slot to the flows that it depends on.

    `sent` of `volume` bytes are through. By the end of this slot the flow should have sent `target` bytes
    (-inf: it follows nobody), and can have sent `limit` at most (inf: no dependency). Write `schedule` (K,).
    """
    slot_s = rules[0].slot_s
    remaining = volume - sent
    plan(path_load, cap, remaining, line, 0, rules, schedule, trial, rank)
    rate = schedule[0]
    delta = (target - (sent + rate * slot_s)) / slot_s
    if delta > 0.0:
        rate = min(rate + delta, cap[0], remaining / slot_s)
    left = remaining - rate * slot_s
    if sent + rate * slot_s > limit + TINY * volume:
        # What is to come is unknown. Slots reserved for it would starve the very flow that it waits for.
        rate = max(limit - sent, 0.0) / slot_s
        left = 0.0
    if rate != schedule[0]:
        schedule[0] = rate
        rest = left if left > TINY * volume else 0.0
        plan(path_load, cap, rest, line, 1, rules, schedule, trial, rank)


@compiled
def dependency(flows: Flows, f: int) -> tuple[float, float, float]:
    """Return what flow f should have sent by the end of this slot, the most it can, and what it may plan.

    All three are bytes of this iteration (IV-C): aggregation follows the furthest broadcast, a broadcast
    what is aggregated, a ring flow its predecessor, with a lag of one chunk (without it a ring stands still).
    """
    flow = flows[f]
    if flow.role == AGGREGATION:
        return min(flow.ahead, flow.ready), np.inf, flow.ready
    if flow.role == BROADCAST:
        available = min(flow.behind, flow.total)
        return available, available, available
    if flow.role == RING:
        return flow.behind, flow.behind + flow.chunk, flow.total
    return -np.inf, np.inf, flow.ready


@compiled
def begin_round(due: Ints, flows: Flows, planned: Floats, order: Ints, waiting: Floats) -> None:
    """Write the `order` (len(due),) of decisions, and add up the siblings that are `due` in `waiting`.

    By rank; of equals, who plans the most for what it has left decides first, because it has the most to
    give to its siblings; of equals, the first in `due`. `waiting` (n, 2 + slots) holds at the row of each
    group of siblings their number, the bytes that they have left, and the rates that they have `planned`.
    """
    rank, keen = np.empty(len(due)), np.empty(len(due))
    for i, f in enumerate(due):
        flow = flows[f]
        left = flow.total - flow.sent
        group = flow.siblings
        waiting[group, 0] += 1.0
        waiting[group, 1] += left
        for slot in range(planned.shape[1]):
            waiting[group, 2 + slot] += planned[f, slot]
        rank[i] = flow.rank
        part = planned[f, 0] / left
        keen[i] = np.floor(np.log2(part) * ALIKE) if part > 0.0 else -np.inf
    places = np.argsort(rank, kind="mergesort")
    for i in range(len(due)):
        place, j = places[i], i
        while j > 0 and rank[places[j - 1]] == rank[place] and keen[places[j - 1]] < keen[place]:
            places[j] = places[j - 1]
            j -= 1
        places[j] = place
    for i in range(len(due)):
        order[i] = due[places[i]]


@compiled
def decide(
    flows: Flows,
    f: int,
    path_load: Floats,
    headroom: Floats,
    own: Floats,
    reserved: int,
    part: float,
    planned: Floats,
    waiting: Floats,
    rules: Rules,
    schedule: Floats,
    scratch: Floats,
    rank: Ints,
) -> None:
    """Decide the schedule (K,) of flow f from its path's load and headroom: see `Round.decide`.

    Siblings share what `own`, the headroom of their host's link, leaves. What the rest of a path leaves is
    not theirs alone: a part of it that a sibling with another path cannot use would be nobody's.
    `planned` (n, slots) holds what each flow had planned before; flow f leaves `waiting` (`begin_round`).
    `scratch` (3, at least `reserved`) and `rank` (at least `reserved`,) are scratch space.
    """
    room, cap, trial = scratch[0], scratch[1], scratch[2]
    flow, its = flows[f], rules[0]
    line = its.payload * flow.link
    headers = flow.link - line
    left = flow.total - flow.sent
    group = flow.siblings
    waiting[group, 0] -= 1.0
    waiting[group, 1] -= left
    for slot in range(planned.shape[1]):
        waiting[group, 2 + slot] -= planned[f, slot]
    for slot in range(reserved):
        room[slot] = min(max(headroom[slot] - headers, 0.0), line)
        if waiting[group, 0] > 0.0:
            share = left / (left + waiting[group, 1])
            theirs = min(max(own[slot] - headers, 0.0) + waiting[group, 2 + slot], line)
            room[slot] = min(room[slot], theirs * share)
        cap[slot] = max(room[slot] - max(line - flow.bound, 0.0), 0.0)
    cap[0] *= part  # decided as the mean rate of a whole slot
    target, limit, volume = dependency(flows, f)
    if flow.role == AGGREGATION and flow.chunk > 0.0:
        # A worker that went on would take its server's link from the others, for whose data the server waits.
        # It learns within a slot what comes back.
        limit = flow.ahead + flow.chunk + flow.link * its.slot_s
    schedule[:] = 0.0
    adjust(
        path_load[:reserved],
        cap[:reserved],
        flow.sent,
        volume,
        target,
        limit,
        line,
        rules,
        schedule[:reserved],
        trial,
        rank,
    )
    if its.hasten and volume > flow.sent and schedule.sum() * its.slot_s >= ALL_OF_IT * (volume - flow.sent):
        last = reserved - 1
        while schedule[last] == 0.0:
            last -= 1
        schedule[last] = room[last] * (part if last == 0 else 1.0)
    schedule[0] /= part
    flows["others"][f] = max(flow.link - headroom[0], 0.0)
