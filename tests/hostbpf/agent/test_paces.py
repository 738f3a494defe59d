"""Paces that an agent gives to training processes of its host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostbpf.agent import paces, rights
from hostbpf.agent.paces import LEASE_S, Paces
from hostbpf.rpc.calls import Exhausted
from machine.errors import BadInput
from machine.patience import patience
from schedulers.cassini.pace import Kind, Pace
from wire.progress import PACE, Publisher, pace_offset
from workloads.pacing import Pacing

ROOT, ANN = 0, 1001
MINE = os.geteuid()
S = 10**9


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Paces]:
    each = Paces(tmp_path, None)
    yield each
    each.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Publisher]:
    with Publisher("mine", directory=tmp_path, capacity=3) as each:
        yield each


def ahead(seconds: float) -> Pace:
    """A pace of 10 s by which an iteration starts after `seconds`."""
    return Pace(time.monotonic_ns() + round(seconds * S), 10 * S, S // 2)


def test_a_process_is_shifted_once_and_then_keeps_to_its_pace(agent: Paces, process: Publisher) -> None:
    pacing = Pacing(process)
    assert pacing.begin().kind is Kind.FREE
    pace = ahead(3.0)
    agent.set(MINE, "mine", pace)
    shifted = pacing.begin()
    assert (shifted.kind, shifted.at_ns) == (Kind.SHIFTED, pace.anchor_ns)
    assert pacing.begin().kind is Kind.KEPT
    agent.clear(MINE, "mine")
    assert pacing.begin().kind is Kind.FREE
    [found] = agent.starts(MINE)
    assert (found.job, found.pid, found.paced) == ("mine", os.getpid(), False)
    assert (found.said.starts, found.said.shifts, found.said.corrections) == (4, 1, 0)


def test_a_pace_ends_with_the_agent(agent: Paces, process: Publisher) -> None:
    agent.set(MINE, "mine", ahead(3.0))
    now = time.monotonic_ns()
    assert process.pace(now)
    assert process.pace(now + round((LEASE_S + 1) * S)) is None  # it has died, and renews nothing
    agent.close()
    assert process.pace(time.monotonic_ns()) is None


def test_a_living_agent_renews_paces(
    monkeypatch: pytest.MonkeyPatch, agent: Paces, process: Publisher
) -> None:
    monkeypatch.setattr(paces, "LEASE_S", 0.4)
    agent.set(MINE, "mine", ahead(3.0))
    first = process.pace(time.monotonic_ns())
    deadline = time.monotonic() + patience(30)
    while first and (last := process.pace(time.monotonic_ns())) and last.until_ns <= first.until_ns:
        assert time.monotonic() < deadline


def test_a_new_agent_goes_on_where_one_has_died_writing(agent: Paces, process: Publisher) -> None:
    pacing = Pacing(process)
    file = os.open(process.path, os.O_RDWR)  # closing it would give up the process's lock
    os.pwrite(file, PACE.pack(7, 1, 2, 0, 2**63), pace_offset(3))
    assert pacing.begin().kind is Kind.FREE
    pace = ahead(4.0)
    agent.set(MINE, "mine", pace)
    assert pacing.begin().at_ns == pace.anchor_ns
    os.close(file)


def test_a_user_paces_the_users_own_processes_alone(agent: Paces, process: Publisher) -> None:
    agent.set(ANN, "mine", ahead(3.0))
    assert process.pace(time.monotonic_ns()) is None
    assert agent.starts(ANN) == []
    with pytest.raises(BadInput, match="has no pace"):
        agent.clear(MINE, "mine")


LEASED = """
import fcntl, os, signal, sys
from wire.progress import HEADER, MAGIC, PACE, STARTS, VERSION, Header, _netns_cookie, pace_offset
signal.signal(signal.SIGIO, signal.SIG_IGN)
size = pace_offset(1) + PACE.size + STARTS.size
header = HEADER.pack(*Header(MAGIC, VERSION, 1, 0, os.getpid(), _netns_cookie(), b"leased"))
with open(sys.argv[1], "xb") as file:
    file.write(header.ljust(size, bytes(1)))
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.lockf(file, fcntl.LOCK_SH)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print(flush=True)
sys.stdin.read()
"""


def leases(path: Path) -> bool:
    return any(
        line.split()[1] == "LEASE" and line.split()[5].endswith(f":{path.stat().st_ino}")
        for line in Path("/proc/locks").read_text().splitlines()
    )


def test_a_lease_on_a_file_holds_up_nobody(agent: Paces, process: Publisher, tmp_path: Path) -> None:
    path = tmp_path / "leased.progress"
    with subprocess.Popen(
        [sys.executable, "-c", LEASED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout and holder.stdout.readline()
        agent.set(MINE, "mine", ahead(3.0))
        assert {each.job for each in agent.starts(MINE)} == {"mine"}
        assert leases(path)  # the kernel takes it back after `fs.lease-break-time`


def test_one_user_leaves_room_for_the_paces_of_others(agent: Paces) -> None:
    for number in range(rights.JOBS_PER_USER):
        agent.set(ANN, f"job{number}", ahead(1.0))
    with pytest.raises(Exhausted):
        agent.set(ANN, "one-more", ahead(1.0))
    agent.set(ROOT, "one-more", ahead(1.0))
