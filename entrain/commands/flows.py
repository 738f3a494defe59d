"""`entrain flows`: the TCP flows of this machine's hosts, and what MLTCP does to them."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console
from rich.table import Table


@click.command()
@click.option("--netns", multiple=True, help="A namespace by name or path; default: all of this machine.")
@click.option("--job", type=click.IntRange(min=0), help="Only flows with this job number (socket mark).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(netns: tuple[str, ...], job: int | None, as_json: bool) -> None:
    """Show established connections: window, rate, MLTCP's gain. Needs root."""
    from hostbpf.flows import namespaces, read_flows

    flows = [flow for flow in read_flows(list(netns or namespaces())) if job is None or flow.job == job]
    flows.sort(key=lambda flow: (flow.job, flow.source, flow.source_port))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(flow) for flow in flows]))
        return
    table = Table("job", "from", "to", "control", "cwnd", "rtt ms", "Mbit/s", "sent MB", "retrans", "F")
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
            "-" if flow.gain is None else f"{flow.gain:.2f}",
        )
    if not flows:
        table.caption = "no established connections"
    Console().print(table)
