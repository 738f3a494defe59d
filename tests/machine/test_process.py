"""Children end with their parent, and their errors show the end of their log."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine.errors import EntrainError
from machine.process import launch
from machine.record import Record, process_start

PATIENCE_S = 30.0


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record("test-process", records=tmp_path / "records") as opened:
        yield opened


def test_a_ready_line_is_waited_for_and_the_rest_goes_to_the_log(record: Record, tmp_path: Path) -> None:
    script = "echo loading >&2; echo ready address=1; exec sleep 600"
    child = launch(record, "the helper", ["sh", "-c", script], log=tmp_path / "log", tells=True)
    child.wait_ready(PATIENCE_S)
    child.check()
    assert (tmp_path / "log").read_text() == "loading\n"
    child.end()
    assert process_start(child.process.pid) is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 3", "ended with status 3"),
        ("kill -9 $$", "was killed by SIGKILL (the kernel does so when memory runs out: see `dmesg`)"),
        ("kill -15 $$", "was killed by SIGTERM"),
        ("echo hello; exec sleep 600", "said 'hello' and not that it is ready"),
    ],
)
def test_a_child_that_does_not_become_ready_shows_the_end_of_its_log(
    record: Record, tmp_path: Path, script: str, told: str
) -> None:
    command = ["sh", "-c", f"seq 100 >&2; echo no such interface >&2; {script}"]
    child = launch(record, "the helper", command, log=tmp_path / "log", tells=True)
    with pytest.raises(EntrainError) as raised:
        child.wait_ready(PATIENCE_S)
    message = str(raised.value)
    assert message.startswith(f"the helper {told}; the end of {tmp_path / 'log'}:\n")
    assert message.endswith("\n  | 100\n  | no such interface")
    assert "| 50\n" not in message


def test_a_child_that_says_nothing_is_an_error_after_the_time_limit(record: Record, tmp_path: Path) -> None:
    child = launch(record, "the helper", ["sleep", "600"], log=tmp_path / "log", tells=True)
    with pytest.raises(EntrainError, match=r"was not ready within 0.1 s(.|\n)*the log is empty"):
        child.wait_ready(0.1)


def test_the_log_of_an_earlier_start_is_kept(record: Record, tmp_path: Path) -> None:
    for word in ("first", "second"):
        child = launch(record, "the helper", ["echo", word], log=tmp_path / "log")
        child.process.wait(PATIENCE_S)
        child.end()
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


@pytest.mark.parametrize("death", ["TERM", "KILL"])
def test_a_child_ends_with_a_killed_parent(tmp_path: Path, death: str) -> None:
    script = """
import sys
from pathlib import Path
from machine.process import launch
from machine.record import Record
record = Record("parent", records=Path(sys.argv[1]))
command = ["sh", "-c", "echo ready; exec sleep 600"]
child = launch(record, "the helper", command, death=sys.argv[2], tells=True)
child.wait_ready(30)
print(child.process.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), death], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        ended, _, _ = select.select([child], [], [], PATIENCE_S)
        os.close(child)
    assert ended


def test_whoever_gives_way_does_so_with_what_it_starts_until_it_ends_it() -> None:
    script = """
import os, subprocess, sys
from machine.process import give_way
def mine(): return os.getpriority(os.PRIO_PROCESS, 0)
def child(): return int(subprocess.run(["nice"], capture_output=True, check=True).stdout)
before = mine()
end = give_way()
assert mine() > before and child() == mine()
end()
assert mine() in ((before,) if os.geteuid() == 0 else (before, before + 10))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)
