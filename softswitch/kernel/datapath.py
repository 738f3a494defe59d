"""A loaded program: its ports, tables, counters and registers, and runs of single packets.

`Datapath` implements `softswitch.contract.Datapath`. With `netless=True` it needs no network: `run` sends
one packet through the program with bpf_prog_test_run, and follows its clones, replicas, resubmissions and
recirculations in BMv2's order.

Beyond the interface: `run` and `code` (the generated C).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ebpf import Attachment, Codec, Object, RingBuffer
from ebpf.errors import EbpfError
from ebpf.maps import LOCK
from machine.errors import EntrainError
from machine.record import Record, Resource
from softswitch.compiler.build import (
    IFINDICES,
    LOOP_PORT,
    MOST_PORTS,
    PORT_BYTES,
    STATISTICS,
    Code,
    build,
    generate,
)
from softswitch.compiler.layout import Record as Layout
from softswitch.compiler.layout import arguments
from softswitch.compiler.program import Program, Table
from softswitch.compiler.table_layout import NO_ACTION
from softswitch.contract import (
    Action,
    ActionCall,
    DigestCallback,
    Entry,
    Exact,
    Lpm,
    Match,
    Member,
    Queue,
    Range,
    Ternary,
)
from softswitch.kernel import memory
from softswitch.kernel.externs import Externs
from softswitch.kernel.ports import disable_ipv6
from softswitch.kernel.profiles import ProfileStore
from softswitch.kernel.shared import Shared
from softswitch.kernel.tables import OrderedStore, TableStore, store


class _Event(NamedTuple):
    """The head of an event (`struct event`), before its body."""

    type: int
    kind: int
    port: int
    replica: int
    slot: int
    tag: int
    length: int
    last: int


_DEPTH, _IFINDEX, _QUEUED, _LONGEST = 2, 3, 4, 5  # of struct port
_ETHERNET_BYTES = 18  # header with a VLAN tag, which comes on top of an MTU, as Linux's veth counts it
_QUEUE, _RATE_SHIFT = struct.Struct("=8x3Q"), 26  # struct queue and RATE_SHIFT
_EVENT = Codec("=8I", _Event)
_DIGEST, _SEND, _AGAIN = range(3)
_ARRIVAL, _RESUBMITTED, _RECIRCULATED, _INGRESS_CLONE, _EGRESS_CLONE, _REPLICA = range(6)
_SK_BUFF_BYTES = 192
_MOST_RUNS = 1000  # passes of one packet in a netless run, so that endless recirculation stops
_JSON_PRIORITY = 0x7FFFFFFF  # the lower number wins in the JSON, the higher in P4Runtime

_loops = 0


def _context(kind: int, port: int, replica: int, slot: int, tag: int, length: int) -> bytes:
    """Return a struct __sk_buff with the cb that the program reads in a netless run."""
    head = bytes(48) + struct.pack("=5I", kind | port << 8, slot, tag, replica, length)
    return head.ljust(_SK_BUFF_BYTES, b"\0")


class Datapath(Externs):
    """A loaded program. Create it with `load`; `close` detaches everything."""

    def __init__(self, program: Program, code: Code, name: str, drop_port: int, netless: bool) -> None:
        self.program = program
        self.code = code
        self.name = name
        self.drop_port = drop_port
        self.netless = netless
        self._stack = contextlib.ExitStack()
        self._attached: dict[int, tuple[int, Attachment]] = {}  # by port: ifindex and attachment
        self._digests: deque[tuple[int, bytes]] = deque()
        self._events: list[tuple[_Event, bytes]] = []
        self._record: Record | None = None
        self._express: int | None = None
        # Computed on first use, because writes need them often and they never change.
        self._arguments: dict[tuple[str, str], Layout] = {}  # by table and action
        self._direct_of: dict[str, tuple[str | None, str | None]] = {}  # counter and meter, by table
        self._consuming = threading.Lock()

    @classmethod
    def load(
        cls,
        program: Program,
        *,
        name: str,
        drop_port: int = 511,
        express: int | None = None,
        netless: bool = False,
        record: Record | None = None,
        max_state: int | None = None,
    ) -> Datapath:
        """Compile and load a program.

        Frames of EtherType `express` bypass the virtual queues, for links that send them before all others.

        `record` owns what would outlive this process: the loop interface of a program with clones, multicast
        or recirculation. Without `record`, the datapath keeps a record of its own.

        Raises Unsupported for what the compiler does not support, Full if the program's state takes more
        than `max_state` bytes, and EbpfError from clang and the kernel.
        """
        code = generate(program, drop_port=drop_port)
        if max_state is not None:
            memory.check(code, max_state)
        datapath = cls(program, code, name, drop_port, netless)
        try:
            datapath._record = record
            datapath._express = express
            datapath._load()
        except BaseException:
            datapath.close()
            raise
        return datapath

    def _load(self) -> None:
        code = self.code
        self.object = self._stack.enter_context(Object.open(build(code)))
        started = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self.object.set_rodata("netless", struct.pack("=I", self.netless))
        self.object.set_rodata("express", struct.pack("=I", socket.htons(self._express or 0)))
        self.object.set_rodata("started_ns", struct.pack("=Q", started))
        loop = self._make_loop() if code.reinjects and not self.netless else 0
        self.object.set_rodata("loop_ifindex", struct.pack("=I", loop))
        self.object.set_rodata("loop_secret", secrets.token_bytes(4))
        base = self.object.variable("shared").offset
        self.object.load()
        self.object.check_record("event", _EVENT)
        self.object.check_enum(
            "event_type", {"EVENT_DIGEST": _DIGEST, "EVENT_SEND": _SEND, "EVENT_AGAIN": _AGAIN}
        )
        self._program = self.object.programs["softswitch"]
        self.shared = Shared(self.object.maps[".bss"].mmap(), base, code.shared.members)
        self._stack.callback(self.shared.close)
        states = self.object.maps["states"]
        zeros = bytes(states.value_size - 4)
        cpus = len(states.lookup_cpus(bytes(4)))
        states.update_cpus(bytes(4), [struct.pack("=I", cpu) + zeros for cpu in range(cpus)])
        self._ring = RingBuffer(self.object.maps["events"], self._event)
        self._stack.callback(self._ring.close)
        if loop:
            self._set_port_of(loop, LOOP_PORT)
            self._stack.enter_context(self._program.attach_interface(loop, "ingress"))
        maps = self.object.maps
        self._tables = {
            n: store(t, self.shared, maps.get(f"table_{t.index}")) for n, t in code.tables.items()
        }
        self._profiles = {n: ProfileStore(p, self.shared) for n, p in code.profiles.items()}
        self._initial: dict[str, tuple[Entry, ...]] = {}
        for name, table in self.program.tables.items():
            self._initial[name] = tuple(self._load_entries(table))
            if not table.default_const:
                self.table_set_default(name, None)

    def _load_entries(self, table: Table) -> Iterator[Entry]:
        with self.batch():
            for entry in table.entries:
                match = tuple(_match(*m) for m in entry.match)
                call = ActionCall(entry.action, entry.args)
                priority = _JSON_PRIORITY - entry.priority
                handle = self.table_insert(table.name, match, priority, call)
                yield Entry(handle, match, priority, call)

    def _own(self) -> Record:
        """Return the record of what outlives this process. Create it on first use unless `load` got one."""
        if self._record is None:
            self._record = Record(f"softswitch-{self.name}")
            self._stack.callback(self._record.close)
        return self._record

    def _make_loop(self) -> int:
        """Create a veth pair that leads packets back into the program. Return the ifindex of its near end."""
        global _loops
        _loops += 1
        name = f"sw{os.getpid():x}-{_loops:x}"
        link = self._own().own(Resource("link", name))

        def ip(command: str) -> None:
            result = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if result.returncode:
                raise EntrainError(f"cannot create the loop interface {name}: {result.stderr.strip()}")

        ip(f"link add {name} mtu 65535 type veth peer name {name}p mtu 65535")
        for end in (name, f"{name}p"):
            disable_ipv6(end)
            ip(f"link set {end} up")
        self._stack.callback(self._own().release, link)
        return socket.if_nametoindex(name)

    # --- ports ---

    def _set_port_of(self, ifindex: int, port: int | None) -> None:
        if ifindex < IFINDICES:
            self.shared.view("port_of", "H")[ifindex] = 0 if port is None else port + 1
        elif port is None:
            self.object.maps["ports_by_ifindex"].pop(struct.pack("=I", ifindex), None)
        else:
            self.object.maps["ports_by_ifindex"].update(struct.pack("=I", ifindex), struct.pack("=I", port))

    def _set_port(self, port: int, member: int, value: int) -> None:
        """Set a member of 32 bits of the port's `struct port`, by its index."""
        self.shared.view("ports", "I")[PORT_BYTES // 4 * port + member] = value

    def add_port(self, port: int, ifindex: int, rate_mbps: float | None = None) -> None:
        """Receive from and send to interface `ifindex` of this network namespace as `port`."""
        if not 0 <= port < MOST_PORTS:
            raise EntrainError(f"port {port} is out of range: 0 to {MOST_PORTS - 1}")
        if port in self._attached:
            raise EntrainError(f"port {port} already exists")
        self._attached[port] = (ifindex, self._program.attach_interface(ifindex, "ingress"))
        self._set_port_of(ifindex, port)
        self._set_port(port, _IFINDEX, ifindex)
        self.set_queued(port, True)
        self._set_port(port, _LONGEST, 0)
        if rate_mbps is not None:
            self.set_queue(port, rate_mbps, 0)

    def remove_port(self, port: int) -> None:
        if port not in self._attached:
            raise EntrainError(f"there is no port {port}")
        ifindex, attachment = self._attached.pop(port)
        self._set_port(port, _IFINDEX, 0)
        self._set_port_of(ifindex, None)
        attachment.close()

    def set_queued(self, port: int, queued: bool) -> None:
        """Set whether packets may wait at the port's interface, as they do before a queueing discipline."""
        self._set_port(port, _QUEUED, int(queued))

    def set_mtu(self, port: int, mtu: int) -> None:
        """Set the MTU of the port's link."""
        self._set_port(port, _LONGEST, mtu + _ETHERNET_BYTES)

    def too_long(self) -> dict[int, int]:
        """Return the packets that were too long for the link of a port, by port."""
        counts = self.shared.view("too_long")
        return {port: int(counts[port]) for port in self._attached}

    def set_queue(self, port: int, rate_mbps: float, depth_packets: int) -> None:
        """Set a port's virtual queue, and empty it. A rate of 0 removes it; a depth of 0 is unlimited."""
        if not 0 <= port < MOST_PORTS:
            raise EntrainError(f"port {port} is out of range: 0 to {MOST_PORTS - 1}")
        self._set_port(port, _DEPTH, depth_packets)
        rates = self.shared.view("ports")
        rates[PORT_BYTES // 8 * port] = max(round(rate_mbps * 125_000 * 2**26 / 1e9), int(rate_mbps > 0))
        queues = self.object.maps["queues"]
        queues.update(struct.pack("=I", port), bytes(queues.value_size))

    def queues(self) -> dict[int, Queue]:
        """Return the virtual queues, by port."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        rates, lost = self.shared.view("ports"), self.shared.view("lost")
        found = {}
        for port in range(MOST_PORTS):
            if rate := rates[PORT_BYTES // 8 * port]:
                held, packets, last_ns = _QUEUE.unpack(
                    self.object.maps["queues"].lookup(struct.pack("=I", port), LOCK)
                )
                left = max(0, held - (max(0, now - last_ns) * rate >> _RATE_SHIFT))
                waiting = -(-packets * left // held >> 10) if held else 0
                found[port] = Queue(waiting, left, *lost[2 * port : 2 * port + 2])
        return found

    # --- tables ---

    def _table(self, name: str) -> TableStore:
        if name not in self._tables:
            raise EntrainError(f"the program has no table {name}")
        return self._tables[name]

    def _pack(self, table: Table, action: Action) -> bytes:
        """Return a table entry without its handle."""
        if isinstance(action, ActionCall):
            if table.profile:
                raise EntrainError(
                    f"table {table.name} takes members or groups of {table.profile}, not actions"
                )
            return self._pack_call(table, action)
        if not table.profile:
            raise EntrainError(f"table {table.name} has no action profile")
        profile = self._profiles[table.profile]
        if isinstance(action, Member):
            return struct.pack("=IIQ", 0, 0, profile.member(action.id))
        return struct.pack("=IIQ", 1, 0, profile.group(action.id))

    def _pack_call(self, table: Table, call: ActionCall) -> bytes:
        if call.action not in table.actions:
            raise EntrainError(f"table {table.name} has no action {call.action}")
        declared = table.actions[call.action]
        if len(call.args) != len(declared.params):
            raise EntrainError(
                f"action {call.action} takes {len(declared.params)} arguments, not {len(call.args)}"
            )
        key = (table.name, call.action)
        if key not in self._arguments:
            self._arguments[key] = arguments(declared)
        raw = bytearray(self._arguments[key].pack(call.args))
        raw[:4] = struct.pack("=I", self.code.layout.action_code[call.action])
        return bytes(raw)

    def _packed(self, name: str, action: Action) -> bytes:
        layout = self._table(name).layout
        return self._pack(layout.table, action).ljust(layout.entry_bytes, b"\0")

    def initial_entries(self, table: str) -> Sequence[Entry]:
        """Return the entries that the program declares."""
        self._table(table)
        return self._initial[table]

    def initial_default(self, table: str) -> ActionCall | None:
        """Return the default action that the program declares, or None."""
        declared = self._table(table).layout.table
        if declared.default_action is None:
            return None
        return ActionCall(declared.default_action.name, declared.default_args)

    def table_insert(self, table: str, match: tuple[Match, ...], priority: int, action: Action) -> int:
        """Add an entry and return its handle. The larger priority wins."""
        handle = self._table(table).insert(match, priority, self._packed(table, action))
        self._reset_direct(table, handle)
        return handle

    def table_modify(self, table: str, handle: int, action: Action) -> None:
        self._table(table).modify(handle, self._packed(table, action))

    def table_delete(self, table: str, handle: int) -> None:
        self._table(table).delete(handle)

    def table_set_default(self, table: str, action: ActionCall | None) -> None:
        """Set the action of a miss. None restores the program's own default."""
        layout = self._table(table).layout
        chosen = action or self.initial_default(table)
        if layout.table.default_const:
            if action is None or action == self.initial_default(table):
                return
            raise EntrainError(f"the default action of table {table} is constant")
        entry = struct.pack("=II", NO_ACTION, 0) if chosen is None else self._pack_call(layout.table, chosen)
        view = self.shared.view(f"d{layout.index}")
        size = layout.default_bytes // 8
        half = 1 - (view[0] & 1)
        view[1 + half * size : 1 + (half + 1) * size] = memoryview(entry.ljust(8 * size, b"\0")).cast("Q")
        view[0] = half

    @contextlib.contextmanager
    def batch(self) -> Iterator[Datapath]:
        """Rebuild ternary and range tables once, at the end of the context."""
        ordered = [t for t in self._tables.values() if isinstance(t, OrderedStore) and not t.deferred]
        for each in ordered:
            each.deferred = True
        try:
            yield self
        finally:
            for each in ordered:
                each.deferred = False
                each.flush()

    # --- action profiles ---

    def _profile(self, name: str) -> ProfileStore:
        if name not in self._profiles:
            raise EntrainError(f"the program has no action profile {name}")
        return self._profiles[name]

    def _member(self, profile: str, call: ActionCall) -> bytes:
        for _, table in self.program.tables.items():
            if table.profile == profile and call.action in table.actions:
                return self._pack_call(table, call)
        raise EntrainError(f"no table of action profile {profile} has action {call.action}")

    def member_insert(self, profile: str, id_: int, action: ActionCall) -> None:
        self._profile(profile).insert(id_, self._member(profile, action))

    def member_modify(self, profile: str, id_: int, action: ActionCall) -> None:
        self._profile(profile).modify(id_, self._member(profile, action))

    def member_delete(self, profile: str, id_: int) -> None:
        self._profile(profile).delete(id_)

    def group_insert(self, profile: str, id_: int, members: tuple[int, ...]) -> None:
        self._profile(profile).group_insert(id_, members)

    def group_modify(self, profile: str, id_: int, members: tuple[int, ...]) -> None:
        self._profile(profile).group_modify(id_, members)

    def group_delete(self, profile: str, id_: int) -> None:
        self._profile(profile).group_delete(id_)

    # --- digests ---

    def _event(self, raw: bytes) -> None:
        head = _EVENT.unpack(raw)
        body = raw[_EVENT.size : _EVENT.size + head.length]
        if head.type == _DIGEST:
            self._digests.append((head.kind, body))
        else:
            self._events.append((head, body))

    def digest_fd(self) -> int | None:
        """Return a descriptor that is readable while digests wait; None if the program sends none."""
        return self._ring.fd if self.code.digests else None

    def poll_digests(self, callback: DigestCallback) -> None:
        """Call `callback` with each waiting digest: the name of its list, and its values."""
        with self._consuming:
            self._ring.consume()
        while self._digests:
            number, body = self._digests.popleft()
            values, at = [], 0
            for count in self.code.digests[number]:
                values.append(int.from_bytes(body[at : at + 8 * count], "little"))
                at += 8 * count
            callback(self.program.learn_lists[number].name, tuple(values))

    # --- packets ---

    def run(self, packet: bytes, ingress_port: int) -> list[tuple[int, bytes]]:
        """Send one packet through a netless datapath.

        Return the port and bytes of every packet that leaves, in BMv2's order.
        """
        if not self.netless:
            raise EntrainError("run needs a datapath loaded with netless=True")
        sent: list[tuple[int, bytes]] = []
        waiting = deque([(packet, _context(_ARRIVAL, ingress_port, 0, 0, 0, len(packet)))])
        for _ in range(_MOST_RUNS):
            if not waiting:
                return sent
            self._follow(*waiting.popleft(), sent, waiting)
        raise EntrainError(f"the packet still recirculates after {_MOST_RUNS} rounds")

    def _follow(
        self,
        packet: bytes,
        context: bytes,
        sent: list[tuple[int, bytes]],
        waiting: deque[tuple[bytes, bytes]],
    ) -> None:
        with self._consuming:  # another thread may poll for digests
            self._events.clear()
            self._program.test_run(packet.ljust(64, b"\0"), context)
            self._ring.consume()
            events, self._events = self._events, []
        for (kind, again, port, replica, slot, tag, length, last), body in events:
            if kind == _SEND:
                sent.append((port, body[:length]))
                continue
            item = (body[:length], _context(again, port, replica, slot, tag, length))
            if last:
                waiting.append(item)
            else:
                self._follow(*item, sent, waiting)

    def stats(self) -> dict[str, int]:
        """Return the number of parser errors, and of drops by reason, since loading."""
        return dict(zip(STATISTICS, self.shared.view("statistics").tolist(), strict=True))

    def close(self) -> None:
        """Detach from all ports and free everything. A second call does nothing."""
        for port in list(self._attached):
            with contextlib.suppress(EbpfError):  # the interface may no longer exist
                self.remove_port(port)
        self._stack.close()


def _match(kind: str, value: int, extra: int) -> Match:
    match kind:
        case "exact" | "valid":
            return Exact(value)
        case "lpm":
            return Lpm(value, extra)
        case "ternary":
            return Ternary(value, extra)
    return Range(value, extra)
