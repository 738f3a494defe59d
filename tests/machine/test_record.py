"""What a run owns is gone after it, however it ends, and nothing else is touched."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpf import in_netns
from machine.errors import EntrainError
from machine.record import AlreadyRuns, Record, Resource, clean_stale, process_start, records

NEW_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Run what follows in a PID namespace of its own, as a container does."""

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


def test_the_start_of_a_process_whose_name_is_no_text_is_known() -> None:
    """The kernel cuts names after 15 bytes, in the middle of a character, too."""
    own = Path("/proc/self/comm")
    before = own.read_bytes()
    own.write_bytes("vierzehn-Zeichü".encode()[:15])
    try:
        assert process_start(os.getpid()) is not None
    finally:
        own.write_bytes(before)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_removes_all_that_is_owned(tmp_path: Path, end: signal.Signals) -> None:
    owner, child = _owner(tmp_path)
    owner.send_signal(end)
    owner.wait(60)
    assert process_start(child) is None
    assert not (tmp_path / "mine").exists()
    assert not list((tmp_path / "records").glob("*.jsonl"))


def test_what_a_killed_owner_left_is_removed_by_the_next_start(tmp_path: Path) -> None:
    owner, child = _owner(tmp_path)
    owner.kill()
    owner.wait(60)
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


def test_beside_live_owners_a_process_starts_without_pydantic(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from machine.record import Record, clean_stale

root = Path(sys.argv[1])
clean_stale(root)
with Record("other", records=root):
    print("pydantic" in sys.modules)
"""
    with Record("live", records=tmp_path):
        command = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


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


def _left_by_dead(root: Path, *names: Path, end: str = "") -> Path:
    """The record of an owner of `names` that is dead; `end` comes behind what it has written."""
    script = """
import os, sys
from pathlib import Path
from machine.record import Record, Resource
record = Record("dead", records=Path(sys.argv[1]))
for name in sys.argv[2:]:
    record.own(Resource("path", name))
    Path(name).write_text("mine")
print(record.path, flush=True)
os._exit(1)
"""
    command = [sys.executable, "-c", script, str(root), *map(str, names)]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    with path.open("a") as journal:
        journal.write(end)
    return path


def test_a_journal_cut_in_the_middle_of_a_line_still_cleans(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    _left_by_dead(tmp_path / "records", path, end='{"own": {"kind": "pa')
    assert [resource.name for resource in clean_stale(tmp_path / "records")] == [str(path)]
    assert not list(records(tmp_path / "records"))


@pytest.mark.parametrize(
    "line",
    [
        "what is this",
        '{"own": {"kind": "path", "name": "/", "netns": "", "detail": ""}}',
        '{"own": {"kind": "disk", "name": "/", "netns": "", "detail": ""}, "namespace": 0, '
        '"pid_namespace": 0}',
        '{"own": {"kind": "path", "name": "/", "netns": "", "detail": "", "mode": "all"}, "namespace": 0, '
        '"pid_namespace": 0}',
        '{"own": {"kind": "process", "name": "-1", "netns": "", "detail": ""}, "namespace": 0, '
        '"pid_namespace": 0}',
        '{"own": {"kind": "path", "name": "here", "netns": "", "detail": ""}, "namespace": 0, '
        '"pid_namespace": 0}',
        '{"disowned": "everything"}',
    ],
)
def test_a_record_with_a_line_that_is_not_understood_is_not_obeyed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    mine = tmp_path / "mine"
    record = _left_by_dead(tmp_path / "records", mine, end=line + "\n")
    assert clean_stale(tmp_path / "records") == []
    assert mine.exists()
    assert record.exists()
    assert f"{record}: is not a record of this version (line 3" in caplog.text


@pytest.mark.parametrize("header", [{}, {"version": 1}, {"version": 3}, {"version": 2, "colour": "red"}])
def test_a_record_of_another_version_is_not_obeyed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: dict[str, object]
) -> None:
    mine = tmp_path / "mine"
    record = _left_by_dead(tmp_path / "records", mine)
    first, *rest = record.read_text().splitlines(keepends=True)
    written = json.loads(first)
    del written["version"]
    record.write_text(json.dumps({**written, **header}) + "\n" + "".join(rest))
    assert clean_stale(tmp_path / "records") == []
    assert mine.exists()
    assert str(record) in caplog.text


@pytest.mark.root
def test_a_record_of_another_user_is_not_obeyed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = tmp_path / "mine"
    record = _left_by_dead(tmp_path / "records", mine)
    os.chown(record, 65534, 65534)
    assert clean_stale(tmp_path / "records") == []
    assert mine.exists()
    assert f"{record}: belongs to nobody" in caplog.text
    assert list(records(tmp_path / "records")) == []


def test_what_is_no_file_is_no_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "records"
    mine = tmp_path / "mine"
    record = _left_by_dead(root, mine)
    elsewhere = record.rename(tmp_path / "elsewhere")
    (root / "link.jsonl").symlink_to(elsewhere)
    (root / "directory.jsonl").mkdir()
    os.mkfifo(root / "pipe.jsonl")
    assert clean_stale(root) == []
    assert mine.exists()
    assert all(f"{name}.jsonl" in caplog.text for name in ("link", "directory", "pipe"))


def test_no_other_user_can_hold_a_lock(tmp_path: Path) -> None:
    """To lock a file one has to open it."""
    before = os.umask(0)
    try:
        with Record("test", records=tmp_path / "records"):
            modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "records").iterdir()]
    finally:
        os.umask(before)
    assert len(modes) == 2
    assert set(modes) == {0o600}


def test_an_exclusive_record_has_one_owner(tmp_path: Path) -> None:
    with (
        Record("only", records=tmp_path, exclusive=True),
        pytest.raises(AlreadyRuns, match=f"process {os.getpid()} ") as raised,
    ):
        Record("only", records=tmp_path, exclusive=True)
    assert raised.value.process_id == os.getpid()
    Record("only", records=tmp_path, exclusive=True).close()


def test_the_next_owner_of_an_exclusive_record_removes_what_a_dead_one_left(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    _left_by_dead(tmp_path / "records", mine).rename(tmp_path / "records/only.jsonl")
    with Record("only", records=tmp_path / "records", exclusive=True):
        assert not mine.exists()


def test_what_a_live_owner_has_too_stays_when_a_dead_ones_record_is_cleaned(tmp_path: Path) -> None:
    root, shared, own = tmp_path / "records", tmp_path / "shared", tmp_path / "own"
    _left_by_dead(root, shared, own)
    with Record("heir", records=root) as heir:
        heir.own(Resource("path", str(shared)))
        assert [resource.name for resource in clean_stale(root)] == [str(own)]
        assert shared.exists()
    assert not shared.exists()


def test_children_do_not_keep_the_record_of_a_dead_owner(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from machine.record import Record
record = Record("parent", records=Path(sys.argv[1]))
there, here = os.pipe()
if os.fork():
    os.read(there, 1)
    print("ready", flush=True)
    os._exit(1)
os.write(here, b"!")
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        assert [alive for *_, alive in records(tmp_path)] == [False]


@pytest.fixture
def contained(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`_OWNER`, and a child of its own, in a PID namespace in which a shell is the first process."""
    command = [sys.executable, "-c", _OWNER, str(tmp_path / "records"), str(tmp_path / "mine")]
    shell = subprocess.Popen(
        [*NEW_PIDS, "sh", "-c", '"$@"; sleep 1000', "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None
    shell.stdout.readline()
    yield shell
    shell.kill()
    shell.communicate()


def _child(pid: int) -> int:
    """The first child of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.root
def test_an_owner_in_a_container_is_alive_for_all_others(
    tmp_path: Path, contained: subprocess.Popen[str]
) -> None:
    root = tmp_path / "records"
    clean = "import pathlib, sys, machine.record as r; print(r.clean_stale(pathlib.Path(sys.argv[1])))"
    sibling = [*NEW_PIDS, sys.executable, "-c", clean, str(root)]
    assert subprocess.run(sibling, capture_output=True, text=True, check=True).stdout == "[]\n"
    assert clean_stale(root) == []
    assert (tmp_path / "mine").exists()
    assert [alive for *_, alive in records(root)] == [True]


@pytest.mark.root
def test_an_owner_is_alive_for_a_container(tmp_path: Path) -> None:
    clean = "import pathlib, sys, machine.record as r; print(r.clean_stale(pathlib.Path(sys.argv[1])))"
    with Record("test", records=tmp_path / "records") as record:
        record.own(Resource("path", str(tmp_path / "mine")))
        (tmp_path / "mine").write_text("mine")
        container = [*NEW_PIDS, sys.executable, "-c", clean, str(tmp_path / "records")]
        assert subprocess.run(container, capture_output=True, text=True, check=True).stdout == "[]\n"
        assert (tmp_path / "mine").exists()


@pytest.mark.root
def test_what_a_killed_owner_in_a_container_left_is_removed_from_outside(
    tmp_path: Path, contained: subprocess.Popen[str]
) -> None:
    shell = _child(contained.pid)
    owner = _child(shell)
    child = _child(owner)
    handle = os.pidfd_open(owner)
    os.kill(owner, signal.SIGKILL)
    assert select.select([handle], [], [], 60)[0]
    os.close(handle)
    assert process_start(child) is not None
    removed = clean_stale(tmp_path / "records")
    assert {resource.kind for resource in removed} == {"process", "path"}
    assert process_start(child) is None
    assert not (tmp_path / "mine").exists()


@pytest.mark.root
def test_owners_with_the_same_process_id_do_not_share_a_record(tmp_path: Path) -> None:
    """Both are process 1 of their container."""
    owner = """
import sys
from pathlib import Path
from machine.record import Record
with Record("twin", records=Path(sys.argv[1])) as record:
    print(record.path.name, flush=True)
    sys.stdin.read()
"""
    twins = [
        subprocess.Popen(
            [*NEW_PIDS, sys.executable, "-c", owner, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    names = {twin.stdout.readline() for twin in twins if twin.stdout}
    assert names == {"twin-1.jsonl\n", "twin-1-2.jsonl\n"}
    for twin in twins:
        twin.communicate()
    assert not list(tmp_path.glob("*.jsonl"))


_SETTING = "net/ipv4/tcp_slow_start_after_idle"
_IDLE = Path("/proc/sys") / _SETTING
_DIES = """
import os, sys
from pathlib import Path
from machine.record import Record
Record("test", records=Path(sys.argv[1])).set(sys.argv[2], "0")
os._exit(1)
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace in which the setting is 1, as it is at first."""
    name = f"rec{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    in_netns(name, lambda: _IDLE.write_text("1"))
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


def _changed_by_dead(namespace: str, root: Path) -> None:
    inside = ["ip", "netns", "exec", namespace]
    subprocess.run([*inside, sys.executable, "-c", _DIES, root, _SETTING], check=False)
    assert in_netns(namespace, _IDLE.read_text) == "0\n"


@pytest.mark.root
def test_a_setting_gets_its_value_back_in_the_namespace_where_it_was_changed(
    namespace: str, tmp_path: Path
) -> None:
    here = _IDLE.read_text()
    _changed_by_dead(namespace, tmp_path)
    assert [resource.kind for resource in clean_stale(tmp_path)] == ["sysctl"]
    assert in_netns(namespace, _IDLE.read_text) == "1\n"
    assert _IDLE.read_text() == here


@pytest.mark.root
@pytest.mark.parametrize("killed", [False, True])
def test_the_last_owner_of_a_setting_restores_it(namespace: str, tmp_path: Path, killed: bool) -> None:
    with Record("last", records=tmp_path) as last:
        with Record("first", records=tmp_path) as first:
            if killed:
                _changed_by_dead(namespace, tmp_path)
            else:
                in_netns(namespace, lambda: first.set(_SETTING, "0"))
            in_netns(namespace, lambda: last.set(_SETTING, "0"))
        clean_stale(tmp_path)
        assert [path for path, *_ in records(tmp_path)] == [last.path]
        assert in_netns(namespace, _IDLE.read_text) == "0\n"
    assert in_netns(namespace, _IDLE.read_text) == "1\n"


@pytest.mark.root
def test_a_setting_that_has_the_value_already_is_nobodys(namespace: str, tmp_path: Path) -> None:
    with Record("test", records=tmp_path) as record:
        assert in_netns(namespace, lambda: record.set(_SETTING, "1")) is None
        assert [owned for _, _, owned, _ in records(tmp_path)] == [[]]


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
    assert [run.wait(200) for run in runs] == [0, 0, 0]


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


def test_a_full_disk_breaks_no_record(tmp_path: Path) -> None:
    """What cannot be recorded is an error, and no part of its line stays. What is owned is removed."""
    root, mine = tmp_path / "records", tmp_path / "mine"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Record("test", records=root) as record:
        record.own(Resource("path", str(mine)))
        mine.write_text("mine")
        length = record.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (length + 10, hard))
        try:
            with pytest.raises(EntrainError, match=f"{record.path}: cannot be written"):
                record.own(Resource("path", str(tmp_path / "another")))
            assert record.path.stat().st_size == length
            record.release(Resource("path", str(mine)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not mine.exists()
        record.own(Resource("path", str(mine)))
        (_, _, owned, alive), *_ = records(root)
        assert alive
        assert [each.name for each in owned] == [str(mine)]


def test_who_has_used_up_all_descriptors_removes_what_he_owns(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    taken: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with Record("test", records=tmp_path / "records") as record:
            record.own(Resource("path", str(mine)))
            record.own(Resource("netns", "no-such-namespace"))  # a command removes it
            mine.mkdir()
            most = max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    taken.append(os.dup(0))
        assert not mine.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)
