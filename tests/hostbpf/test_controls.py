"""The congestion controls of a machine, which several processes use at the same time."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpf.struct_ops import kernel_has_links
from hostbpf.controls import BPF_FS
from machine.process import describe
from tests.entrain.running import ROOT, skip_if_held

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not kernel_has_links(), reason="needs Linux 6.4, which has links of struct_ops"),
]

PROGRAM = """
import sys
from pathlib import Path
from hostbpf.controls import controls
from machine.record import Record
with Record("controls", records=Path(sys.argv[1])) as record, controls(record, Path(sys.argv[2])) as found:
    print("owner" if found.own else "joined", flush=True)
    input()
"""


@pytest.fixture
def pins() -> Iterator[Path]:
    directory = BPF_FS / f"entrain-test-{os.getpid()}"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


class User:
    """A process that uses the controls."""

    def __init__(self, records: Path, pins: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(records), str(pins)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.role = self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.communicate("\n")
        assert self._process.returncode == 0, describe(self._process.returncode)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def can_choose(control: str) -> bool:
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        except FileNotFoundError:
            return False
    return True


@pytest.mark.parametrize("killed", [False, True], ids=["ended", "killed"])
def test_controls_stay_while_anybody_uses_them(tmp_path: Path, pins: Path, killed: bool) -> None:
    """The one that has registered them may be the first to end, in any way; the last leaves nothing."""
    skip_if_held()
    records = tmp_path / "records"
    first, second = User(records, pins), User(records, pins)
    assert (first.role, second.role) == ("owner", "joined")
    first.kill() if killed else first.end()
    assert can_choose("slot_cubic") and can_choose("mltcp_reno")
    third = User(records, pins)  # finds the maps
    assert third.role == "joined"
    second.end()
    assert can_choose("slot_cubic")
    third.end()
    skip_if_held()
    assert not can_choose("slot_cubic")
    assert not pins.exists()
