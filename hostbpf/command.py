"""The command line of `entrain-agent`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from hostbpf.agent.agent import Agent, Loads, Options, Scheduling
from hostbpf.agent.agent import check as check_options
from hostbpf.rates.enforcers import NAMES, Name
from machine.address import check_address
from machine.errors import BadInput, EntrainError
from machine.limits import allow_many_files
from machine.signals import noting_end
from machine.supervisor import notify, supervised
from machine.tls import Identity, check_local, identity_of
from machine.toml import Strict, check, read_toml
from schedulers.slots.host import BEGIN, SMALLEST_FIRST, SPREAD

PATH = click.Path(path_type=Path)


class Settings(Strict):
    """A configuration file: the options of the command line, each with its name there and `_` for `-`."""

    interface: str | None = None
    netns: str | None = None
    listen: str | None = None
    allow_users: bool | None = None
    certificates: tuple[str, str] | None = None
    metrics_port: int | None = None
    slot_ms: float | None = None
    link_mbps: float | None = None
    enforcer: Name | None = None
    schedule: bool | None = None
    loads: Loads | None = None
    scheduler: str | None = None
    turns_from: float | None = None
    paths: str | None = None
    progress: str | None = None


def _defaults(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    """Let what `file` says be the defaults of all options."""
    if file is not None:
        data = read_toml(file)
        if isinstance(names := data.get("certificates"), list):
            data["certificates"] = tuple(names)
        settings = check(Settings, data, str(file))
        context.default_map = settings.model_dump(exclude_none=True)
    return file


@click.command()
@click.option(
    "--config",
    type=PATH,
    is_eager=True,
    callback=_defaults,
    help="TOML file of options, such as `slot_ms = 60`. Those on the command line go before.",
)
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
@click.option(
    "--scheduler", default=SMALLEST_FIRST, show_default=True, help="The slot scheduler that --schedule runs."
)
@click.option(
    "--turns-from",
    type=click.FloatRange(0.0, SPREAD),
    default=BEGIN,
    show_default=True,
    help="Part of a slot before the first job's turn: with later turns, less is planned ahead.",
)
@click.option("--paths", type=PATH, help="Paths file of the emulated switches.")
@click.option("--progress", type=PATH, help="Where training processes publish; default: $ENTRAIN_PROGRESS.")
@click.option("--check", is_flag=True, help="Only check the options, say what is wrong with them, and end.")
def main(**given: Any) -> None:
    """Serve a host until SIGTERM or SIGINT: slot rates, carriers, MLTCP, the slot scheduler.

    As a system service it reads --config again on SIGHUP, and starts anew with what that says. Schedules in
    force end then. Options that are not valid change nothing.
    """
    asked: _Asked | None = _asked(given)
    if given["check"]:
        return
    allow_many_files()  # each training process that publishes its progress takes two of them
    with noting_end() as next_signal:
        while asked is not None:
            asked = _serve(asked, next_signal)


@dataclass(frozen=True)
class _Asked:
    """What the options ask for."""

    options: Options
    address: str
    metrics_port: int | None
    users: bool
    identity: Identity | None
    config: Path | None


def _asked(given: Mapping[str, Any]) -> _Asked:
    """Return what the options `given` ask for. Raises BadInput and MissingTool for what cannot be."""
    try:
        return _checked(given)
    except BadInput as error:
        if given["config"] is None:
            raise
        raise BadInput(f"{given['config']} or the command line: {error}") from None


def _checked(given: Mapping[str, Any]) -> _Asked:
    from hostbpf.agent.service import default_address

    chosen = (given[key] for key in ("loads", "paths", "scheduler", "turns_from"))
    scheduling = Scheduling(*chosen) if given["schedule"] else None
    options = Options(
        given["interface"],
        given["netns"],
        given["slot_ms"],
        given["link_mbps"],
        scheduling=scheduling,
        progress=given["progress"],
        enforcer=given["enforcer"],
    )
    address = given["listen"] or default_address(options.interface)
    users, names = given["allow_users"], given["certificates"]
    identity = identity_of(Path(names[0]), names[1]) if names else None
    check_options(options)
    _check_access(address, users, identity)
    return _Asked(options, address, given["metrics_port"], users, identity, given["config"])


def _serve(asked: _Asked, next_signal: Callable[[], signal.Signals]) -> _Asked | None:
    """Serve what is `asked` for until a signal. Returns what to go on with, None to end."""
    from hostbpf.agent.service import serving

    with (
        Agent.running(asked.options) as agent,
        serving(agent, asked.address, asked.metrics_port, users=asked.users, identity=asked.identity) as port,
    ):
        extra = f" metrics=127.0.0.1:{port}" if port else ""
        print(f"ready grpc={asked.address}{extra} interface={asked.options.interface}", flush=True)
        notify("READY=1")
        while next_signal() == signal.SIGHUP and asked.config is not None and supervised():
            try:
                return _asked(main.make_context("entrain-agent", sys.argv[1:]).params)
            except (EntrainError, click.ClickException) as error:
                text = error.format_message() if isinstance(error, click.ClickException) else error
                print(
                    f"entrain-agent: not reloaded, nothing has changed: {text}", file=sys.stderr, flush=True
                )
    return None


def _check_access(address: str, users: bool, identity: Identity | None) -> None:
    """Raise BadInput where `address` would let in more or fewer than was asked for."""
    check_address(address, "--listen")
    if not address.startswith("unix:"):
        if users:
            raise BadInput(f"--allow-users: {address} does not tell who calls; listen at unix:PATH")
        if identity is None:
            check_local(address, "--listen", "add --certificates, or choose an address on loopback")
            print("entrain-agent: any user of this machine commands this agent", file=sys.stderr)
        else:
            identity.read()
    elif identity is not None:
        raise BadInput(
            f"--certificates: {address} is a Unix socket, which identifies callers itself; leave the "
            f"option out, or give --listen HOST:PORT"
        )
