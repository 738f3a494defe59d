"""Count the flows that share a link at the same time, from the intervals that the link monitor measures.

A job's flow is one transfer of one step of its collective: a connection, in one direction, with the step's
mark (step mod 64, in the DSCP). Two flows share a link when their intervals on it overlap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from mininet_topos.linkmonitor import Burst
from wire.flow import Flow


@dataclass(frozen=True)
class Use:
    """One flow of a job on one link, from `first_ns` to `last_ns`, with its payload in bytes."""

    link: str
    job: str
    step: int
    flow: Flow
    first_ns: int
    last_ns: int
    bytes: int


@dataclass(frozen=True)
class LinkContention:
    """The largest number of flows that shared one link, and the link's total traffic."""

    link: str
    one_job_step: int
    """Largest number of simultaneous flows of one job in one step."""
    one_job: int
    """Largest number of simultaneous flows of one job, in any steps."""
    all_jobs: int
    """Largest number of simultaneous flows of all jobs."""
    flows: int
    """Number of flows in the whole run."""
    bytes: int
    """Payload of the whole run."""


def attribute(
    bursts: Iterable[Burst], links: Mapping[int, str], owners: Mapping[Flow, str]
) -> tuple[list[Use], list[Burst]]:
    """Assign each burst to its link (by interface) and its job (by connection).

    Return the uses of links, and the bursts that belong to no job.
    """
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
    """Return the contention on each link of `links`, in their order."""
    by_link: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        by_link[use.link].append(use)
    return [_of_link(link, by_link[link]) for link in links]


def per_job(uses: Iterable[Use]) -> dict[str, int]:
    """Return, by job, the largest number of simultaneous flows of one step on one link."""
    groups: dict[tuple[str, str, int], list[Use]] = defaultdict(list)
    for use in uses:
        groups[use.job, use.link, use.step].append(use)
    most: dict[str, int] = defaultdict(int)
    for (job, _, _), group in groups.items():
        most[job] = max(most[job], most_at_once(group))
    return dict(most)


def most_at_once(uses: Iterable[Use]) -> int:
    """Return the largest number of different flows whose closed intervals share an instant."""
    events: list[tuple[int, int, Hashable]] = []
    for use in uses:
        key: Hashable = (use.job, use.step, use.flow)
        events += [
            (use.first_ns, 0, key),
            (use.last_ns, 1, key),
        ]  # at the same instant, starts sort before ends
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
