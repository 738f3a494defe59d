"""One shift per job for a whole cluster: the affinity graph and its traversal (Cassini, 4.4.1, Algorithm 1).

Links that carry the same jobs are one vertex, for otherwise two jobs on an uplink and a downlink are a loop.
A loop is accepted if some shifts serve each of its links as well as that link's own shifts do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schedulers.cassini.circle import STRETCH, common_multiple, wrapped
from schedulers.cassini.fit import Fit, best, jointly, score
from schedulers.cassini.profile import Profile

THRESHOLD = 0.7
"""Least score for which jobs are shifted. In the paper's table 4.3 jobs gain at 0.8, and no longer at 0.6."""
LONGEST_WAIT = 0.05
"""If a period had to grow by more than this fraction, shifts would cost more than a shared link does."""
LOOP_LOSS = 0.01
"""How much less a link that closes a loop may score than by itself: the accuracy of the search."""


@dataclass(frozen=True)
class Link:
    """A link of `capacity` bytes/s and the jobs whose traffic crosses it."""

    name: str
    capacity: float
    jobs: tuple[str, ...]


@dataclass(frozen=True)
class Shared:
    """What came out for one link: `score` is the best that its jobs can have on it alone, `shifted` what they
    have with the jobs' shifts. Both are 1 for a link of one job. `perimeter` is that of its circle, s.
    `fit` holds the optimiser's own shifts by job, where these count for the jobs' shifts."""

    link: Link
    score: float
    shifted: float
    perimeter: float
    fit: Mapping[str, float] | None


@dataclass(frozen=True)
class Interleaving:
    """Each job's `shifts` (s, below its period) and `profiles`, whose periods include waiting; each link's
    outcome, in the order given. `reasons` says for jobs that stay as they are, why. `loops` names the links
    that close a loop which no shifts suit, and `apart` the jobs whose periods have no common multiple."""

    shifts: Mapping[str, float]
    profiles: Mapping[str, Profile]
    links: tuple[Shared, ...]
    reasons: Mapping[str, str]
    loops: tuple[str, ...]
    apart: tuple[str, ...]

    @property
    def score(self) -> float:
        """The mean score of the shared links; 1 if there is none (Algorithm 2)."""
        scores = [each.score for each in self.links if len(each.link.jobs) > 1]
        return sum(scores) / len(scores) if scores else 1.0


Fits = dict[tuple[object, ...], Fit]
"""Solved links, by profiles, perimeter and capacity."""


def components(jobs: Sequence[str], links: Sequence[Link]) -> list[list[str]]:
    """Return the jobs that links connect, directly or through others, in the order of `jobs`. Links that also
    carry other jobs do not count."""
    near: dict[str, set[str]] = {job: set() for job in jobs}
    for link in [link for link in links if near.keys() >= set(link.jobs)]:
        for job in link.jobs:
            near[job].update(link.jobs)
    found: list[list[str]] = []
    seen: set[str] = set()
    for job in jobs:
        if job in seen:
            continue
        waiting, members = [job], {job}
        while waiting:
            fresh = near[waiting.pop()] - members
            members |= fresh
            waiting.extend(fresh)
        seen |= members
        found.append([each for each in jobs if each in members])
    return found


class _Component:
    """Jobs that links connect, with links merged, on circles of one common multiple."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        jobs: Sequence[str],
        links: Sequence[Link],
        seed: int,
        fits: Fits,
        stretch: float,
    ) -> None:
        common = common_multiple([profiles[job].period for job in jobs], stretch=stretch)
        self.jobs = jobs
        self.stretch = common.stretch
        self.profiles = {
            job: profiles[job].waiting(period)
            for job, period in zip(jobs, common.periods.tolist(), strict=True)
        }
        self._turns = dict(zip(jobs, common.turns.tolist(), strict=True))
        self._perimeter = common.perimeter
        self._seed = seed
        self._fits = fits
        least: dict[frozenset[str], Link] = {}
        for link in links:
            key = frozenset(link.jobs)
            if key not in least or link.capacity < least[key].capacity:
                least[key] = link
        self.merged = least

    def perimeter(self, link: Link) -> float:
        """Return the perimeter of the link's circle, s."""
        return self._perimeter / int(np.gcd.reduce([self._turns[job] for job in link.jobs]))

    def fit(self, link: Link, fixed: Mapping[str, float] | None = None) -> Fit:
        """Return the best shifts of the link's jobs, those in `fixed` given."""
        profiles = [self.profiles[job] for job in link.jobs]
        held = None
        if fixed is not None:
            held = {n: fixed[job] for n, job in enumerate(link.jobs) if job in fixed}
        key = (tuple(profiles), self.perimeter(link), link.capacity, held and tuple(held.items()))
        if key not in self._fits:
            self._fits[key] = best(profiles, self.perimeter(link), link.capacity, fixed=held, seed=self._seed)
        return self._fits[key]

    def settled(self, links: Mapping[Link, Fit], shifts: Mapping[str, float]) -> dict[str, float] | None:
        """Return shifts under which every link scores as by itself, or None if the search finds none. It
        begins with `shifts`."""
        jobs = list(shifts)
        found = jointly(
            [self.profiles[job] for job in jobs],
            [(link.capacity, [jobs.index(job) for job in link.jobs]) for link in links],
            self._perimeter,
            list(shifts.values()),
            sum(1.0 - fit.score for fit in links.values()) + LOOP_LOSS / 2.0,
            seed=self._seed,
        )
        result = dict(zip(jobs, found, strict=True))
        suits = all(self.shifted(link, result) >= fit.score - LOOP_LOSS for link, fit in links.items())
        return result if suits else None

    def shifted(self, link: Link, shifts: Mapping[str, float]) -> float:
        """Return the link's score under `shifts`."""
        return score(
            [self.profiles[job] for job in link.jobs],
            [shifts[job] for job in link.jobs],
            self.perimeter(link),
            link.capacity,
        )


def _traverse(
    part: _Component, links: Mapping[Link, Fit], random: np.random.Generator
) -> tuple[dict[str, float], dict[Link, Mapping[str, float]], list[Link]]:
    """Algorithm 1: return each job's shift (s), the shifts on each link that they follow, and the links that
    close a loop and do not agree."""
    shifts: dict[str, float] = {}
    followed: dict[Link, Mapping[str, float]] = {}
    refused: list[Link] = []
    members = {job for link in links for job in link.jobs}
    remaining = [job for job in part.jobs if job in members]
    while remaining:
        start = remaining[int(random.integers(len(remaining)))]
        shifts[start] = 0.0
        queue = deque([start])
        while queue:
            job = queue.popleft()
            for link, fit in links.items():
                if job not in link.jobs or link in followed or link in refused:
                    continue
                known = {each: shifts[each] for each in link.jobs if each in shifts}
                own = dict(zip(link.jobs, fit.shifts, strict=True))
                if len(known) > 1:
                    joint = part.fit(link, known)
                    if joint.score < fit.score - LOOP_LOSS:
                        refused.append(link)
                        continue
                    own = dict(zip(link.jobs, joint.shifts, strict=True))
                followed[link] = own
                for each in link.jobs:
                    if each not in shifts:
                        shift = shifts[job] - own[job] + own[each]
                        shifts[each] = wrapped(shift, part.profiles[each].period)
                        queue.append(each)
        remaining = [job for job in remaining if job not in shifts]
    return shifts, followed, refused


def interleave(
    profiles: Mapping[str, Profile],
    links: Sequence[Link],
    *,
    threshold: float = THRESHOLD,
    stretch: float = STRETCH,
    seed: int = 0,
    fits: Fits | None = None,
) -> Interleaving:
    """Return one shift per job, so that jobs which share links send at different times.

    A link whose jobs score less than `threshold` does not count: no shift helps it. Jobs stay as they are if
    no link that counts carries them, if their periods have no common multiple (circle.py), or if links form a
    loop that no shifts suit. `fits` keeps solved links from call to call.
    """
    random = np.random.default_rng(seed)
    fits = {} if fits is None else fits
    shifts = dict.fromkeys(profiles, 0.0)
    chosen = dict(profiles)
    reasons: dict[str, str] = {}
    outcomes: dict[str, Shared] = {}
    loops: list[str] = []
    apart: list[str] = []
    shared = [link for link in links if len(link.jobs) > 1]
    for jobs in components(list(profiles), shared):
        if len(jobs) == 1:
            reasons[jobs[0]] = "shares no link"
            continue
        own = [link for link in shared if link.jobs[0] in jobs]
        part = _Component(profiles, jobs, own, seed, fits, stretch)
        solved = {link: part.fit(link) for link in part.merged.values()}
        counting = {link: fit for link, fit in solved.items() if fit.score >= threshold}
        found, followed, refused = _traverse(part, counting, random)
        if refused and (settled := part.settled(counting, found)):
            found, refused = settled, []
            followed = {link: {job: found[job] for job in link.jobs} for link in counting}
        if part.stretch > LONGEST_WAIT:
            reason = f"the periods have no common multiple: one would have to grow by {part.stretch:.1%}"
            apart += jobs
            found, followed = {}, {}
        elif refused:
            names = ", ".join(link.name for link in refused)
            reason = f"no shifts suit the loop that {names} closes"
            loops += [link.name for link in refused]
            found, followed = {}, {}
        else:
            reason = f"its links score less than {threshold:g}"
        shifts.update(found)
        reasons.update({job: reason for job in jobs if job not in found})
        chosen.update(part.profiles)
        for link in own:
            merged = part.merged[frozenset(link.jobs)]
            outcomes[link.name] = Shared(
                link,
                solved[merged].score if merged.capacity == link.capacity else part.fit(link).score,
                part.shifted(link, shifts),
                part.perimeter(link),
                followed.get(merged),
            )
    return Interleaving(
        shifts,
        chosen,
        tuple(
            outcomes.get(link.name) or Shared(link, 1.0, 1.0, chosen[link.jobs[0]].period, None)
            for link in links
        ),
        reasons,
        tuple(loops),
        tuple(apart),
    )
