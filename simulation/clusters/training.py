"""Training jobs that iterate on shared links: a fluid model between events.

Flows share links max-min fairly. While a link is what holds flows back, some of their packets are marked: how
many is taken from DCQCN's fluid model (simulation/dcqcn.py).

A job that Cassini shifts follows a pace, as a running one does (schedulers/cassini/pace.py). If it is late,
the grids of all that it may meet move by as much: an adjustment.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedulers.cassini.pace import Kind, follow, lateness, moves
from schedulers.cassini.profile import Phase, Profile
from schedulers.compiled import Floats, Ints, compiled
from simulation import dcqcn

MOST_FLOWS = 16
"""Marks of more flows on a link are those of as many."""

JOB = np.dtype(
    [
        ("phase", np.int64),  # the next one
        ("phases", np.int64),
        ("ready", np.float64),  # when the next one begins, s
        ("demand", np.float64),  # of the present Up phase, bytes/s; 0: none
        ("rate", np.float64),
        ("left", np.float64),  # bytes
        ("began", np.float64),
        ("sending_since", np.float64),
        ("sent_s", np.float64),  # time in Up phases
        ("marks", np.float64),
        ("iterations", np.int64),  # still to do
        ("alone", np.float64),  # how long one takes if nobody slows it down, s
        ("group", np.int64),  # of jobs that may meet
        ("anchor", np.int64),  # its pace, ns
        ("grid", np.int64),  # its pace's period, ns; 0: it has none
        ("bound", np.int64),
        ("kept_anchor", np.int64),  # and what it remembers, as schedulers.cassini.pace.Memory
        ("kept_period", np.int64),
        ("kept_bound", np.int64),
        ("due", np.int64),
        ("off", np.int64),
        ("rested", np.int64),
        ("adjusted", np.int64),
    ]
)
RECORD = np.dtype(
    [
        ("job", np.int64),
        ("began", np.float64),
        ("seconds", np.float64),  # until the next iteration begins
        ("waited", np.float64),  # of them, for the pace
        ("sent_s", np.float64),
        ("marks", np.float64),
        ("alone", np.float64),
    ]
)
State = NDArray[np.void]


@lru_cache(maxsize=8)
def marking(capacity: float) -> tuple[Floats, Floats]:
    """Return how many packets are marked when 0 to `MOST_FLOWS` flows begin to contend for a link of
    `capacity` bytes/s, and how many per second after that; both of shape (MOST_FLOWS + 1,)."""
    burst, steady = np.zeros(MOST_FLOWS + 1), np.zeros(MOST_FLOWS + 1)
    for flows in range(2, MOST_FLOWS + 1):
        marked = []
        for seconds in (0.1, 0.4):
            each = Profile((Phase(1e-3, 0.0), Phase(seconds / flows, capacity)))
            run = dcqcn.run([each] * flows, [dcqcn.TIMER_S] * flows, capacity, 1, "fluid")
            marked.append(float(run.marked.sum()))
        steady[flows] = (marked[1] - marked[0]) / 0.3
        burst[flows] = max(marked[0] - 0.1 * steady[flows], 0.0)
    return burst, steady


@compiled
def share(jobs: State, active: Ints, weight: Floats, flows: Floats, capacity: Floats, held: Floats) -> None:
    """Set the rates (bytes/s of a GPU) of the `active` jobs that send: max-min fair among flows.

    `weight` and `flows` (active, links) are the jobs' traffic. `held` (links,) gets the number of flows on
    links that hold flows back, else 0.
    """
    count, links = weight.shape
    room = capacity.copy()
    held[:] = 0.0
    waiting = 0
    open_ = np.zeros(count, np.bool_)
    for a in range(count):
        jobs[active[a]].rate = 0.0
        if jobs[active[a]].demand > 0.0:
            open_[a] = True
            waiting += 1
    unit = np.ones(count)  # a flow's rate over a GPU's
    for a in range(count):
        for k in range(links):
            if flows[a, k] > 0.0:
                unit[a] = weight[a, k] / flows[a, k]
    while waiting > 0:
        level, at = np.inf, -1
        for k in range(links):
            crossing = 0.0
            for a in range(count):
                if open_[a]:
                    crossing += flows[a, k]
            if crossing > 0.0 and room[k] / crossing < level:
                level, at = room[k] / crossing, k
        limited = False
        for a in range(count):
            if open_[a] and jobs[active[a]].demand * unit[a] <= level * (1.0 + 1e-9):
                limited = True
        for a in range(count):
            if not open_[a]:
                continue
            demand = jobs[active[a]].demand
            if limited:
                if demand * unit[a] > level * (1.0 + 1e-9):
                    continue
                jobs[active[a]].rate = demand
            else:
                if flows[a, at] == 0.0:
                    continue
                jobs[active[a]].rate = level / unit[a]
            open_[a] = False
            waiting -= 1
            for k in range(links):
                room[k] = max(room[k] - weight[a, k] * jobs[active[a]].rate, 0.0)
        if not limited:
            for a in range(count):
                if jobs[active[a]].demand > 0.0:
                    held[at] += flows[a, at]


_follow, _lateness, _moves = compiled(follow), compiled(lateness), compiled(moves)


@compiled
def _next_start(jobs: State, active: Ints, j: int, done: float) -> Any:
    """Return when the next iteration of job `j` begins, which is done with one at `done`."""
    job = jobs[j]
    now = round(done * 1e9)
    at, drift, kind = _follow(job, job.anchor, job.grid, job.bound, now)
    late = _lateness(drift, kind)
    if kind == Kind.CORRECTED:
        job.adjusted += 1
    if _moves(late, job.bound):
        job.adjusted += 1
        for m in active:
            if jobs[m].grid > 0 and jobs[m].group == job.group:
                jobs[m].anchor += late
    return done if at == now else at / 1e9


@compiled
def advance(
    jobs: State,
    active: Ints,
    phases: Floats,
    weight: Floats,
    flows: Floats,
    capacity: Floats,
    burst: Floats,
    steady: Floats,
    jitter: float,
    now: float,
    until: float,
    records: State,
    recorded: int,
) -> tuple[float, int]:
    """Let the `active` jobs run from `now` to `until` (s), or until one has done its iterations or `records`
    are full. Return the time and the number of records.

    `phases` (jobs, most phases, 2) holds seconds and rates; the other arrays are as in `share`. Computation
    takes `jitter` (standard deviation over mean) more or less than it should.
    """
    count, links = weight.shape
    held, before = np.zeros(links), np.zeros(links)
    speed = np.zeros(count)  # marks per second
    changed = True
    while True:
        ended = False
        for a in range(count):
            j = active[a]
            job = jobs[j]
            while job.demand == 0.0 and job.ready <= now + 1e-12:
                if job.phase == job.phases:
                    start = _next_start(jobs, active, j, job.ready)
                    records[recorded].job = j
                    records[recorded].began = job.began
                    records[recorded].seconds = start - job.began
                    records[recorded].waited = start - job.ready
                    records[recorded].sent_s = job.sent_s
                    records[recorded].marks = job.marks
                    records[recorded].alone = job.alone
                    recorded += 1
                    job.began = start
                    job.ready = start
                    job.phase = 0
                    job.sent_s = 0.0
                    job.marks = 0.0
                    job.iterations -= 1
                    if job.iterations <= 0:
                        ended = True
                        job.ready = np.inf
                    continue
                seconds, rate = phases[j, job.phase, 0], phases[j, job.phase, 1]
                job.phase += 1
                if rate > 0.0:
                    job.demand, job.left = rate, rate * seconds
                    job.sending_since = job.ready
                    changed = True
                else:
                    noise = min(max(np.random.normal(), -3.0), 3.0) * jitter
                    job.ready += seconds * (1.0 + noise)
        if ended or now >= until or recorded + count >= len(records):
            return now, recorded
        if changed:
            before[:] = held
            share(jobs, active, weight, flows, capacity, held)
            speed[:] = 0.0
            for k in range(links):
                if held[k] == 0.0:
                    continue
                n = int(min(held[k], MOST_FLOWS))
                at_once = burst[n] if held[k] > before[k] else 0.0
                for a in range(count):
                    part = weight[a, k] * jobs[active[a]].rate / capacity[k]
                    speed[a] += steady[n] * part
                    jobs[active[a]].marks += at_once * part
            changed = False
        step = until - now
        for a in range(count):
            job = jobs[active[a]]
            step = min(step, job.left / job.rate if job.demand > 0.0 else job.ready - now)
        step = max(step, 0.0)
        now += step
        for a in range(count):
            job = jobs[active[a]]
            if job.demand > 0.0:
                job.left -= job.rate * step
                job.marks += speed[a] * step
                if job.left <= 1.0:
                    job.sent_s += now - job.sending_since
                    job.demand = 0.0
                    job.ready = now
                    changed = True


@compiled
def seeded(seed: int) -> None:
    """Seed the draws of computation times."""
    np.random.seed(seed)
