"""`entrain completion SHELL`: let a shell complete commands, options and networks."""

from __future__ import annotations

import json

import click

_HOW = {
    "bash": 'put this into ~/.bashrc: eval "$(entrain completion bash)"',
    "zsh": 'put this into ~/.zshrc: eval "$(entrain completion zsh)"',
    "fish": "entrain completion fish > ~/.config/fish/completions/entrain.fish",
}


@click.command(
    short_help="Print the script that completes commands in a shell.",
    epilog="\b\n" + "\n".join(f"{shell}: {how}" for shell, how in _HOW.items()),
)
@click.argument("shell", type=click.Choice(list(_HOW)))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(shell: str, as_json: bool) -> None:
    """Print the script by which SHELL completes entrain's commands, options, files and choices."""
    from click.shell_completion import get_completion_class

    from entrain.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click has all shells of the choice"
    script = kind(cli, {}, "entrain", "_ENTRAIN_COMPLETE").source()
    click.echo(json.dumps({"script": script}) if as_json else script)
