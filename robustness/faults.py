"""Kill processes of every kind at random moments, and count what should never be.

Two kinds of places. In a cluster of `robustness.vclos_faults`, where the jobs `near` and `wide` iterate and a
job `third` comes and goes: a switch, the controller, the optical circuit switch, an agent, a rank and the
process that starts ranks (the coordinator). And by themselves: the daemon of `entrain up`, and `entrain run`
on a cluster experiment with circuits, or one of its processes.

After each kill what was killed is started again, or the next start cleans up. Counted are

- `leftovers`: processes, records and what records name, that are there afterwards;
- `stalls`: kills after which an iteration of a job that does not need what was killed took longer, by more
  than a slot, than each one while nothing was killed;
- `lost`: reservations that are gone, not what the caller was told, leaked, or without their table entries;
- `silent`: exit statuses of 0 though something was lost.

A machine delays iterations by itself, and the longest of many is longer than that of few. So after each kill
in the cluster `third` comes and goes likewise for as long, without a kill. `delayed` counts iterations that
took longer than the median one by more than a slot, at most one per job and kill, and `delayed_without_kill`
the same for the times without a kill.

Kills are drawn from a seed; what they meet depends on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from controlplane.api_pb2 import CancelRequest, JobRequest, ListCircuitsRequest, ListJobsRequest
from controlplane.client import NETWORKS
from machine import origin
from machine.errors import EntrainError
from machine.process import Child, give_way, launch
from machine.record import RECORDS, clean_stale, process_start, records
from mininet_topos.agents import agent_command
from robustness.vclos_faults import OTHERS, Cluster, cluster, iterations
from workloads.jobs import JobSpec

SLOT_S = 0.06
THIRD = 8
"""GPUs of the job that comes and goes."""
WAIT_S = 60.0
GONE_S = 10.0
"""How long a process may take to notice that its parent was killed."""
TOKEN = "ENTRAIN_FAULTS"
"""An environment variable that marks all processes of a kill."""

NETWORK = """
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
[cluster]
gpus_per_server = 1
strategy = "vclos"
"""

EXPERIMENT = """
[experiment]
name = "killed"
alone_iterations = 1
timeout_s = 60
[cluster]
leaves = 2
spines = 2
servers_per_leaf = 2
gpus_per_server = 1
links_per_pair = 1
strategy = "ocs-vclos"
rate_mbps = 100
scale = 1000
[arrivals]
jobs = 3
every_s = 0.5
gpus = [2, 4]
duration_s = [1, 2]
models = ["resnet50"]
collectives = ["ring"]
"""


@dataclass(frozen=True)
class Longest:
    """A job's longest iteration after a kill, or in as much time without one."""

    kill: str
    job: str
    killed: bool
    seconds: float
    median_s: float

    @property
    def line(self) -> str:
        """What is said of it."""
        when = "" if self.killed else " without a kill"
        return f"{self.kill}: {self.job} took {self.seconds:.3f} s{when}, in the median {self.median_s:.3f} s"


@dataclass
class Counts:
    """What is counted, each with a line about it."""

    kills: Counter[str] = field(default_factory=Counter)
    longest: list[Longest] = field(default_factory=list)
    lines: dict[str, list[str]] = field(
        default_factory=lambda: {"leftovers": [], "stalls": [], "lost": [], "silent": []}
    )

    def add(self, key: str, kind: str, what: str) -> None:
        """Count something that should not be."""
        self.lines[key].append(f"{self._kill(kind)}: {what}")

    def took(self, kind: str, job: str, killed: bool, seconds: float, median_s: float) -> None:
        """Note a job's longest iteration."""
        self.longest.append(Longest(self._kill(kind), job, killed, seconds, median_s))

    def _kill(self, kind: str) -> str:
        return f"kill {self.kills.total()} ({kind})"

    def found(self) -> dict[str, list[str]]:
        """Return what should not be, with the iterations that only the kills can have made longer."""
        calm: dict[str, float] = {}
        for each in self.longest:
            if not each.killed:
                calm[each.job] = max(each.seconds, calm.get(each.job, 0.0))
        stalls = [
            each.line for each in self.longest if each.killed and each.seconds > calm[each.job] + SLOT_S
        ]
        return {**self.lines, "stalls": self.lines["stalls"] + stalls}

    def delayed(self, killed: bool) -> list[str]:
        """Return a line about each iteration that took longer than the median one by more than a slot."""
        return [
            each.line
            for each in self.longest
            if each.killed == killed and each.seconds > each.median_s + SLOT_S
        ]


# -- in a cluster


class Struck:
    """A running cluster, and what must hold after each kill."""

    def __init__(self, running: Cluster, rng: random.Random, counts: Counts, calm_s: float) -> None:
        self.running = running
        self.rng = rng
        self.counts = counts
        self.specs: dict[str, JobSpec] = {}
        for name, gpus in OTHERS.items():
            running.submit(name, gpus)
            running.running(name)
            self.specs[name] = running.start_ranks(name)[0]
        give_way()  # with all that is started from now on: in a cluster it has machines of its own
        self.held = {name: self._job(name).placement for name in OTHERS}
        self.began = time.monotonic_ns()
        time.sleep(calm_s)
        running.until(lambda: all(self._seconds(name, self.began) for name in OTHERS), "iterations")
        for name in OTHERS:
            self._took("before", name, False, self.began)

    def _job(self, name: str) -> Any:
        jobs = self.running.ask("ListJobs", ListJobsRequest()).jobs
        return next((job for job in jobs if job.name == name), None)

    def _seconds(self, name: str, since_ns: int) -> list[float]:
        """Return how long each iteration took that ended after `since_ns`, in s."""
        return [(end - begin) / 1e9 for begin, end in iterations(self.specs[name]) if end > since_ns]

    def _took(self, kind: str, name: str, killed: bool, since_ns: int) -> None:
        longest = max(self._seconds(name, since_ns), default=0.0)
        self.counts.took(kind, name, killed, longest, statistics.median(self._seconds(name, self.began)))

    def strike(self, kind: str) -> None:
        """Kill once, at a random moment of `third`'s life, start anew, and count."""
        moment = self.rng.choice(("idle", "admitting", "running", "leaving"))
        told: list[str] = []
        if moment in ("running", "leaving") or kind in ("worker", "coordinator"):
            self.running.submit("third", THIRD)
            self.running.running("third")
        began = time.monotonic_ns()
        concerned = KINDS_IN_CLUSTER[kind](self, moment, told)
        self._settle(kind, told)
        others = OTHERS.keys() - concerned
        self._go_on(kind, others, True, began)
        self._without(kind, moment, others, time.monotonic_ns() - began)

    def _without(self, kind: str, moment: str, others: Collection[str], lasting_ns: int) -> None:
        """Let `third` come and go likewise, without a kill, for as long."""
        if moment in ("running", "leaving"):
            self.running.submit("third", THIRD)
            self.running.running("third")
        began = time.monotonic_ns()
        told: list[str] = []
        self.meanwhile(moment, told, lambda: None)
        self._settle(f"after {kind}", told)
        time.sleep(max(0, began + lasting_ns - time.monotonic_ns()) / 1e9)
        self._go_on(kind, others, False, began)

    def _go_on(self, kind: str, jobs: Collection[str], killed: bool, since_ns: int) -> None:
        """Make sure that each of the jobs goes on, and note its longest iteration since then."""
        for name in jobs:
            if not self._goes_on(name):
                self.counts.add("stalls", kind, f"{name} does not go on")
            self._took(kind, name, killed, since_ns)

    def _goes_on(self, name: str) -> bool:
        had = len(iterations(self.specs[name]))
        with contextlib.suppress(EntrainError):
            self.running.until(lambda: len(iterations(self.specs[name])) > had + 1, f"{name} to iterate")
            return True
        return False

    def meanwhile(self, moment: str, told: list[str], kill: Callable[[], None]) -> None:
        """Let `third` come or go while `kill` strikes; `told` gets what its caller was told."""

        def ask(method: str, request: Any) -> None:
            try:
                told.append(f"{method} {self.running.ask(method, request).phase}")
            except EntrainError:
                told.append(f"{method} failed")

        asking = None
        if moment == "admitting":
            request: tuple[str, Any] = ("Submit", JobRequest(name="third", gpus=THIRD))
            asking = threading.Thread(target=ask, args=request)
        elif moment == "leaving":
            asking = threading.Thread(target=ask, args=("Cancel", CancelRequest(name="third")))
        if asking is not None:
            asking.start()
        time.sleep(self.rng.uniform(0.0, 0.1))
        kill()
        if asking is not None:
            asking.join()

    def _settle(self, kind: str, told: Sequence[str]) -> None:
        """Wait until nothing is half done, compare with what was told, and release `third`."""
        running, counts = self.running, self.counts
        try:
            running.until(lambda: {*running.phases().values()} <= {"running"}, "jobs to be admitted")
        except EntrainError as error:
            counts.add("lost", kind, str(error).splitlines()[0] + f" {running.phases()}")
        listed = running.ask("ListJobs", ListJobsRequest())
        jobs = {job.name: job for job in listed.jobs}
        for name, held in self.held.items():
            if name not in jobs or jobs[name].placement != held:
                counts.add("lost", kind, f"{name} no longer has what it had")
        if (
            any(each.startswith("Submit ") and not each.endswith("failed") for each in told)
            and "third" not in jobs
        ):
            counts.add("lost", kind, f"third is not there, and its caller was told {told}")
        if any(each in ("Cancel cancelled", "Cancel leaving") for each in told) and "third" in jobs:
            counts.add("lost", kind, f"third is {jobs['third'].phase}, and its caller was told {told}")
        if listed.free_gpus != listed.gpus - sum(len(job.placement.gpus) for job in listed.jobs):
            counts.add("lost", kind, f"{listed.free_gpus} GPUs are free, with {sorted(jobs)}")
        owners = {
            each.job for each in running.ask("ListCircuits", ListCircuitsRequest()).circuits if each.job
        }
        if not owners <= jobs.keys():
            counts.add("lost", kind, f"circuits of {owners - jobs.keys()}, who are gone")
        if wrong := self._wrong_entries():
            counts.add("lost", kind, f"{wrong} table entries are not those of the jobs")
        running.cancel("third")

    def _wrong_entries(self) -> int:
        """Ask as soon as all switches are connected again."""
        found: list[int] = []

        def asked() -> bool:
            found.append(self.running.wrong_entries())
            return True

        self.running.until(asked, "all switches to be ready")
        return found[0]

    # -- the kinds

    def controller(self, moment: str, told: list[str]) -> set[str]:
        """Kill the controller."""
        child = self.running.controller
        assert child is not None
        self.meanwhile(moment, told, lambda: _kill(child.process.pid))
        child.process.wait()
        self.running.start_controller()
        self._no_stale_record("controller", child.process.pid)
        return set()

    def ocs(self, moment: str, told: list[str]) -> set[str]:
        """Kill the optical circuit switch."""
        child = self.running.ocs
        assert child is not None
        self.meanwhile(moment, told, lambda: _kill(child.process.pid))
        child.process.wait()
        self.running.start_ocs()
        return set()

    def switch(self, moment: str, told: list[str]) -> set[str]:
        """Kill a switch."""
        name = self.rng.choice(sorted(self.running.network.switches))
        pid = self.running.network.switches[name].process_id
        assert pid is not None
        self.meanwhile(moment, told, lambda: _kill(pid))
        self.running.start_switch(name)
        return {job for job, held in self.held.items() if name in (*held.leaf_names, *held.spine_names)}

    def agent(self, moment: str, told: list[str]) -> set[str]:
        """Kill the agent of a host that neither measured job has."""
        running = self.running
        host = running.network.topology.hosts[-1 - self.rng.randrange(2)]
        address = f"unix:{running.directory}/agent.sock"
        command = agent_command(running.network, host, address, 60.0)

        def start() -> Child:
            child = launch(
                running.record, "the agent", command, log=running.directory / "agent.log", tells=True
            )
            child.wait_ready(WAIT_S)
            return child

        first = start()
        self.meanwhile(moment, told, lambda: _kill(first.process.pid))
        first.end()
        start().end()
        self._no_stale_record("agent", first.process.pid)
        return set()

    def worker(self, moment: str, told: list[str]) -> set[str]:
        """Kill a rank of `third`, or the process that has started its ranks."""
        return self._ranks("worker")

    def coordinator(self, moment: str, told: list[str]) -> set[str]:
        """Kill the process that has started the ranks of `third`."""
        return self._ranks("coordinator")

    def _ranks(self, kind: str) -> set[str]:
        _, child = self.running.start_ranks("third")
        parent = child.process.pid
        children = [int(each) for each in _children(parent)]
        started = {pid: process_start(pid) for pid in children}
        time.sleep(self.rng.uniform(0.0, 0.5))
        _kill(parent if kind == "coordinator" else self.rng.choice(children))
        try:
            status = child.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            status = 0
        if status == 0:
            self.counts.add("silent", kind, "the job of a dead rank goes on, or ended with status 0")
        for pid in outlive(started):
            self.counts.add("leftovers", kind, f"rank {pid} goes on")
        child.end()
        with contextlib.suppress(OSError):
            for path in self.running.directory.glob("records/third*"):
                path.unlink()
        return set()

    def _no_stale_record(self, kind: str, pid: int) -> None:
        for path, owner, owned, alive in records():
            if not alive and owner.name == str(pid):
                self.counts.add("leftovers", kind, f"{path} names {len(owned)} resources")


KINDS_IN_CLUSTER: dict[str, Callable[[Struck, str, list[str]], set[str]]] = {
    "switch": Struck.switch,
    "agent": Struck.agent,
    "controller": Struck.controller,
    "worker": Struck.worker,
    "ocs": Struck.ocs,
    "coordinator": Struck.coordinator,
}


# -- by themselves


def up(rng: random.Random, counts: Counts, directory: Path) -> None:
    """Kill the daemon of `entrain up`, while it starts or while it admits a job."""
    name = f"fu{os.getpid() % 10000}"
    file, job = directory / f"{name}.toml", directory / "job.toml"
    file.write_text(NETWORK, encoding="utf-8")
    job.write_text("[job]\ngpus = 2\n", encoding="utf-8")
    with marked() as (token, environment):
        command = [sys.executable, "-m", "entrain.cli", "up", str(file)]
        starting = rng.random() < 0.5
        parent = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if starting:
            _await(lambda: bool(_daemon(token)) or parent.poll() is not None)
            time.sleep(rng.uniform(0.0, 3.0))
        elif parent.wait(WAIT_S) != 0:
            counts.add("lost", "up", "a network did not come up")
            return
        submit = [sys.executable, "-m", "entrain.cli", "submit", str(job), "--watch", "--network", name]
        client = (
            None if starting else subprocess.Popen(submit, env=environment, stdout=subprocess.PIPE, text=True)
        )
        if client is not None:
            time.sleep(rng.uniform(0.0, 1.5))
        was_ready = parent.poll() == 0
        killed = _daemon(token)
        for pid in killed:
            _kill(pid)
        _await(lambda: not any(map(process_start, killed)))  # on a busy machine that takes a while
        if parent.wait(WAIT_S) == 0 and not was_ready and not (NETWORKS / name / "api.sock").exists():
            counts.add("silent", "up", "`entrain up` ended with status 0 without a network")
        if client is not None:
            said, _ = client.communicate(timeout=WAIT_S)
            if client.returncode == 0 and "ready" not in said:
                counts.add(
                    "silent", "up", "`entrain submit --watch` ended with status 0 before its job was ready"
                )
        _clean(token, "up", counts, [NETWORKS / name])


def run(rng: random.Random, counts: Counts, directory: Path) -> None:
    """Kill `entrain run`, or one of its processes."""
    file, out = directory / "killed.toml", directory / f"out-{counts.kills.total()}"
    file.write_text(EXPERIMENT, encoding="utf-8")
    with marked() as (token, environment):
        command = [sys.executable, "-m", "entrain.cli", "run", str(file), "--out", str(out)]
        started = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        time.sleep(rng.uniform(0.0, 15.0))
        others = [pid for pid in carrying(token) if pid != started.pid]
        target = started.pid if rng.random() < 0.5 or not others else rng.choice(sorted(others))
        killed = started.poll() is None and process_start(target) is not None
        _kill(target)
        try:
            _, said = started.communicate(timeout=3 * WAIT_S)
        except subprocess.TimeoutExpired:
            counts.add("stalls", "run", "`entrain run` neither ends nor says what it has lost")
            _kill(started.pid)
            _, said = started.communicate()
        whole = (out / "results.json").exists()
        if killed and started.returncode == 0 and not whole:
            counts.add("silent", "run", "`entrain run` ended with status 0 without results")
        if started.returncode not in (0, -signal.SIGKILL) and not said:
            counts.add(
                "silent", "run", f"`entrain run` ended with status {started.returncode} and said nothing"
            )
        _clean(token, "run", counts, [])


KINDS_ALONE: dict[str, Callable[[random.Random, Counts, Path], None]] = {"up": up, "run": run}


@contextlib.contextmanager
def marked() -> Iterator[tuple[str, dict[str, str]]]:
    """Within, processes with this environment can be told from all others by their token."""
    token = secrets.token_hex(8)
    try:
        yield token, {**os.environ, TOKEN: token}
    finally:
        for pid in carrying(token):
            _kill(pid)


def carrying(token: str) -> list[int]:
    """Return the processes that have the token."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{TOKEN}={token}".encode() in path.read_bytes() and process_start(int(path.parent.name)):
                found.append(int(path.parent.name))
    return found


def _daemon(token: str) -> list[int]:
    return [pid for pid in carrying(token) if "entrain.run.daemon" in command_of(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _await(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def outlive(started: dict[int, str | None]) -> list[int]:
    """Return the processes of those that are there even after a while."""

    def left() -> list[int]:
        return [pid for pid, start in started.items() if start is not None and process_start(pid) == start]

    _await(lambda: not left(), GONE_S)
    return left()


def _clean(token: str, kind: str, counts: Counts, paths: Sequence[Path]) -> None:
    """Do what the next start does, and count what is left.

    The kernel takes a process's environment, by which we know it, a moment before its locks, by which others
    know that it lives. So it may need a few next starts.
    """
    named = [each for _, _, owned, alive in records() if not alive for each in owned if each.kind == "netns"]
    clean_stale()
    for pid in outlive({pid: process_start(pid) for pid in carrying(token)}):
        counts.add("leftovers", kind, f"process {pid}: {command_of(pid)!r}")

    def dead() -> list[tuple[Path, int]]:
        clean_stale()
        return [(path, len(owned)) for path, _, owned, alive in records() if not alive]

    _await(lambda: not dead(), GONE_S)
    for path in (*paths, *(Path("/run/netns") / each.name for each in named)):
        if path.exists():
            counts.add("leftovers", kind, f"{path}")
    for path, number in dead():
        counts.add("leftovers", kind, f"{path} names {number} resources")


# -- the campaign


def campaign(
    kinds: Sequence[str], kills: int, seed: int, calm_s: float, tell: Callable[[str], None]
) -> Counts:
    """Kill `kills` times, as often each kind, after `calm_s` seconds without; return what was counted."""
    rng, counts = random.Random(seed), Counts()
    drawn = [kinds[number % len(kinds)] for number in range(kills)]
    rng.shuffle(drawn)
    inside = [kind for kind in drawn if kind in KINDS_IN_CLUSTER]

    def note(kind: str) -> None:
        counts.kills[kind] += 1
        tell(f"kill {counts.kills.total()} of {kills}: {kind}")

    if inside:
        with cluster() as running:
            struck = Struck(running, rng, counts, calm_s)
            for kind in inside:
                note(kind)
                struck.strike(kind)
    with tempfile.TemporaryDirectory() as scratch:
        for kind in drawn:
            if kind in KINDS_ALONE:
                note(kind)
                KINDS_ALONE[kind](rng, counts, Path(scratch))
    return counts


def show(tried: dict[str, int], found: dict[str, list[str]], details: dict[str, Any] | None) -> None:
    """Print what was tried, and how often each kind of thing was found, with a line about each; as JSON if
    there are `details`."""
    figures = tried | {key: len(lines) for key, lines in found.items()}
    if details is not None:
        print(json.dumps({**figures, **details, "what": found, "origin": asdict(origin.here())}))
        return
    print(", ".join(f"{key} {value}" for key, value in figures.items()))
    for lines in found.values():
        print("\n".join(lines), end="\n" if lines else "")


def main(argv: Sequence[str]) -> None:
    """Run the campaign and print what was counted. The exit status is 1 if something was."""
    parser = argparse.ArgumentParser(prog="python -m robustness faults", description=__doc__)
    every = [*KINDS_IN_CLUSTER, *KINDS_ALONE]
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kills", type=int, default=200, help="how many (200)")
    parser.add_argument("--kinds", nargs="*", choices=every, default=every, help="which (all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", type=float, default=5.0, help="seconds before the first kill (5)")
    options = parser.parse_args(argv)
    clean_stale(RECORDS)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    counts = campaign(options.kinds, options.kills, options.seed, options.calm, tell)
    details = {"by_kind": dict(counts.kills), "seed": options.seed, "load_average": os.getloadavg()[0]}
    wrong = counts.found()
    delayed = {"delayed": counts.delayed(killed=True), "delayed_without_kill": counts.delayed(killed=False)}
    show({"kills": counts.kills.total()}, wrong | delayed, details if options.json else None)
    if any(wrong.values()):
        raise EntrainError("something was lost, left, silent or stalled")
