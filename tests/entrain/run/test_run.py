"""`entrain run` as users run it: results, faults at any moment, and a clean machine in every case."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from entrain.experiment import FileRouting, load_experiment
from entrain.shared_links import shared_links
from machine.record import RECORDS
from mininet_topos.links import has_netem
from tests.p4.packets import crc16
from workloads.collectives import steps
from workloads.connections import flows_of, source_port

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]
TARGETS = ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)]

EXPERIMENT = """
[experiment]
name = "small"
routing = ["ecmp", "source"]
sample_ms = 50

[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
host_rate_mbps = 50
uplink_rate_mbps = 50
queue_packets = 64

[[job]]
name = "exchange"
collective = "all-to-all"
bytes = 400_000
compute_ms = 20
iterations = {iterations}
hosts = ["h1", "h3", "h2", "h4"]

[[job]]
name = "ring"
collective = "ring"
bytes = 200_000
compute_ms = 20
iterations = {iterations}
hosts = ["h1", "h4"]
"""


@dataclass
class Run:
    """An `entrain run` in its own process, and what it made as far as it got."""

    process: subprocess.Popen[str]
    descendants: set[psutil.Process] = field(default_factory=set)

    @property
    def directory(self) -> Path:
        return RECORDS / f"run-{self.process.pid}"

    @property
    def journal(self) -> Path:
        return RECORDS / f"run-{self.process.pid}.jsonl"

    @property
    def namespace(self) -> Path:
        return Path(f"/run/netns/entrain-run-{self.process.pid}")

    def look(self) -> None:
        """Remember every process that came of it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.descendants |= set(psutil.Process(self.process.pid).children(recursive=True))

    def running(self, word: str) -> list[psutil.Process]:
        """Its processes that have `word` on their command line."""
        self.look()
        found = []
        for process in self.descendants:
            with contextlib.suppress(psutil.NoSuchProcess):  # also when it is a zombie
                if word in process.cmdline():
                    found.append(process)
        return found

    def switches(self) -> list[psutil.Process]:
        """The switch processes."""
        return self.running("--device-id")

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something to be the case while it runs."""
        deadline = time.monotonic() + 100
        while not condition():
            self.look()
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "it does not happen"
            time.sleep(0.02)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: status, output, error output."""
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err

    def assert_clean(self) -> None:
        """Nothing of it is left on the machine."""
        assert not self.journal.exists()
        assert not self.directory.exists()
        assert not self.namespace.exists()
        _, alive = psutil.wait_procs(list(self.descendants), timeout=60)
        assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(*options: str, iterations: int = 3, policy: str = "none", emulated: bool = False) -> Run:
        file = tmp_path / f"small-{len(started)}.toml"
        text = EXPERIMENT.format(iterations=iterations)
        if emulated:  # needs fixed paths
            text = text.replace('["ecmp", "source"]', '"source"') + '\n[slots]\nloads = "emulated"\n'
        file.write_text(text.replace("[topology]", f'policy = ["{policy}"]\n\n[topology]', 1))
        process = subprocess.Popen(
            [sys.executable, "-m", "entrain.cli", "run", str(file), *options],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(Run(process))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(100)


def uplinks_by_hash(text: str, directory: Path) -> tuple[int, Counter[str]]:
    """Return what ECMP must do with the experiment `text`: the most flows of one step on an uplink, and the
    bytes on each uplink. The program's hash is CRC-16 over addresses, protocol and ports, modulo the uplinks;
    source ports derive from the seed.
    """
    file = directory / "predicted.toml"
    file.write_text(text)
    experiment = load_experiment(file)
    (seed,) = experiment.seeds
    hosts = {host.name: host for host in experiment.topology.hosts}
    most, carried = 0, Counter[str]()
    for job in experiment.jobs:
        spec = job.spec.model_copy(update={"seed": seed})
        for step in steps(str(spec.collective), len(job.hosts)):
            meeting = Counter[str]()
            for flow in step:
                src, dst = hosts[job.hosts[flow.src]], hosts[job.hosts[flow.dst]]
                if src.leaf == dst.leaf:
                    continue
                ports = source_port(spec, flow.src, flow.dst, 0), spec.port_base
                addresses = socket.inet_aton(src.ip) + socket.inet_aton(dst.ip)
                spine = 1 + crc16(addresses + struct.pack("!BHH", socket.IPPROTO_TCP, *ports)) % 2
                meeting[f"{src.leaf}->spine{spine}"] += 1
                carried[f"{src.leaf}->spine{spine}"] += round(flow.fraction * spec.bytes) * spec.iterations
            most = max(most, *meeting.values(), 0)
    return most, carried


def measured_links(out: Path, routing: str) -> dict[str, set[str]]:
    """The jobs by link between switches, as counted at the links."""
    found: dict[str, set[str]] = {}
    with (out / "throughput.csv").open() as rows:
        for row in csv.DictReader(rows):
            if row["routing"] == routing and float(row["mbps"]) > 0:
                found.setdefault(row["link"], set()).add(row["job"])
    return found


def computed_links(directory: Path, routing: FileRouting) -> dict[str, set[str]]:
    """The same as `shared_links` says."""
    experiment = load_experiment(directory / "predicted.toml")
    (seed,) = experiment.seeds
    flows = {job.name: flows_of(job.spec.model_copy(update={"seed": seed})) for job in experiment.jobs}
    links = shared_links(experiment.topology, routing, flows)
    hosts = experiment.topology.host_by_name
    return {link.name: set(link.jobs) for link in links if not hosts.keys() & link.name.split("->")}


@pytest.mark.parametrize("target", TARGETS)
def test_each_routing_puts_on_a_link_what_it_promises(
    run: Callable[..., Run], tmp_path: Path, target: str
) -> None:
    running = run("--json", "--target", target, "--out", str(tmp_path / "out"))
    running.until(running.switches)
    status, out, err = running.end()
    assert status == 0, err
    ecmp, source = json.loads(out)["runs"]
    assert (ecmp["routing"], source["routing"]) == ("ecmp", "source")
    assert source["max_flows_per_link"] == 1
    most, hashed = uplinks_by_hash(EXPERIMENT.format(iterations=3), tmp_path)
    assert ecmp["max_flows_per_link"] == most == 2
    carried = {link["link"]: link["bytes"] for link in ecmp["links"]}
    assert sum(hashed.values()) == 3 * (8 * 100_000 + 2 * 2 * 100_000)
    for link, sent in hashed.items():
        assert carried[link] >= sent, f"{link} carried less than the flows whose hash leads there"
    for each in (ecmp, source):
        assert each["target"] == target
        assert [job["name"] for job in each["jobs"]] == ["exchange", "ring"]
        for job in each["jobs"]:
            assert job["jct_s"] > 0
            assert job["iteration_ms_max"] >= job["iteration_ms_mean"] > job["iteration_ms_ideal"] * 0.9
        crossing = sum(link["bytes"] for link in each["links"])
        # 8 of the exchange's 12 transfers leave their leaf, and all of the ring's; each passes two links
        assert crossing >= 2 * 3 * (8 * 100_000 + 2 * 2 * 100_000)
        assert each["overhead"]["unattributed_bytes"] == 0
        queues = {queue["link"]: queue for queue in each["queues"]}
        assert len(queues) == 2 * (4 + 4), "each direction of the links of four hosts and two leaves"
        assert all(queue["limit_bytes"] > 0 for queue in queues.values())
    assert json.loads((tmp_path / "out/results.json").read_text()) == json.loads(out)
    routings: tuple[FileRouting, ...] = ("ecmp", "source")
    for routing in routings:
        assert measured_links(tmp_path / "out", routing) == computed_links(tmp_path, routing)
    assert (tmp_path / "out/results.png").stat().st_size > 10_000
    assert (tmp_path / "out/logs/leaf1.log").exists()
    running.assert_clean()


STAGES: dict[str, Callable[[Run], object]] = {
    "the check of the machine": lambda run: run.running("entrain.attempts"),
    "the record": lambda run: run.journal.exists(),
    "the namespace": lambda run: run.namespace.exists(),
    "a switch": lambda run: run.namespace.exists() and run.switches(),
    "the first run": lambda run: list(run.directory.glob("*/go")),
    "the second run": lambda run: list(run.directory.glob("source-*")),
}


@pytest.mark.parametrize(
    ("stage", "number"), [*((stage, signal.SIGINT) for stage in STAGES), ("the first run", signal.SIGTERM)]
)
def test_a_signal_at_any_moment_leaves_a_clean_machine(
    run: Callable[..., Run], stage: str, number: signal.Signals
) -> None:
    running = run(iterations=3 if stage == "the second run" else 1000)
    running.until(lambda: STAGES[stage](running))
    running.look()
    running.process.send_signal(number)
    status, _, err = running.end()
    assert status == 128 + number, err
    assert "Traceback" not in err
    running.assert_clean()


def test_what_has_been_measured_survives_an_interruption(run: Callable[..., Run], tmp_path: Path) -> None:
    """Ctrl-C in the second run keeps and prints the first; `--resume` runs the second alone."""
    out, results = ("--out", str(tmp_path / "out")), tmp_path / "out" / "results.json"
    first = run(*out, iterations=8)
    first.until(lambda: STAGES["the second run"](first))
    first.process.send_signal(signal.SIGINT)
    status, printed, err = first.end()
    assert status == 128 + signal.SIGINT
    assert "exchange" in printed
    assert "1 of 2 runs completed" in err
    (kept,) = json.loads(results.read_text())["runs"]

    second = run(*out, "--resume", "--json", iterations=8)
    status, printed, err = second.end()
    assert status == 0, err
    assert json.loads(printed)["runs"][0] == kept
    assert [each["routing"] for each in json.loads(results.read_text())["runs"]] == ["ecmp", "source"]

    third = run(*out, "--resume", "--json", iterations=8)  # nothing is missing
    status, again, err = third.end()
    assert status == 0, err
    assert json.loads(again)["runs"] == json.loads(printed)["runs"]
    assert not third.descendants

    other = run(*out, "--resume", iterations=9)
    status, printed, err = other.end()
    assert status == 2
    assert "has results of another experiment" in err
    first.assert_clean()
    second.assert_clean()


def test_a_full_disk_ends_in_words(run: Callable[..., Run], tmp_path: Path) -> None:
    """What was kept before stays, what has ended is printed, and nothing is a traceback."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        running = run("--out", str(disk / "out"), iterations=8)
        running.until(lambda: STAGES["the second run"](running))
        with pytest.raises(OSError, match="No space left"):
            (disk / "filler").write_bytes(bytes(1 << 20))
        status, printed, err = running.end()
        assert status == 1
        assert "No space left on device" in err
        assert "1 of 2 are kept" in err
        assert "Traceback" not in err
        assert "exchange" in printed
        (kept,) = json.loads((disk / "out" / "results.json").read_text())["runs"]
        assert kept["routing"] == "ecmp"
        running.assert_clean()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_impatience_does_not_interrupt_the_clean_up(run: Callable[..., Run]) -> None:
    running = run(iterations=1000)
    running.until(lambda: STAGES["the first run"](running))
    running.look()
    running.process.send_signal(signal.SIGINT)
    while running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert running.end()[0] in (130, -signal.SIGINT)  # the latter when it was through with everything
    running.assert_clean()


@pytest.mark.parametrize("target", TARGETS)
def test_a_killed_switch_fails_the_run_and_is_named(run: Callable[..., Run], target: str) -> None:
    running = run("--target", target, iterations=1000)
    running.until(lambda: STAGES["the first run"](running))
    victim = next(process for process in running.switches() if "leaf2" in " ".join(process.cmdline()))
    victim.kill()
    status, _, err = running.end()
    assert status == 1
    assert f"switch leaf2 ({target}) was killed by SIGKILL" in err
    assert "leaf2.log" in err
    running.assert_clean()
    assert not list(RECORDS.glob(f"*-{victim.pid}.jsonl"))


@pytest.mark.parametrize("policy", ["slots", "parrot"])
def test_a_killed_agent_fails_the_run_and_is_named(run: Callable[..., Run], policy: str) -> None:
    running = run(iterations=1000, policy=policy)
    running.until(lambda: STAGES["the first run"](running))
    (victim,) = (process for process in running.running("hostbpf") if "h3-eth0" in process.cmdline())
    victim.kill()
    status, out, err = running.end()
    assert status == 1
    assert "the agent of host h3 was killed by SIGKILL" in err
    assert "agent-h3.log" in err
    assert out == ""
    running.assert_clean()


def test_a_killed_emulated_switch_fails_the_run_and_is_named(run: Callable[..., Run]) -> None:
    running = run(iterations=1000, policy="slots", emulated=True)
    running.until(lambda: STAGES["the first run"](running))
    switches = running.running("emulated-switch")
    (victim,) = (each for each in switches if each.cmdline()[-1].endswith("/leaf2.switch.toml"))
    victim.kill()
    status, out, err = running.end()
    assert status == 1
    assert "emulated switch leaf2 was killed by SIGKILL" in err
    assert "emulated-leaf2.log" in err
    assert out == ""
    running.assert_clean()


def test_a_job_that_fails_ends_the_run_with_its_reason(run: Callable[..., Run]) -> None:
    running = run(iterations=1000)
    running.until(lambda: STAGES["the first run"](running))
    worker = next(process for process in running.running("workloads") if not process.children())
    job, rank, host = whose(worker)
    worker.kill()
    status, _, err = running.end()
    assert status == 1
    assert f"job {job} failed: rank {rank} on host {host} was killed by SIGKILL" in err
    assert f"the end of {running.directory}/ecmp-none-1/{job}.log:\n  | " in err
    running.assert_clean()


def whose(worker: psutil.Process) -> tuple[str, int, str]:
    """The job, the rank and the host of a worker, as its job's file and its namespace tell."""
    (file,) = (Path(word) for word in worker.cmdline() if word.endswith(".json"))
    job = json.loads(file.read_text())
    inode = Path(f"/proc/{worker.pid}/ns/net").stat().st_ino
    (rank,) = (rank for rank, path in enumerate(job["netns"]) if Path(path).stat().st_ino == inode)
    hosts = {"exchange": ["h1", "h3", "h2", "h4"], "ring": ["h1", "h4"]}
    return job["name"], rank, hosts[job["name"]][rank]


def test_after_kill_9_the_next_run_cleans_up_and_works(run: Callable[..., Run]) -> None:
    first = run(iterations=1000)
    first.until(lambda: STAGES["the first run"](first))
    first.look()
    first.process.kill()
    first.process.wait()
    assert first.journal.exists()
    second = run("--json")
    second.until(second.switches)
    status, out, err = second.end()
    assert status == 0, err
    assert len(json.loads(out)["runs"]) == 2
    first.assert_clean()
    second.assert_clean()


def test_two_runs_at_once_do_not_meet(run: Callable[..., Run]) -> None:
    both = [run("--json"), run("--json")]
    for each in both:
        each.until(each.switches)
    for each in both:
        status, out, err = each.end()
        assert status == 0, err
        assert len(json.loads(out)["runs"]) == 2
    for each in both:
        each.assert_clean()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("queue_packets = 64", "queue_packets = 64\nloss = 0.1", "netem"),
        ('name = "small"', 'name = "small"\ntarget = "tofino"', "does not run in an emulation"),
        ('name = "small"', 'name = "small"\ncongestion_control = "nope"', "this kernel has no 'nope'"),
        ("[topology]", "[network]\ncongestion_control = 'nope'\n[topology]", "[network], congestion_control"),
        ("spines = 2", "spines = 1", "1 uplinks"),
    ],
)
def test_what_cannot_be_emulated_is_told_before_anything_is_made(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    if told == "netem" and has_netem():
        pytest.skip("this kernel has netem")
    file = tmp_path / "impossible.toml"
    file.write_text(EXPERIMENT.format(iterations=1).replace(old, new))
    before = set(RECORDS.glob("run-*"))
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", "run", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert told in done.stderr
    assert "bringing up" not in done.stderr
    assert set(RECORDS.glob("run-*")) <= before


def test_bad_input_is_status_2_and_makes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(EXPERIMENT.format(iterations=1).replace("leaves = 2", "leafs = 2"))
    before = set(RECORDS.glob("run-*"))
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", "run", str(file), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "did you mean leaves?" in json.loads(done.stdout)["error"]
    assert set(RECORDS.glob("run-*")) <= before
