"""The jobs of a cluster on disk (SQLite), from which the next controller goes on.

One process at a time has a ledger: the kernel releases its lock however that process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from machine.errors import EntrainError
from machine.limits import full_disk
from schedulers.placement.cluster import Circuit, Cluster, Link, Placement, Port, Request
from schedulers.placement.queue import Job, Waiting

Phase = Literal["waiting", "admitting", "running", "leaving", "ended", "cancelled"]
"""Where a job is. It holds its placement while it is `admitting`, `running` or `leaving`."""

Over = Literal["ended", "cancelled"]
OVER: tuple[Over, ...] = get_args(Over)

LEDGER = "jobs.sqlite"
"""Name of the file in a controller's directory."""

KEPT = 1000
"""How many jobs that are over the ledger keeps."""

VERSION = 1
"""Of the file (PRAGMA user_version). Version 0 had no owners: its jobs are operators'."""

_IS_OVER = "phase IN ('ended', 'cancelled')"

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS job (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, gpus INTEGER NOT NULL, pattern TEXT NOT NULL,
    arrival_s REAL NOT NULL, duration_s REAL NOT NULL, deadline_s REAL,
    phase TEXT NOT NULL, outcome TEXT NOT NULL, vrf INTEGER NOT NULL, placement TEXT,
    start_s REAL, end_s REAL, changed INTEGER NOT NULL, waited TEXT NOT NULL, problem TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX IF NOT EXISTS present ON job (name) WHERE NOT {_IS_OVER};
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class InUse(EntrainError):
    """Another process has the ledger. `process_id` is its id, 0 if unknown."""

    def __init__(self, path: Path, process_id: int) -> None:
        super().__init__(f"{path}: process {process_id or 'of unknown id'} has it open; it is the primary")
        self.process_id = process_id


@dataclass(frozen=True)
class Entry:
    """A job in the ledger.

    `outcome` is what a leaving job will be. `vrf` isolates it while it holds a `placement`; `changed` counts
    the circuits that were made for it. `waited` are its waits so far, `problem` is what last went wrong.
    """

    id: int
    job: Job
    phase: Phase = "waiting"
    outcome: Over = "ended"
    vrf: int = 0
    placement: Placement | None = None
    start_s: float | None = None
    end_s: float | None = None
    changed: int = 0
    waited: tuple[Waiting, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """The job's name, which no other present job has."""
        return self.job.request.job

    @property
    def owner(self) -> str:
        """The submitter whose job it is; empty for operators."""
        return self.job.owner


class Ledger:
    """The jobs of one cluster, in one file. Every method is one transaction; use it in one thread."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        """Open or create the file, and lock it.

        A file of an older version is brought up to date. Raises InUse if another process has it, and
        EntrainError if it is not a ledger, is of a later version, or has present jobs of another cluster.
        """
        self.path = path
        self._lock = _lock(path)
        try:
            with self._errors():
                self._database = sqlite3.connect(path, isolation_level=None)
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                self._upgrade()
                self._database.executescript(_SCHEMA)
                self._database.execute(f"PRAGMA user_version = {VERSION}")
            self._belongs_to(cluster)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close and unlock the file."""
        self._database.close()
        os.close(self._lock)

    def _upgrade(self) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise EntrainError(
                f"{self.path}: is of version {version}, and this entrain knows {VERSION}; use the "
                f"entrain that wrote it, or another directory"
            )
        columns = {row[1] for row in self._database.execute("PRAGMA table_info(job)")}
        if columns and "owner" not in columns:
            self._database.execute("ALTER TABLE job ADD COLUMN owner TEXT NOT NULL DEFAULT ''")

    def add(self, job: Job) -> Entry:
        """Write a job that waits. Raises EntrainError if the file cannot be written."""
        entry = Entry(0, job)
        with self._errors():
            cursor = self._database.execute(
                f"INSERT INTO job ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})",
                _row(entry),
            )
        return replace(entry, id=cursor.lastrowid or 0)

    def put(self, entry: Entry) -> None:
        """Write what has become of a job. Raises EntrainError if the file cannot be written."""
        columns = ", ".join(f"{column} = ?" for column in _COLUMNS)
        with self._errors(), self._transaction():
            self._database.execute(f"UPDATE job SET {columns} WHERE id = ?", (*_row(entry), entry.id))
            if entry.phase in OVER:
                self._database.execute(
                    f"DELETE FROM job WHERE {_IS_OVER} AND id NOT IN "
                    f"(SELECT id FROM job WHERE {_IS_OVER} ORDER BY end_s DESC LIMIT ?)",
                    (KEPT,),
                )

    def present(self) -> list[Entry]:
        """Return the jobs that are not over, in the order of their arrival."""
        return self._select(f"NOT {_IS_OVER} ORDER BY id")

    def past(self) -> list[Entry]:
        """Return the jobs that are over, the latest last."""
        return self._select(f"{_IS_OVER} ORDER BY end_s, id")

    def entry(self, number: int) -> Entry:
        """Return the job with this id. Raises LookupError if the file has none, or no longer."""
        for found in self._select("id = ?", number):
            return found
        raise LookupError(f"{self.path}: there is no job with id {number}")

    def _select(self, where: str, *values: object) -> list[Entry]:
        with self._errors():
            rows = self._database.execute(f"SELECT id, {', '.join(_COLUMNS)} FROM job WHERE {where}", values)
            return [_entry(row) for row in rows]

    def _belongs_to(self, cluster: Cluster) -> None:
        with self._errors(), self._transaction():
            _check_cluster(self._database, self.path, cluster)
            self._database.execute("INSERT OR REPLACE INTO fact VALUES ('cluster', ?)", (_text(cluster),))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return _errors(self.path)


def check_cluster(path: Path, cluster: Cluster) -> None:
    """Raise EntrainError if the ledger `path` has jobs of another cluster, whatever process has it."""
    if os.access(path, os.F_OK):
        with _errors(path), contextlib.closing(sqlite3.connect(path)) as database:
            _check_cluster(database, path, cluster)


def _check_cluster(database: sqlite3.Connection, path: Path, cluster: Cluster) -> None:
    found = database.execute("SELECT value FROM fact WHERE name = 'cluster'").fetchone()
    busy = database.execute(f"SELECT name FROM job WHERE NOT {_IS_OVER}").fetchone()
    if found and found[0] != _text(cluster) and busy:
        raise EntrainError(
            f"{path}: has jobs of another cluster ({busy[0]} and others, on {found[0]}); go back to that "
            f"cluster and cancel them, or remove the file"
        )


def _text(cluster: Cluster) -> str:
    return json.dumps(asdict(cluster), sort_keys=True)


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise EntrainError(f"{path}: cannot be read or written ({error}){full_disk(path)}") from error
    except (sqlite3.DatabaseError, ValueError, TypeError, LookupError) as error:
        raise EntrainError(f"{path}: is not a ledger of jobs ({error}); remove it") from error


def _lock(path: Path) -> int:
    """Lock the file beside `path`, which has the owner's process id; return its descriptor."""
    beside = path.with_name(path.name + ".lock")
    try:
        lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EntrainError(f"{beside}: cannot be opened ({error.strerror})") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0)
        os.close(lock)
        raise InUse(path, int(owner) if owner.isdigit() else 0) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


_COLUMNS = (
    "name",
    "gpus",
    "pattern",
    "arrival_s",
    "duration_s",
    "deadline_s",
    "phase",
    "outcome",
    "vrf",
    "placement",
    "start_s",
    "end_s",
    "changed",
    "waited",
    "problem",
    "owner",
)


def _row(entry: Entry) -> tuple[Any, ...]:
    job, request, placement = entry.job, entry.job.request, entry.placement
    return (
        request.job,
        request.gpus,
        request.pattern,
        job.arrival_s,
        job.duration_s,
        job.deadline_s,
        entry.phase,
        entry.outcome,
        entry.vrf,
        None if placement is None else json.dumps(asdict(placement)),
        entry.start_s,
        entry.end_s,
        entry.changed,
        json.dumps([asdict(interval) for interval in entry.waited]),
        entry.problem,
        entry.owner,
    )


def _entry(row: tuple[Any, ...]) -> Entry:
    number, name, gpus, pattern, arrival, duration, deadline, phase, outcome, vrf, placement, *rest = row
    start, end, changed, waited, problem, owner = rest
    job = Job(Request(name, gpus, pattern), arrival, duration, deadline, owner)
    return Entry(
        number,
        job,
        phase,
        outcome,
        vrf,
        None if placement is None else _placement(json.loads(placement)),
        start,
        end,
        changed,
        tuple(Waiting(**interval) for interval in json.loads(waited)),
        problem,
    )


def _placement(stored: dict[str, Any]) -> Placement:
    return Placement(
        stored["job"],
        stored["stage"],
        tuple(stored["gpus"]),
        tuple(stored["leaves"]),
        (stored["shape"][0], stored["shape"][1]),
        tuple(stored["ports"]),
        tuple(Link(*link) for link in stored["links"]),
        tuple(Circuit(Port(*a), Port(*b)) for a, b in stored["circuits"]),
    )
