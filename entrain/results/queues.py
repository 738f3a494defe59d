"""What the queues of runs held and dropped, and what TCP made of it, in tables and in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from entrain.results.values import RunResult, summarized
from machine.terminal import count
from workloads.records import Summary, total

MOST = 10
"""Links that the table shows of each combination: those that dropped the most."""

LEGEND = f"""Packets that the queues of one direction of a link dropped, over all seeds, and the longest queue
that a reading found. An offloaded packet counts once. Each combination has the {MOST} links that dropped the
most."""

SENT_AGAIN_LEGEND = """Segments that TCP sent again, and expiries of its retransmission timer, in all
complete iterations and over all seeds. unknown: the kernel counts expiries from Linux 6.7 on."""


def sentence(runs: Sequence[RunResult]) -> str:
    """Return what queues dropped in all runs together; empty if no run has read them."""
    found = [queue for run in runs for queue in run.queues]
    if not found:
        return ""
    dropped: dict[str, int] = {}
    for queue in found:
        dropped[queue.link] = dropped.get(queue.link, 0) + queue.dropped_packets
    longest = max(found, key=lambda queue: queue.backlog_bytes_max)
    if not any(dropped.values()):
        if not longest.backlog_bytes_max:
            return "no queue dropped a packet or was found to hold one"
        return (
            f"no queue dropped a packet; the longest held {longest.backlog_bytes_max / 1e3:.0f} KB "
            f"({longest.link})"
        )
    worst = max(dropped, key=lambda link: dropped[link])
    return (
        f"queues dropped {count(sum(dropped.values()), 'packet')} in {count(len(runs), 'run')}, most of them "
        f"at {worst} ({dropped[worst]})"
    )


def table(runs: Sequence[RunResult], label: Sequence[str]) -> Table | None:
    """Return the links whose queues held or dropped something, or None; `label` names each combination."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("run", "link"):
        shown.add_column(heading, overflow="fold")
    for heading in ("dropped\npackets", "longest\nKB", "limit\nKB"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, group in zip(label, summarized(runs), strict=True):
        links: dict[str, tuple[int, int, int]] = {}
        for queue in (queue for run in group.runs for queue in run.queues):
            dropped, longest, limit = links.get(queue.link, (0, 0, 0))
            links[queue.link] = (
                dropped + queue.dropped_packets,
                max(longest, queue.backlog_bytes_max),
                max(limit, queue.limit_bytes),
            )
        worst = sorted((link for link, found in links.items() if any(found[:2])), key=links.__getitem__)
        for place, link in enumerate(reversed(worst[-MOST:])):
            dropped, longest, limit = links[link]
            limited = f"{limit / 1e3:.1f}" if limit else "-"
            shown.add_row(name if not place else "", link, str(dropped), f"{longest / 1e3:.1f}", limited)
    return shown if shown.row_count else None


def sent_again(runs: Sequence[RunResult], label: Sequence[str]) -> Table:
    """Return what each job's TCP sent again; `label` names each combination."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("run", "job"):
        shown.add_column(heading, overflow="fold")
    for heading in ("sent again\nsegments", "timeouts"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, group in zip(label, summarized(runs), strict=True):
        jobs: dict[str, list[Summary]] = {}
        for job in (job for run in group.runs for job in run.jobs):
            jobs.setdefault(job.name, []).append(job.summary)
        for place, (job_name, summaries) in enumerate(jobs.items()):
            timeouts = total(summary.timeouts for summary in summaries)
            shown.add_row(
                name if not place else "",
                job_name,
                str(sum(summary.retransmitted for summary in summaries)),
                "unknown" if timeouts is None else str(timeouts),
            )
    return shown
