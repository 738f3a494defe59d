"""Paces for jobs that run: their shifts, on grids of time (Cassini, 4.4.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schedulers.cassini.affinity import THRESHOLD, Interleaving, Link, components, interleave
from schedulers.cassini.circle import wrapped
from schedulers.cassini.profile import Phase, Profile

SLACK = 0.01
"""By how much periods are longer than iterations, as a fraction: a late job then catches up by itself."""
BOUND = 0.05
"""How late an iteration may start, as a fraction of the period, before that is corrected."""
FITS = 0.99
"""A link with this score needs no longer periods: the search is as exact as that."""
_HALVINGS = 6


@dataclass(frozen=True)
class Grid:
    """A job's iterations start at `anchor` plus whole periods (both s)."""

    anchor: float
    period: float

    def next(self, time: float) -> float:
        """Return the first start that is not before `time` (s)."""
        return time + (self.anchor - time) % self.period


@dataclass(frozen=True)
class Plan:
    """Jobs' `grids`, and `shifts`: by how much a job delays the start of its next iteration, s. `reasons`
    says of the jobs without a grid, why they have none. `score` is that of the jobs' profiles."""

    grids: Mapping[str, Grid]
    shifts: Mapping[str, float]
    reasons: Mapping[str, str]
    score: float
    groups: tuple[tuple[str, ...], ...]
    """Jobs with grids that links connect: only delays within a group matter."""


def plan(
    profiles: Mapping[str, Profile],
    links: Sequence[Link],
    starts: Mapping[str, float],
    *,
    threshold: float = THRESHOLD,
    slack: float = SLACK,
    bound: float = 0.0,
    seed: int = 0,
) -> Plan:
    """Return paces by which jobs that share links send at different times.

    `starts` has a start of an iteration of each job (s). Solutions in which all jobs that links connect are
    delayed alike are equal; of these it takes the one that moves fewest. A job stays if it starts at most
    `bound` (a fraction of its period) after its place. If phases collide whatever the shifts, periods become
    longer by the time that the excess takes on the link, for these jobs would be late otherwise. Where jobs
    also cross a link that scores less than `threshold`, all that links connect with them stay as they are:
    the ones that meet there would be late in every iteration, and the others would wait for them. So do jobs
    whose periods would grow by more, on average, than iterations if phases met by chance.
    """
    found = best = interleave(profiles, links, threshold=threshold, seed=seed)
    longer = _longer(found)
    if any(factor > 1.0 for factor in longer.values()):
        waiting = {job: each.waiting(each.period * longer[job]) for job, each in found.profiles.items()}
        best = interleave(waiting, links, threshold=threshold, seed=seed)
    best = _roomy(best, links, threshold, seed)
    grids: dict[str, Grid] = {}
    shifts: dict[str, float] = {}
    poor = [each.link for each in found.links if len(each.link.jobs) > 1 and each.score < threshold]
    reasons = dict(found.reasons)
    groups = []
    for jobs in components([job for job in profiles if job not in found.reasons], links):
        if unfit := [link.name for link in poor if not set(jobs).isdisjoint(link.jobs)]:
            reasons.update(dict.fromkeys(jobs, f"jobs that it may meet do not fit on {unfit[0]}"))
            continue
        longer_by = [best.profiles[job].period / profiles[job].period - 1.0 for job in jobs]
        by_chance = [
            max(_excess(profiles, link) for link in links if job in link.jobs and len(link.jobs) > 1)
            for job in jobs
        ]
        if sum(longer_by) > sum(by_chance):
            reason = "apart, these jobs would take longer on average than where they meet by chance"
            reasons.update(dict.fromkeys(jobs, reason))
            continue
        groups.append(jobs)
        relative = {
            job: Grid(best.shifts[job] * (1.0 + slack), best.profiles[job].period * (1.0 + slack))
            for job in jobs
        }
        chosen = min((_placed(relative, starts, job, bound) for job in jobs), key=_moved)
        grids.update({job: grid for job, (grid, _) in chosen.items()})
        shifts.update({job: wait for job, (_, wait) in chosen.items()})
    return Plan(grids, shifts, reasons, found.score, tuple(map(tuple, groups)))


def _excess(profiles: Mapping[str, Profile], link: Link) -> float:
    """Return the mean demand above the link's capacity, over the capacity, if phases meet by chance."""
    totals = {0.0: 1.0}
    for job in link.jobs:
        more: dict[float, float] = defaultdict(float)
        for phase in profiles[job].phases:
            for total, part in totals.items():
                more[total + phase.rate] += part * phase.seconds / profiles[job].period
        totals = more
    return sum(part * max(total / link.capacity - 1.0, 0.0) for total, part in totals.items())


def later(grids: Mapping[str, Grid], late: float) -> dict[str, Grid]:
    """Return grids that begin later by `late` (s): the jobs that a late one may meet then wait for as long as
    it is late. By itself, it would wait for the rest of its period.
    """
    return {job: Grid(grid.anchor + late, grid.period) for job, grid in grids.items()}


def stretched(grids: Mapping[str, Grid], now: float, factor: float) -> dict[str, Grid]:
    """Return grids whose periods are longer by `factor` from `now` on; the jobs' order stays."""
    slowest = max(grids.values(), key=lambda grid: grid.period)
    origin = slowest.next(now)
    return {
        job: Grid(origin + (grid.next(origin) - origin) * factor, grid.period * factor)
        for job, grid in grids.items()
    }


def refit(alone: float, solved: float, lasts: float) -> float:
    """Return by what factor a period (`solved`, s) has to change for iterations that take `lasts`, and would
    take `alone` by the job's profile.

    A period that was made longer, because phases collide, stays if iterations are anything between: in a
    shorter one they would take longer.
    """
    if lasts > solved:
        return lasts / solved
    return min(lasts / alone, 1.0)


def _roomy(found: Interleaving, links: Sequence[Link], threshold: float, seed: int) -> Interleaving:
    """Return shifts that are as good and leave the most time between phases, so that a late job meets none.

    Best shifts make phases meet edge to edge. Those of profiles whose Up phases are longer, and still do not
    collide, do not.
    """
    shared = [each for each in found.links if len(each.link.jobs) > 1]
    low, high = 0.0, max((each.period for each in found.profiles.values()), default=0.0) / 2.0
    best = found
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        padded = {job: each.padded(middle) for job, each in found.profiles.items()}
        tried = interleave(padded, links, threshold=threshold, seed=seed)
        scores = {each.link.name: each.shifted for each in tried.links}
        if all(scores[each.link.name] >= min(each.shifted, FITS) for each in shared):
            low, best = middle, tried
        else:
            high = middle
    return replace(found, shifts=best.shifts)


_Placed = Mapping[str, tuple[Grid, float]]
"""Jobs' grids, and by how much their next iterations are delayed, s; 0 for one that stays."""


def _placed(relative: Mapping[str, Grid], starts: Mapping[str, float], kept: str, bound: float) -> _Placed:
    """Return grids by which the job `kept` stays, and the others have their places relative to it."""
    origin = starts[kept] - relative[kept].anchor
    placed = {}
    for job, grid in relative.items():
        wait = wrapped(origin + grid.anchor - starts[job], grid.period)
        stays = grid.period - wait <= bound * grid.period  # it is hardly late
        placed[job] = Grid(origin + grid.anchor, grid.period), 0.0 if stays else wait
    return placed


def _moved(placed: _Placed) -> tuple[int, float]:
    """Return how many jobs are moved, and by how much at most, as a fraction of a period."""
    waits = [wait / grid.period for grid, wait in placed.values()]
    return sum(wait > 0.0 for wait in waits), max(waits)


def warm_up() -> None:
    """Compile what `plan` needs, which would delay it by seconds."""
    profile = Profile((Phase(0.6, 0.0), Phase(0.4, 1.0)))
    names = ("a", "b", "c", "d")
    jobs = dict.fromkeys(names, profile)
    for count in (2, 3, 4):
        plan(jobs, [Link("link", 1.0, names[:count])], dict.fromkeys(names, 0.0))
    loop = [Link(f"{one}-{other}", 1.0, (one, other)) for one, other in ("ab", "bc", "ca")]
    plan(jobs, loop, dict.fromkeys(names, 0.0))


def _longer(found: Interleaving) -> dict[str, float]:
    """Return by what factor each job's period has to grow, so that what exceeds a link is sent as well."""
    shifted = [job for job in found.profiles if job not in found.reasons]
    factors = dict.fromkeys(found.profiles, 1.0)
    for jobs in components(shifted, [each.link for each in found.links]):
        worst = min(each.shifted for each in found.links if each.link.jobs[0] in jobs)
        if worst < FITS:
            factors.update(dict.fromkeys(jobs, 2.0 - worst))
    return factors
