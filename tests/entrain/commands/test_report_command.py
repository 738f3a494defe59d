"""`entrain report` of a directory that is broken, incomplete or not one of entrain's says what to do."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from entrain.commands.report import command
from entrain.experiment import load_experiment
from entrain.results import files
from entrain.results.store import writing
from machine.errors import BadInput

ROOT = Path(__file__).resolve().parents[3]


def begun(directory: Path) -> None:
    """Leave what a run leaves that was interrupted before anything was complete."""
    experiment = load_experiment(ROOT / "experiments" / "source-routing.toml")
    with writing(files.NETWORK, directory, experiment, resume=False):
        (directory / "runs").mkdir()


def report(*arguments: str | Path) -> None:
    command.main([str(each) for each in arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("notes.txt", b"hello", r"no results of entrain run; .* entrain simulate, give --publish"),
        ("experiment.json", b"", "experiment.json: not written by this version; run the experiment again"),
        ("experiment.json", b"\xff\x00", "experiment.json: not written by this version"),
        ("experiment.json", b'{"name": "of another program"}', "experiment.json: not written by this"),
        ("experiment.json", b'{"kind": "network", "experiment": 1}', "experiment.json: not written by"),
        ("experiment.json", b'{"kind": "new", "experiment": 1}', "of kind 'new', not 'network'"),
    ],
)
@pytest.mark.parametrize("option", [[], ["--draw"], ["--json"]])
def test_a_foreign_directory_is_told(
    tmp_path: Path, name: str, content: bytes, told: str, option: list[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=told):
        report(tmp_path, *option)
    assert [path.name for path in tmp_path.iterdir()] == [name], "it is left alone"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"combination": {"rou', "001-x.json: is broken; remove this file, and run .* with --resume"),
        (b'{"combination": {}}', "001-x.json: not written by this version; remove .*, and run"),
    ],
)
def test_a_broken_run_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    begun(tmp_path)
    (tmp_path / "runs" / "001-x.json").write_bytes(content)
    with pytest.raises(BadInput, match=told):
        report(tmp_path)


def test_an_experiment_without_complete_runs_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path)
    report(tmp_path, "--draw")
    assert "0 of 9 runs completed" in capsys.readouterr().out
    with pytest.raises(BadInput, match="no run is complete yet"):
        report(tmp_path, "--html", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="does not exist"):
        report(tmp_path / "nowhere")
