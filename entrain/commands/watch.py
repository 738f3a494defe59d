"""`entrain watch`: watch a network that is up, or a run in progress."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import TYPE_CHECKING

import click

from machine.errors import BadInput

if TYPE_CHECKING:
    from entrain.watch.source import Source


@click.command(short_help="Watch a network or a run, live: terminal or web page.")
@click.option("--network", help="Which network or run; needed only if there are several.")
@click.option("--web", "as_page", is_flag=True, help="Serve a page, and metrics at /metrics.")
@click.option("--metrics", "as_metrics", is_flag=True, help="Serve metrics for Prometheus alone.")
@click.option(
    "--listen",
    default="127.0.0.1:8080",
    show_default=True,
    help="With --web: HOST:PORT; port 0 takes a free one.",
)
@click.option(
    "--token", envvar="ENTRAIN_TOKEN", help="With --web: what readers must show; needed beyond loopback."
)
@click.option(
    "--interval-ms",
    type=click.IntRange(min=20),
    default=500,
    show_default=True,
    help="Time between readings of links. At a slot's length, each slot is measured.",
)
@click.option(
    "--slot-ms", type=click.FloatRange(min=1), help="Length of a slot, if no agent tells it; 60 if not given."
)
@click.option(
    "--agents",
    metavar="HOST:PORT",
    help="Where agents of other machines listen; {host} and {address} stand for a host's name and address.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per reading, until Ctrl-C.")
@click.option("--once", is_flag=True, help="With --json: print two readings, the second with rates, and end.")
def command(
    network: str | None,
    as_page: bool,
    as_metrics: bool,
    listen: str,
    token: str | None,
    interval_ms: int,
    slot_ms: float | None,
    agents: str | None,
    as_json: bool,
    once: bool,
) -> None:
    """Watch a network that is up, or a run in progress: links, jobs, switches, agents, circuits, events.

    Reading costs the switches some time, so do not watch a run whose figures you want to publish.

    Controllers and agents of other machines (--network HOST:PORT, --agents) are asked over TLS, with your
    certificate: ENTRAIN_IDENTITY=DIR/NAME.
    """
    from controlplane.client import RUNS, choose, own_identity
    from entrain.watch.source import Ended, Latest, RemoteAgents, Source

    if once and not as_json:
        raise BadInput("--once: give it with --json")
    remote = None
    if agents is not None:
        if not re.fullmatch(r"[^:]+:\d+", agents):
            raise BadInput(f"--agents {agents}: give HOST:PORT, such as '{{host}}.example:50061'")
        remote = RemoteAgents(agents, own_identity(f"--agents {agents}"))
    source = Source(choose(network, runs=RUNS), interval_ms, slot_ms, remote)
    if as_json or as_page or as_metrics:
        try:
            if as_json:
                _print(source, once)
            else:
                from entrain.watch.web import serve

                with contextlib.suppress(KeyboardInterrupt):
                    serve(source, listen, token, click.echo, page=as_page)
        except Ended as ended:
            click.echo(str(ended), err=True)
        return
    if not sys.stdin.isatty() or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        raise BadInput(
            "watch needs a terminal that can move its cursor (TERM is not 'dumb'): run it in one, or use "
            "`entrain watch --json` or `--web`"
        )
    from entrain.watch.terminal import Watch

    latest = Latest(source)
    latest.wait()  # an error is told before the screen is taken
    app = Watch(latest)
    app.run()
    if app.ended:
        click.echo(app.ended, err=True)


def _print(source: Source, once: bool) -> None:
    """Print a line of JSON per reading, `once` only two."""
    for number, snapshot in enumerate(source.snapshots()):
        document = snapshot.document()
        del document["history"]  # the lines before have it
        click.echo(json.dumps(document))
        if once and number:
            return
