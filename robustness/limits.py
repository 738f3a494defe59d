"""Let commands and services run out of disk, open files and memory, and look what they say and leave.

Each case starts one of these under one limit:

- `run`: `entrain run` of two runs; `disk` is where `--out` is, `scratch` where its records and logs are;
- `up`: `entrain up`; `scratch` is where its records and state are;
- `controller`: the controller of a network that is up, whose disk fills while jobs come (`disk`);
- `agent`: `entrain-agent` on an interface of its own;
- `switch`: softswitch with the fabric's program.

`files` is RLIMIT_NOFILE, `memory` RLIMIT_AS in MiB; `disk` and `scratch` are file systems of so many KiB. A
case that does its work in spite of the limit is `done`; the others are `refused`. Counted are

- `unnamed`: ends without a word about the limit and a remedy, or with a traceback;
- `leftovers`: processes, namespaces and records that are there at the end, before anybody cleans up;
- `lost`: results or jobs that were kept before and are gone, or cannot be read; commands that do not do their
  work when there is room again;
- `silent`: status 0 without the work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from entrain.results import files as result_files
from entrain.results import store
from machine.errors import EntrainError
from machine.packages import run_module
from machine.record import RECORDS, Record, Resource, clean_stale, process_start, records
from p4src.compile import BUILD
from robustness.faults import NETWORK, carrying, command_of, marked, outlive, show

KINDS: dict[str, dict[str, tuple[int, ...]]] = {
    "run": {
        "disk": (4, 16, 64, 1024),
        "scratch": (4, 8, 16, 64, 256),
        "files": (12, 24, 48, 64),
        "memory": (256, 512, 1024),
    },
    "up": {"scratch": (4, 8, 16, 64, 256), "files": (12, 24, 48, 64), "memory": (256, 512, 1024)},
    "controller": {"disk": (0, 4, 16)},
    "agent": {"files": (12, 24, 48, 64, 256), "memory": (128, 256, 512, 1024, 2048)},
    "switch": {"files": (12, 24, 48, 64), "memory": (128, 256, 512, 1024)},
}
"""Levels of each limit. For the controller, `disk` is what is left when it fills."""
TIMEOUT_S = 120.0
NAMES = {
    "disk": ("No space left", "disk is full", "make room"),
    "scratch": ("No space left", "disk is full", "make room"),
    "files": ("Too many open files", "open files"),
    "memory": (
        "Cannot allocate memory",
        "out of memory",
        "limit of memory",
        "limits of threads and memory",
    ),
}
"""What names a limit."""
REMEDIES = ("make room", "raise", "ulimit")
LIBRARIES = ("OpenBLAS error: Memory allocation", "LLVM ERROR: out of memory", "std::bad_alloc")
"""With these words, libraries in C end a process; no remedy of ours can stand there."""

EXPERIMENT = """
[experiment]
name = "limited"
seed = [1, 2]
timeout_s = 60
[topology]
kind = "dumbbell"
hosts_per_side = 1
[[job]]
name = "one"
hosts = ["h1", "h2"]
collective = "ring"
bytes = 100_000
compute_ms = 5
iterations = 3
"""


@dataclass
class Counts:
    """What is counted, each with a line about it."""

    ended: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[str]] = field(
        default_factory=lambda: {"unnamed": [], "leftovers": [], "lost": [], "silent": []}
    )


@dataclass(frozen=True)
class Case:
    """One process under one limit, in a scratch directory; what is found goes to `counts`."""

    kind: str
    limit: str
    level: int
    directory: Path
    token: str
    environment: dict[str, str]
    counts: Counts

    def add(self, key: str, what: str) -> None:
        """Count something that should not be."""
        self.counts.found[key].append(f"{self.kind}, {self.limit} {self.level}: {what}")

    def limited(self, command: Sequence[str]) -> list[str]:
        """Return the command with its limit, if that is one of a process."""
        if self.limit == "files":
            return ["prlimit", f"--nofile={self.level}:{self.level}", *command]
        if self.limit == "memory":
            return ["prlimit", f"--as={self.level << 20}", *command]
        return list(command)

    def judge(self, status: int, said: str, *, worked: bool) -> bool:
        """Count how a command has ended; return whether it did its work."""
        if status == 0:
            if not worked:
                self.add("silent", f"status 0 without its work: {_end(said)}")
        elif "Traceback" in said or not _names(self.limit, said):
            self.add("unnamed", f"status {status}: {_end(said)}")
        done = status == 0 and worked
        self.counts.ended["done" if done else "refused"] += 1
        return done

    def nothing_left(self, root: Path = RECORDS) -> None:
        """Count what is left of processes, namespaces and records in `root`."""
        for pid in outlive({pid: process_start(pid) for pid in carrying(self.token)}):
            self.add("leftovers", f"process {pid}: {command_of(pid)!r}")
        for path, _, owned, alive in records(root):
            if not alive:
                self.add("leftovers", f"{path} names {[each.name for each in owned]}")
        clean_stale(root)
        if root != RECORDS:  # nobody else's
            for path in root.rglob("*"):
                if not path.is_dir() and path.suffix != ".lock" and path.name != ".lock":
                    self.add("leftovers", f"{path}")


def _names(limit: str, said: str) -> bool:
    if limit == "memory" and any(each in said for each in LIBRARIES):
        return True
    return any(each in said for each in NAMES[limit]) and any(each in said for each in REMEDIES)


def _end(said: str) -> str:
    return said.strip()[-600:]


@contextlib.contextmanager
def small_disk(path: Path, kib: int) -> Iterator[Path]:
    """Within, `path` is a file system of its own with so many KiB."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=0755", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def _entrain(*arguments: str | Path) -> list[str]:
    return [*run_module("entrain.cli"), *map(str, arguments)]


def _call(case: Case, command: Sequence[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command; return its status and what it said. One that does not end counts as killed."""
    with subprocess.Popen(
        command,
        env=environment or case.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            said, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            return -signal.SIGKILL, f"{said}\n(did not end)"
        return process.returncode, said


# -- the kinds


def run(case: Case) -> None:
    """Run an experiment. What it kept can be read, and the rest is run when there is room."""
    file, out, root = case.directory / "limited.toml", case.directory / "out", RECORDS
    file.write_text(EXPERIMENT, encoding="utf-8")
    environment = dict(case.environment)
    with contextlib.ExitStack() as stack:
        if case.limit == "disk":
            stack.enter_context(small_disk(out, case.level))
        elif case.limit == "scratch":
            root = stack.enter_context(small_disk(case.directory / "records", case.level))
            environment["ENTRAIN_RUN"] = str(root)
        command = _entrain("run", file, "--out", out)
        status, said = _call(case, case.limited(command), environment)
        kept = sorted((out / "runs").glob("[0-9]*.json"))
        done = case.judge(status, said, worked=len(kept) == 2 and (out / "results.json").exists())
        case.nothing_left(root)
        if done:
            return
        if case.limit in ("disk", "scratch"):
            disk = out if case.limit == "disk" else root
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        before = [path.read_bytes() for path in kept]
        status, said = _call(case, [*command, "--resume"], environment)
        after = sorted((out / "runs").glob("[0-9]*.json"))
        if status or len(after) != 2:
            case.add("lost", f"--resume with room ended with status {status}: {_end(said)}")
        elif [path.read_bytes() for path in after[: len(before)]] != before:
            case.add("lost", "runs that were kept have changed")
        elif len(store.read(result_files.NETWORK, out).runs) != 2:
            case.add("lost", "the results cannot be read")
        case.nothing_left(root)


def up(case: Case) -> None:
    """Bring a network up, and take it down."""
    name = f"li{os.getpid() % 10000}"
    file, root = case.directory / f"{name}.toml", RECORDS
    file.write_text(NETWORK, encoding="utf-8")
    environment = dict(case.environment)
    with contextlib.ExitStack() as stack:
        if case.limit == "scratch":
            root = stack.enter_context(small_disk(case.directory / "records", case.level))
            environment["ENTRAIN_RUN"] = str(root)
        status, said = _call(case, case.limited(_entrain("up", file)), environment)
        works = False
        if status == 0:
            _, listed = _call(case, _entrain("jobs", "--network", name, "--json"), environment)
            works = '"jobs"' in listed
            down, told = _call(case, _entrain("down", "--network", name), environment)
            if down:
                case.add("lost", f"`entrain down` ended with status {down}: {_end(told)}")
        case.judge(status, said, worked=works)
        case.nothing_left(root)


def controller(case: Case) -> None:
    """Fill the disk of a network's controller, submit a job, and make room again."""
    name = f"li{os.getpid() % 10000}"
    file, job = case.directory / f"{name}.toml", case.directory / "job.toml"
    file.write_text(NETWORK, encoding="utf-8")
    job.write_text("[job]\ngpus = 2\n", encoding="utf-8")
    with small_disk(case.directory / "records", 16 * 1024) as root:
        environment = {**case.environment, "ENTRAIN_RUN": str(root)}
        network = ("--network", name)

        def ask(*arguments: str | Path) -> tuple[int, str]:
            return _call(case, _entrain(*arguments, *network), environment)

        def jobs() -> dict[str, str]:
            status, said = ask("jobs", "--json")
            if status:
                raise EntrainError(f"the controller does not answer: {said}")
            return {each["name"]: each["phase"] for each in json.loads(said)["jobs"]}

        status, said = _call(case, _entrain("up", file), environment)
        if status:
            raise EntrainError(f"a network did not come up: {said}")
        try:
            status, said = ask("submit", job, "--name", "before", "--watch")
            if status:
                raise EntrainError(f"a job was not admitted: {said}")
            filler = root / "filler"
            _fill(filler, case.level << 10)
            status, said = ask("submit", job, "--name", "meanwhile")
            case.judge(status, said, worked="meanwhile" in jobs())
            if (phase := jobs().get("before")) != "running":
                case.add("lost", f"the job of before is {phase}")
            filler.unlink()
            if status:
                if "meanwhile" in jobs():
                    case.add("lost", "a job was refused, and is there")
                status, said = ask("submit", job, "--name", "meanwhile")
            deadline = time.monotonic() + TIMEOUT_S
            while jobs().get("meanwhile") != "running" and time.monotonic() < deadline:
                time.sleep(0.2)
            if jobs() != {"before": "running", "meanwhile": "running"}:
                case.add("lost", f"with room again, jobs are {jobs()}: {_end(said)}")
            status, said = ask("cancel", "before")
            if status:
                case.add("lost", f"with room again, a job cannot be cancelled: {_end(said)}")
        finally:
            status, said = ask("down")
            if status:
                case.add("lost", f"`entrain down` ended with status {status}: {_end(said)}")
        case.nothing_left(root)


def _fill(path: Path, leave: int) -> None:
    """Fill the disk with one file, but for `leave` bytes."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    with path.open("r+b") as file:
        file.truncate(max(path.stat().st_size - leave, 0))


def agent(case: Case) -> None:
    """Start an agent."""
    with Record("limits") as record:
        name = f"limits{os.getpid()}"
        record.own(Resource("netns", name))
        for line in (f"netns add {name}", f"-n {name} link add eth0 type veth peer name eth1"):
            subprocess.run(["ip", *line.split()], check=True)
        for line in ("link set lo up", "addr add 10.9.9.1/24 dev eth0", "link set eth0 up"):
            subprocess.run(["ip", "-n", name, *line.split()], check=True)
        options = ["--interface", "eth0", "--netns", name, "--listen", f"unix:{case.directory}/agent.sock"]
        _serve(case, [*run_module("hostbpf"), *options])


def switch(case: Case) -> None:
    """Start a switch with its program."""
    with Record("limits") as record:
        name = f"li{os.getpid() % 10**8}"
        record.own(Resource("link", name))
        subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"], check=True)
        options = ["--grpc-server-addr", f"unix:{case.directory}/switch.sock", "-i", f"1@{name}"]
        _serve(case, [*run_module("softswitch"), *options, str(BUILD / "fabric.json")])


def _serve(case: Case, command: Sequence[str]) -> None:
    """Start a service, and end it as soon as it is ready. Then it must end with status 0."""
    log = case.directory / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            case.limited(command), env=case.environment, stdout=subprocess.PIPE, stderr=sink
        )
    assert process.stdout is not None
    first = process.stdout.readline()
    if ready := first.startswith(b"ready"):
        process.terminate()
    try:
        rest, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        rest, _ = process.communicate()
    said = (first + rest + log.read_bytes()).decode(errors="replace")
    case.judge(process.returncode, said, worked=ready)
    case.nothing_left()


DO: dict[str, Callable[[Case], None]] = {
    "run": run,
    "up": up,
    "controller": controller,
    "agent": agent,
    "switch": switch,
}


# -- the campaign


def campaign(cases: Sequence[tuple[str, str, int]], tell: Callable[[str], None]) -> Counts:
    """Run each case: a kind, a limit and its level; return what was counted."""
    counts = Counts()
    for number, (kind, limit, level) in enumerate(cases, 1):
        tell(f"case {number} of {len(cases)}: {kind}, {limit} {level}")
        with tempfile.TemporaryDirectory() as scratch, marked() as (token, environment):
            DO[kind](Case(kind, limit, level, Path(scratch), token, environment, counts))
    return counts


def main(argv: Sequence[str]) -> None:
    """Run the campaign and print what was counted. The exit status is 1 if something was."""
    parser = argparse.ArgumentParser(prog="python -m robustness limits", description=__doc__)
    every = sorted({limit for limits in KINDS.values() for limit in limits})
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="which (all)")
    parser.add_argument("--limits", nargs="*", choices=every, default=every, help="which (all)")
    parser.add_argument("--levels", nargs="*", type=int, help="these, instead of all of a limit")
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        raise EntrainError("small disks and networks need root; run as root")
    clean_stale()
    cases = [
        (kind, limit, level)
        for kind in options.kinds
        for limit, levels in KINDS[kind].items()
        if limit in options.limits
        for level in options.levels or levels
    ]
    counts = campaign(cases, lambda line: print(line, file=sys.stderr, flush=True))
    show({"cases": len(cases), **counts.ended}, counts.found, {} if options.json else None)
    if any(counts.found.values()):
        raise EntrainError("a limit was not named, or something was lost or left")
