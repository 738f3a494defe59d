"""Jobs that really train: losses fall, and are the same bit for bit whatever the network does."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostbpf.scheduling.monitor import FlowProgress, Monitor, Role
from machine.record import Kind, Record, Resource
from workloads.models import MODELS
from workloads.records import Records, Summary, read_records, summarize

JobFile = Callable[..., Path]
RunJob = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.slow
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: the extra [torch]"
)
TRAINED = [name for name, model in MODELS.items() if model.collective == "ddp"]


def _train(run_job: RunJob, directory: Path, **changes: Any) -> tuple[Summary, Records]:
    job = {"collective": "ddp", "model": "mlp", "bytes": None, "ranks": 3, "iterations": 6, **changes}
    done = run_job(directory=directory, **job)
    assert done.returncode == 0, done.stderr
    records = read_records(directory / "records")
    return summarize(records)[0], records


@needs_torch
@pytest.mark.parametrize("model", TRAINED)
def test_losses_fall_and_records_say_what_was_sent(run_job: RunJob, tmp_path: Path, model: str) -> None:
    ranks, iterations = 3, 20
    summary, records = _train(run_job, tmp_path, model=model, ranks=ranks, iterations=iterations)
    assert len(summary.losses) == len(summary.iteration_ms) == iterations
    means = [sum(each) / ranks for each in summary.losses]
    assert sum(means[-5:]) < 0.9 * sum(means[:5])
    assert len(set(summary.losses[0])) == ranks, "every rank has its own data"
    ring = 2 * (ranks - 1) / ranks * MODELS[model].bytes
    for each in records.iterations:
        assert each.start_ns <= each.compute_end_ns <= each.end_ns
    for flow in records.flows:
        assert flow.src_rank == (flow.dst_rank + 1) % ranks
        assert flow.bytes == pytest.approx(ring, rel=0.35)  # a neighbour may be ahead
    sent = sum(each.bytes for each in records.iterations)
    assert sent == pytest.approx(ranks * iterations * ring, rel=0.02)


@needs_torch
def test_the_gradients_sizes_are_those_of_the_table() -> None:
    code = (
        "from workloads.torch_models import make_task\n"
        "from workloads.models import MODELS\n"
        f"for name in {TRAINED!r}:\n"
        "    parameters = make_task(name, 1).model.parameters()\n"
        "    assert sum(each.nbytes for each in parameters) == MODELS[name].bytes, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def _shaped(record: Record, letter: str, rate: str) -> dict[str, Any]:
    """Three hosts at a bridge, each sending at `rate` at most; what a job on them needs."""
    tag = f"{letter}{os.getpid()}"
    addresses = [f"10.78.0.{number}" for number in (1, 2, 3)]
    names = [f"tt{tag}{number}" for number in (1, 2, 3)]

    def own(kind: Kind, name: str, command: str) -> None:
        record.own(Resource(kind, name))
        subprocess.run(["ip", *command.split()], check=True)

    own("link", f"tb{tag}", f"link add tb{tag} type bridge")
    subprocess.run(["ip", "link", "set", f"tb{tag}", "up"], check=True)
    for name, address in zip(names, addresses, strict=True):
        own("netns", name, f"netns add {name}")
        own("link", f"p{name}", f"link add p{name} type veth peer name eth0 netns {name}")
        for command in (
            f"ip link set p{name} master tb{tag} up",
            f"ip -n {name} link set lo up",
            f"ip -n {name} addr add {address}/24 dev eth0",
            f"ip -n {name} link set eth0 up",
            f"tc -n {name} qdisc add dev eth0 root tbf rate {rate} burst 64kb limit 300kb",
        ):
            subprocess.run(command.split(), check=True)
    return {"hosts": addresses, "netns": [f"/run/netns/{name}" for name in names]}


@needs_torch
@pytest.mark.root
def test_losses_are_the_same_bit_for_bit_whatever_the_network_does(job_file: JobFile, tmp_path: Path) -> None:
    networks = {
        "1gbit": {},
        "200mbit": {"congestion_control": "reno", "compute_ms": 5},
        "50mbit": {"congestion_control": "bbr", "progress": str(tmp_path / "progress")},
    }
    common = {"collective": "ddp", "model": "cnn", "bytes": None, "iterations": 6}
    with Record("test-training", records=tmp_path / "run") as record:
        jobs = []
        for letter, (rate, changes) in zip("abc", networks.items(), strict=True):
            hosts = _shaped(record, letter, rate)
            jobs += [job_file(directory=tmp_path / rate, name=rate, **common, **hosts, **changes)]
        jobs += [job_file(ranks=3, directory=tmp_path / "other", name="other", **common, seed=2)]
        options = [option for job in jobs for option in ("--job", str(job))]
        command = [sys.executable, "-m", "workloads", "launch", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    records = {job.parent.name: read_records(job.parent / "records") for job in jobs}
    digests = {name: summarize(each)[0].loss_digest for name, each in records.items()}
    assert len({digests[rate] for rate in networks}) == 1, digests
    assert digests["other"] != digests["1gbit"]
    for rate in networks:
        for flow in records[rate].flows:
            assert (flow.src_ip, flow.dst_ip) == (
                f"10.78.0.{flow.src_rank + 1}",
                f"10.78.0.{flow.dst_rank + 1}",
            )


@needs_torch
def test_a_rank_that_trains_publishes_its_ring(job_file: JobFile, tmp_path: Path) -> None:
    directory = tmp_path / "progress"
    job = job_file(
        ranks=3, collective="ddp", model="cnn", bytes=None, iterations=10000, progress=str(directory)
    )
    process = subprocess.Popen([sys.executable, "-m", "workloads", "launch", "--job", job, "--json"])
    try:
        with Monitor(directory) as monitor:
            found: list[FlowProgress] = []
            while len(found) < 6 or min(each.iteration for each in found) < 3:
                assert process.poll() is None
                found = monitor.read()
            assert {(each.job, each.role) for each in found} == {("test", Role.RING)}
            assert len({each.flow for each in found}) == 3
            assert not monitor.refused
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 1
        records = read_records(tmp_path / "records")
        assert {end.error for end in records.ends} & {"rank 0 was terminated", "ended by SIGTERM"}
        assert len(records.ends) == 3
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@needs_torch
def test_when_a_rank_is_killed_the_others_end_and_say_so(job_file: JobFile, tmp_path: Path) -> None:
    job = job_file(ranks=3, collective="ddp", model="cnn", bytes=None, iterations=100000, timeout_s=60)
    records = tmp_path / "records" / "test-rank2.jsonl"
    process = subprocess.Popen([sys.executable, "-m", "workloads", "launch", "--job", job, "--json"])
    try:
        while not (records.exists() and '"iteration": 3' in records.read_text()):
            assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[2]), signal.SIGKILL)
        assert process.wait(timeout=100) == 1
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    errors = {end.rank: end.error for end in read_records(tmp_path / "records").ends}
    assert errors.keys() == {0, 1}
    assert all(error and "rank" in error for error in errors.values())


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_the_remedy_is_named(run_job: RunJob) -> None:
    done = run_job(collective="ddp", model="mlp", bytes=None)
    assert done.returncode == 1
    assert "pip install -e '.[torch]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_be_trained_is_refused(run_job: RunJob) -> None:
    for changes, word in (({"model": "vgg16"}, "tiny-gpt"), ({"model": "mlp", "scale": 10}, "scale")):
        done = run_job(collective="ddp", bytes=None, **changes)
        assert done.returncode == 2
        assert word in done.stderr


def test_a_summary_s_losses_are_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    iteration = {"kind": "iteration", "job": "j", "start_ns": 0, "compute_end_ns": 1, "end_ns": 2, "bytes": 3}
    clock = {"kind": "clock", "job": "j", "ranks": 2, "collective": "ddp", "iterations": 2}
    lines = [
        *({**clock, "rank": rank, "monotonic_ns": 0, "realtime_offset_ns": 0} for rank in (0, 1)),
        *(
            {**iteration, "rank": rank, "iteration": i, "loss": i + rank / 8}
            for i in (0, 1)
            for rank in (1, 0)
        ),
    ]
    (tmp_path / "j.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (summary,) = summarize(read_records(tmp_path))
    assert summary.losses == ((0.0, 0.125), (1.0, 1.125))
    assert summary.as_dict()["loss"] == [0.0625, 1.0625]
