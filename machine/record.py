"""Records of what each run owns on this machine.

A *record* is a journal, one file per run. It names every namespace, interface, process, BPF pin and path
that the run creates, and is written *before* each is created. Closing the record removes them in reverse
order. A record whose owner is dead is stale: the next start, or `entrain clean`, removes what it names.
Nothing is ever found by name pattern.

An owner keeps its record's file locked while it lives, and the kernel unlocks the file however the owner
ends. So a record is stale if and only if it is not locked. Process ids cannot tell: in a container, which
shares `RECORDS` but has its own PID namespace, they may belong to other processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from machine.errors import EntrainError
from machine.patience import patience
from machine.state import check_owner, locked, own_directory

RECORDS = Path(os.environ.get("ENTRAIN_RUN") or "/run/entrain")
VERSION = 2
"""Version of the record file's format. Records of other versions are left alone."""

GRACE_S = patience(3.0)
"""How long a process may take to end after SIGTERM, and again after SIGKILL."""

SPARE = 12
"""Descriptors that each record keeps for its end: a command with its pipes takes eight."""

SHARED = "shared"

Kind = Literal["netns", "link", "qdisc", "filter", "struct_ops", "sysctl", "process", "path"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resource:
    """One resource on the machine.

    `name` is the namespace's or interface's name, the process id, the path, a system setting's path below
    /proc/sys, or the id of a BPF map that is registered as struct_ops. `netns` is the named namespace of a
    link, qdisc or filter; empty stands for the one in which it was recorded.

    `detail` depends on the kind. For a process it is the start time in clock ticks, so that a reused id is
    never killed. For a qdisc it is the parent: `clsact`, which stays while it has filters, `root`, or
    `root handle 8001:` if another qdisc may take its place. For a path it may be `SHARED`:
    several records own it, and the last of them removes it. For a filter it is its place, such as
    `ingress pref 1`. For a system setting it is the value to restore.
    """

    kind: Kind
    name: str
    netns: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Owned:
    """A resource, identified across namespaces.

    `namespace` is the network namespace of a link, qdisc, filter or system setting without `netns`, and
    `pid_namespace` the one in which a process has its number (inodes; 0 for everything else).
    """

    resource: Resource
    namespace: int = 0
    pid_namespace: int = 0


def _here(resource: Resource) -> Owned:
    """Return `resource` as seen from the current namespaces."""
    if resource.kind == "process":
        return Owned(resource, pid_namespace=_pid_namespace())
    if resource.kind in ("link", "qdisc", "filter", "sysctl") and not resource.netns:
        return Owned(resource, namespace=_namespace())
    return Owned(resource)


class AlreadyRuns(EntrainError):
    """A live process already has the record. `process_id` is its id in its own PID namespace."""

    def __init__(self, path: Path, process_id: int) -> None:
        super().__init__(f"{path}: process {process_id} has this record already; end it first")
        self.process_id = process_id


def process_start(pid: int) -> str | None:
    """Return a process's start time in clock ticks since boot, or None if it is not running or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")  # has its name
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def process(pid: int) -> Resource:
    """Return the resource that stands for a running process."""
    return Resource("process", str(pid), detail=process_start(pid) or "")


def _namespace() -> int:
    """Return the inode of the current network namespace."""
    return Path("/proc/thread-self/ns/net").stat().st_ino


def _pid_namespace() -> int:
    """Return the inode of our PID namespace."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _pid_here(pid: int, pid_namespace: int) -> int | None:
    """Return the id, in our PID namespace, of a process of another one. None if we cannot see it."""
    if pid_namespace == _pid_namespace():
        return pid
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has just ended
            if (status.parent / "ns/pid").stat().st_ino != pid_namespace:
                continue
            lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
            numbers = next(line for line in lines if line.startswith("NSpid:"))
            if int(numbers.split()[-1]) == pid:
                return int(status.parent.name)
    return None


def _entering(namespace: int) -> list[str] | None:
    """Return the prefix for commands to run in `namespace`, or None if no process is in it any longer."""
    if namespace == _namespace():
        return []
    for path in (*Path("/run/netns").glob("*"), *Path("/proc").glob("[0-9]*/ns/net")):
        with contextlib.suppress(OSError):
            if path.stat().st_ino == namespace:
                return ["nsenter", f"--net={path}"]
    return None


def _run(command: list[str], text: str = "") -> bytes:
    return subprocess.run(command, input=text.encode(), capture_output=True, check=False).stdout


def _end_process(resource: Resource, pid: int, grace_s: float = GRACE_S) -> None:

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


def remove(resource: Resource) -> None:
    """Remove one resource of the current namespaces. Do nothing if it no longer exists."""
    _remove(_here(resource))


def _remove(owned: Owned) -> None:
    """Remove one resource, in whatever namespace. If that has gone, so has the resource."""
    resource = owned.resource
    match resource.kind:
        case "process":
            pid = _pid_here(int(resource.name), owned.pid_namespace)
            if pid is not None:
                _end_process(resource, pid)
        case "netns":
            _run(["ip", "netns", "del", resource.name])
        case "struct_ops":
            _run(["bpftool", "struct_ops", "unregister", "id", resource.name])
        case "link" | "qdisc" | "filter" | "sysctl":
            enter = [] if resource.netns else _entering(owned.namespace)
            if enter is not None:
                _undo(resource, enter)
        case "path":
            path = Path(resource.name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _undo(resource: Resource, enter: list[str]) -> None:
    """Remove a link, qdisc or filter, or restore a system setting, with commands prefixed by `enter`."""
    netns = ["-n", resource.netns] if resource.netns else []
    tc = [*enter, "tc", *netns]
    match resource.kind:
        case "link":
            _run([*enter, "ip", *netns, "link", "del", resource.name])
        case "qdisc":
            show = [*tc, "filter", "show", "dev", resource.name]
            if resource.detail == "clsact" and any(_run([*show, each]) for each in ("ingress", "egress")):
                return
            _run([*tc, "qdisc", "del", "dev", resource.name, *resource.detail.split()])
        case "filter":
            _run([*tc, "filter", "del", "dev", resource.name, *resource.detail.split()])
        case "sysctl":
            _run([*enter, "tee", f"/proc/sys/{resource.name}"], resource.detail)


class Record:
    """The journal of one run, a context manager. Call `own` before creating anything.

    `path` is its file, NAME-PID.jsonl in `records`. With `exclusive` the file is NAME.jsonl. Then only one
    live process at a time has the record, and the next one first removes what a dead one has left.
    """

    def __init__(self, name: str, *, records: Path = RECORDS, exclusive: bool = False) -> None:
        """Start a record called `name` in `records`.

        Raises AlreadyRuns if a live process has the exclusive record, and EntrainError if the record
        cannot be written or `records` is not safe (`own_directory`).
        """
        owner = process(os.getpid())
        self._owned: dict[Owned, None] = {}
        self._spare: list[int] = []
        with _turn(records):  # others never see the record without its lock or its first line
            if exclusive:
                self.path = records / f"{name}.jsonl"
                self._file = _make(self.path)
            else:
                self.path, self._file = _make_next(records / f"{name}-{owner.name}.jsonl")
            try:
                while len(self._spare) < SPARE:
                    self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                self._append({"version": VERSION, "owner": asdict(owner), "name": name})
            except (EntrainError, OSError):
                self.close()
                raise

    def _append(self, line: dict[str, Any]) -> None:
        """Write a line, or raise EntrainError and leave no part of it, which would break the record."""
        text, length = (json.dumps(line) + "\n").encode(), os.fstat(self._file).st_size
        try:
            if os.write(self._file, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._file, length)
            raise EntrainError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _write(self, what: str, owned: Owned) -> None:
        namespaces = {"namespace": owned.namespace, "pid_namespace": owned.pid_namespace}
        self._append({what: asdict(owned.resource), **namespaces})

    def own(self, resource: Resource) -> Resource:
        """Record that this run owns `resource`. Call it before creating a named resource."""
        owned = _here(resource)
        self._owned[owned] = None
        self._write("own", owned)
        return resource

    def set(self, setting: str, value: str) -> Resource | None:
        """Give a system setting (a path below /proc/sys) of the present namespace a value, and own it.

        Several records may own one setting; the last of them restores it. None where it has the value
        already and no record owns it. Raises OSError where it cannot be read or written.
        """
        path = Path("/proc/sys") / setting
        with _turn(self.path.parent):
            resource = Resource("sysctl", setting, detail=path.read_text(encoding="utf-8").strip())
            for other in (each for found in _all(self.path.parent) for each in found.owned):
                if (other.resource.name, other.namespace) == (setting, _here(resource).namespace):
                    resource = other.resource  # it knows the value from before
            if resource.detail == value:
                return None
            self.own(resource)
            path.write_text(value, encoding="utf-8")
        return resource

    def release(self, resource: Resource) -> None:
        """Remove `resource` now, and drop it from the record."""
        self._release(_here(resource))

    def _release(self, owned: Owned) -> None:
        if owned.resource.kind == "sysctl" or owned.resource.detail == SHARED:
            with _turn(self.path.parent):
                others = (each for each in _all(self.path.parent) if each.path != self.path)
                if owned not in _needed(others):
                    _remove(owned)
                with contextlib.suppress(EntrainError):
                    self._write("released", owned)  # before others look whether it is still owned
        else:
            _remove(owned)
            with contextlib.suppress(EntrainError):  # a full disk: whoever cleans up finds it gone
                self._write("released", owned)
        self._owned.pop(owned, None)

    def close(self) -> None:
        """Remove everything still owned, in reverse order of creation, and then the record itself."""
        if self._file not in _held:  # already closed, or inherited by a fork
            return
        while self._spare:
            os.close(self._spare.pop())
        for owned in reversed(list(self._owned)):
            self._release(owned)
        self.path.unlink(missing_ok=True)
        _held.discard(self._file)
        os.close(self._file)
        self._file = -1

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_held: set[int] = set()
"""Descriptors that keep this process's records locked."""


def _let_go() -> None:
    """Close a forked child's copies of the descriptors, which would keep the records locked after our end."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def _turn(root: Path) -> contextlib.AbstractContextManager[None]:
    """Keep others from creating or cleaning records in `root`, in this context."""
    return locked(own_directory(root) / ".lock")


def _make(path: Path) -> int:
    """Return a new, locked, empty record, after removing what a dead owner of the same path has left.

    Call it within `_turn`. Raises AlreadyRuns if a live process has it, EntrainError if it cannot be created.
    """
    found = _look(path)
    if found is not None:
        if found.alive:
            raise AlreadyRuns(path, int(found.owner.name))
        _clean(found, _needed(_all(path.parent)))
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EntrainError(f"{path}: cannot be written ({error.strerror})") from error
    fcntl.flock(file, fcntl.LOCK_EX)
    _held.add(file)
    return file


def _make_next(path: Path) -> tuple[Path, int]:
    """Like `_make`, but add a number to the name if a process of another PID namespace has the same id."""
    others = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    for free in itertools.chain([path], others):
        with contextlib.suppress(AlreadyRuns):
            return free, _make(free)
    raise AssertionError("there is always a next number")


@dataclass(frozen=True)
class _Found:
    """A record in a directory of records."""

    path: Path
    name: str
    owner: Resource
    owned: list[Owned]
    alive: bool


def _read(path: Path) -> tuple[str, bool] | None:
    """Return the text of the record at `path`, and whether its owner lives; None if there is no record.

    Raises EntrainError if it is foreign.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EntrainError(f"{path}: cannot be opened ({error.strerror}); remove it") from error
    with open(file, "rb") as journal:  # noqa: PTH123 (a descriptor)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise EntrainError(f"{path}: is not a file; remove it")
        check_owner(path, os.fstat(file).st_uid)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alive = False
        except BlockingIOError:
            alive = True
        if not os.fstat(file).st_nlink:  # its owner has just closed it
            return None
        return journal.read().decode(errors="replace"), alive


def _look(path: Path) -> _Found | None:
    """Return the record at `path`, or None. Raises EntrainError if it is foreign or broken."""
    read = _read(path)
    if read is None:
        return None
    from machine.journal import BrokenRecord, parse  # needs pydantic, which few processes otherwise load

    text, alive = read
    try:
        name, owner, owned = parse(text)
    except BrokenRecord as error:
        raise EntrainError(f"{path}: is not a record of this version ({error}); remove it") from error
    return _Found(path, name, owner, owned, alive)


def _is_stale(path: Path) -> bool:
    """Return whether the record's owner is dead, or the record is foreign, without parsing it."""
    try:
        read = _read(path)
    except EntrainError:
        return True
    return read is not None and not read[1]


def _all(root: Path) -> list[_Found]:
    """Return every record in `root`, except foreign or broken ones, which are logged."""
    found = []
    for path in sorted(root.glob("*.jsonl")):
        try:
            found.append(_look(path))
        except EntrainError as error:
            log.warning("ignoring a record: %s", error)
    return [each for each in found if each is not None]


def _needed(found: Iterable[_Found]) -> set[Owned]:
    """Return the resources of live owners, which a dead one may also have owned, such as a pin directory."""
    return {each for record in found if record.alive for each in record.owned}


def _clean(stale: _Found, needed: set[Owned]) -> list[Resource]:
    """Remove a stale record and all that it names except `needed`. Return what was removed."""
    owned = [each for each in stale.owned if each not in needed]
    for each in reversed(owned):
        _remove(each)
    stale.path.unlink(missing_ok=True)
    return [each.resource for each in owned]


def records(root: Path = RECORDS) -> Iterator[tuple[Path, Resource, list[Resource], bool]]:
    """Yield every record: its path, its owner, what it owns, and whether the owner lives."""
    if not root.is_dir():
        return
    with _turn(root):
        found = _all(root)
    for each in found:
        yield each.path, each.owner, [owned.resource for owned in each.owned], each.alive


def running(name: str, root: Path = RECORDS) -> bool:
    """Return whether a live process has a record called `name`."""
    if not root.is_dir():
        return False
    with _turn(root):
        return any(each.alive and each.name == name for each in _all(root))


def is_owned(resource: Resource, root: Path = RECORDS) -> bool:
    """Return whether a record owns `resource`, as seen from the current namespaces."""
    if not root.is_dir():
        return False
    with _turn(root):
        return any(_here(resource) in each.owned for each in _all(root))


def clean_stale(root: Path = RECORDS) -> list[Resource]:
    """Remove what dead owners left behind, and return it."""
    if not root.is_dir():
        return []
    removed: list[Resource] = []
    with _turn(root):
        if not any(map(_is_stale, root.glob("*.jsonl"))):  # the usual case, which starts sooner
            return []
        found = _all(root)
        needed = _needed(found)
        for each in found:
            if not each.alive:
                removed += _clean(each, needed)
    return removed
