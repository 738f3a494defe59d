"""How many flows were on one link at one time, from the intervals that the link monitor measured.

A flow of a job is one transfer of one step of its collective: a connection, in one direction, with the step's
mark (step mod 64, in the DSCP). Two flows are on a link at one time when their intervals there overlap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from mininet_topos.linkmonitor import Burst
from wire.flow import Flow


@dataclass(frozen=True)
class Use:
    """A job's flow on a link from `first_ns` to `last_ns`."""

    link: str
    job: str
    step: int
    flow: Flow
    first_ns: int
    last_ns: int
    bytes: int


@dataclass(frozen=True)
class LinkContention:
    """The most flows that one link carried at one time, and what it carried in all (payload).

    one_job_step: of one job in one step. one_job: of one job, whatever their steps. all_jobs: of all jobs.
    """

    link: str
    one_job_step: int
    one_job: int
    all_jobs: int
    flows: int
    bytes: int


def attribute(
    bursts: Iterable[Burst], links: Mapping[int, str], owners: Mapping[Flow, str]
) -> tuple[list[Use], list[Burst]]:
    """Bursts as uses of links (by interface) by jobs (by connection), and those that belong to no job."""
    uses, strangers = [], []
    for burst in bursts:
        job = owners.get(burst.flow)
        if job is None:
            strangers.append(burst)
        else:
            span = (burst.first_ns, burst.last_ns, burst.bytes)
            uses.append(Use(links[burst.ifindex], job, burst.dscp, burst.flow, *span))
    return uses, strangers


def contention(uses: Iterable[Use], links: Iterable[str]) -> list[LinkContention]:
    """Per link of `links`, in their order: the most flows at one time."""
    by_link: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        by_link[use.link].append(use)
    return [_of_link(link, by_link[link]) for link in links]


def per_job(uses: Iterable[Use]) -> dict[str, int]:
    """By job: the most flows of one of its steps on one link at one time."""
    groups: dict[tuple[str, str, int], list[Use]] = defaultdict(list)
    for use in uses:
        groups[use.job, use.link, use.step].append(use)
    most: dict[str, int] = defaultdict(int)
    for (job, _, _), group in groups.items():
        most[job] = max(most[job], most_at_once(group))
    return dict(most)


def most_at_once(uses: Iterable[Use]) -> int:
    """The largest number of different flows whose intervals, ends included, have a moment in common."""
    events: list[tuple[int, int, Hashable]] = []
    for use in uses:
        key: Hashable = (use.job, use.step, use.flow)
        events += [(use.first_ns, 0, key), (use.last_ns, 1, key)]  # at one instant, starts before ends
    present: Counter[Hashable] = Counter()
    most = 0
    for _, end, flow in sorted(events, key=lambda event: event[:2]):
        present[flow] += -1 if end else 1
        if not present[flow]:
            del present[flow]
        most = max(most, len(present))
    return most


def _of_link(link: str, uses: list[Use]) -> LinkContention:
    jobs: dict[str, list[Use]] = defaultdict(list)
    steps: dict[tuple[str, int], list[Use]] = defaultdict(list)
    for use in uses:
        jobs[use.job].append(use)
        steps[use.job, use.step].append(use)
    return LinkContention(
        link,
        one_job_step=max(map(most_at_once, steps.values()), default=0),
        one_job=max(map(most_at_once, jobs.values()), default=0),
        all_jobs=most_at_once(uses),
        flows=len({(use.job, use.step, use.flow) for use in uses}),
        bytes=sum(use.bytes for use in uses),
    )
