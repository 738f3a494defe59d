"""The desired state on disk (SQLite), from which a restarted controller converges."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from finsy.proto import p4r
from google.protobuf.message import DecodeError

from controlplane.entities import State, key_of
from machine.errors import EntrainError
from machine.limits import full_disk

VERSION = 1
"""Of the file (PRAGMA user_version). Version 0 has the same content, and says no version."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entity (
    switch TEXT NOT NULL, key BLOB NOT NULL, entity BLOB NOT NULL, PRIMARY KEY (switch, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class Store:
    """The desired entities of each switch, and facts about them (JSON values by name), in one file."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises EntrainError if it is no state file of a version that we know."""
        self.path = path
        self._saved: dict[tuple[str, bytes], p4r.Entity] = {}
        with self._errors(), closing(self._open()) as connection, connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise EntrainError(
                    f"{path}: is of version {version}, and this entrain knows {VERSION}; remove it: "
                    f"the controller then writes the state anew"
                )
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {VERSION}")

    def _open(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(self.path)
        except sqlite3.OperationalError as error:
            raise EntrainError(f"{self.path}: cannot be opened ({error}){full_disk(self.path)}") from error

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise EntrainError(
                f"{self.path}: cannot be read or written ({error}){full_disk(self.path)}"
            ) from error
        except (sqlite3.DatabaseError, DecodeError, ValueError, TypeError) as error:
            raise EntrainError(f"{self.path}: is not a state file ({error}); remove it") from error

    def save(self, desired: Mapping[str, State], facts: Mapping[str, object]) -> None:
        """Replace everything, in one transaction. Only what differs from the last time is written.

        Raises EntrainError if the file cannot be written.
        """
        wanted = {(switch, key): entity for switch, state in desired.items() for key, entity in state.items()}
        before = self._saved
        gone = before.keys() - wanted.keys()
        changed = [
            (*at, entity.SerializeToString(deterministic=True))
            for at, entity in wanted.items()
            if at not in before or (before[at] is not entity and before[at] != entity)
        ]
        with self._errors(), closing(self._open()) as connection, connection:
            if not before:
                connection.execute("DELETE FROM entity")
            connection.executemany("DELETE FROM entity WHERE switch = ? AND key = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO entity VALUES (?, ?, ?)", changed)
            connection.execute("DELETE FROM fact")
            connection.executemany(
                "INSERT INTO fact VALUES (?, ?)", [(name, json.dumps(value)) for name, value in facts.items()]
            )
        self._saved = wanted

    def load(self) -> tuple[dict[str, State], dict[str, object]]:
        """Return what `save` last wrote, or nothing for a new file. Raises EntrainError for a damaged one."""
        desired: dict[str, dict[bytes, p4r.Entity]] = {}
        with self._errors(), closing(self._open()) as connection:
            for switch, blob in connection.execute("SELECT switch, entity FROM entity"):
                entity = p4r.Entity.FromString(blob)
                desired.setdefault(switch, {})[key_of(entity)] = entity
            facts = {name: json.loads(value) for name, value in connection.execute("SELECT * FROM fact")}
        return dict(desired), facts
