"""Cassini's module for a cluster scheduler: which of its candidate placements lets jobs share links best
(Algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schedulers.cassini.affinity import THRESHOLD, Fits, Interleaving, Link, interleave
from schedulers.cassini.profile import Profile


@dataclass(frozen=True)
class Choice:
    """The candidate chosen, by its position, and the shifts that go with it."""

    candidate: int
    interleaving: Interleaving


def choose(
    candidates: Sequence[Sequence[Link]],
    profiles: Mapping[str, Profile],
    *,
    threshold: float = THRESHOLD,
    seed: int = 0,
) -> Choice:
    """Return the candidate placement whose shared links score best on average, and its shifts.

    A candidate is the links that jobs cross under that placement. Among equal scores the first candidate
    wins, which the scheduler prefers. A candidate in which jobs cannot be shifted, because of a loop or
    of their periods, is taken only if that is so in all. Raises ValueError without candidates.
    """
    if not candidates:
        raise ValueError("no candidate placements: give at least one")
    fits: Fits = {}
    found = [interleave(profiles, links, threshold=threshold, seed=seed, fits=fits) for links in candidates]

    def rank(number: int) -> tuple[bool, float, int]:
        candidate = found[number]
        return not (candidate.loops or candidate.apart), round(candidate.score, 9), -number

    best = max(range(len(found)), key=rank)
    return Choice(best, found[best])
