"""What a run owns is gone after it, however it ends, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from machine.record import Record, Resource, clean_stale, process, process_start, records

_OWNER = textwrap.dedent(
    """
    import subprocess, sys
    from pathlib import Path
    from machine.record import Record, Resource, process
    from machine.signals import ending_once
    with ending_once(), Record("test", records=Path(sys.argv[1])) as record:
        child = subprocess.Popen(["sleep", "1000"])
        record.own(process(child.pid))
        record.own(Resource("path", sys.argv[2]))
        Path(sys.argv[2]).write_text("mine")
        print(child.pid, flush=True)
        sys.stdin.read()
    """
)


def _owner(tmp_path: Path) -> tuple[subprocess.Popen[str], int]:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "records"), str(tmp_path / "mine")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout
    return owner, int(owner.stdout.readline())


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_removes_all_that_is_owned(tmp_path: Path, end: signal.Signals) -> None:
    owner, child = _owner(tmp_path)
    owner.send_signal(end)
    owner.wait(10)
    assert process_start(child) is None
    assert not (tmp_path / "mine").exists()
    assert not list((tmp_path / "records").iterdir())


def test_what_a_killed_owner_left_is_removed_by_the_next_start(tmp_path: Path) -> None:
    owner, child = _owner(tmp_path)
    owner.kill()
    owner.wait(10)
    assert process_start(child) is not None
    removed = clean_stale(tmp_path / "records")
    assert {resource.kind for resource in removed} == {"process", "path"}
    assert process_start(child) is None
    assert not (tmp_path / "mine").exists()
    assert clean_stale(tmp_path / "records") == []


def test_a_live_owner_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    with Record("test", records=tmp_path / "records") as record:
        record.own(Resource("path", str(path)))
        path.write_text("mine")
        assert clean_stale(tmp_path / "records") == []
        assert path.exists()
    assert not path.exists()


def test_a_reused_process_id_is_not_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        with Record("test", records=tmp_path) as record:
            record.own(Resource("process", str(other.pid), detail="1"))
        assert process_start(other.pid) is not None
        other.kill()


def test_what_was_released_is_not_removed_again(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    with Record("test", records=tmp_path / "records") as record:
        resource = record.own(Resource("path", str(path)))
        path.write_text("mine")
        record.release(resource)
        path.write_text("somebody else's")
    assert path.exists()


def test_a_journal_cut_in_the_middle_of_a_line_still_cleans(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("mine")
    record = Record("test", records=tmp_path / "records")
    record.own(Resource("path", str(path)))
    journal = record.path.read_text().replace(process(os.getpid()).detail, "1")
    record.path.write_text(journal + '{"own": {"kind": "pa')
    assert [resource.name for resource in clean_stale(tmp_path / "records")] == [str(path)]
    assert not list(records(tmp_path / "records"))


def test_records_may_come_and_go_while_others_clean(tmp_path: Path) -> None:
    busy = """
import sys
from pathlib import Path
from machine.record import Record, Resource, clean_stale
root, name = Path(sys.argv[1]), sys.argv[2]
for number in range(200):
    with Record(f"{name}-{number}", records=root) as record:
        record.own(Resource("path", str(root / f"{name}-{number}")))
        clean_stale(root)
        assert record.path.exists(), "a live record was taken for a stale one"
"""
    runs = [subprocess.Popen([sys.executable, "-c", busy, str(tmp_path), name]) for name in ("a", "b", "c")]
    assert [run.wait(60) for run in runs] == [0, 0, 0]


@pytest.mark.root
def test_a_link_is_removed_where_it_was_made_whoever_cleans(tmp_path: Path) -> None:
    """A switch in a namespace of its own cleans, at its start, what a dead one left in the machine's."""
    name = f"rec{os.getpid()}"[:15]
    left = f"""
import os, subprocess
from pathlib import Path
from machine.record import Record, Resource
record = Record("test", records=Path({str(tmp_path)!r}))
record.own(Resource("link", {name!r}))
subprocess.run(["ip", "link", "add", {name!r}, "type", "veth", "peer", "name", "{name[:13]}-p"], check=True)
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", left], check=False)
    try:
        assert Path(f"/sys/class/net/{name}").exists()
        clean = "import pathlib, sys, machine.record as r; r.clean_stale(pathlib.Path(sys.argv[1]))"
        subprocess.run(["unshare", "--net", sys.executable, "-c", clean, str(tmp_path)], check=True)
        assert not Path(f"/sys/class/net/{name}").exists()
    finally:
        subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)
