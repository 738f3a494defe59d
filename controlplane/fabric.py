"""Keeps all switches connected, with the pipeline, and in the desired state.

One task per switch connects, becomes primary, sets the pipeline if it is missing, reads the state back, and
writes the difference in one batch. It starts again when the connection breaks or another controller takes
over. So a switch that restarts converges by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import finsy as fy
from finsy.proto import p4r

from controlplane import constants as p4
from controlplane import heartbeat
from controlplane.constants import DropReason, RefusedReason
from controlplane.entities import Difference, State, difference, state_of
from controlplane.network import Host, Switch, Topology
from controlplane.p4client import NoPipeline, NotPrimary, Refused, SwitchClient, Unreachable
from controlplane.pipeline import Pipeline
from controlplane.queues import Queue
from controlplane.store import Store
from machine.errors import EntrainError
from machine.patience import patience

CONNECT_TIMEOUT_S = patience(10.0)
RETRY_S = 0.2
"""Seconds to wait before reconnecting to a switch."""
READY = "ready"
_DROPPED, _WAITING, _TOO_LONG = 0x81, 0x82, 0x83
"""Types of softswitch's extern entries: of queues, and of packets that exceed the MTU of a port's link."""


@dataclass(frozen=True)
class Applied:
    """The changes that brought one switch into the desired state; all zero if it was in it already.

    `pipeline_set` and `seconds` count from the last `Fabric.apply` or `settle`, so that the first one
    includes connecting.
    """

    switch: str
    pipeline_set: bool = False
    inserted: int = 0
    modified: int = 0
    deleted: int = 0
    seconds: float = 0.0

    @property
    def written(self) -> int:
        """The number of updates written."""
        return self.inserted + self.modified + self.deleted


@dataclass(frozen=True)
class PortCounters:
    """What a port has received and sent, since the pipeline was set, when it was read (CLOCK_MONOTONIC)."""

    monotonic_ns: int
    received_packets: int
    received_bytes: int
    sent_packets: int
    sent_bytes: int


@dataclass(frozen=True)
class _Externs:
    """Asks softswitch for all its extern entries of a type; 0: of all types."""

    type: int = 0

    def encode(self, schema: fy.P4Schema) -> p4r.Entity:
        return p4r.Entity(extern_entry=p4r.ExternEntry(extern_type_id=self.type))


@dataclass(frozen=True)
class _Change:
    applied: Applied
    before: State


@dataclass
class _Managed:
    """One switch and its task. Without a `desired` state, the switch keeps its state.

    In any case it keeps entries of tables that a user has added to the fabric's program.

    `to_change` says whether `want` has last changed its state.
    `known` is the state that the switch has, as far as this controller can know without reading it: as long
    as it stays connected and primary. `election_id` is that of the last session. `slow` says how slowly it
    answers, if it does.
    """

    switch: Switch
    client: SwitchClient | None = None
    desired: State | None = None
    to_change: bool = False
    known: State | None = None
    status: str = "not connected"
    slow: str = ""
    election_id: int = 0
    pipeline_set: bool = False
    spent_s: float = 0.0
    failure: Exception | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def away(self) -> bool:
        """Whether it gets its state later, when a session has begun."""
        beginning = self.status != READY and self.lock.locked()
        return self.client is None or not self.client.connected or beginning

    def want(self, state: State | None) -> None:
        """Let this be the desired state. A session that is about to begin writes it."""
        self.to_change = self.desired != state
        self.desired = state
        if self.to_change and self.away:
            self.changed.set()

    def doubt(self) -> None:
        """Somebody else may have written to the switch."""
        self.known = None
        self.changed.set()


class Fabric:
    """The switches of a topology, kept in the desired state while the context is open.

        async with Fabric(topology, pipeline) as fabric:
            await fabric.apply(desired_state(topology))

    With a `store`, the state last applied is applied again at the start. `on_event` receives a line for each
    event of a switch.

    If a switch does not become ready at the start, raises its error: Unreachable, NotPrimary or Refused. If
    not `strict`, retries instead, and `statuses` reports the error.
    """

    def __init__(
        self,
        topology: Topology,
        pipeline: Pipeline,
        *,
        store: Store | None = None,
        strict: bool = True,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.topology = topology
        self.pipeline = pipeline
        self._store = store
        self._strict = strict
        self._connect_timeout_s = connect_timeout_s
        self._on_event = on_event
        self._packet_handlers: list[Callable[[str, fy.P4PacketIn], None]] = []
        self._managed = {switch.name: _Managed(switch) for switch in topology.switches}
        self._tasks: list[asyncio.Task[None]] = []
        self._applying = asyncio.Lock()

    async def __aenter__(self) -> Fabric:
        if self._store is not None:
            desired, facts = self._store.load()
            if facts.get("cookie") == self.pipeline.cookie:
                for name, state in desired.items():
                    if name in self._managed:
                        self._managed[name].desired = state
        self._tasks = [
            asyncio.create_task(self._supervise(managed), name=f"switch {managed.switch.name}")
            for managed in self._managed.values()
        ]
        try:
            await asyncio.gather(*(managed.settled.wait() for managed in self._managed.values()))
            for managed in self._managed.values():
                if managed.failure is not None:
                    raise managed.failure
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. The switches keep their state."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    # -- state

    async def apply(self, desired: Mapping[str, Iterable[Any]], **facts: object) -> list[Applied]:
        """Bring every switch into `desired` (finsy entities by switch) and remember it with `facts`.

        Reads every switch's state first. If one switch refuses, restores all of them and raises its error.
        """
        return await self._bring(self.encoded(desired), self._reconcile, facts)

    async def advance(
        self, states: Mapping[str, State], needed: Collection[str], **facts: object
    ) -> list[Applied]:
        """Do the same for `encoded` states, without reading what this controller has itself written.

        So the time depends on what changes, and not on what the switches hold. If a `needed` switch is away,
        raises Unreachable before anything is written. Another one may be away: it gets its state when it is
        back. To undo it, advance to the states before.
        """

        async def step(managed: _Managed) -> _Change:
            name = managed.switch.name
            if managed.away and name not in needed:
                return _Change(Applied(name), {})
            try:
                return await self._advance(managed)
            except Unreachable:
                if name in needed:
                    raise
                return _Change(Applied(name), {})

        return await self._bring(states, step, facts, needed)

    def encoded(self, desired: Mapping[str, Iterable[Any]]) -> dict[str, State]:
        """Return the states of finsy entities, by switch. A program without the table of limits gets none."""
        schema = self.pipeline.schema
        left_out = None if self.pipeline.limits_hosts else p4.TABLE_LIMITS

        def encoded(entities: Iterable[Any]) -> list[p4r.Entity]:
            return [each.encode(schema) for each in entities if getattr(each, "table_id", "") != left_out]

        return {name: state_of(encoded(entities), schema) for name, entities in desired.items()}

    async def _bring(
        self,
        states: Mapping[str, State],
        step: Callable[[_Managed], Awaitable[_Change]],
        facts: Mapping[str, object],
        needed: Collection[str] = (),
    ) -> list[Applied]:
        managed = list(self._managed.values())
        async with self._applying:
            for one in managed:
                if one.switch.name in needed and one.away:
                    raise Unreachable(_named(one.switch.name, one.status))
            before = [one.desired for one in managed]
            for one in managed:
                one.want(states.get(one.switch.name, {}))
            results = await asyncio.gather(*map(step, managed), return_exceptions=True)
            errors = [result for result in results if isinstance(result, BaseException)]
            if errors:
                for one, earlier in zip(managed, before, strict=True):
                    one.want(earlier)
                await asyncio.gather(*map(_undo, managed, results))
                raise next((error for error in errors if isinstance(error, EntrainError)), errors[0])
            for one in managed:
                one.pipeline_set, one.spent_s = False, 0.0
            if self._store is not None:
                self._store.save(states, {**facts, "cookie": self.pipeline.cookie})
            return [result.applied for result in results if isinstance(result, _Change)]

    async def settle(self) -> list[Applied]:
        """Set the pipeline where it is missing, and leave the tables of a program without a desired state.

        Raises the error of a switch that refuses it, or does not answer.
        """
        async with self._applying:
            managed = list(self._managed.values())
            results = await asyncio.gather(*map(self._reconcile, managed), return_exceptions=True)
            changes = [result for result in results if isinstance(result, _Change)]
            if len(changes) < len(managed):
                raise next(result for result in results if isinstance(result, BaseException))
            for one in managed:
                one.pipeline_set, one.spent_s = False, 0.0
            return [change.applied for change in changes]

    def lacking(self, what: str) -> str:
        """Return a line that says what the switches' program does not have, and how to get it."""
        target = self.topology.switches[0].target
        return (
            f"the switches run {self.pipeline.name}, which has no {what}; entrain's program has: "
            f"`entrain deploy --target {target} --program fabric`"
        )

    def statuses(self) -> dict[str, str]:
        """By switch: "ready", or its error."""
        return {name: managed.status for name, managed in self._managed.items()}

    def problems(self) -> list[str]:
        """Return a line for each switch that is not ready, or answers slowly."""
        return [
            managed.slow if managed.status == READY else _named(name, managed.status)
            for name, managed in self._managed.items()
            if managed.status != READY or managed.slow
        ]

    async def drops(self) -> dict[str, dict[DropReason, int]]:
        """Return, by switch, how many packets it has dropped for each reason since its pipeline was set.

        Raises the error of a switch that does not answer.
        """

        async def of(name: str) -> dict[DropReason, int]:
            found = await self._client(name).read([fy.P4CounterEntry(p4.COUNTER_DROPS)])
            counters = (fy.P4CounterEntry.decode(each, self.pipeline.schema) for each in found)
            return {DropReason(each.index or 0): each.packet_count for each in counters}

        counts = await asyncio.gather(*map(of, self._managed))
        return dict(zip(self._managed, counts, strict=True))

    async def queues(self) -> list[Queue]:
        """Return the queues in the switches. Only softswitch reports them, and only for ports with a rate.

        Raises the error of a switch that does not answer.
        """

        async def of(switch: Switch) -> list[Queue]:
            try:
                told = _by_port(await self._client(switch.name).read([_Externs()]))
            except Refused:  # of an earlier version
                return []
            return [
                Queue(
                    switch.name,
                    port.number,
                    switch.link(port.number),
                    "switch",
                    told[port.number][_DROPPED].packet_count,
                    told[port.number][_WAITING].packet_count,
                    told[port.number][_WAITING].byte_count,
                )
                for port in switch.ports
                if _DROPPED in told[port.number]
            ]

        return list(itertools.chain.from_iterable(await asyncio.gather(*map(of, self._softswitches))))

    async def too_long(self) -> dict[tuple[str, int], int]:
        """Return the packets that exceeded the MTU of a port's link, by switch and port.

        Only softswitch counts them. Raises the error of a switch that does not answer.
        """

        async def of(switch: Switch) -> dict[tuple[str, int], int]:
            try:
                told = _by_port(await self._client(switch.name).read([_Externs(_TOO_LONG)]))
            except Refused:  # of an earlier version
                return {}
            return {(switch.name, port): counted[_TOO_LONG].packet_count for port, counted in told.items()}

        counts = await asyncio.gather(*map(of, self._softswitches))
        return {port: packets for counted in counts for port, packets in counted.items()}

    @property
    def _softswitches(self) -> list[Switch]:
        return [switch for switch in self.topology.switches if switch.target == "softswitch"]

    async def counters(self) -> dict[tuple[str, int], PortCounters]:
        """Return the counters of every port, by switch and number.

        Bytes count each frame as the switch sees it; with offloads that is one for several on the wire.
        Raises the error of a switch that does not answer.
        """

        async def of(switch: Switch) -> dict[tuple[str, int], PortCounters]:
            asked = [
                fy.P4CounterEntry(counter, index=port.number)
                for port in switch.ports
                for counter in (p4.COUNTER_PORT_IN, p4.COUNTER_PORT_OUT)
            ]
            found = await self._client(switch.name).read(asked)
            now = time.monotonic_ns()
            counters: dict[str, dict[int, Any]] = {p4.COUNTER_PORT_IN: {}, p4.COUNTER_PORT_OUT: {}}
            by_id = {self.pipeline.schema.counters[name].id: name for name in counters}
            for entity in found:
                entry = entity.counter_entry
                counters[by_id[entry.counter_id]][entry.index.index] = entry.data
            counted = {}
            for port in switch.ports:
                if not all(port.number in by_port for by_port in counters.values()):
                    raise EntrainError(f"{switch.name}: does not say what port {port.number} has counted")
                into, out = (by_port[port.number] for by_port in counters.values())
                counted[switch.name, port.number] = PortCounters(
                    now, into.packet_count, into.byte_count, out.packet_count, out.byte_count
                )
            return counted

        per_switch = await asyncio.gather(*map(of, self.topology.switches))
        return {port: counters for counted in per_switch for port, counters in counted.items()}

    def tables(self) -> dict[str, dict[str, int]]:
        """Return, by switch and table, how many entries it has, as far as this controller knows."""
        names = {table.id: table.name for table in self.pipeline.schema.tables if not table.is_const}
        sizes = {}
        for name, managed in self._managed.items():
            sizes[name] = dict.fromkeys(names.values(), 0) if managed.known is not None else {}
            for entity in (managed.known or {}).values():
                if entity.HasField("table_entry"):
                    sizes[name][names[entity.table_entry.table_id]] += 1
        return sizes

    async def refused(self, *, besides_away: bool = False) -> dict[Host, dict[RefusedReason, int]]:
        """Return how many carriers of each host its leaf has refused since its pipeline was set, where any.

        With `besides_away` without switches that are away. Raises the error of one that does not answer.
        """
        if not self.pipeline.limits_hosts:
            return {}

        async def of(leaf: str) -> dict[int, int]:
            asked = [
                fy.P4CounterEntry(p4.COUNTER_REFUSED, index=_refused_index(host.leaf_port, reason))
                for host in self.topology.hosts_of(leaf)
                for reason in RefusedReason
            ]
            found = await self._client(leaf).read(asked) if asked else []
            counters = (fy.P4CounterEntry.decode(each, self.pipeline.schema) for each in found)
            return {each.index or 0: each.packet_count for each in counters}

        names = [name for name, managed in self._managed.items() if not (besides_away and managed.away)]
        counts = dict(zip(names, await asyncio.gather(*map(of, names)), strict=True))
        refused = {
            host: {
                reason: count
                for reason in RefusedReason
                if (count := counts[host.leaf].get(_refused_index(host.leaf_port, reason), 0))
            }
            for host in self.topology.hosts
            if host.leaf in counts
        }
        return {host: each for host, each in refused.items() if each}

    async def write(self, switch: str, updates: Sequence[p4r.Update]) -> None:
        """Write what is no part of the desired state. Raises Unreachable, NotPrimary or Refused."""
        await _primary(self._managed[switch]).write(updates)

    # -- packets

    def on_packet(self, handler: Callable[[str, fy.P4PacketIn], None]) -> None:
        """Call `handler` with the switch's name for each packet-in."""
        self._packet_handlers.append(handler)

    def send_packet(self, switch: str, payload: bytes, **metadata: int) -> None:
        """Send a packet-out. Raises Unreachable."""
        self._client(switch).send_packet(payload, **metadata)

    # -- the task of one switch

    def _client(self, switch: str) -> SwitchClient:
        managed = self._managed[switch]
        if managed.client is None or not managed.client.connected:
            raise Unreachable(_named(switch, managed.status))
        return managed.client

    async def _supervise(self, managed: _Managed) -> None:
        """Run one session after another. Only a failure of the first, before it is ready, is final."""
        timeout_s: float | None = self._connect_timeout_s
        while True:
            try:
                await self._session(managed, timeout_s)
            except Exception as error:  # never stop supervising a switch silently
                self._report(managed, str(error) if isinstance(error, EntrainError) else repr(error))
                if not managed.settled.is_set() and self._strict:
                    managed.failure = error
                    managed.settled.set()
                    return
                managed.settled.set()
            timeout_s = None
            await asyncio.sleep(RETRY_S)

    async def _session(self, managed: _Managed, timeout_s: float | None) -> None:
        """Connect, converge, and stay until the connection ends, which raises Unreachable."""
        name = managed.switch.name

        def dispatch(packet: fy.P4PacketIn) -> None:
            for handler in self._packet_handlers:
                handler(name, packet)

        def slow(is_slow: bool) -> None:
            managed.slow = (
                f"{name}: answers slowly: most of its latest answers took longer than "
                f"{1000 * heartbeat.SLOW_S:g} ms; look at the link to it"
                if is_slow
                else ""
            )
            self._on_event(managed.slow or f"{name}: no longer answers slowly")

        client = SwitchClient(
            managed.switch,
            self.pipeline,
            on_packet=dispatch,
            on_change=managed.doubt,
            on_slow=slow,
            earlier=managed.election_id,
        )
        try:
            await client.connect(timeout_s)
            managed.client = client
            while client.connected:
                managed.changed.clear()
                try:
                    await self._reconcile(managed)
                    self._report(managed, READY)
                    managed.settled.set()
                except (NotPrimary, Refused, NoPipeline) as error:
                    if not managed.settled.is_set() and self._strict:
                        raise
                    self._report(managed, str(error))
                    managed.settled.set()
                if client.connected:
                    await managed.changed.wait()
            raise client.ended()
        except Unreachable as error:
            self._report(managed, str(error))  # before what is asked of the switch ends with the connection
            raise
        finally:
            managed.client = managed.known = None
            managed.slow, managed.election_id = "", client.election_id
            await client.close()

    async def _reconcile(self, managed: _Managed) -> _Change:
        """Set the pipeline, read the state, and write the difference."""
        async with managed.lock:
            client, began = _primary(managed), time.monotonic()
            managed.pipeline_set |= await client.set_pipeline()
            managed.known = await client.read_state()
            return await _write(managed, managed.known, began)

    async def _advance(self, managed: _Managed) -> _Change:
        """Write the difference to what is known, or read the state where nothing is."""
        async with managed.lock:
            if managed.known is not None:
                return await _write(managed, managed.known, time.monotonic())
        return await self._reconcile(managed)

    def _report(self, managed: _Managed, status: str) -> None:
        if status != managed.status:
            managed.status = status
            self._on_event(_named(managed.switch.name, status))


def _named(switch: str, text: str) -> str:
    return text if switch in text else f"{switch}: {text}"


def _refused_index(port: int, reason: RefusedReason) -> int:
    return port * len(RefusedReason) + reason


def _primary(managed: _Managed) -> SwitchClient:
    client = managed.client
    if client is None or not client.connected:
        raise Unreachable(_named(managed.switch.name, managed.status))
    if not client.primary:
        raise client.not_primary()
    return client


async def _write(managed: _Managed, before: State, began: float) -> _Change:
    """Write the difference between `before` and the desired state in one batch. Undo it on failure."""
    client = _primary(managed)
    desired = before
    if managed.desired is not None:
        kept = client.kept(before)
        desired = {**kept, **managed.desired} if kept else managed.desired
    change = difference(before, desired)
    if change.updates:
        try:
            await client.write(change.updates)
        except EntrainError:
            await _restore(managed, client, before)
            raise
    if managed.known is before:  # else somebody has given cause to doubt
        managed.known = desired
    managed.spent_s += time.monotonic() - began
    return _Change(_applied(managed.switch.name, managed.pipeline_set, change, managed.spent_s), before)


async def _undo(managed: _Managed, result: _Change | BaseException) -> None:
    """Restore one switch after another one has refused its state."""
    if isinstance(result, _Change) and result.applied.written and managed.client is not None:
        async with managed.lock:
            await _restore(managed, managed.client, result.before)


async def _restore(managed: _Managed, client: SwitchClient, before: State) -> None:
    """Undo a failed batch as far as possible. The next reconciliation corrects the rest."""
    managed.known = None
    try:
        back = difference(await client.read_state(), before)
        if back.updates:
            await client.write(back.updates)
    except EntrainError:
        pass


def _applied(switch: str, pipeline_set: bool, change: Difference, seconds: float) -> Applied:
    kinds = (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE)
    inserted, modified, deleted = (change.count(kind) for kind in kinds)
    return Applied(switch, pipeline_set, inserted, modified, deleted, seconds)


def _by_port(entities: Iterable[Any]) -> Mapping[int, Mapping[int, Any]]:
    """Return the counts of extern entries by port and type."""
    told: dict[int, dict[int, Any]] = defaultdict(dict)
    for entity in entities:
        data = p4r.CounterData()
        entity.extern_entry.entry.Unpack(data)
        told[entity.extern_entry.extern_id][entity.extern_entry.extern_type_id] = data
    return told
