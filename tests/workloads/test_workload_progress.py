"""What the ranks of a job publish of their connections."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from hostbpf.scheduling.monitor import Direction, FlowProgress, Monitor, Phase, Role
from wire.progress import ENTRY, HEADER, Fields, Header
from workloads.collectives import COLLECTIVES, Options, program_of
from workloads.connections import HEADER_BYTES
from workloads.progress import role_of

JobFile = Callable[..., Path]
RunJob = Callable[..., subprocess.CompletedProcess[str]]

KEEP = "import wire.progress; wire.progress.Publisher.close = lambda self: None"


def _entries(path: Path) -> list[Fields]:
    data = path.read_bytes()
    used = Header._make(HEADER.unpack_from(data)).used
    return [Fields._make(ENTRY.unpack_from(data, HEADER.size + i * ENTRY.size)) for i in range(used)]


@pytest.mark.parametrize(
    ("collective", "parts"), [*((name, 0) for name in COLLECTIVES), ("parameter-server", 4)]
)
def test_in_the_end_all_that_the_schedule_has_is_done_on_both_sides(
    run_job: RunJob, tmp_path: Path, collective: str, parts: int
) -> None:
    ranks, iterations, size, directory = 4, 3, 400_000, tmp_path / "progress"
    result = run_job(
        patch=KEEP, ranks=ranks, collective=collective, parts=parts, iterations=iterations, bytes=size,
        progress=str(directory),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    program = program_of(collective, ranks, Options(parts=parts))
    unit = -(-size // (4 * program.units)) * 4
    expected: dict[tuple[int, int], int] = defaultdict(int)
    for step in program.steps:
        for each in step:
            expected[each.src, each.dst] += each.units * unit + HEADER_BYTES
    for rank in range(ranks):
        found = {}
        for entry in _entries(directory / f"test-rank{rank}.progress"):
            assert entry.iteration == iterations - 1
            assert entry.done == entry.ready == entry.total
            assert entry.carried == iterations * entry.total
            pair = tuple(
                int(socket.inet_ntoa(address).rpartition(".")[2]) - 1
                for address in (entry.source, entry.destination)
            )
            assert entry.destination_port == 7000
            assert (entry.role, entry.group) == role_of(program, *pair)
            assert (entry.chunk > 0) == (entry.role in (Role.RING, Role.AGGREGATION))
            found[entry.direction, pair] = entry.total
        assert found == {
            (Direction.SENT if rank == pair[0] else Direction.RECEIVED, pair): total
            for pair, total in expected.items()
            if rank in pair
        }


def test_meanwhile_a_ring_sends_no_more_than_it_has_received_and_a_chunk(
    job_file: JobFile, tmp_path: Path
) -> None:
    directory = tmp_path / "progress"
    job = job_file(ranks=3, iterations=1000, bytes=3_000_000, compute_ms=1, progress=str(directory))
    process = subprocess.Popen([sys.executable, "-m", "workloads", "launch", "--job", job, "--json"])
    seen: set[tuple[int, Phase]] = set()
    try:
        with Monitor(directory) as monitor:
            while len(seen) < 30:
                assert process.poll() is None
                flows: dict[int, dict[Direction, FlowProgress]] = defaultdict(dict)
                for each in monitor.read():
                    assert (each.job, each.role, each.chunk) == ("test", Role.RING, 1_000_000 + HEADER_BYTES)
                    flows[each.pid][each.direction] = each
                    seen.add((each.iteration, each.phase))
                for own in flows.values():
                    if len(own) == 2 and own[Direction.RECEIVED].phase is Phase.COMMUNICATING:
                        sent, received = own[Direction.SENT], own[Direction.RECEIVED]
                        if sent.updated_ns < received.updated_ns and sent.iteration == received.iteration:
                            assert sent.ready <= received.done + sent.chunk
            assert set(monitor.refused) <= {"never stands still"}
    finally:
        process.terminate()
        process.wait()
    assert {phase for _, phase in seen} == set(Phase)
    assert list(directory.iterdir()) == []


def test_a_worker_could_send_all_at_once_and_a_server_what_all_workers_have_sent(
    job_file: JobFile, tmp_path: Path
) -> None:
    directory = tmp_path / "progress"
    job = job_file(
        ranks=4, collective="parameter-server", parts=4, iterations=1000, bytes=4_000_000, compute_ms=1,
        progress=str(directory),
    )  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "workloads", "launch", "--job", job, "--json"])
    seen = {Role.AGGREGATION: 0, Role.BROADCAST: 0}
    try:
        with Monitor(directory) as monitor:
            while min(seen.values()) < 30:
                assert process.poll() is None
                flows = monitor.read()
                for sent in (each for each in flows if each.direction is Direction.SENT):
                    later = [
                        each for each in flows
                        if (each.pid, each.direction) == (sent.pid, Direction.RECEIVED)
                        and each.iteration == sent.iteration
                        and each.updated_ns > sent.updated_ns
                    ]  # fmt: skip
                    if sent.role is Role.AGGREGATION and sent.done:
                        assert sent.ready == sent.total
                        seen[sent.role] += 1
                    elif sent.role is Role.BROADCAST and len(later) == 2:
                        assert sent.ready <= min(each.done for each in later)
                        seen[sent.role] += sent.ready > 0
            assert set(monitor.refused) <= {"never stands still"}
    finally:
        process.terminate()
        process.wait()


def test_parameter_servers_and_their_workers_speak_of_the_same_groups() -> None:
    program = program_of("parameter-server", 4)
    roles = {(t.src, t.dst): role_of(program, t.src, t.dst) for step in program.steps for t in step}
    for (sender, receiver), (role, group) in roles.items():
        assert role is (Role.AGGREGATION if receiver < 2 else Role.BROADCAST)
        assert group == min(sender, receiver)
