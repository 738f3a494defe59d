"""Who owns what on this machine.

A *record* is a journal, one file per run, that names every namespace, interface, process, BPF pin and path
that the run makes, written *before* the thing is made. Closing the record removes them in reverse order. A
record whose owner is dead is stale: the next start, or `entrain clean`, removes what it names. Nothing is
ever found by name pattern.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from machine.errors import EntrainError

RECORDS = Path("/run/entrain")

Kind = Literal["netns", "link", "qdisc", "process", "path"]


@dataclass(frozen=True)
class Resource:
    """One thing on the machine.

    `name` is the namespace's or interface's name, the process id, or the path. `netns` is the named namespace
    that a link or qdisc lives in (empty: the one in which it was written down). `detail` is a process's start
    time in clock ticks, so that a reused id is never killed, or a qdisc's parent (`clsact`, `root`, or
    `root handle 8001:` where another one may be in its place).
    """

    kind: Kind
    name: str
    netns: str = ""
    detail: str = ""


def process_start(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot, or None when it does not run (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def process(pid: int) -> Resource:
    """The resource that stands for a running process."""
    return Resource("process", str(pid), detail=process_start(pid) or "")


def _namespace() -> int:
    """Identifies the present network namespace."""
    return Path("/proc/thread-self/ns/net").stat().st_ino


def _entering(namespace: int) -> list[str] | None:
    """What to put before a command so that it runs in `namespace`; None where nobody is in it any more."""
    if namespace == _namespace():
        return []
    for path in (*Path("/run/netns").glob("*"), *Path("/proc").glob("[0-9]*/ns/net")):
        with contextlib.suppress(OSError):
            if path.stat().st_ino == namespace:
                return ["nsenter", f"--net={path}"]
    return None


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=False)


def _end_process(resource: Resource, grace_s: float = 3.0) -> None:
    pid = int(resource.name)

    def runs() -> bool:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return process_start(pid) == resource.detail

    for sig in (signal.SIGTERM, signal.SIGKILL):
        if not runs():
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)
        deadline = time.monotonic() + grace_s
        while runs() and time.monotonic() < deadline:
            time.sleep(0.01)


def remove(resource: Resource, namespace: int | None = None) -> None:
    """Remove one resource; it is not an error that it is already gone.

    `namespace` is the network namespace in which a resource without `netns` was made, by default the present
    one. A namespace that cannot be entered any more has taken what was in it along.
    """
    netns = ["-n", resource.netns] if resource.netns else []
    match resource.kind:
        case "process":
            _end_process(resource)
        case "netns":
            _run(["ip", "netns", "del", resource.name])
        case "link" | "qdisc":
            enter = [] if netns or namespace is None else _entering(namespace)
            if enter is None:
                return
            if resource.kind == "link":
                _run([*enter, "ip", *netns, "link", "del", resource.name])
            else:
                _run([*enter, "tc", *netns, "qdisc", "del", "dev", resource.name, *resource.detail.split()])
        case "path":
            path = Path(resource.name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


class Record:
    """The journal of one run. Use it as a context manager; `own` first, then make the thing.

    Several processes of one run may share a record by path (`Record.join`): appends are single writes.
    """

    def __init__(self, name: str, *, records: Path = RECORDS) -> None:
        """Start a record called `name` in `records`; raises EntrainError where that is not writable."""
        self._owner = os.getpid()
        self.path = records / f"{name}-{self._owner}.jsonl"
        try:
            records.mkdir(parents=True, exist_ok=True)
            # Whole from the start: others, who may be cleaning just now, never see it without its owner.
            draft = self.path.with_suffix(".draft")
            draft.write_text(json.dumps({"owner": asdict(process(self._owner)), "name": name}) + "\n")
            draft.rename(self.path)
        except PermissionError as error:
            raise EntrainError(f"cannot write the record {self.path}: run as root") from error

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as journal:
            journal.write(json.dumps(line) + "\n")

    def own(self, resource: Resource) -> Resource:
        """Write down that this run owns `resource`. Call it before making a named thing."""
        self._append({"own": asdict(resource), "namespace": _namespace()})
        return resource

    def release(self, resource: Resource) -> None:
        """Remove `resource` now and strike it from the record."""
        remove(resource)
        self._append({"released": asdict(resource)})

    def close(self) -> None:
        """Remove everything that is still owned, last made first, and then the record itself."""
        _remove_all(self.path)

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(path: Path) -> tuple[Resource, dict[Resource, int]]:
    """The owner, and what is still owned, in the order of making, with the network namespace of each."""
    lines = []
    for text in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the crash may have cut the last line
            lines.append(json.loads(text))
    if not lines or "owner" not in lines[0]:
        return Resource("process", "0", detail="gone"), {}
    owned: dict[Resource, int] = {}
    for line in lines[1:]:
        if "own" in line:
            owned[Resource(**line["own"])] = line.get("namespace", 0)
        else:
            owned.pop(Resource(**line["released"]), None)
    return Resource(**lines[0]["owner"]), owned


def _remove_all(path: Path) -> list[Resource]:
    try:
        _, owned = _read(path)
    except FileNotFoundError:
        return []
    for resource, namespace in reversed(owned.items()):
        remove(resource, namespace)
    path.unlink(missing_ok=True)
    return list(owned)


def records(root: Path = RECORDS) -> Iterator[tuple[Path, Resource, list[Resource], bool]]:
    """Every record: its path, its owner, what it owns, and whether the owner still runs."""
    for path in sorted(root.glob("*.jsonl")) if root.is_dir() else []:
        try:
            owner, owned = _read(path)
        except FileNotFoundError:  # its owner has just closed it
            continue
        yield path, owner, list(owned), process_start(int(owner.name)) == owner.detail


def clean_stale(root: Path = RECORDS) -> list[Resource]:
    """Remove what dead owners left behind; returns what was removed."""
    removed: list[Resource] = []
    for path, _, _, alive in list(records(root)):
        if not alive:
            removed += _remove_all(path)
    return removed
