"""The commands as a whole: what `entrain --help` lists."""

from __future__ import annotations

from collections import Counter

import click
from click.testing import CliRunner

from entrain.cli import SECTIONS, cli


def test_each_command_is_listed_once_and_its_summary_fits() -> None:
    listed = Counter(name for names in SECTIONS.values() for name in names)
    assert listed == Counter(cli.list_commands(click.Context(cli)))
    shown = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert "..." not in shown.partition("Experiments:")[2]
    assert max(map(len, shown.splitlines())) <= 80


def test_every_command_prints_json_but_those_that_run_something_else() -> None:
    """`schema` prints nothing else."""
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    jobs = commands["jobs"]
    assert isinstance(jobs, click.Group)
    commands |= jobs.commands
    plain = {
        name
        for name, command in commands.items()
        if command is not None and not any("--json" in parameter.opts for parameter in command.params)
    }
    assert plain == {"exec", "train", "capture", "controller", "emulated-switch", "schema"}
