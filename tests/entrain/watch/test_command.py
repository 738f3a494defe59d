"""`entrain watch` as a process: what it says where it cannot go on."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from controlplane.client import RunningNetwork
from tests.entrain.watch.network import Controller

pytestmark = pytest.mark.sockets

Watched = tuple[RunningNetwork, Controller]
ROOT = Path(__file__).resolve().parents[3]


def start(records: Path, *options: str, **others: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "entrain.cli", "watch", "--network", "demo", *options]
    environment = {**os.environ, "ENTRAIN_RUN": str(records), "TERM": "dumb"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **others}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **streams)


@pytest.mark.parametrize("option", ["--web", "--json"])
def test_a_run_that_ends_is_told_and_is_no_failure(watched: Watched, tmp_path: Path, option: str) -> None:
    process = start(tmp_path, option, "--listen", "127.0.0.1:0")
    assert process.stdout is not None
    line = process.stdout.readline()  # an address, or a reading
    watched[1].ended.set()
    if option == "--web":  # a reader is told, even one who asks after the end
        told: dict[str, Any] = {}
        while "ended" not in told:
            with urllib.request.urlopen(f"{line.strip()}api/snapshot", timeout=60) as answer:
                told = json.load(answer)
        assert "its run is over; `entrain report DIR`" in told["ended"]
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "its run is over" in said) == (0, True), said


def test_a_terminal_that_cannot_show_it_is_told_what_can(watched: Watched, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        process = start(tmp_path, stdin=theirs, stdout=theirs)
        _, said = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 2
    assert "TERM is not 'dumb'" in said and "`entrain watch --json` or `--web`" in said


def test_a_controller_that_crashed_is_told_with_the_remedy(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "demo"
    place.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(place / "api.sock"))
    process = start(tmp_path, "--json")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "does not answer" in said and "`entrain clean` removes what it left" in said
