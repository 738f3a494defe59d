"""The command line. Each module in `entrain/commands` is a subcommand: its `command` is the click command."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from pathlib import Path

import click

from machine.errors import BadInput, EntrainError
from machine.limits import limits_named
from machine.packages import version

_COMMANDS = Path(__file__).parent / "commands"

# Keep gRPC from logging each switch that we stop. The library reads this variable when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


SECTIONS = {
    "Experiments": ("run", "report", "simulate", "profile"),
    "Networks": (
        "up",
        "down",
        "hosts",
        "exec",
        "watch",
        "loads",
        "flows",
        "drops",
        "capture",
        "counter",
        "shell",
    ),
    "Jobs of a cluster": ("submit", "jobs", "cancel", "place", "circuits", "ocs"),
    "Real hosts and switches": ("train", "controller", "deploy", "certs", "emulated-switch"),
    "This machine": ("doctor", "clean", "schema", "completion"),
}
"""The subcommands as `entrain --help` lists them."""


class _LazyGroup(click.Group):
    """A group that imports a subcommand only when it is used, so that `entrain --help` starts quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        stems = (path.stem for path in _COMMANDS.glob("*.py") if path.stem != "__init__")
        return sorted(stem.replace("_", "-") for stem in stems)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"entrain.commands.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, names in SECTIONS.items():
            rows = []
            for name in names:
                if (command := self.get_command(ctx, name)) is not None:
                    rows.append((name, command.get_short_help_str(formatter.width - 6)))
            with formatter.section(section):
                formatter.write_dl(rows)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), prog_name="entrain")
def cli() -> None:
    """Schedule the traffic of distributed DNN training, from P4 switches to congestion windows.

    `entrain COMMAND --help` explains a command. Networks need root. Begin with docs/start.md.
    """


def main() -> None:
    """Run the command line. Exit with status 0 (success), 1 (failure) or 2 (bad input)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale may lack a character of ours
    try:
        with limits_named():
            status = cli(standalone_mode=False)  # the argument of `Context.exit`, or None
        sys.exit(status or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except EntrainError as error:
        if "--json" in sys.argv:
            click.echo(json.dumps({"error": str(error)}))
        click.echo(f"entrain: {error}", err=True)
        sys.exit(2 if isinstance(error, BadInput) else 1)


if __name__ == "__main__":
    main()
