"""`entrain flows`: show the TCP flows of this machine's hosts, and MLTCP's state."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from hostbpf.mltcp import VARIANTS, JobKey, JobState
from machine.terminal import plain_table

if TYPE_CHECKING:
    from hostbpf.flows import FlowState


@click.command(short_help="Show TCP connections: window, rate, MLTCP's state.")
@click.option("--netns", multiple=True, help="A namespace by name or path; default: all on this machine.")
@click.option("--job", type=click.IntRange(min=0), help="Only flows with this job number (socket mark).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(netns: tuple[str, ...], job: int | None, as_json: bool) -> None:
    """Show established connections: window, rate, and MLTCP's gain and learned state. Needs root."""
    from hostbpf.flows import namespaces, read_flows

    learned = _learned()
    flows = [flow for flow in read_flows(list(netns or namespaces())) if job is None or flow.job == job]
    flows.sort(key=lambda flow: (flow.job, flow.source, flow.source_port))
    if as_json:
        entries = []
        for flow in flows:
            state = learned.get(JobKey(flow.job, flow.netns)) if flow.control in VARIANTS else None
            entries.append({**dataclasses.asdict(flow), "mltcp": None if state is None else _found(state)})
        click.echo(json.dumps(entries))
        return
    console = Console()
    console.print(flows_table(flows))
    known = {
        JobKey(flow.job, flow.netns): flow.source
        for flow in flows
        if flow.control in VARIANTS and JobKey(flow.job, flow.netns) in learned
    }
    if known:
        console.print(learned_table({key: (host, learned[key]) for key, host in known.items()}))


def flows_table(flows: Sequence[FlowState]) -> Table:
    """Return a table with two lines per flow, so that nothing is cut at 80 columns."""
    table = plain_table(
        "job\ncontrol", "from\nto", "cwnd\nF", "rtt ms\nMbit/s", "sent MB", "resent\nmarked", text=2
    )
    for flow in flows:
        table.add_row(
            f"{flow.job}\n{flow.control}",
            f"{flow.source}:{flow.source_port}\n{flow.destination}:{flow.destination_port}",
            f"{flow.cwnd}\n" + ("-" if flow.gain is None else f"{flow.gain:.2f}"),
            f"{flow.srtt_ms:.3f}\n{flow.delivery_mbps:.1f}",
            f"{flow.bytes_sent / 1e6:.3f}",
            f"{flow.retransmitted}\n{flow.marked}",
        )
    if not flows:
        table.caption = "no established connections"
    return table


def learned_table(states: Mapping[JobKey, tuple[str, JobState]]) -> Table:
    """Return a table of what MLTCP has learned about each job on each host, from (host, state) by job."""
    headings = ("job", "host", "iteration", "sent MB", "learned MB", "gap ms", "relearned")
    table = plain_table(*headings, text=2)
    for key, (host, state) in states.items():
        total, gap = _found(state)["total_bytes"], _found(state)["gap_ms"]
        table.add_row(
            str(key.job),
            host,
            str(state.iteration),
            f"{state.bytes / 1e6:.3f}",
            "-" if total is None else f"{total / 1e6:.3f}",
            "-" if gap is None else f"{gap:.1f}",
            str(state.relearned),
        )
    return table


def _learned() -> dict[JobKey, JobState]:
    """Return MLTCP's state by job and host; empty if its maps are not pinned."""
    from ebpf import EbpfError
    from hostbpf.controls import DIRECTORY
    from hostbpf.mltcp import Jobs

    try:
        with Jobs.pinned(DIRECTORY) as jobs:
            return dict(jobs.states.items())
    except EbpfError:
        return {}


def _found(state: JobState) -> dict[str, int | float | None]:
    """Return the state as shown and printed. None: not learned yet, or given as a parameter."""
    return {
        "iteration": state.iteration,
        "bytes": state.bytes,
        "total_bytes": state.total_bytes or None,
        "gap_ms": state.gap_ns / 1e6 or None,
        "relearned": state.relearned,
    }
