"""`entrain-agent`: the agent of one host."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import get_args

import click

from hostbpf.agent.agent import Agent, Loads, Options, Scheduling
from hostbpf.rates.enforcers import NAMES, Name
from machine.address import check_address
from machine.errors import BadInput, EntrainError
from machine.signals import noting_end
from machine.tls import check_local, identity_of

PATH = click.Path(path_type=Path)


@click.command()
@click.option("--interface", required=True, help="The host's interface to the fabric.")
@click.option(
    "--netns", help="Network namespace of the interface, by name or path; default: the present one."
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    help="unix:PATH, or HOST:PORT, where only --certificates checks who calls; "
    "default: unix:/run/entrain/agents/INTERFACE.sock.",
)
@click.option(
    "--allow-users",
    is_flag=True,
    help="Open the Unix socket to all users; each may change its own flows and jobs alone.",
)
@click.option(
    "--certificates",
    nargs=2,
    metavar="DIR NAME",
    help="With --listen HOST:PORT: serve operators over TLS, as host NAME of `entrain certs`.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus text on loopback.")
@click.option("--slot-ms", type=float, default=60.0, show_default=True)
@click.option("--link-mbps", type=float, help="The link's rate; schedules above it are refused.")
@click.option(
    "--enforcer",
    type=click.Choice(NAMES),
    help="What makes flows keep to schedules; default: what the kernel has.",
)
@click.option("--schedule", is_flag=True, help="Schedule the flows of the training processes on this host.")
@click.option(
    "--loads",
    type=click.Choice(get_args(Loads)),
    default="inband",
    show_default=True,
    help="Who tells what others plan: the switches, processes that stand for them, or nobody.",
)
@click.option("--paths", type=PATH, help="Paths file of the emulated switches.")
@click.option("--progress", type=PATH, help="Where training processes publish; default: $ENTRAIN_PROGRESS.")
def main(
    interface: str,
    netns: str | None,
    listen: str | None,
    allow_users: bool,
    certificates: tuple[str, str] | None,
    metrics_port: int | None,
    slot_ms: float,
    link_mbps: float | None,
    enforcer: Name | None,
    schedule: bool,
    loads: Loads,
    paths: Path | None,
    progress: Path | None,
) -> None:
    """Serve a host until SIGTERM or SIGINT: slot rates, carriers, MLTCP, the slot scheduler."""
    from hostbpf.agent.service import default_address, serving

    scheduling = Scheduling(loads, paths) if schedule else None
    options = Options(
        interface, netns, slot_ms, link_mbps, scheduling=scheduling, progress=progress, enforcer=enforcer
    )
    address = listen or default_address(interface)
    identity = identity_of(Path(certificates[0]), certificates[1]) if certificates else None
    try:
        check_address(address, "--listen")
        if not address.startswith("unix:"):
            if allow_users:
                raise BadInput(f"--allow-users: {address} does not tell who calls; listen at unix:PATH")
            if identity is None:
                check_local(address, "--listen", "add --certificates, or choose an address on loopback")
                print("entrain-agent: any user of this machine commands this agent", file=sys.stderr)
        elif identity is not None:
            raise BadInput(
                f"--certificates: {address} is a Unix socket, which identifies callers itself; leave the "
                f"option out, or give --listen HOST:PORT"
            )
        _open_many_files()
        with (
            noting_end() as until_ended,
            Agent.running(options) as agent,
            serving(agent, address, metrics_port, users=allow_users, identity=identity) as port,
        ):
            extra = f" metrics=127.0.0.1:{port}" if port else ""
            print(f"ready grpc={address}{extra} interface={interface}", flush=True)
            until_ended()
    except EntrainError as error:
        print(f"entrain-agent: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, BadInput) else 1)


def _open_many_files() -> None:
    """Each training process that publishes its progress takes two of them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
