"""A datapath in memory, so that the server's tests need neither root nor a kernel.

It is strict: what the server must never do to a datapath (an entry twice, a handle that is gone, a member
that is missing) is an assertion, and numbers have as many bits as in the kernel.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from machine.errors import EntrainError
from softswitch.contract import (
    Action,
    ActionCall,
    DigestCallback,
    Entry,
    Exact,
    Group,
    Match,
    Member,
    MeterConfig,
    Queue,
    Ternary,
)


def _pack_replicas(replicas: tuple[tuple[int, int], ...]) -> None:
    for replica in replicas:
        struct.pack("=II", *replica)


class FakeDatapath:
    """Implements softswitch.contract.Datapath."""

    def __init__(self, program: bytes) -> None:
        config = json.loads(program)
        self.config_tables: dict[str, Any] = {t["name"]: t for p in config["pipelines"] for t in p["tables"]}
        self._actions = {a["id"]: a["name"] for a in config["actions"]}
        self._registers = {r["name"]: r["size"] for r in config["register_arrays"]}
        self._bits = {r["name"]: r["bitwidth"] for r in config["register_arrays"]}
        self.entries: dict[int, tuple[str, tuple[Match, ...], int, Action]] = {}
        self.defaults: dict[str, ActionCall | None] = {}
        self.members: dict[tuple[str, int], ActionCall] = {}
        self.groups: dict[tuple[str, int], tuple[int, ...]] = {}
        self.counters: defaultdict[tuple[str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
        self.meters: dict[tuple[str, int], MeterConfig] = {}
        self.registers: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.multicast: dict[int, tuple[tuple[int, int], ...]] = {}
        self.sessions: dict[int, tuple[tuple[tuple[int, int], ...], int]] = {}
        self.value_sets: dict[str, Sequence[tuple[Match, ...]]] = {}
        self.ports: dict[int, int] = {}
        self.queued: dict[int, bool] = {}
        self.waiting: dict[int, Queue] = {}
        self.mtus: dict[int, int] = {}
        self.long: dict[int, int] = {}
        self.batches = 0
        self.closed = False
        self.failing: str | None = None
        self._next = 1
        for name in self.config_tables:
            for entry in self._program_entries(name):
                self.entries[entry[0]] = (name, entry[1], entry[2], entry[3])

    def _program_entries(self, table: str) -> Iterator[tuple[int, tuple[Match, ...], int, ActionCall]]:
        entries = self.config_tables[table].get("entries", [])
        for place, entry in enumerate(entries):
            match: list[Match] = []
            for key in entry["match_key"]:
                value = int(key["key"], 16)
                match.append(
                    Exact(value) if key["match_type"] == "exact" else Ternary(value, int(key["mask"], 16))
                )
            call = entry["action_entry"]
            args = tuple(int(arg, 16) for arg in call["action_data"])
            yield (
                hash((table, place)),
                tuple(match),
                len(entries) - place,
                ActionCall(self._actions[call["action_id"]], args),
            )

    # Ports

    def add_port(self, port: int, ifindex: int, rate_mbps: float | None = None) -> None:
        if self.failing is not None:
            raise EntrainError(self.failing)
        assert port not in self.ports
        self.ports[port] = ifindex

    def remove_port(self, port: int) -> None:
        if port not in self.ports:
            raise EntrainError(f"there is no port {port}")
        del self.ports[port]

    def set_queued(self, port: int, queued: bool) -> None:
        assert port in self.ports
        self.queued[port] = queued

    def set_mtu(self, port: int, mtu: int) -> None:
        assert port in self.ports
        self.mtus[port] = mtu

    def too_long(self) -> dict[int, int]:
        return self.long

    def set_queue(self, port: int, rate_mbps: float, depth_packets: int) -> None:
        assert port in self.ports

    def queues(self) -> dict[int, Queue]:
        return self.waiting

    # Tables

    def initial_entries(self, table: str) -> list[Entry]:
        return [Entry(*entry) for entry in self._program_entries(table)]

    def initial_default(self, table: str) -> ActionCall | None:
        entry = self.config_tables[table].get("default_entry")
        if entry is None:
            return None
        return ActionCall(self._actions[entry["action_id"]], tuple(int(a, 16) for a in entry["action_data"]))

    def _refer(self, table: str, action: Action) -> None:
        profile = self.config_tables[table].get("action_profile")
        match action:
            case ActionCall(name, _):
                assert name in self.config_tables[table]["actions"]
            case Member(id_):
                assert (profile, id_) in self.members
            case Group(id_):
                assert (profile, id_) in self.groups

    def table_insert(self, table: str, match: tuple[Match, ...], priority: int, action: Action) -> int:
        if self.failing is not None:
            raise EntrainError(self.failing)
        assert len(match) == len(self.config_tables[table]["key"])
        assert all(entry[:3] != (table, match, priority) for entry in self.entries.values()), "inserted twice"
        self._refer(table, action)
        handle, self._next = self._next, self._next + 1
        self.entries[handle] = (table, match, priority, action)
        return handle

    def table_modify(self, table: str, handle: int, action: Action) -> None:
        self._refer(table, action)
        name, match, priority, _ = self.entries[handle]
        assert name == table
        self.entries[handle] = (table, match, priority, action)

    def table_delete(self, table: str, handle: int) -> None:
        assert self.entries.pop(handle)[0] == table

    def table_set_default(self, table: str, action: ActionCall | None) -> None:
        self.defaults[table] = action

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        self.batches += 1
        yield

    # Direct resources share the maps of indexed ones: their name is the table's, their index the handle.

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        assert handle in self.entries
        return self.counters[table, handle]

    def direct_counter_write(self, table: str, handle: int, packets: int, bytes_: int) -> None:
        assert handle in self.entries
        self.counter_write(table, handle, packets, bytes_)

    def direct_meter_write(self, table: str, handle: int, config: MeterConfig | None) -> None:
        assert handle in self.entries
        self.meter_write(table, handle, config)

    # Profiles

    def member_insert(self, profile: str, id_: int, action: ActionCall) -> None:
        assert (profile, id_) not in self.members
        self.members[profile, id_] = action

    def member_modify(self, profile: str, id_: int, action: ActionCall) -> None:
        assert (profile, id_) in self.members
        self.members[profile, id_] = action

    def member_delete(self, profile: str, id_: int) -> None:
        assert all(id_ not in members for (name, _), members in self.groups.items() if name == profile)
        del self.members[profile, id_]

    def group_insert(self, profile: str, id_: int, members: tuple[int, ...]) -> None:
        assert (profile, id_) not in self.groups
        self.groups[profile, id_] = ()
        self.group_modify(profile, id_, members)

    def group_modify(self, profile: str, id_: int, members: tuple[int, ...]) -> None:
        assert (profile, id_) in self.groups
        assert all((profile, member) in self.members for member in members)
        self.groups[profile, id_] = members

    def group_delete(self, profile: str, id_: int) -> None:
        del self.groups[profile, id_]

    # Arrays

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        return self.counters[name, index]

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        struct.pack("=QQ", packets, bytes_)
        self.counters[name, index] = (packets, bytes_)

    def meter_write(self, name: str, index: int, config: MeterConfig | None) -> None:
        if config is None:
            self.meters.pop((name, index), None)
        else:
            struct.pack("=4Q", config.cir, config.cburst, config.pir, config.pburst)
            self.meters[name, index] = config

    def register_read(self, name: str, index: int) -> int:
        return self.registers[name, index]

    def register_write(self, name: str, index: int, value: int) -> None:
        assert 0 <= value < 1 << self._bits[name]
        self.registers[name, index] = value

    def register_read_all(self, name: str) -> list[int]:
        return [self.registers[name, index] for index in range(self._registers[name])]

    # Replication, value sets, digests

    def multicast_set(self, group: int, replicas: tuple[tuple[int, int], ...]) -> None:
        _pack_replicas(replicas)
        self.multicast[group] = replicas

    def multicast_delete(self, group: int) -> None:
        del self.multicast[group]

    def clone_session_set(
        self, session: int, replicas: tuple[tuple[int, int], ...], packet_length: int
    ) -> None:
        _pack_replicas((*replicas, (session, packet_length)))
        self.sessions[session] = (replicas, packet_length)

    def clone_session_delete(self, session: int) -> None:
        del self.sessions[session]

    def value_set_write(self, name: str, members: Sequence[tuple[Match, ...]]) -> None:
        self.value_sets[name] = members

    def digest_fd(self) -> int | None:
        return None

    def poll_digests(self, callback: DigestCallback) -> None:
        raise AssertionError("there is nothing to poll")

    def close(self) -> None:
        assert not self.closed
        self.closed = True
