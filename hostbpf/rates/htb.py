"""Rates by queueing: a class of HTB for each flow, with a token bucket (TBF) behind it, changed at each slot.

HTB alone cannot do it: it keeps a class's debt as time at the old rate, so a class that was slow, or silent,
stays so after a change. TBF starts anew with every change. A silent bucket is one in which every packet costs
more than it can hold; it neither sends nor drops. HTB only sorts the flows into buckets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping

from ebpf import in_netns
from hostbpf.rates import rtnetlink
from hostbpf.rates.rtnetlink import CREATE, EXCLUSIVE, GONE, REPLACE, ROOT, Netlink, attribute
from machine.errors import EntrainError
from machine.record import Record, Resource

OWN_MAJORS = range(0xE000, 0xF000)
"""Major numbers of our root qdiscs; those of the buckets are their class's number."""
CLASSES = range(1, 0xD000)
BUCKETS = 64
"""A slot's rate in this many buckets: what may leave at once, and what a late timer may make up for."""
QUEUE_BYTES = 4 << 20  # per flow: more than a UDP socket may have queued

_UNLIMITED = 12_500_000_000  # bytes/s; 100 Gbit/s
_UNLIMITED_NS = 10_000_000  # of its bucket
_TICK_NS = 64
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET: the kernel needs no table of transmission times
_HTB_PARMS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_TBF_PARMS, _TBF_RATE64 = 1, 4
_SILENT_COST = 65_535  # bytes that a packet of a silent bucket costs at least, and more than it holds
_SILENT_BYTES = 32_768  # that it holds; larger packets would be cut up
_SILENT_RATE = 1000  # bytes/s
_SLOWEST_S = 200  # a bucket is full after this at the latest: its depth must fit the kernel's 32-bit ticks
_ROUNDING_BYTES = 16
_KICK = 0xFFFE  # a class that drops everything,
_KICK_QDISC = 0xDFFE  # and the qdisc that does it
_SO_PRIORITY = 12
_QUANTUM = 60_000
_GUARD = 'cat >/dev/null; exec tc qdisc del dev "$1" root handle "$2:"'


def _rate(bytes_per_second: int, cost: int = 0) -> bytes:
    """struct tc_ratespec"""
    return struct.pack("=BBHhHI", 0, _ETHERNET, 0, 0, cost, min(bytes_per_second, 0xFFFFFFFF))


def _bucket(bytes_per_second: int, depth_ns: int, cost: int = 0) -> bytes:
    """The options of a TBF that holds `depth_ns` of its rate."""
    parameters = _rate(bytes_per_second, cost) + _rate(0)
    parameters += struct.pack("=III", QUEUE_BYTES, min(depth_ns // _TICK_NS, 0xFFFFFFFF), 0)
    return attribute(_TBF_PARMS, parameters) + attribute(_TBF_RATE64, struct.pack("=Q", bytes_per_second))


def bucket_of(rate: int, frame_bytes: int, slot_ns: int, left_ns: int, ahead: int = 0) -> bytes:
    """The TBF that lets out `rate` bytes/s on average over the `left_ns` that remain of a slot.

    It starts full, and keeps half a packet in the end; `ahead` bytes of it have left already. The
    rate at which it is filled makes up for that. It never holds more than what remains of the slot lets out:
    else a flow that gets its rate just before a slot ends would send two slots' buckets at once.
    """
    if not rate:
        return _bucket(_SILENT_RATE, _SILENT_BYTES * 10**9 // _SILENT_RATE, _SILENT_COST)
    depth = max(frame_bytes, rate * min(slot_ns // BUCKETS, left_ns) // 10**9)
    surplus = depth - frame_bytes // 2 + ahead
    filled = max(rate - surplus * 10**9 // left_ns, depth // _SLOWEST_S, 1)
    return _bucket(filled, (depth + _ROUNDING_BYTES) * 10**9 // filled + _TICK_NS)


UNLIMITED = _bucket(_UNLIMITED, _UNLIMITED_NS)


class Buckets:
    """The buckets of one interface's flows, by class number."""

    def __init__(self, netlink: Netlink, major: int, interface: str, kick: socket.socket) -> None:
        self.major = major
        self._netlink = netlink
        self._interface = interface
        self._kick = kick

    def add(self, number: int) -> None:
        """A new bucket, not limited. Raises EntrainError."""
        self._send(f"class {number:x}", [*self._class(number, "tbf", number, UNLIMITED)])

    def change(self, options: Mapping[int, bytes]) -> None:
        """Change buckets, by class number, and let go at once what may. Raises EntrainError."""
        messages = [
            self._netlink.message(
                rtnetlink.NEW_QDISC, self.major << 16 | number, number << 16, "tbf", each, REPLACE
            )
            for number, each in options.items()
        ]
        self._send("changing rates", messages)
        with contextlib.suppress(OSError):  # it is dropped on its way into the queues, but they are looked at
            self._kick.send(bytes(12) + b"\x88\xb5" + bytes(46))

    def remove(self, number: int) -> None:
        """Forget a bucket, and drop what is in it."""
        handle = self.major << 16 | number
        message = self._netlink.message(rtnetlink.DELETE_CLASS, self.major << 16, handle)
        self._send(f"class {number:x}", [message], GONE)

    def begin(self) -> None:
        """Make the root qdisc, and the class that drops."""
        root = attribute(_HTB_INIT, struct.pack("=IIIII", 3, 10, 0, 0, 0))
        message = self._netlink.message(
            rtnetlink.NEW_QDISC, ROOT, self.major << 16, "htb", root, CREATE | EXCLUSIVE
        )
        self._send("root qdisc", [message, *self._class(_KICK, "pfifo", _KICK_QDISC, struct.pack("=I", 0))])

    def _class(self, number: int, kind: str, qdisc: int, options: bytes) -> Iterator[bytes]:
        depth = _UNLIMITED_NS // _TICK_NS
        opened = attribute(
            _HTB_PARMS, _rate(_UNLIMITED) * 2 + struct.pack("=IIIII", depth, depth, _QUANTUM, 0, 0)
        )
        for each in (_HTB_RATE64, _HTB_CEIL64):
            opened += attribute(each, struct.pack("=Q", _UNLIMITED))
        handle = self.major << 16 | number
        yield self._netlink.message(rtnetlink.NEW_CLASS, self.major << 16, handle, "htb", opened, CREATE)
        yield self._netlink.message(rtnetlink.NEW_QDISC, handle, qdisc << 16, kind, options, CREATE | REPLACE)

    def _send(self, doing: str, messages: list[bytes], ignore: frozenset[int] = frozenset()) -> None:
        self._netlink.send(messages, f"interface {self._interface}, htb, {doing}", ignore=ignore)


def own(major: int) -> bool:
    """Whether a root qdisc of this major number is one of ours."""
    return major in OWN_MAJORS


def taken(interface: str, kind: str, handle: int) -> str:
    """Says that somebody has set a root qdisc."""
    return (
        f"interface {interface}: somebody has set its root qdisc, {kind} {handle >> 16:x}:; "
        f"remove it (tc qdisc del dev {interface} root), or let flows pace themselves"
    )


@contextlib.contextmanager
def queueing(interface: str, ifindex: int, netns: str | None, record: Record) -> Iterator[Buckets]:
    """Within, `interface` has an HTB of ours as its root qdisc, without a bucket yet.

    It ends with the process, however that ends: another one, which waits for that, removes it, so that
    nothing is held back for longer. Raises EntrainError where somebody else has set a root qdisc.
    """
    major = OWN_MAJORS[os.getpid() % len(OWN_MAJORS)]
    resource = Resource("qdisc", interface, detail=f"root handle {major:x}:")
    with contextlib.ExitStack() as stack:
        netlink = stack.enter_context(Netlink(ifindex, netns))
        kind, handle = netlink.root()
        if own(handle >> 16):  # of an agent that died together with its guard: one agent per interface
            netlink.send([netlink.message(rtnetlink.DELETE_QDISC, ROOT, handle)], interface, ignore=GONE)
        elif handle:
            raise EntrainError(taken(interface, kind, handle))
        guard = in_netns(netns, lambda: _guard(interface, major))
        stack.callback(guard.wait)
        assert guard.stdin is not None
        stack.callback(guard.stdin.close)
        in_netns(netns, lambda: record.own(resource))
        kick = stack.enter_context(in_netns(netns, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)))
        kick.setsockopt(socket.SOL_SOCKET, _SO_PRIORITY, struct.pack("=I", major << 16 | _KICK))
        kick.bind((interface, 0))
        buckets = Buckets(netlink, major, interface, kick)
        buckets.begin()
        yield buckets


def _guard(interface: str, major: int) -> subprocess.Popen[bytes]:
    """A process that waits until this one ends, in whatever way, and then removes the root qdisc."""
    return subprocess.Popen(
        ["sh", "-c", _GUARD, "guard", interface, f"{major:x}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
