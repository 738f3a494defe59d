"""`entrain flows`: the TCP flows of this machine's hosts, and what MLTCP does to them."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console
from rich.table import Table

from hostbpf.mltcp import VARIANTS, JobKey, JobState


@click.command()
@click.option("--netns", multiple=True, help="A namespace by name or path; default: all of this machine.")
@click.option("--job", type=click.IntRange(min=0), help="Only flows with this job number (socket mark).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(netns: tuple[str, ...], job: int | None, as_json: bool) -> None:
    """Show established connections: window, rate, MLTCP's gain, and what it has learned. Needs root."""
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
    table = Table("job", "from", "to", "control", "cwnd", "rtt ms", "Mbit/s", "sent MB")
    for heading in ("retrans", "marked", "F"):
        table.add_column(heading)
    for flow in flows:
        table.add_row(
            str(flow.job),
            f"{flow.source}:{flow.source_port}",
            f"{flow.destination}:{flow.destination_port}",
            flow.control,
            str(flow.cwnd),
            f"{flow.srtt_ms:.3f}",
            f"{flow.delivery_mbps:.1f}",
            f"{flow.bytes_sent / 1e6:.3f}",
            str(flow.retransmitted),
            str(flow.marked),
            "-" if flow.gain is None else f"{flow.gain:.2f}",
        )
    if not flows:
        table.caption = "no established connections"
    console = Console()
    console.print(table)
    hosts = {JobKey(flow.job, flow.netns): flow.source for flow in flows if flow.control in VARIANTS}
    if known := {key: learned[key] for key in hosts if key in learned}:
        table = Table("job", "host", "iteration", "so far MB", "learned: MB", "gap ms", "anew")
        for key, state in known.items():
            total, gap = _found(state)["total_bytes"], _found(state)["gap_ms"]
            table.add_row(
                str(key.job),
                hosts[key],
                str(state.iteration),
                f"{state.bytes / 1e6:.3f}",
                "-" if total is None else f"{total / 1e6:.3f}",
                "-" if gap is None else f"{gap:.1f}",
                str(state.relearned),
            )
        console.print(table)


def _learned() -> dict[JobKey, JobState]:
    """What MLTCP knows of each job and host; nothing where nobody has pinned its maps."""
    from ebpf import EbpfError
    from hostbpf.controls import DIRECTORY
    from hostbpf.mltcp import Jobs

    try:
        with Jobs.pinned(DIRECTORY) as jobs:
            return dict(jobs.states.items())
    except EbpfError:
        return {}


def _found(state: JobState) -> dict[str, int | float | None]:
    """For people and programs; None: not learned (yet), or given."""
    return {
        "iteration": state.iteration,
        "bytes": state.bytes,
        "total_bytes": state.total_bytes or None,
        "gap_ms": state.gap_ns / 1e6 or None,
        "relearned": state.relearned,
    }
