"""What another version wrote is read, or refused by name: ledgers, states, records of a run, results."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from finsy.proto import p4r

from controlplane import ledger, store
from controlplane.ledger import Ledger
from controlplane.store import Store
from entrain.results import store as results
from entrain.results.files import NETWORK
from machine.errors import BadInput, EntrainError
from machine.journal import BrokenRecord, parse
from machine.record import Record, clean_stale
from schedulers.placement.cluster import Cluster, Request
from schedulers.placement.queue import Job

ENTITY = p4r.Entity(table_entry=p4r.TableEntry(table_id=1))
CLUSTER = Cluster(leaves=1, spines=1, servers_per_leaf=1, gpus_per_server=2)


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def kept(path: Path) -> None:
    """A ledger with a job that waits."""
    new = Ledger(path, CLUSTER)
    new.add(Job(Request("a", 1, "ring"), 1.0, 5.0, None, "ann"))
    new.close()


def test_a_ledger_without_owners_is_read_and_its_jobs_are_operators(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    kept(path)
    sql(path, "ALTER TABLE job DROP COLUMN owner", "PRAGMA user_version = 0")
    for _ in range(2):  # the second time it is of this version
        again = Ledger(path, CLUSTER)
        assert [(entry.name, entry.owner) for entry in again.present()] == [("a", "")]
        again.close()


def test_a_later_or_damaged_ledger_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    kept(path)
    sql(path, f"PRAGMA user_version = {ledger.VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(EntrainError, match=rf"jobs\.sqlite: is of version {ledger.VERSION + 1}"):
        Ledger(path, CLUSTER)
    assert path.read_bytes() == before
    sql(path, f"PRAGMA user_version = {ledger.VERSION}", "UPDATE job SET waited = 'rubbish'")
    damaged = Ledger(path, CLUSTER)
    with pytest.raises(EntrainError, match=r"jobs\.sqlite: is not a ledger of jobs"):
        damaged.present()
    damaged.close()


def test_an_older_state_is_read_and_a_later_or_damaged_one_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    Store(path).save({"leaf1": {b"key": ENTITY}}, {"routing": "ecmp"})
    sql(path, "PRAGMA user_version = 0")
    desired, facts = Store(path).load()
    assert (list(desired), facts) == (["leaf1"], {"routing": "ecmp"})
    sql(path, f"PRAGMA user_version = {store.VERSION + 1}")
    with pytest.raises(EntrainError, match=rf"state\.sqlite: is of version {store.VERSION + 1}"):
        Store(path)
    sql(path, f"PRAGMA user_version = {store.VERSION}", "UPDATE entity SET entity = x'ff'")
    with pytest.raises(EntrainError, match=r"state\.sqlite: is not a state file"):
        Store(path).load()


@pytest.mark.parametrize("version", [1, 3])
def test_a_record_of_another_version_is_named_and_not_obeyed(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("!")
    with Record("new", records=tmp_path / "records") as record:
        first, *_ = record.path.read_text().splitlines()
    own = {"own": {"kind": "path", "name": str(precious), "netns": "", "detail": ""}}
    lines = [{**json.loads(first), "version": version}, {**own, "namespace": 0, "pid_namespace": 0}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with pytest.raises(BrokenRecord, match=f"format {version}, not 2"):
        parse(text)
    (tmp_path / "records" / "old-1.jsonl").write_text(text)
    assert clean_stale(tmp_path / "records") == []
    assert precious.exists()
    assert "old-1.jsonl: is not a record of this version" in caplog.text


def test_results_of_another_version_are_refused_by_name(tmp_path: Path) -> None:
    for text in ("[]", '{"kind": "network"}', '{"kind": "network", "experiment": {"new": 1}}'):
        (tmp_path / results.EXPERIMENT).write_text(text)
        with pytest.raises(BadInput, match=f"{results.EXPERIMENT}: not written by this version"):
            results.read(NETWORK, tmp_path)
