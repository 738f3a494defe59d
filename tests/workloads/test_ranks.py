"""Jobs over real sockets: results are right, records say what was sent, failures are told."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workloads.collectives import COLLECTIVES, Options, program_of
from workloads.connections import source_port
from workloads.jobs import SOURCE_PORTS, load_job
from workloads.launch import ends
from workloads.records import Records, read_records, summarize

JobFile = Callable[..., Path]
RunJob = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("collective", "options", "dtype"),
    [
        ("ring", {}, "float32"),
        *((name, {}, "int32") for name in COLLECTIVES),
        ("ring", {"parts": 3}, "float32"),
        ("parameter-server", {"parts": 4}, "int32"),
        ("parameter-server", {"servers": 3, "parts": 5}, "float32"),
    ],
)
def test_a_job_runs_and_its_records_are_its_schedule(
    run_job: RunJob, tmp_path: Path, collective: str, options: dict[str, int], dtype: str
) -> None:
    ranks, iterations, size = 4, 3, 1_000_003
    result = run_job(
        ranks=ranks, collective=collective, **options, iterations=iterations, dtype=dtype, bytes=size
    )
    assert result.returncode == 0, result.stderr
    records = read_records(tmp_path / "records")
    program = program_of(collective, ranks, Options(**options))
    unit = -(-size // (4 * program.units)) * 4
    expected = sorted(
        (iteration, index, t.src, t.dst, t.units * unit)
        for iteration in range(iterations)
        for index, step in enumerate(program.steps)
        for t in step
    )
    assert sorted((f.iteration, f.step, f.src_rank, f.dst_rank, f.bytes) for f in records.flows) == expected
    assert sum(r.bytes for r in records.iterations) == sum(f.bytes for f in records.flows)
    (summary,) = summarize(records)
    assert len(summary.iteration_ms) == iterations
    assert summary.error is None


def test_times_follow_the_schedule_s_dependencies(run_job: RunJob, tmp_path: Path) -> None:
    assert run_job(ranks=3, compute_ms=5, iterations=4).returncode == 0
    records = read_records(tmp_path / "records")
    for r in records.iterations:
        assert r.compute_end_ns - r.start_ns >= 5_000_000
        assert r.end_ns >= r.compute_end_ns
    arrived = {(f.iteration, f.step, f.dst_rank): f.end_ns for f in records.flows}
    for f in records.flows:
        assert f.end_ns >= f.start_ns
        if f.step:  # a rank sends in a step only after it has received in the step before
            assert f.start_ns >= arrived[f.iteration, f.step - 1, f.src_rank]


@pytest.mark.parametrize("collective", ["halving-doubling", "all-to-all"])
def test_with_a_barrier_no_step_begins_before_the_last_has_ended(
    run_job: RunJob, tmp_path: Path, collective: str
) -> None:
    result = run_job(ranks=5, collective=collective, iterations=3, bytes=400_000, barrier=True)
    assert result.returncode == 0, result.stderr
    flows, ended = read_records(tmp_path / "records").flows, 0
    for step in sorted({(f.iteration, f.step) for f in flows}):
        those = [f for f in flows if (f.iteration, f.step) == step]
        assert min(f.start_ns for f in those) >= ended
        ended = max(f.end_ns for f in those)


def test_a_barrier_needs_a_collective_that_goes_step_by_step(run_job: RunJob) -> None:
    for options in ({"collective": "parameter-server"}, {"collective": "ring", "parts": 3}):
        result = run_job(ranks=4, **options, barrier=True)
        assert result.returncode == 2
        assert "barrier: " in result.stderr


def test_jobs_start_one_by_one_as_they_are_ordered(job_file: JobFile, tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    command = [sys.executable, "-m", "workloads", "serve", "--orders", str(orders)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        orders.open("w", encoding="utf-8") as pipe,
    ):
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        for name, ranks in (("first", 2), ("second", 3)):
            path = job_file(name=name, ranks=ranks)
            pipe.write(f"{path}\n")
            pipe.flush()
            job = load_job(path)
            deadline = time.monotonic() + 60
            while len(ends(job)) < ranks:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.01)
            assert set(ends(job).values()) == {0}
        server.terminate()
        assert server.wait(60) == 0


def test_a_server_sends_back_what_all_workers_have_sent(run_job: RunJob, tmp_path: Path) -> None:
    servers, parts = 2, 4
    result = run_job(ranks=5, collective="parameter-server", servers=servers, parts=parts, bytes=2_000_000)
    assert result.returncode == 0, result.stderr
    records = read_records(tmp_path / "records")
    there: dict[tuple[int, int, int], int] = {}  # by iteration, step, server
    for f in records.flows:
        if f.dst_rank < servers:
            key = f.iteration, f.step, f.dst_rank
            there[key] = max(there.get(key, 0), f.end_ns)
    assert len(there) == 3 * parts * servers
    for f in records.flows:
        if f.src_rank < servers:
            assert f.start_ns >= there[f.iteration, f.step - 1, f.src_rank]


def test_a_server_communicates_from_when_the_first_worker_sends(run_job: RunJob, tmp_path: Path) -> None:
    result = run_job(ranks=3, collective="parameter-server", servers=1, compute_ms=20, iterations=4)
    assert result.returncode == 0, result.stderr
    records = read_records(tmp_path / "records")
    for number in range(4):
        server, *workers = sorted(
            (r for r in records.iterations if r.iteration == number), key=lambda record: record.rank
        )
        first = min(f.start_ns for f in records.flows if f.iteration == number and f.dst_rank == 0)
        assert server.compute_end_ns == first >= min(worker.compute_end_ns for worker in workers)


def test_source_ports_come_from_the_seed_and_repeat(run_job: RunJob, tmp_path: Path) -> None:
    seen = []
    for seed in (1, 1, 2):
        assert run_job(ranks=4, collective="all-to-all", seed=seed).returncode == 0
        flows = read_records(tmp_path / "records").flows
        seen.append({(f.src_rank, f.dst_rank): f.src_port for f in flows})
        job = load_job(tmp_path / "job.json")
        assert seen[-1] == {(src, dst): source_port(job, src, dst, 0) for src, dst in seen[-1]}
    assert seen[0] == seen[1] != seen[2]
    assert set(seen[0].values()) <= set(SOURCE_PORTS)


def test_a_taken_source_port_is_replaced_by_the_next_of_the_seed(
    job_file: JobFile, run_job: RunJob, tmp_path: Path
) -> None:
    job = load_job(job_file(ranks=2))
    with socket.socket() as other:
        other.bind((str(job.hosts[0]), source_port(job, 0, 1, 0)))
        assert run_job(ranks=2).returncode == 0
    ports = {f.src_rank: f.src_port for f in read_records(tmp_path / "records").flows}
    assert ports == {0: source_port(job, 0, 1, 1), 1: source_port(job, 1, 0, 0)}


FLIP = """
import workloads.connections as c
original = c.Incoming._take
def take(self, room):
    got = original(self, room)
    if self.peer == 1 and self._header_filled == 32 and self._expected == (1, {step}):
        room[got // 2] ^= 1
    return got
c.Incoming._take = take
"""


@pytest.mark.parametrize(
    ("collective", "step"),
    [("ring", 0), ("ring", 3), ("all-to-all", 0), ("parameter-server", 2), ("pipeline", 1)],
)
def test_one_flipped_bit_is_found(run_job: RunJob, tmp_path: Path, collective: str, step: int) -> None:
    result = run_job(
        patch=FLIP.format(step=step), ranks=3, collective=collective, servers=2, parts=2, bytes=400_000
    )
    assert result.returncode == 1
    assert "iteration 1: the result is wrong: element" in result.stderr
    (summary,) = summarize(read_records(tmp_path / "records"))
    assert summary.error is not None
    assert "the result is wrong" in summary.error


def test_a_transfer_of_the_wrong_step_is_refused(run_job: RunJob) -> None:
    patch = """
import workloads.connections as c
begin = c.Outgoing.begin
c.Outgoing.begin = lambda self, data, iteration, step: begin(self, data, iteration, step + (self.peer == 2))
"""
    result = run_job(patch=patch, ranks=3)
    assert result.returncode == 1
    assert "iteration 0, step 1; expected: " in result.stderr


def worker(path: Path, rank: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "workloads", "worker", "--job", str(path), "--rank", str(rank)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it does not come to pass"
        time.sleep(0.02)


def wait_for_iterations(path: Path, count: int) -> None:
    """Until every rank has written `count` iterations."""
    job = load_job(path)
    for rank in range(len(job.hosts)):
        file = job.records(rank)
        wait_until(lambda file=file: file.exists() and file.read_text().count('"kind": "iteration"') >= count)


ENDLESS: dict[str, Any] = {"iterations": 1_000_000, "compute_ms": 5}


VICTIMS = [(0, False), (1, False), (3, False), (0, True), (2, True)]


@pytest.mark.parametrize(("victim", "barrier"), VICTIMS)
def test_when_a_rank_is_killed_the_others_name_it_and_end(
    job_file: JobFile, tmp_path: Path, victim: int, barrier: bool
) -> None:
    path = job_file(**ENDLESS, collective="all-to-all", barrier=barrier)
    ranks = [worker(path, rank) for rank in range(4)]
    wait_for_iterations(path, 3)
    ranks[victim].kill()
    ranks[victim].communicate(timeout=60)
    for rank, process in enumerate(ranks):
        if rank != victim:
            _, said = process.communicate(timeout=60)
            assert process.returncode == 1
            assert said.startswith(f"workloads: job test, rank {rank}: ")
            assert f"rank {victim} " in said.split(": ", 2)[2], said
            assert "Traceback" not in said
    records = read_records(tmp_path / "records")
    assert {end.rank for end in records.ends} == {0, 1, 2, 3} - {victim}
    assert min(sum(i.rank == rank for i in records.iterations) for rank in range(4)) >= 3


@pytest.mark.parametrize(("number", "collective"), [(signal.SIGKILL, "all-to-all"), (signal.SIGTERM, "ring")])
def test_when_a_third_of_the_ranks_ends_all_end(
    job_file: JobFile, tmp_path: Path, number: signal.Signals, collective: str
) -> None:
    path = job_file(12, **ENDLESS, collective=collective)
    ranks = [worker(path, rank) for rank in range(12)]
    wait_for_iterations(path, 2)
    victims = [0, 4, 5, 9]
    for victim in victims:
        ranks[victim].send_signal(number)
    for rank, process in enumerate(ranks):
        _, said = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "Traceback" not in said
        if rank not in victims:
            assert any(f"rank {victim} " in said.split(": ", 2)[2] for victim in victims), said
    assert len(summarize(read_records(tmp_path / "records"))[0].iteration_ms) >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_ranks_and_keeps_the_records(
    job_file: JobFile, tmp_path: Path, number: signal.Signals
) -> None:
    path = job_file(**ENDLESS)
    ranks = [worker(path, rank) for rank in range(4)]
    wait_for_iterations(path, 3)
    ranks[2].send_signal(number)
    codes, said = [], []
    for process in ranks:
        said.append(process.communicate(timeout=60)[1])
        codes.append(process.returncode)
    assert codes == [1, 1, 128 + signal.SIGTERM, 1]
    assert all("rank 2 was terminated" in said[rank] for rank in (0, 1, 3))
    assert "Traceback" not in "".join(said)
    (summary,) = summarize(read_records(tmp_path / "records"))
    assert len(summary.iteration_ms) >= 2


def test_a_rank_that_stands_still_is_named(job_file: JobFile) -> None:
    path = job_file(**ENDLESS, ranks=3, timeout_s=1)
    ranks = [worker(path, rank) for rank in range(3)]
    wait_for_iterations(path, 3)
    ranks[1].send_signal(signal.SIGSTOP)
    try:
        said = [ranks[rank].communicate(timeout=60)[1] for rank in (0, 2)]
    finally:
        ranks[1].kill()
        ranks[1].communicate()
    assert [ranks[rank].returncode for rank in (0, 2)] == [1, 1]
    assert any("waiting for rank 1 at 127.8.0.2" in text for text in said), said


def test_a_rank_that_never_starts_is_named(job_file: JobFile) -> None:
    path = job_file(timeout_s=2)
    ranks = [worker(path, rank) for rank in (0, 1, 3)]
    for process in ranks:
        assert "rank 2 did not start within 2 s" in process.communicate(timeout=60)[1]
        assert process.returncode == 1


def test_a_port_in_use_is_told_on_every_rank(run_job: RunJob, tmp_path: Path) -> None:
    with socket.create_server(("127.8.0.2", 7000)):
        result = run_job()
    assert result.returncode == 1
    assert "rank 1 cannot listen on 127.8.0.2:7000: another program listens there" in result.stderr
    assert len(result.stderr.splitlines()) == 1  # one cause, told once
    ends = read_records(tmp_path / "records").ends
    assert len(ends) == 4
    assert len({end.error for end in ends}) == 1


def test_an_address_of_another_host_is_told(run_job: RunJob) -> None:
    result = run_job(hosts=["127.8.0.1", "192.0.2.7"])
    assert result.returncode == 1
    assert "rank 1 cannot listen on 192.0.2.7:7000" in result.stderr


def test_an_unknown_congestion_control_is_told_with_those_there(run_job: RunJob) -> None:
    result = run_job(congestion_control="warp")
    assert result.returncode == 1
    assert "congestion_control: 'warp' is not available; available are " in result.stderr
    assert "cubic" in result.stderr


def test_a_known_congestion_control_is_used(run_job: RunJob) -> None:
    assert run_job(congestion_control="reno").returncode == 0


def test_strangers_at_the_port_do_no_harm(run_job: RunJob) -> None:
    patch = """
import workloads.connections as c, socket
listen = c._listen
def with_stranger(job, rank):
    listener = listen(job, rank)
    with socket.create_connection(listener.getsockname()) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    return listener
c._listen = with_stranger
"""
    assert run_job(patch=patch).returncode == 0


def test_silent_strangers_hold_nobody_up(run_job: RunJob) -> None:
    patch = """
import workloads.connections as c, socket
listen = c._listen
c._HELLO_TIMEOUT_S = 1e4
c._MOST_CALLERS = 40
silent = []
def with_silent(job, rank):
    listener = listen(job, rank)
    for n in range(100):
        silent.append(socket.create_connection(listener.getsockname()))
        if n % 2:
            silent[-1].sendall(c._MAGIC)
    return listener
c._listen = with_silent
"""
    result = run_job(patch=patch, ranks=3)
    assert result.returncode == 0
    assert "too many connect" in result.stderr


def test_who_knows_all_of_a_job_but_its_secret_cannot_take_a_ranks_place(run_job: RunJob) -> None:
    patch = """
import workloads.connections as c, socket
listen = c._listen
strangers = []
def with_impostors(job, rank):
    listener = listen(job, rank)
    for peer in range(len(job.hosts)):
        for proof in (c._proof(b"", peer, rank), c._proof(b"guess", peer, rank), bytes(32)):
            strangers.append(socket.create_connection(listener.getsockname()))
            strangers[-1].sendall(c._HELLO.pack(c._MAGIC, peer, proof))
    return listener
c._listen = with_impostors
"""
    result = run_job(patch=patch, ranks=3)
    assert result.returncode == 0
    assert "rank 1: refused a connection from 127" in result.stderr
    assert "it says it is rank 0, and does not know the job's secret" in result.stderr


def test_two_jobs_start_together_when_told_to(job_file: JobFile, tmp_path: Path) -> None:
    paths, go = [], tmp_path / "go"
    for index, name in enumerate(("one", "two")):
        directory = tmp_path / name
        offset = 40.0 * index
        paths.append(
            job_file(
                ranks=2,
                directory=directory,
                name=name,
                go=str(go),
                start_ms=offset,
                port_base=7100 + index,
            )
        )
    command = [sys.executable, "-m", "workloads", "launch", "--json"]
    for path in paths:
        command += ["--job", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: all((tmp_path / n / "rendezvous" / f"{n}.ready").exists() for n in ("one", "two")))
    origin = time.monotonic_ns() + 100_000_000
    (tmp_path / "go.new").write_text(str(origin))
    (tmp_path / "go.new").rename(go)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [job["name"] for job in json.loads(out)["jobs"]] == ["one", "two"]
    for index, name in enumerate(("one", "two")):
        records: Records = read_records(tmp_path / name / "records")
        assert min(r.start_ns for r in records.iterations) >= origin + index * 40_000_000


def test_records_of_an_earlier_run_on_more_hosts_are_gone(run_job: RunJob, tmp_path: Path) -> None:
    other = tmp_path / "records" / "test-rank3b.jsonl"
    assert run_job(ranks=4).returncode == 0
    other.touch()
    assert run_job(ranks=2).returncode == 0
    assert {i.rank for i in read_records(tmp_path / "records").iterations} == {0, 1}
    assert other.exists()


@pytest.mark.parametrize("collective", ["ring", pytest.param("all-to-all", marks=pytest.mark.slow)])
def test_many_ranks_with_hardly_any_data(run_job: RunJob, tmp_path: Path, collective: str) -> None:
    result = run_job(ranks=64, collective=collective, bytes=1, iterations=2)
    assert result.returncode == 0, result.stderr
    (summary,) = summarize(read_records(tmp_path / "records"))
    assert (len(summary.iteration_ms), summary.ranks) == (2, 64)


SLOW = """
import random
import workloads.connections as c
room = c.Incoming._room
c.Incoming._room = lambda self: room(self)[: random.randint(1, 5000) if self.peer == 0 else None]
"""


@pytest.mark.parametrize("collective", ["ring", "all-to-all", "parameter-server"])
def test_a_receiver_that_takes_odd_pieces_gets_the_same(run_job: RunJob, collective: str) -> None:
    result = run_job(patch=SLOW, ranks=3, collective=collective, parts=3, bytes=1_000_000)
    assert result.returncode == 0, result.stderr


def test_a_long_rendezvous_path_works(tmp_path: Path, run_job: RunJob) -> None:
    assert run_job(rendezvous=str(tmp_path / "/".join(["d" * 60] * 4))).returncode == 0


def test_local_needs_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workloads", "local", "--model", "resnet50", "--scale", "1000", "--json"]
    options = ["--ranks", "3", "--iterations", "2", "--compute-ms", "1", "--out", str(tmp_path)]
    result = subprocess.run(command + options, capture_output=True, text=True, timeout=60)
    (job,) = json.loads(result.stdout)["jobs"]
    assert result.returncode == 0
    assert (job["collective"], job["ranks"], job["iterations"], job["error"]) == ("ring", 3, 2, None)
    table = subprocess.run(
        [sys.executable, "-m", "workloads", "summarize", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert table.returncode == 0
    assert "local" in table.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["worker", "--job", "nowhere.json", "--rank", "0"],
        ["summarize", "nowhere"],
        ["local", "--bytes", "-5"],
        ["local", "--job", "nowhere.json"],
    ],
)
def test_bad_input_has_exit_status_2(arguments: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "workloads", *arguments], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2
    assert result.stderr.startswith("workloads: ")
    assert "Traceback" not in result.stderr


def test_a_rank_beyond_the_job_is_refused(job_file: JobFile) -> None:
    process = worker(job_file(ranks=2), 2)
    assert "--rank: 2 is not one of the job's ranks, 0 to 1" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


def test_a_namespace_that_is_not_there_is_named(run_job: RunJob) -> None:
    result = run_job(ranks=2, netns=["/proc/self/ns/net", "/run/netns/nowhere"])
    assert result.returncode == 2
    assert result.stderr.startswith("workloads: job test: netns.1: namespace /run/netns/nowhere")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("waits", [False, True])
def test_no_rank_outlives_its_launcher(
    job_file: JobFile, tmp_path: Path, number: signal.Signals, waits: bool
) -> None:
    path = job_file(**ENDLESS, go=str(tmp_path / "go") if waits else None)
    command = [sys.executable, "-m", "workloads", "launch", "--json", "--job", str(path)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if waits:
        wait_until((tmp_path / "rendezvous" / "test.ready").exists)
    else:
        wait_for_iterations(path, 1)
    ranks = children(launcher.pid)
    assert len(ranks) == 4
    launcher.send_signal(number)
    launcher.communicate(timeout=60)
    assert launcher.returncode == (1 if number != signal.SIGKILL else -signal.SIGKILL)
    wait_until(lambda: not any(map(runs, ranks)))
    assert len(read_records(tmp_path / "records").ends) == 4


def test_a_rank_says_when_it_starts_to_iterate(job_file: JobFile, tmp_path: Path) -> None:
    script = """
import os, sys, time
from pathlib import Path
from workloads.jobs import load_job
from workloads.launch import _Ranks
job = load_job(Path(sys.argv[1]))
ranks = _Ranks(lambda: Path(f"{sys.argv[2]}/{os.getpid()}").write_text(str(time.monotonic_ns())))
ranks.start(job)
while ranks.children:
    ranks.ended(*os.wait())
"""
    told = tmp_path / "told"
    told.mkdir()
    job = job_file(ranks=3, iterations=2)
    subprocess.run([sys.executable, "-c", script, str(job), str(told)], check=True, timeout=60)
    records = read_records(tmp_path / "records")
    starts = [int(path.read_text()) for path in told.iterdir()]
    assert len(starts) == 3
    assert max(starts) <= min(each.start_ns for each in records.iterations)
