"""Profiles of jobs in a TOML file.

    [[job]]
    name = "vgg16"
    period_ms = 255
    phases = [{ start_ms = 141, end_ms = 255, gbps = 42 }]

    [[link]]
    name = "leaf1-spine1"
    capacity_gbps = 50
    jobs = ["vgg16", "vgg19"]

docs/cassini.md describes each key.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from machine.explain import suggestion
from machine.toml import NAME, Strict, check, matching, read_toml
from schedulers.cassini.affinity import Link
from schedulers.cassini.profile import Profile, of_ups

GBPS = 1e9 / 8.0
"""Bytes/s of a Gbit/s."""
PERIODS = 1000.0
"""The longest period of a file may be this many times the shortest, or circles need too many samples."""

LINK = matching(
    r"[A-Za-z0-9][A-Za-z0-9_.:>-]{0,63}",
    "must begin with a letter or digit and go on with letters, digits and _ . - > :, 64 characters at most",
)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PhaseTable(Strict):
    """An Up phase, in times from the iteration's start."""

    start_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    end_ms: Positive
    gbps: Positive


class JobTable(Strict):
    """A `[[job]]`: what it sends in an iteration alone in the network. Between its phases it computes."""

    name: Annotated[str, NAME]
    period_ms: Positive
    phases: Annotated[tuple[PhaseTable, ...], Field(strict=False)]

    @model_validator(mode="after")
    def _phases_fit(self) -> Self:
        for phase in self.phases:
            if phase.end_ms <= phase.start_ms:
                raise ValueError(
                    f"phases: one ends at {phase.end_ms:g} ms and begins at {phase.start_ms:g} ms; it needs "
                    "to end later"
                )
            if phase.end_ms > self.period_ms:
                raise ValueError(
                    f"phases: one ends at {phase.end_ms:g} ms, after the period of {self.period_ms:g} ms; "
                    "split it, or make the period longer"
                )
        for before, after in pairwise(sorted(self.phases, key=lambda phase: phase.start_ms)):
            if after.start_ms < before.end_ms:
                raise ValueError(
                    f"phases: one begins at {after.start_ms:g} ms while another lasts until "
                    f"{before.end_ms:g} ms; give phases that do not overlap"
                )
        return self

    @property
    def profile(self) -> Profile:
        """The job's profile."""
        return of_ups(
            self.period_ms / 1e3, [(p.start_ms / 1e3, p.end_ms / 1e3, p.gbps * GBPS) for p in self.phases]
        )


class LinkTable(Strict):
    """A `[[link]]` in one direction, and the jobs whose traffic crosses it."""

    name: Annotated[str, LINK]
    capacity_gbps: Positive
    jobs: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]


class ProfilesFile(Strict):
    """A whole file of profiles."""

    job: Annotated[tuple[JobTable, ...], Field(min_length=1, strict=False)]
    link: Annotated[tuple[LinkTable, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        jobs = {job.name: job for job in self.job}
        _once("[[job]], name", [job.name for job in self.job])
        _once("[[link]], name", [link.name for link in self.link])
        for link in self.link:
            _once(f"[[link]] {link.name!r}, jobs", link.jobs)
            for name in link.jobs:
                if name not in jobs:
                    raise ValueError(
                        f"[[link]] {link.name!r}, jobs: there is no job {name!r}; {suggestion(name, jobs)}"
                    )
                for phase in jobs[name].phases:
                    if phase.gbps > link.capacity_gbps:
                        raise ValueError(
                            f"[[job]] {name!r}, phases: gbps is {phase.gbps:g}, more than the "
                            f"{link.capacity_gbps:g} of link {link.name!r}; a job alone cannot send faster "
                            "than its links"
                        )
        shortest, longest = (pick(jobs.values(), key=lambda job: job.period_ms) for pick in (min, max))
        if longest.period_ms > PERIODS * shortest.period_ms:
            raise ValueError(
                f"[[job]], period_ms: {longest.name!r} has {longest.period_ms:g} and {shortest.name!r} "
                f"{shortest.period_ms:g}; leave one of them out, {PERIODS:g} times is the most"
            )
        return self

    @property
    def profiles(self) -> dict[str, Profile]:
        """The jobs' profiles by name."""
        return {job.name: job.profile for job in self.job}

    @property
    def links(self) -> list[Link]:
        """The links, in the order of the file."""
        return [Link(link.name, link.capacity_gbps * GBPS, link.jobs) for link in self.link]


def _once(where: str, names: Sequence[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{where}: {name!r} is listed {times} times; list it once")


def read_profiles(path: Path) -> ProfilesFile:
    """Read a file of profiles. Raises BadInput that names file, key and remedy."""
    return check(ProfilesFile, read_toml(path), str(path))


def profiles_text(profiles: Mapping[str, Profile], links: Sequence[Link]) -> str:
    """Return the file of these profiles and links, as `read_profiles` reads it."""
    lines = []
    for name, profile in profiles.items():
        period_ms = 1e3 * profile.period
        most = min((link.capacity for link in links if name in link.jobs), default=math.inf)
        phases = ", ".join(  # rounding must not make a phase too long or too fast
            f"{{ start_ms = {1e3 * start!r}, end_ms = {min(1e3 * end, period_ms)!r}, "
            f"gbps = {min(rate, most) / GBPS!r} }}"
            for start, end, rate in profile.ups.tolist()
        )
        lines += ["[[job]]", f'name = "{name}"', f"period_ms = {period_ms!r}"]
        lines += [f"phases = [{phases}]", ""]
    for link in links:
        jobs = ", ".join(f'"{job}"' for job in link.jobs)
        lines += ["[[link]]", f'name = "{link.name}"', f"capacity_gbps = {link.capacity / GBPS!r}"]
        lines += [f"jobs = [{jobs}]", ""]
    return "\n".join(lines)
