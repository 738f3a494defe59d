"""The shared memory in which training processes tell their progress, in Python and in C."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import random
import resource
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from hostbpf.agent.paces import Paces
from hostbpf.scheduling import monitor as progress
from hostbpf.scheduling import quota
from hostbpf.scheduling.monitor import BYTES_MAX, Direction, FlowProgress, Monitor, Phase, Publisher, Role
from hostbpf.scheduling.quota import Quota
from machine.errors import BadInput, EntrainError
from machine.patience import patience
from schedulers.cassini.pace import Pace
from tests.hostbpf.conftest import Pair
from tests.permissions import let_others_pass
from wire.flow import Flow
from wire.progress import (
    ENTRY,
    HEADER,
    PACE,
    Fields,
    Header,
    PaceFields,
    StartFields,
    make_directory,
    pace_offset,
)
from workloads.pacing import Pacing

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "wire"
FLOW = Flow("10.0.0.1", 20000, "10.0.0.2", 7000)
NOBODY = 65534
_CLONE_NEWPID = 0x20000000
COMPILERS = [
    ("cc", "c"),
    ("clang", "c"),
    ("c++", "c++"),
]


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[Monitor]:
    with Monitor(tmp_path) as each:
        yield each


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that uses the header."""
    compiler = shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    path = tmp_path_factory.mktemp("publish") / "publish"
    _compile(compiler, "c", path)
    return path


def _compile(compiler: str, language: str, output: Path) -> None:
    standard = "-std=c++17" if language == "c++" else "-std=gnu11"
    command = [compiler, standard, "-O2", "-Wall", "-Wextra", "-Werror", "-I", INCLUDE, "-o", output]
    subprocess.run([*command, "-x", language, HERE / "publish.c"], check=True)


def _environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "ENTRAIN_PROGRESS": str(directory), "PYTHONPATH": str(INCLUDE.parent)}


@contextlib.contextmanager
def running(program: Path, mode: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program, when it has published."""
    process = subprocess.Popen(
        [program, mode],
        env=_environment(directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("compiler", "language"), COMPILERS)
def test_the_header_compiles_without_a_warning(compiler: str, language: str, tmp_path: Path) -> None:
    found = shutil.which(compiler)
    if found is None:
        pytest.skip(f"needs {compiler}")
    _compile(found, language, tmp_path / "publish")


def test_what_a_c_program_publishes_is_read(program: Path, tmp_path: Path, monitor: Monitor) -> None:
    with running(program, "publish", tmp_path) as process:
        sent, received = monitor.read()
        assert (sent.job, sent.pid, sent.flow) == ("from-c", process.pid, FLOW)
        assert (sent.direction, sent.role, sent.group, sent.phase) == (1, Role.RING, 5, 1)
        assert (sent.iteration, sent.total, sent.ready, sent.done) == (1, 900, 600, 300)
        assert (sent.carried, sent.chunk) == (1300, 77)
        assert received.flow == Flow("10.0.0.2", 7000, "10.0.0.1", 20000, socket.IPPROTO_UDP)
        assert received.direction is Direction.RECEIVED
        process.communicate(b"\n", timeout=patience(30))
        assert process.returncode == 0
        assert monitor.read() == []
        assert list(tmp_path.iterdir()) == []
        assert not monitor.refused


def test_a_jobs_name_forges_no_line_of_a_log(tmp_path: Path, monitor: Monitor) -> None:
    with Publisher("x\n\x1b[2Kroot wrote", name="x", directory=tmp_path) as publisher:
        publisher.flow(FLOW, Direction.SENT)
        assert [each.job for each in monitor.read()] == [r"x\n\x1b[2Kroot wrote"]
        assert [each.job for each in monitor.processes()] == [r"x\n\x1b[2Kroot wrote"]


def test_python_and_c_have_the_same_layout(program: Path, tmp_path: Path) -> None:
    flow = Flow("1.2.3.4", 5, "6.7.8.9", 10, 17)
    with Publisher("from-python", directory=tmp_path, capacity=3) as publisher:
        entry = publisher.flow(flow, Direction.RECEIVED, Role.BROADCAST, group=11, chunk=12)
        entry.update(13, Phase.COMMUNICATING, 1600, 1500, 1400)
        entry.update(14, Phase.COMMUNICATING, 160, 150, 140)
        read = subprocess.run([program, "dump", publisher.path], capture_output=True, text=True, check=True)
        data = publisher.path.read_bytes()
    header = Header._make(HEADER.unpack_from(data))
    fields = Fields._make(ENTRY.unpack_from(data, HEADER.size))
    first, second = read.stdout.splitlines()
    texts = [each.rstrip(b"\0").decode() if isinstance(each, bytes) else str(each) for each in header]
    assert first.split() == texts
    assert texts[1:5] == ["2", "3", "1", str(os.getpid())]
    assert second.split() == [
        ".".join(map(str, each)) if isinstance(each, bytes) else str(each) for each in fields
    ]
    assert fields[1:] == (
        bytes([1, 2, 3, 4]), bytes([6, 7, 8, 9]), 5, 10, 17, 2, 2, 11, 1, 14, 160, 150, 140, 1540, 12,
        fields.updated_ns,
    )  # fmt: skip


class _Told:
    """Stands for a publisher: has a pace, and keeps what the process says."""

    def __init__(self) -> None:
        self.fields = PaceFields(0, 0, 0, 0, 0)
        self.said: list[StartFields] = []

    def pace(self, now_ns: int) -> PaceFields | None:
        return self.fields if self.fields.period_ns and now_ns <= self.fields.until_ns else None

    def started(self, starts: StartFields) -> None:
        self.said.append(starts._replace(sequence=2 * len(self.said) + 2))


def test_python_and_c_follow_a_pace_alike(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over paces that move, come and go, expire or cannot be, and iterations that are early and late."""
    rng = random.Random(1)
    told: Any = _Told()
    pacing = Pacing(told)
    lines, now, fields = [], 10**9, PaceFields(0, 0, 0, 0, 0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    for turn in range(3000):
        if turn % 50 == 0:
            period = rng.choice([0, 999, 1000, 10**6])
            fields = PaceFields(
                0, rng.randrange(10**9), period, rng.choice([0, 40, period // 3, period]), 2**62
            )
        elif rng.random() < 0.1:
            fields = fields._replace(anchor_ns=fields.anchor_ns + rng.randrange(200))
        told.fields = fields._replace(until_ns=now - 1) if rng.random() < 0.02 else fields
        lines.append(" ".join(map(str, (*told.fields[1:], now))))
        start = pacing.begin()
        lasts = rng.choice([0.5, 0.99, 1.0, 1.1, 3.7]) if turn % 100 < 50 else 1.06
        now = start.at_ns + round((fields.period_ns or 1000) * lasts) + rng.randrange(9)
    done = subprocess.run(
        [program, "pace"],
        input="\n".join(lines),
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    found = [StartFields._make(map(int, line.split())) for line in done.stdout.splitlines()]
    assert found == told.said
    assert found[-1].shifts and found[-1].corrections and any(each.drift_ns for each in found)


def test_a_c_program_waits_for_the_pace_that_an_agent_sets(program: Path, tmp_path: Path) -> None:
    with contextlib.closing(Paces(tmp_path, None)) as agent, running(program, "start", tmp_path):
        (found,) = agent.starts(0)
        assert (found.job, found.paced, found.said.starts) == ("from-c", False, 1)
        agent.set(0, "from-c", Pace(0, 10**9, 10**8))
        (path,) = tmp_path.glob("*.progress")
        assert PACE.unpack_from(path.read_bytes(), pace_offset(4))[1:4] == (0, 10**9, 10**8)


def _readings(monitor: Monitor) -> list[FlowProgress]:
    """Readings while somebody writes, at 200 different iterations."""
    readings: dict[int, FlowProgress] = {}
    while len(readings) < 200:
        for each in monitor.read():
            readings.setdefault(each.iteration, each)
    return list(readings.values())


def test_reading_is_whole_while_an_entry_is_written(program: Path, tmp_path: Path, monitor: Monitor) -> None:
    with running(program, "hammer", tmp_path):
        readings = _readings(monitor)
    for each in readings:
        i = each.iteration
        assert (each.total, each.ready, each.done) == (3 * i, 2 * i, i)
        assert each.carried == i * (i + 1) // 2
    assert set(monitor.refused) <= {"never stands still"}


def test_a_python_writer_is_read_whole(tmp_path: Path, monitor: Monitor) -> None:
    code = (
        "import itertools, sys\n"
        "from wire.progress import *\n"
        "with Publisher('fast') as publisher:\n"
        "    entry = publisher.flow(('10.0.0.1', 1, '10.0.0.2', 2, 6), Direction.SENT)\n"
        "    for i in itertools.count():\n"
        "        entry.update(i, i % 2, 3 * i, 2 * i, i)\n"
        "        if i == 0: print('ready', flush=True)\n"
        "        for _ in range(200): pass\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=_environment(tmp_path),
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    readings = _readings(monitor)
    process.kill()
    process.communicate()
    for each in readings:
        i = each.iteration
        assert (each.phase, each.total, each.ready, each.done) == (i % 2, 3 * i, 2 * i, i)
        assert each.carried == i * (i + 1) // 2
    assert monitor.read() == []
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_of_all_iterations_add_up(tmp_path: Path, monitor: Monitor) -> None:
    with Publisher("job", directory=tmp_path) as publisher:
        entry = publisher.flow(FLOW, Direction.SENT)
        for iteration in range(3):
            for done in (0, 40, 100):
                entry.update(iteration, Phase.COMMUNICATING, 100, 100, done)
            assert [each.carried for each in monitor.read()] == [100 * (iteration + 1)]


def test_a_flow_that_one_process_sends_and_another_receives_is_two(tmp_path: Path, monitor: Monitor) -> None:
    with Publisher("a", directory=tmp_path) as one, Publisher("b", directory=tmp_path) as other:
        one.flow(FLOW, Direction.SENT)
        other.flow(FLOW, Direction.RECEIVED)
        assert {each.direction for each in monitor.read()} == {Direction.SENT, Direction.RECEIVED}


def test_a_reading_is_like_any_other_instance_of_its_class(tmp_path: Path, monitor: Monitor) -> None:
    with Publisher("job", directory=tmp_path) as publisher:
        publisher.flow(FLOW, Direction.SENT, Role.RING, group=3, chunk=7)
        [each] = monitor.read()
    assert [field.name for field in fields(each)] == list(vars(each))
    assert each == FlowProgress(**vars(each))
    assert hash(each) == hash(replace(each))
    with pytest.raises(FrozenInstanceError):
        each.done = 1  # type: ignore[misc]


def test_of_many_entries_those_that_have_changed_are_read_anew(tmp_path: Path, monitor: Monitor) -> None:
    with Publisher("job", directory=tmp_path) as publisher:
        entries = [
            publisher.flow(FLOW._replace(source_port=port), Direction.SENT, group=port) for port in range(6)
        ]
        done = [0] * len(entries)
        before = monitor.read()
        assert monitor.read() == before
        for changed in ([0], [5], [2], [1, 4], [], list(range(6))):
            for number in changed:
                done[number] += 10
                entries[number].update(0, Phase.COMMUNICATING, 100, 100, done[number])
            after = monitor.read()
            assert [each.group for each in after] == list(range(6))
            assert [each.done for each in after] == done
            assert {number for number in range(6) if after[number] is not before[number]} == set(changed)
            before = after
    assert not monitor.refused


def test_flows_that_are_new_or_forgotten_are_noticed(tmp_path: Path, monitor: Monitor) -> None:
    with Publisher("job", directory=tmp_path) as publisher:
        assert monitor.read() == []
        one = publisher.flow(FLOW, Direction.SENT, group=1)
        assert [each.group for each in monitor.read()] == [1]
        publisher.flow(FLOW._replace(source_port=1), Direction.SENT, group=2)
        publisher.flow(FLOW._replace(source_port=2), Direction.SENT, group=3)
        assert [each.group for each in monitor.read()] == [1, 2, 3]
        one.forget()
        for _ in range(2):
            assert [each.group for each in monitor.read()] == [2, 3]
        publisher.flow(FLOW, Direction.SENT, group=4)
        assert [each.group for each in monitor.read()] == [2, 3, 4]
    assert not monitor.refused


NONSENSE = {
    "more done than ready": {"done": 200},
    "more ready than there is": {"ready": 2000},
    "beyond 2^50": {"total": BYTES_MAX},
    "beyond": {"chunk": 2**64 - 1},
    "unknown direction": {"direction": 7},
    "role": {"role": 4},
    "phase": {"phase": 9},
    "less carried than done": {"carried": 3},
    "backwards": {"carried": 50},
    "going backwards": {"iteration": 1},
}


@pytest.mark.parametrize("reason", NONSENSE)
def test_nonsense_is_left_out_and_counted(reason: str, tmp_path: Path, monitor: Monitor) -> None:
    with Publisher("bad", directory=tmp_path) as bad, Publisher("good", directory=tmp_path) as good:
        entry = bad.flow(FLOW, Direction.SENT)
        entry.update(1, Phase.COMMUNICATING, 1000, 100, 50)
        entry.update(2, Phase.COMMUNICATING, 1000, 100, 50)
        good.flow(FLOW._replace(source_port=1), Direction.SENT)
        assert len(monitor.read()) == 2
        fields = Fields._make(ENTRY.unpack_from(bad._memory, HEADER.size))
        nonsense = ENTRY.pack(*fields._replace(**NONSENSE[reason]))
        bad._memory[HEADER.size : HEADER.size + ENTRY.size] = nonsense
        for times in (1, 2):  # it is counted though it is the same
            assert [each.job for each in monitor.read()] == ["good"]
            [(counted, count)] = monitor.refused.items()
            assert reason in counted and count == times
        entry.update(3, Phase.COMMUNICATING, 1000, 100, 50)  # it comes to reason, but for what is not written
        assert len(monitor.read()) == (1 if {"direction", "role", "chunk"} & NONSENSE[reason].keys() else 2)


@pytest.mark.parametrize("known", [True, False])
def test_of_an_entry_whose_writer_stopped_in_the_middle_the_last_reading_stands(
    known: bool, tmp_path: Path, monitor: Monitor
) -> None:
    with Publisher("stopped", directory=tmp_path) as publisher:
        entry = publisher.flow(FLOW, Direction.SENT)
        before = monitor.read() if known else []
        entry.update(1, Phase.COMMUNICATING, 3, 2, 1)
        publisher._memory[HEADER.size : HEADER.size + 8] = (2**32 + 1).to_bytes(8, "little")
        for times in (1, 2):
            assert monitor.read() == before
            assert monitor.refused == {"never stands still": times}


def test_a_flow_that_two_processes_claim_is_left_out(tmp_path: Path, monitor: Monitor) -> None:
    with Publisher("a", directory=tmp_path) as one, Publisher("b", directory=tmp_path) as other:
        one.flow(FLOW, Direction.SENT)
        other.flow(FLOW, Direction.SENT)
        for times in (1, 2):
            assert monitor.read() == []
            assert monitor.refused == {"claimed twice": times}
        one.flow(FLOW, Direction.SENT)  # and its own process a second time
        one.flow(FLOW._replace(source_port=1), Direction.SENT)
        assert [each.flow.source_port for each in monitor.read()] == [1]
        assert monitor.refused == {"claimed twice": 4}


@pytest.mark.parametrize("lacking", [None, "inotify_init1", "inotify_add_watch"])
def test_what_comes_and_goes_is_found_at_the_next_reading(
    lacking: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking:  # as when the user has no more of them
        monkeypatch.setattr(progress._LIBC, lacking, lambda *_: -1)
    with Monitor(tmp_path) as monitor:
        for number in range(20):  # right after one another: faster than a file system's clock
            assert monitor.read() == []
            with Publisher("first", directory=tmp_path, name="job") as publisher:
                publisher.flow(FLOW, Direction.SENT)
                assert [each.job for each in monitor.read()] == ["first"]
                with Publisher(f"second-{number}", directory=tmp_path) as other:
                    other.flow(FLOW, Direction.RECEIVED)
                    assert {each.job for each in monitor.read()} == {"first", f"second-{number}"}
                publisher.path.unlink()
                with Publisher("third", directory=tmp_path, name="job") as other:
                    other.flow(FLOW, Direction.SENT)
                    assert [each.job for each in monitor.read()] == ["third"]
    assert not monitor.refused


@pytest.mark.parametrize("moved", [".", ".."])
def test_a_directory_that_takes_the_place_of_another_is_found(moved: str, tmp_path: Path) -> None:
    directory = tmp_path / "run" / "progress"
    with Monitor(directory) as monitor:
        with Publisher("first", directory=directory) as publisher:
            publisher.flow(FLOW, Direction.SENT)
            assert len(monitor.read()) == 1
        (directory / moved).resolve().rename(tmp_path / "old")
        with Publisher("second", directory=directory) as publisher:
            publisher.flow(FLOW, Direction.SENT)
            if moved == "..":  # of which the kernel does not tell
                for _ in range(progress._TRUSTED):
                    monitor.read()
            assert [each.job for each in monitor.read()] == ["second"]
        assert monitor.read() == []


def test_the_directory_is_left_alone_while_nothing_changes_there(
    tmp_path: Path, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Publisher("job", directory=tmp_path) as publisher:
        publisher.flow(FLOW, Direction.SENT)
        assert len(monitor.read()) == 1
        monkeypatch.setattr(os, "scandir", None)
        assert len(monitor.read()) == 1


def test_of_too_many_files_some_are_left_until_there_is_room(
    tmp_path: Path, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FILES_PER_USER", 1)
    with Publisher("a", directory=tmp_path) as one, Publisher("b", directory=tmp_path) as other:
        one.flow(FLOW, Direction.SENT)
        other.flow(FLOW, Direction.RECEIVED)
        for _ in range(2):
            [first] = monitor.read()
            assert monitor.refused == {"too many files": 1}
        (one if first.job == "a" else other).path.unlink()
        [second] = monitor.read()
        assert {first.job, second.job} == {"a", "b"}
        assert monitor.refused == {"too many files": 1}


def test_a_file_waits_until_the_monitor_may_open_more(
    program: Path, tmp_path: Path, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors run out for progress before they do for the agent, and nothing is refused for good."""
    spared, most = progress.SPARED, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setattr(progress, "SPARED", most)
    with running(program, "publish", tmp_path):
        for _ in range(3):
            assert monitor.read() == []
        ((reason, count),) = monitor.refused.items()
        assert "ulimit -n" in reason
        assert count == 3
        monkeypatch.setattr(progress, "SPARED", spared)
        assert len(monitor.read()) == 2


def test_a_crowded_directory_is_looked_at_bit_by_bit(
    tmp_path: Path, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found before is read meanwhile, and what is new is found in the end."""
    monkeypatch.setattr(progress, "LOOKED_AT", 3)
    with Publisher("first", directory=tmp_path) as one:
        one.flow(FLOW, Direction.SENT)
        assert len(monitor.read()) == 1
        for number in range(100):
            (tmp_path / f"litter-{number}").touch()
        with Publisher("second", directory=tmp_path) as other:
            other.flow(FLOW, Direction.RECEIVED)
            found = [{each.job for each in monitor.read()} for _ in range(102 // 3 + 2)]
    assert all("first" in each for each in found)
    assert found[-1] == {"first", "second"}


def test_a_dead_process_leaves_nothing(program: Path, tmp_path: Path, monitor: Monitor) -> None:
    with running(program, "publish", tmp_path) as process:
        assert len(monitor.read()) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(list(tmp_path.iterdir())) == 1
        assert monitor.read() == []
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_nobody_keeps_locked_is_removed_whatever_process_it_names(tmp_path: Path) -> None:
    with Publisher("job", directory=tmp_path) as publisher:  # of this process, which lives
        (tmp_path / "old.progress").write_bytes(publisher.path.read_bytes())
    with Monitor(tmp_path) as monitor:
        assert monitor.read() == []
    assert list(tmp_path.iterdir()) == []


FORK = (
    "import os, signal\n"
    "from wire.progress import *\n"
    "publisher = Publisher('job')\n"
    "publisher.flow(('10.0.0.1', 20000, '10.0.0.2', 7000, 6), Direction.SENT)\n"
    "if os.fork():\n"
    "    signal.pause()\n"
    "print(os.getpid(), flush=True)\n"
    "signal.pause()\n"
)


@pytest.mark.parametrize("language", ["python", "c"])
def test_a_child_does_not_keep_the_file_of_its_dead_parent(
    language: str, program: Path, tmp_path: Path, monitor: Monitor
) -> None:
    command = [str(program), "fork"] if language == "c" else [sys.executable, "-c", FORK]
    parent = subprocess.Popen(command, env=_environment(tmp_path), stdout=subprocess.PIPE)
    assert parent.stdout
    child = int(parent.stdout.readline())
    try:
        assert monitor.read()
        parent.kill()
        parent.wait()
        with Monitor(tmp_path) as new:  # one that has not seen the parent
            assert new.read() == []
        assert list(tmp_path.iterdir()) == []
        assert monitor.read() == []
    finally:
        parent.kill()
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_a_child_that_ends_leaves_its_parents_file(tmp_path: Path) -> None:
    with Publisher("job", directory=tmp_path) as publisher:
        publisher.flow(FLOW, Direction.SENT)
        child = os.fork()
        if not child:
            publisher.close()
            os._exit(0)
        os.waitpid(child, 0)
        with Monitor(tmp_path) as monitor:
            assert len(monitor.read()) == 1


@pytest.mark.root
def test_publishers_in_containers_are_read_and_told_apart(tmp_path: Path, monitor: Monitor) -> None:
    """Both are process 1 of their PID namespace; here, that number is another process."""

    def publish(port: int) -> object:
        publisher = Publisher("job", directory=tmp_path)
        publisher.flow(FLOW._replace(source_port=port), Direction.SENT)
        return publisher

    with (
        as_user(0, lambda: publish(1), container=True),
        as_user(0, lambda: publish(2), container=True),
    ):
        headers = [Header._make(HEADER.unpack_from(each.read_bytes())) for each in tmp_path.iterdir()]
        assert [each.pid for each in headers] == [1, 1]
        one, other = monitor.read()
        assert {one.flow.source_port, other.flow.source_port} == {1, 2}
        assert len({one.pid, other.pid, 1}) == 3
        assert len(list(tmp_path.iterdir())) == 2
    assert monitor.read() == []  # they have ended without closing their files
    assert list(tmp_path.iterdir()) == []


@pytest.mark.root
def test_a_users_publisher_in_a_container_speaks_for_the_users_flows_alone(
    shared: Path, listener: socket.socket
) -> None:
    with socket.create_connection(listener.getsockname()) as mine, Monitor(shared) as monitor:

        def publish() -> object:
            theirs = socket.create_connection(listener.getsockname())
            publisher = Publisher("theirs", directory=shared)
            for each in (theirs, mine):
                publisher.flow(Flow.of(each), Direction.SENT)
            return theirs, publisher

        with as_user(NOBODY, publish, container=True):
            [seen] = monitor.read()
            assert seen.flow != Flow.of(mine)
            assert seen.pid != 1
            assert monitor.refused == {"another user's flow": 1}


READ = (
    "import sys\n"
    "from hostbpf.scheduling.monitor import Monitor\n"
    "from pathlib import Path\n"
    "with Monitor(Path(sys.argv[1])) as monitor:\n"
    "    print(monitor.read(), dict(monitor.refused))\n"
)


@pytest.mark.root
def test_a_publisher_that_the_agents_container_does_not_show_is_refused_and_kept(tmp_path: Path) -> None:
    with Publisher("job", directory=tmp_path) as publisher:
        publisher.flow(FLOW, Direction.SENT)
        agent = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", READ, tmp_path],
            env=_environment(tmp_path),
            capture_output=True,
            text=True,
            check=True,
        )
        assert agent.stdout.strip() == '[] {"a process that the agent\'s PID namespace does not show": 1}'
        assert publisher.path.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no progress file"),
        (b"x" * 4096, "no progress file"),
        (HEADER.pack(b"ENTRPROG", 1, 1, 1, 1, 0, b"") + bytes(128), "version 1, without a lock"),
        (HEADER.pack(b"ENTRPROG", 3, 1, 1, 1, 0, b"") + bytes(128), "another version"),
        (HEADER.pack(b"ENTRPROG", 2, 2**31, 1, 1, 0, b"") + bytes(128), "unlikely capacity"),
        (HEADER.pack(b"ENTRPROG", 2, 2, 2, 1, 0, b"") + bytes(128), "truncated"),
    ],
)
def test_a_foreign_file_is_refused_once_and_stays(
    content: bytes, reason: str, tmp_path: Path, monitor: Monitor
) -> None:
    path = tmp_path / "foreign.progress"
    path.write_bytes(content)
    assert monitor.read() == monitor.read() == []
    assert monitor.refused == {reason: 1}
    assert path.exists()


def test_what_is_no_regular_file_holds_nobody_up(tmp_path: Path, monitor: Monitor) -> None:
    os.mkfifo(tmp_path / "pipe.progress")
    (tmp_path / "link.progress").symlink_to("/etc/passwd")
    (tmp_path / "directory.progress").mkdir()
    assert monitor.read() == []
    assert monitor.refused == {"no progress file": 2, "cannot be opened": 1}


def test_a_file_that_shrinks_while_it_is_read_harms_nobody(
    program: Path, tmp_path: Path, monitor: Monitor
) -> None:
    with Publisher("good", directory=tmp_path) as good, running(program, "publish", tmp_path):
        good.flow(FLOW._replace(source_port=1), Direction.SENT)
        assert {each.job for each in monitor.read()} == {"from-c", "good"}
        [path] = tmp_path.glob("from-c*")
        whole = path.read_bytes()
        os.truncate(path, 100)
        assert [each.job for each in monitor.read()] == ["good"]
        assert monitor.refused == {"truncated": 1}
        with path.open("r+b") as file:
            file.write(whole)
        assert {each.job for each in monitor.read()} == {"from-c", "good"}


def test_a_file_that_shrinks_behind_its_entries_is_left_out_before_long(
    tmp_path: Path, monitor: Monitor
) -> None:
    with Publisher("bad", directory=tmp_path) as publisher:
        publisher.flow(FLOW, Direction.SENT)
        assert len(monitor.read()) == 1
        os.truncate(publisher.path, HEADER.size + ENTRY.size)
        for _ in range(progress._TRUSTED):
            monitor.read()
        assert monitor.read() == []
        assert monitor.refused == {"truncated": 1}


def test_a_file_that_says_it_has_more_entries_than_room_is_read_as_far_as_it_goes(
    tmp_path: Path, monitor: Monitor
) -> None:
    with Publisher("bad", directory=tmp_path, capacity=2) as publisher:
        publisher.flow(FLOW, Direction.SENT)
        publisher._memory[16:20] = (2**32 - 1).to_bytes(4, "little")
        assert [each.flow for each in monitor.read()] == [FLOW]


@pytest.mark.root
def test_the_progress_of_another_host_is_not_ours(program: Path, tmp_path: Path, pair: Pair) -> None:
    with running(program, "publish", tmp_path), Monitor(tmp_path, pair.a) as other, Monitor(tmp_path) as own:
        assert other.read() == []
        assert len(own.read()) == 2


CLONES = 5
PATIENCE_S = patience(20.0)
FILES = 4096
"""Open files of a clone: its own, and those that it has from the tests' process."""


def clone(flags: int) -> int:
    """Fork with `flags`, by the system call itself: gRPC, which other tests have imported, aborts a fork into
    another PID namespace.
    """
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    child = ctypes.PyDLL(None, use_errno=True).syscall(number, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if child < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(child)


@contextlib.contextmanager
def as_user(uid: int, publish: Callable[[], object], container: bool = False) -> Iterator[None]:
    """Within, a process of user `uid` has called `publish`, and waits; with `container` as process 1 of a PID
    namespace of its own.

    The system call takes no locks as `fork` does. If another thread was in malloc then, the child waits for
    ever for the lock that this thread had, and is cloned again. The child collects no garbage: to destroy a
    channel of gRPC that another test has left is to wait for threads that the child has not.
    """
    reading, writing = os.pipe()
    back, done = os.pipe()
    for _ in range(CLONES):
        child = clone(_CLONE_NEWPID if container else 0)
        if not child:
            try:
                gc.disable()
                resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
                os.close(done)
                os.setuid(uid)
                kept = publish()
                os.write(writing, b"!")
                os.read(back, 1)
                del kept
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        if select.select([reading], [], [], PATIENCE_S)[0]:
            break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    else:
        pytest.fail(f"none of {CLONES} clones has published")
    try:
        assert os.read(reading, 1) == b"!"
        yield
    finally:
        for each in (reading, writing, back, done):
            os.close(each)
        os.waitpid(child, 0)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory that all users can publish in."""
    directory = tmp_path / "progress"
    make_directory(directory)
    let_others_pass(directory.parent)
    yield directory


FILLED = """
import os, subprocess, sys
from pathlib import Path
from wire.progress import DIRECTORY, Publisher, make_directory
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", "/run"], check=True)
make_directory(DIRECTORY)
if not (child := os.fork()):
    os.setresuid(65534, 65534, 65534)
    try:
        with Publisher("mine") as _, open(DIRECTORY / "filling", "wb") as filling:
            while True:
                filling.write(bytes(1 << 20))
    except OSError as error:
        print(error.strerror, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(Path("/run/other.pid").write_bytes(bytes(1 << 20)))
"""


@pytest.mark.root
def test_a_user_who_fills_the_directory_takes_nothing_from_run(tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    environment = {name: text for name, text in os.environ.items() if name != "ENTRAIN_PROGRESS"}
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", FILLED],
        env={**environment, "PYTHONPATH": str(INCLUDE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["No space left on device", str(1 << 20)]


IN_CONTAINER = """
import os, stat, subprocess
from wire.progress import DIRECTORY, make_directory
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
code = "from wire.progress import DIRECTORY, make_directory; make_directory(DIRECTORY)"
subprocess.run(["setpriv", "--bounding-set=-sys_admin", os.environ["PYTHON"], "-c", code], check=True)
print(oct(stat.S_IMODE(DIRECTORY.stat().st_mode)), os.path.ismount(DIRECTORY))
"""


@pytest.mark.root
def test_where_nothing_can_be_mounted_the_directory_is_an_ordinary_one() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "ENTRAIN_PROGRESS"}
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", IN_CONTAINER],
        env={**environment, "PYTHONPATH": str(INCLUDE.parent), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0o1777", "False"]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as result:
        yield result


@pytest.mark.root
@pytest.mark.parametrize("own", [True, False])
def test_a_user_can_speak_for_own_connections_alone(own: bool, shared: Path, listener: socket.socket) -> None:
    with Monitor(shared) as monitor, socket.create_connection(listener.getsockname()) as mine:

        def publish() -> object:
            theirs = socket.create_connection(listener.getsockname())
            publisher = Publisher("theirs", directory=shared)
            publisher.flow(Flow.of(theirs if own else mine), Direction.SENT)
            return theirs, publisher

        with as_user(NOBODY, publish):
            found = monitor.read()
        assert len(found) == (1 if own else 0)
        assert monitor.refused == ({} if own else {"another user's flow": 1})


@pytest.mark.root
def test_a_flow_is_believed_once_its_connection_is_there(shared: Path, listener: socket.socket) -> None:
    """A refusal is remembered, and not for ever."""
    port, ours = 40_000 + os.getpid() % 10_000, listener.getsockname()
    flow = Flow("127.0.0.1", port, *ours)
    back, go = os.pipe()
    reading, writing = os.pipe()

    def publish() -> object:
        publisher = Publisher("early", directory=shared)
        publisher.flow(flow, Direction.SENT)

        def connect() -> None:
            os.read(back, 1)
            kept.append(socket.create_connection(ours, source_address=("127.0.0.1", port)))
            os.write(writing, b"!")

        threading.Thread(target=connect, daemon=True).start()
        return publisher

    kept: list[socket.socket] = []
    with Monitor(shared) as monitor, as_user(NOBODY, publish):
        assert monitor.read() == []
        os.write(go, b"!")
        os.read(reading, 1)
        assert any(monitor.read() for _ in range(progress._RECHECKED + 1))
    for each in (back, go, reading, writing):
        os.close(each)


class Work:
    """Counts what a monitor does with the system in one reading."""

    def __init__(self, monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        for name, owner, function in (
            ("lookups", monitor._diag, "find"),
            ("opened", monitor, "_open"),
            ("checked", monitor, "_checked"),
        ):
            self._count(monkeypatch, name, owner, function)
        self._count(monkeypatch, "reads", os, "pread")

    def _count(self, monkeypatch: pytest.MonkeyPatch, name: str, owner: object, function: str) -> None:
        original = getattr(owner, function)

        def counted(*args: object, **options: object) -> object:
            self.counts[name] += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, function, counted)


def _spoil(directory: Path, how: str) -> object:
    """As a hostile user: many files, full of claims to the flows of others."""
    publishers = []
    for number in range(150):
        publisher = Publisher(f"bad-{number}", directory=directory, capacity=100)
        for port in range(100):
            publisher.flow(Flow("127.0.0.1", port + 1, "127.0.0.1", number + 1), Direction.SENT)
        publishers.append(publisher)
    if how == "being written":
        for publisher in publishers:
            for number in range(100):
                at = HEADER.size + number * ENTRY.size
                publisher._memory[at : at + 8] = (2**32 + 1).to_bytes(8, "little")
    return publishers


def _respoil(directory: Path, how: str, turn: int) -> None:
    """From outside, because it has to happen between two readings: every file, or every entry, is another."""
    for path in directory.glob("bad-*.progress"):
        if how == "new files":
            again = path.with_name(f"{path.stem}'.progress")
            path.rename(again.with_suffix(".draft"))
            again.with_suffix(".draft").rename(again)
        elif how == "new claims":
            with path.open("r+b") as file:
                data = bytearray(file.read())
                for at in range(HEADER.size, len(data), ENTRY.size):
                    data[at + 16 : at + 18] = (turn * 100 + at // ENTRY.size).to_bytes(2, "little")
                file.seek(0)
                file.write(data)


@pytest.mark.root
@pytest.mark.parametrize("how", ["the same claims", "new claims", "new files", "being written"])
def test_bad_files_of_one_user_cost_others_nothing(
    how: str, shared: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's flows, and root's, are read anew in every turn, and what a turn does is bounded."""
    connection = socket.create_connection(listener.getsockname())
    reading, writing = os.pipe()

    def publish() -> object:
        theirs = socket.create_connection(listener.getsockname())
        publisher = Publisher("good", directory=shared)
        os.write(writing, str(theirs.getsockname()[1]).encode())
        return theirs, publisher, publisher.flow(Flow.of(theirs), Direction.SENT)

    with (
        as_user(NOBODY - 1, publish),
        Publisher("roots", directory=shared) as roots,
        connection,
        Monitor(shared) as monitor,
    ):
        port = int(os.read(reading, 10))
        path = next(shared.glob("good-*"))
        entry = roots.flow(Flow.of(connection), Direction.SENT)
        assert len(monitor.read()) == 2
        with as_user(NOBODY, lambda: _spoil(shared, how)):
            work, total = Work(monitor, monkeypatch), Counter[str]()
            for turn in range(1, 51):
                _respoil(shared, how, turn)
                entry.update(turn, Phase.COMMUNICATING, 3, 2, 1)
                with path.open("r+b") as file:  # as its process does by memory
                    file.seek(HEADER.size + 32)
                    file.write(turn.to_bytes(8, "little"))
                work.counts.clear()
                found = {each.flow.source_port: each.iteration for each in monitor.read()}
                assert found[port] == found[entry_port(connection)] == turn
                assert work.counts["lookups"] <= quota.WORK // quota.LOOKUP
                assert work.counts["opened"] <= quota.WORK // quota.OPEN
                assert work.counts["checked"] <= quota.WORK // quota.READ + 2
                assert work.counts["reads"] <= 4 * quota.WORK
                total.update(work.counts)
            assert total["opened"] > quota.WORK // quota.OPEN  # there was more than one reading may do
    os.close(reading)
    os.close(writing)


def entry_port(connection: socket.socket) -> int:
    return int(connection.getsockname()[1])


def test_one_turn_gives_a_user_some_steps_and_all_users_some_time() -> None:
    now = 0
    share = Quota(100, 1000, lambda: now)
    with share:
        assert [share.spend(40) for _ in range(4)] == [True, True, False, False]
    slow = Quota(100, 1000, lambda: now)
    with slow:
        now = 900
        assert slow.spend(1)
    now = 5000  # others' work
    with slow:
        assert slow.spend(1)
        now = 5200
        assert not slow.spend(1)


@pytest.mark.root
def test_a_user_cannot_speak_for_a_process_of_root(tmp_path: Path, monitor: Monitor) -> None:
    with Publisher("job", directory=tmp_path) as publisher:
        publisher.flow(FLOW, Direction.SENT)
        os.chown(publisher.path, 65534, 65534)
        assert monitor.read() == []
        assert monitor.refused == {"another user's process": 1}


def test_a_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    own, made = tmp_path / "own", tmp_path / "made" / "progress"
    own.mkdir(0o750)
    for directory in (own, made):
        with Monitor(directory), Publisher("job", directory=directory):
            pass
    assert stat.S_IMODE(own.stat().st_mode) == 0o750
    assert stat.S_IMODE(made.stat().st_mode) == 0o1777


@pytest.mark.parametrize("language", ["python", "c"])
def test_a_file_that_somebody_has_put_in_the_way_is_not_written(
    language: str, program: Path, tmp_path: Path, monitor: Monitor
) -> None:
    """At names with the job's name and the process's number, which others can guess."""
    code = (
        "from wire.progress import Publisher; import sys\n"
        "with Publisher('from-c') as publisher: print('ready', flush=True); sys.stdin.read(1)\n"
    )
    command = [str(program), "publish"] if language == "c" else [sys.executable, "-c", code]
    traps = 'for name in ".from-c-$$" ".from-c.$$" ".from-c-$$.$$"; do : > "$1/$name"; done; shift; exec "$@"'
    process = subprocess.Popen(
        ["sh", "-c", traps, "sh", tmp_path, *command],
        env=_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    monitor.read()
    assert not monitor.refused
    left = [each for each in tmp_path.iterdir() if each.name.startswith(".")]
    assert len(left) == 3
    assert all(each.read_bytes() == b"" for each in left)
    process.communicate(b"\n", timeout=patience(30))
    assert process.returncode == 0


def test_what_cannot_be_published_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="capacity"):
        Publisher("job", directory=tmp_path, capacity=0)
    with pytest.raises(BadInput, match="file name"):
        Publisher("../job", directory=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(EntrainError, match="ENTRAIN_PROGRESS"):
        Publisher("job", directory=tmp_path / "file")
    with Publisher("job", directory=tmp_path, capacity=1) as publisher:
        publisher.flow(FLOW, Direction.SENT)
        with pytest.raises(BadInput, match="larger capacity"):
            publisher.flow(FLOW, Direction.RECEIVED)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
