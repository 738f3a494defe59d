"""Carriers at the host: announcing schedules to the switches, and the feedback that comes back.

One `Carriers` per host interface. Its programs end with it, or with the process.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ebpf import Codec, Map, Object, RingBuffer, compile_cached, in_netns, maps
from ebpf.errors import describe
from ebpf.tc import Direction
from hostbpf import SOURCES
from hostbpf.carriers.skew import LATE_UNIT_NS, Offset, Skews
from hostbpf.clock import SlotClock
from hostbpf.flow import KEY, flow_of, packed_key
from machine.errors import BadInput, EntrainError
from wire.flow import Flow
from wire.slot_header import HEADER_BYTES, LANES, VERSION, SlotHeader, epoch_of, lane_of

SOURCE = SOURCES / "carrier.bpf.c"
COUNTS = (
    "sent",
    "sent_feedback",
    "received",
    "received_feedback",
    "not_sent",
    "malformed",
    "unknown_flow",
    "not_delivered",
    "forged",
    "other_version",
)
MARKS = range(0xE57A1401, 0xE57A1405)  # socket marks that the programs use themselves
_PROBE, _WITHDRAWAL = MARKS[2:]
_SO_BINDTODEVICE, _SO_SNDBUFFORCE = 25, 32
_PROBE_BUFFER = 1 << 22  # bytes of probes that may wait in the interface's queue
IDLE_S = 60.0
EXPECTED = 100  # carriers, of which at least one should have been answered
_CACHED = 8192  # flows whose keys are kept: they are asked for in every slot


@dataclass(frozen=True)
class Feedback:
    """What came back about a flow: its path's load and headroom per slot, and how far the receiver is."""

    flow: Flow
    header: SlotHeader
    announced: tuple[int, ...] = ()
    """By lane, what the flow itself had announced by then for the header's slots, in rate units: its own part
    of the load on each of the path's links."""
    rtt_ns: int | None = None
    """From the carrier's departure to its return. None: of the carriers of one slot that are under way at
    once only the first is timed."""
    delay_ns: int | None = None
    """From the carrier's departure until the feedback was here, in user space (the paper's figure 12a)."""


class _Announcer(NamedTuple):
    lock: int
    number: int
    stamp: int
    timed_ns: int
    timed_slot: int
    under_way: int
    withdrawn: int


class _Received(NamedTuple):
    bytes: int
    seen_ns: int
    highest: int
    started: int


class _Feedback(NamedTuple):
    flow: bytes
    sent_ns: int
    arrived_ns: int
    announced: bytes
    header: bytes


class _Planned(NamedTuple):
    epoch: int
    rate: int


_ANNOUNCER = Codec("=IIQQIHH", _Announcer)
_RECEIVED = Codec("=QQII", _Received)
_NOTHING_ANNOUNCED = (1 << 64) - 1  # the stamp of no slot
_PLANNED = struct.Struct("=II")  # of a lane: epoch and rate
_ANNOUNCED = struct.Struct(f"={LANES}I")
_FEEDBACK = Codec(f"={KEY.size}sQQ{_ANNOUNCED.size}s{HEADER_BYTES}s", _Feedback)


class Carriers:
    """The slot header's programs on one interface. Methods may be called from any thread."""

    def __init__(self, obj: Object, clock: SlotClock, interface: str, netns: str | None) -> None:
        self._announcers = obj.maps["announcers"]
        self._announcing = obj.maps["announcing"]
        self._flows = 0  # that announce
        self._received = obj.maps["received_flows"]
        self._onward = obj.maps["onward"]
        self._clock = obj.maps["slot_clock"]
        self._counts = obj.maps["counts"]
        self._feedbacks = obj.maps["feedbacks"]
        self.schedules = obj.maps["schedules"]
        self._skews = Skews()
        self.set_clock(clock)
        self._own: dict[str, bool] = {}  # by address
        self._lock = threading.Lock()
        self._route = in_netns(netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._probes = {mark: _probe_socket(interface, mark, netns) for mark in (_PROBE, _WITHDRAWAL)}

    def close(self) -> None:
        """Probe no more."""
        for each in (self._route, *self._probes.values()):
            each.close()

    def set_clock(self, clock: SlotClock) -> None:
        """Number the slots by `clock` from now on.

        Of the slots that a clock which is set back shows again, those that have just passed at the switches
        are not announced again.
        """
        self._clock[bytes(4)] = struct.pack("=qQ", clock.epoch_ns, clock.slot_ns)
        self._slots, self._slots_since_ns = clock, time.monotonic_ns()
        self._skews.clear()

    def announce(self, flow: Flow, number: int | None = None) -> int:
        """Let `flow` announce its schedule from its next packet or probe on; returns its number in headers.

        Feedback is taken for the right number only, so by default it is drawn: nobody off the path can guess
        it. Raises BadInput for a number beyond 32 bits or a flow that announces already, EbpfError when the
        map is full.
        """
        number = secrets.randbits(32) if number is None else number
        if not 0 <= number < 1 << 32:
            raise BadInput(f"flow number {number}: must fit 32 bits")
        value = _ANNOUNCER.pack(_Announcer(0, number, _NOTHING_ANNOUNCED, 0, 0, 0, 0))
        try:
            self._announcers.update(
                packed_key(flow), value.ljust(self._announcers.value_size, b"\0"), maps.NOEXIST
            )
        except KeyError:
            raise BadInput(f"flow {flow}: announces already") from None
        self._count_flows(1)
        return number

    def _count_flows(self, change: int) -> None:
        with self._lock:
            self._flows += change
            self._announcing[bytes(4)] = struct.pack("=I", self._flows)

    def announced(self, flow: Flow) -> dict[int, int]:
        """What `flow` has announced last, in rate units by slot. KeyError when it does not announce."""
        raw = self._announcers.lookup(packed_key(flow), maps.LOCK)
        return _by_slot(raw[_ANNOUNCER.size :])

    def probe(self, flow: Flow) -> None:
        """Send a carrier for `flow` now, whether it has something to send or not, so that feedback comes.

        It announces what has changed, as the flow's own carrier would, which is then not sent. It takes the
        flow's path, and ends at the receiver's programs or, where there are none, at an EtherType that
        nobody handles. A flow that does not announce, or that stays on this host, sends nothing. Raises
        EntrainError when the kernel refuses it.
        """
        try:
            self._probe(flow, _PROBE)
        except OSError as error:
            raise EntrainError(f"flow {flow}: cannot be probed: {error.strerror}") from error

    def withdraw(self, flow: Flow) -> None:
        """Announce `flow` no more, and take back what it has announced.

        Where that cannot be sent, or is lost, the load ages within the horizon.
        """
        if packed_key(flow) not in self._announcers:
            return
        with contextlib.suppress(OSError):
            self._probe(flow, _WITHDRAWAL)
        with contextlib.suppress(KeyError):  # another thread has done it
            del self._announcers[packed_key(flow)]
            self._count_flows(-1)

    def _probe(self, flow: Flow, mark: int) -> None:
        if self._ends_here(flow.destination):
            return  # by the loopback a probe would reach the application
        self._probes[mark].sendto(_headers(flow), (flow.destination, 0))

    def _ends_here(self, address: str) -> bool:
        """Whether `address` is the host's own: then the kernel chooses it as source, too."""
        if address not in self._own:
            with self._lock:
                self._route.connect((address, 9))
                self._own[address] = self._route.getsockname()[0] == address
        return self._own[address]

    def set_onward(self, flow: Flow, sent: int) -> None:
        """Let feedback about `flow`, received here, say that `sent` bytes (0: unknown) have gone onward."""
        self._onward[packed_key(flow)] = struct.pack("=Q", sent)

    def received(self, flow: Flow) -> int:
        """Bytes of `flow`, which is received here, since its first carrier. KeyError when none has come."""
        return _RECEIVED.unpack(self._received[packed_key(flow)]).bytes

    def arriving(self, flow: Flow, slot: int) -> int | None:
        """What the sender of `flow`, which is received here, has announced for `slot`, in rate units; None:
        nothing.

        It is the sum of the changes that arrived, so a lost carrier makes it wrong until its slots have
        passed. KeyError when no carrier has come.
        """
        lane = _RECEIVED.size + lane_of(slot) * _PLANNED.size
        epoch, rate = _PLANNED.unpack_from(self._received[packed_key(flow)], lane)
        return int(rate) if epoch == epoch_of(slot) else None

    def clear_idle(self, idle_s: float = IDLE_S) -> int:
        """Forget received flows whose last carrier came `idle_s` ago; returns how many."""
        before = time.monotonic_ns() - round(idle_s * 1e9)
        idle = [
            key for key, value in self._received.lookup_batch() if _RECEIVED.unpack(value).seen_ns < before
        ]
        for key in idle:
            self._received.pop(key, None)
        return len(idle)

    def feedback(
        self, callback: Callable[[Feedback], None], wanted: Callable[[Flow], bool] = lambda _: True
    ) -> RingBuffer:
        """A ring buffer that calls `callback` with each feedback about a flow that is `wanted` when polled;
        the caller closes it."""

        def decode(data: bytes) -> None:
            raw = _FEEDBACK.unpack(data)
            flow = _flow(raw.flow)
            if not wanted(flow):
                return
            sent = raw.sent_ns
            announced = _ANNOUNCED.unpack(raw.announced)
            header = SlotHeader.unpack(raw.header)
            rtt, delay = (raw.arrived_ns - sent, time.monotonic_ns() - sent) if sent else (None, None)
            if rtt is not None:
                self._note_skew(flow.destination, header, sent, rtt)
            callback(Feedback(flow, header, announced, rtt, delay))

        return RingBuffer(self._feedbacks, decode)

    def _note_skew(self, peer: str, header: SlotHeader, sent_ns: int, rtt_ns: int) -> None:
        clock = self._slots
        if sent_ns > self._slots_since_ns:
            late_ns = header.lanes[lane_of(header.base_slot)].delta * LATE_UNIT_NS
            self._skews.add(peer, sent_ns - clock.start_ns(header.base_slot), late_ns, rtt_ns)

    def skews(self) -> dict[str, Offset]:
        """How far the slots of other hosts are ahead of this one's, by their addresses.

        Of the hosts that have answered a timed carrier in the last minute, provided that somebody reads the
        feedback. The slots of a negative one are behind; the bounds are as far apart as a round trip takes.
        """
        return self._skews.read()

    def counts(self) -> dict[str, int]:
        """How many carriers were sent, received and refused, by `COUNTS`."""
        return {name: self._count(number) for number, name in enumerate(COUNTS)}

    def sent_bytes(self) -> int:
        """Bytes of carriers and feedback that left the interface, Ethernet headers included."""
        return self._count(len(COUNTS))

    def _count(self, number: int) -> int:
        values = self._counts.lookup_cpus(struct.pack("=I", number))
        return sum(int.from_bytes(each, "little") for each in values)


def version_problem(counts: Mapping[str, int], *, asks_switches: bool) -> str:
    """Return what `Carriers.counts` tell of another version of the slot header in this network, or "".

    `asks_switches`: this host's carriers ask switches, so answers are to be expected.
    """
    if counts["other_version"]:
        return (
            f"slot headers of another version than {VERSION} arrive, and are dropped: an agent of another "
            f"version sends them. Upgrade the older of both"
        )
    if asks_switches and counts["sent"] >= EXPECTED and not counts["received_feedback"]:
        return (
            f"none of this host's carriers is answered, so its flows are left to TCP: switches drop slot "
            f"headers of another version than their own (here {VERSION}; `entrain drops` counts them as "
            f"VERSION, older switches as MALFORMED), and hosts without an agent do not answer"
        )
    return ""


@functools.lru_cache(_CACHED)
def _flow(key: bytes) -> Flow:
    return flow_of(KEY.unpack(key))


def _by_slot(lanes: bytes) -> dict[int, int]:
    planned = enumerate(_PLANNED.iter_unpack(lanes))
    return {epoch * LANES + lane: rate for lane, (epoch, rate) in planned if epoch}


def _probe_socket(interface: str, mark: int, netns: str | None) -> socket.socket:
    """A raw socket, so that the kernel finds the route and the neighbour; it can use `interface` alone,
    where `carrier_egress` takes every packet with its mark."""
    try:
        probe = in_netns(netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
    except PermissionError as error:
        raise describe("cannot open a raw socket", error.errno or 0) from error
    probe.setblocking(False)
    probe.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, interface.encode())
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, struct.pack("=I", mark))
    probe.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _PROBE_BUFFER)
    return probe


@functools.lru_cache(_CACHED)
def _headers(flow: Flow) -> bytes:
    """An IPv4 packet of `flow` that has nothing but headers. The kernel adds length and checksum."""
    ends = socket.inet_aton(flow.source) + socket.inet_aton(flow.destination)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 0, 0, 0, 64, flow.protocol, 0) + ends
    ports = struct.pack("!HH", flow.source_port, flow.destination_port)
    if flow.protocol == socket.IPPROTO_UDP:
        return ip + ports + struct.pack("!HH", 8, 0)
    return ip + ports + struct.pack("!IIBBHHH", 0, 0, 5 << 4, 0, 0, 0, 0)


@contextlib.contextmanager
def attached(
    ifindex: int,
    clock: SlotClock,
    *,
    netns: str | None = None,
    schedules: Map | None = None,
    cookie: int = 0,
) -> Iterator[Carriers]:
    """Within, carriers leave and end at interface `ifindex` of `netns`, with slots numbered by `clock`.

    `schedules` is the map to announce from, with `cookie` as the namespace in its keys (that of
    `hostbpf.rates.schedules.pacing_registered`); without it the programs have their own (cookie 0).
    """
    with contextlib.ExitStack() as stack:
        obj = stack.enter_context(Object.open(compile_cached(SOURCE)))
        obj.set_rodata("netns", struct.pack("=Q", cookie))
        if schedules is not None:
            obj.reuse_map("schedules", schedules)
        obj.load()
        obj.check_record("flow_key", KEY)
        obj.check_record("announcer", _ANNOUNCER)
        obj.check_record("received", _RECEIVED)
        obj.check_record("planned", Codec(_PLANNED.format, _Planned))
        obj.check_record("feedback", _FEEDBACK)
        obj.check_enum("count", {name.upper(): number for number, name in enumerate((*COUNTS, "bytes"))})
        directions: tuple[Direction, Direction] = ("egress", "ingress")
        for direction in directions:
            program = obj.programs[f"carrier_{direction}"]
            stack.enter_context(program.attach_interface(ifindex, direction, netns))
        interface = in_netns(netns, lambda: socket.if_indextoname(ifindex))
        yield stack.enter_context(contextlib.closing(Carriers(obj, clock, interface, netns)))
