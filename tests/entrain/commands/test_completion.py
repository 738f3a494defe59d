"""Shells complete entrain's commands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from entrain.commands.completion import command


def completed(*words: str) -> list[str]:
    """What bash gets for the last of `words`, as its script asks for it."""
    asked = {"_ENTRAIN_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words)}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'entrain'; from entrain.cli import main; main()"],
        env={**os.environ, **asked, "COMP_CWORD": str(len(words) - 1)},
        capture_output=True,
        text=True,
        check=False,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_options_and_choices_are_completed() -> None:
    assert completed("entrain", "simu") == ["simulate"]
    assert "--dry-run" in completed("entrain", "run", "--d")
    assert completed("entrain", "up", "--routing", "so") == ["source"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    done = CliRunner().invoke(command, [shell], catch_exceptions=False)
    assert f"_ENTRAIN_COMPLETE={shell}_complete" in done.output


def test_the_script_for_bash_is_one() -> None:
    script = CliRunner().invoke(command, ["bash"], catch_exceptions=False).output
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, "_ENTRAIN_COMPLETE=bash_complete" in script) == (0, True), done.stderr
