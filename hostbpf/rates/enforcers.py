"""What makes flows keep to their schedules, chosen by what the kernel has and what the flow is.

Sockets with a congestion control of `slots.PACED` pace themselves; they are only woken after silence. All
else is held back at the interface: by departure times where the kernel has `fq`, by queueing with HTB and
TBF otherwise. The interface's root qdisc is touched when the first flow needs it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import shlex
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ebpf import Codec, EbpfError, Map, Object, TypedMap, compile_cached, in_netns
from hostbpf import SOURCES
from hostbpf.clock import SlotClock
from hostbpf.flow import KEY, flow_key
from hostbpf.rates import htb, rtnetlink
from hostbpf.rates.htb import Buckets
from hostbpf.rates.rtnetlink import Netlink
from hostbpf.rates.schedules import NEVER, PACED, Enforcer, TimedSchedule
from hostbpf.rates.sockets import Descriptor, Socket, SocketDiag
from hostbpf.urgent import urgent
from machine.errors import BadInput, EntrainError, MissingTool
from machine.record import Record, Resource
from wire.flow import Flow

Name = Literal["pacing", "edt", "htb"]
NAMES: tuple[Name, ...] = get_args(Name)
REMEDY = f"let it use {' or '.join(PACED)} (TCP), or take a kernel with fq, or with htb and tbf"

_QDISCS: dict[Name, tuple[str, ...]] = {
    "pacing": (),
    "edt": ("fq",),
    "htb": ("htb", "tbf rate 1mbit burst 2k latency 1ms"),
}
_IDLE_SETTING = "net/ipv4/tcp_slow_start_after_idle"
_FQ_MAJOR = 0xDF00
_ETHERNET_BYTES, _TCP_BYTES, _UDP_BYTES = 14, 52, 28
_SIOCGIFMTU = 0x8921
FORGOTTEN_NS = 60 * 10**9
"""A flow without a schedule is remembered for so long: to find out about it again takes milliseconds."""


@functools.cache
def kernel_has(name: Name) -> bool:
    """Whether this kernel has the qdiscs of an enforcer: it is asked for one that none of them can be.

    The kernel looks for the kind first, and refuses a shared ingress block then. So the loopback stays as it
    is, and no namespace is needed, which a system service may not have.
    """
    return all(_has_qdisc(kind) for kind in _QDISCS[name])


def _has_qdisc(kind: str) -> bool:
    command = ["tc", "qdisc", "add", "dev", "lo", "ingress_block", "1", "root", *shlex.split(kind)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "Ingress block sharing is not supported" in done.stderr


@dataclass(frozen=True)
class Choice:
    """Whether sockets that pace themselves are left to it, what holds back all other flows (None: nothing
    can), and why."""

    pacing: bool
    other: Enforcer | None
    reason: str

    def __str__(self) -> str:
        parts = ["pacing"] if self.pacing else []
        parts += [self.other.name.lower()] if self.other is not None else []
        return "+".join(parts)


def choose(forced: Name | None = None, has: Callable[[Name], bool] = kernel_has) -> Choice:
    """The enforcers of a host. Raises MissingTool when the kernel lacks the one that is `forced`."""
    if forced is not None and not has(forced):
        missing = " and ".join(each.split()[0] for each in _QDISCS[forced])
        raise MissingTool(f"enforcer {forced}: this kernel lacks the qdisc {missing}; take another one")
    match forced:
        case "pacing":
            return Choice(True, None, "as asked: only TCP flows that pace themselves can have a schedule")
        case "edt" | "htb":
            return Choice(False, Enforcer[forced.upper()], "as asked, for all flows")
    paced = f"{' and '.join(PACED)} pace themselves"
    if has("edt"):
        return Choice(True, Enforcer.EDT, f"{paced}; other flows by departure times: the kernel has fq")
    if has("htb"):
        return Choice(True, Enforcer.HTB, f"{paced}; other flows by queueing: no fq, but htb and tbf")
    return Choice(True, None, f"{paced}; other flows cannot be limited: neither fq nor htb and tbf")


class _Flow:
    """What is known of one flow."""

    def __init__(self, enforcer: Enforcer, *, socket: Socket | None = None, number: int = 0) -> None:
        self.enforcer = enforcer
        self.socket = socket
        self.number = number  # of its bucket (HTB)
        self.descriptor: Descriptor | None = None  # where to wake it (pacing)
        self.searched = False
        self.schedule: TimedSchedule | None = None
        self.applied: tuple[TimedSchedule | None, int | None] = (
            None,
            None,
        )  # what the bucket follows: schedule and slot
        self.silent_ns = NEVER  # when it becomes silent, or did before it was woken last (pacing)
        self.due_ns = time.monotonic_ns() + FORGOTTEN_NS  # when it has to be looked at again

    def change(self, schedule: TimedSchedule | None, now: int) -> None:
        """Follow another schedule, or none, from `now` on."""
        since_ns = self.silent_ns
        self.schedule = schedule
        self.expect(now)
        if since_ns <= now < self.silent_ns:
            self.silent_ns, self.due_ns = since_ns, now  # it is woken
        elif self.enforcer == Enforcer.HTB:
            self.due_ns = now

    def expect(self, now: int) -> None:
        """Find out when it has to be looked at again if the schedule stays as it is."""
        schedule = self.schedule
        if schedule is None:
            self.silent_ns, self.due_ns = NEVER, now + FORGOTTEN_NS
        elif self.enforcer == Enforcer.PACING:
            self.silent_ns, self.due_ns = schedule.silence(now)
        else:
            index = schedule.index(now) if self.enforcer == Enforcer.HTB else len(schedule.rates) - 1
            self.due_ns = max(now, schedule.start_ns) if index is None else schedule.end_ns(index)


class Enforcers:
    """What applies the schedules of one host's flows (`enforcing`). Methods may be called from any thread."""

    def __init__(
        self,
        choice: Choice,
        interface: _Interface,
        clock: SlotClock,
        netns: str | None,
        record: Record,
        sockets: SocketDiag,
    ) -> None:
        """`sockets` finds those of namespace `netns`. Flows are looked up in it by whoever gives them their
        first schedule, without a thread in between: a scheduler goes before all else on its processor, and
        such a thread would not."""
        self.choice = choice
        self._sockets = sockets
        self._record = record
        self.failure = ""
        """What went wrong when rates were changed last; empty: nothing did."""
        self._interface = interface
        self._slot_ns = clock.slot_ns
        self._netns = netns
        self._idle = contextlib.ExitStack()
        self._wakes: bool | None = None  # whether silent flows are; None: no flow has paced itself yet
        self._flows: dict[Flow, _Flow] = {}
        self._lowest = (1, interface.payload, interface.payload * 10**9 // clock.slot_ns)  # by enforcer
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._looks_ns = 0  # when the thread, which waits, looks at the flows next; 0: it does not wait
        self._stopping = False

    # -- what `hostbpf.rates.schedules.Schedules` asks

    def assign(self, flow: Flow) -> tuple[Enforcer, bool]:
        """The flow's enforcer, and whether the flow is woken after silence.

        Raises BadInput for a TCP flow that this host does not have, EntrainError for a flow that cannot be
        limited, or an interface that cannot be prepared for it.
        """
        known = self._flows.get(flow)  # without the lock, which the thread may hold for milliseconds
        if known is None:
            with self._lock:
                known = self._flows.get(flow)
                if known is None:
                    known = self._flows[flow] = self._new(flow)
                    self._changed.notify()  # its socket has to be searched for
        return known.enforcer, known.descriptor is not None

    def lowest(self, enforcer: Enforcer) -> int:
        """The lowest rate in bytes/s.

        With queueing a full packet has to leave in each slot; a departure may be two seconds ahead at most.
        """
        return self._lowest[enforcer]

    def changed(self, flow: Flow, schedule: TimedSchedule | None) -> None:
        """Follow another schedule, or none; it is in force within about a millisecond."""
        with self._lock:
            known = self._flows.get(flow)
            if known is None:
                return
            known.change(schedule, time.monotonic_ns())
            if known.due_ns < self._looks_ns:
                self._changed.notify()

    def _new(self, flow: Flow) -> _Flow:
        found = None
        if flow.protocol == socket.IPPROTO_TCP:
            found = self._sockets.find(flow)
            if found is None:
                raise BadInput(f"flow {flow}: no such TCP connection on this host")
            if self.choice.pacing and found.control in PACED:
                return _Flow(Enforcer.PACING, socket=found)
        if self.choice.other is None:
            what = f"congestion control {found.control}" if found else "UDP"
            raise EntrainError(f"flow {flow}: {what} does not keep to schedules; {REMEDY}")
        number = 0
        if self.choice.other == Enforcer.HTB:
            taken = {each.number for each in self._flows.values()}
            number = next((each for each in htb.CLASSES if each not in taken), 0)
        self._interface.add(flow, self.choice.other, number)
        return _Flow(self.choice.other, number=number)

    def wake(self, flow: Flow) -> None:
        """Have a flow that paces itself send what it may; nothing where its socket is not known."""
        with self._lock:
            known = self._flows.get(flow)
            descriptor = known.descriptor if known else None
        if descriptor is not None:
            descriptor.wake()

    # -- the thread

    def run(self) -> None:
        """Follow the schedules until `stop`; then leave nothing as it was for them."""
        urgent()
        with self._changed:
            while not self._stopping:
                try:
                    due_ns = self._follow()
                    if self._search():
                        continue
                    self.failure = ""
                except EntrainError as error:
                    self.failure = str(error)
                    due_ns = time.monotonic_ns() + self._slot_ns
                self._wait_until(due_ns)
            for each in self._flows.values():  # nothing stays silent
                each.change(None, time.monotonic_ns())
                each.due_ns = 0
            with contextlib.suppress(EntrainError):
                self._follow()
            self._idle.close()

    def _wait_until(self, due_ns: int) -> None:
        self._looks_ns = due_ns
        wait_s = max(0, due_ns - time.monotonic_ns()) / 1e9
        self._changed.wait(None if due_ns == NEVER else wait_s)
        self._looks_ns = 0

    def stop(self) -> None:
        """Let `run` return."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def _search(self) -> bool:
        """Find out where sockets are open that pace themselves; others may go on meanwhile. Whether it has
        looked for any."""
        missing = [each.socket for each in self._flows.values() if each.socket and not each.searched]
        if not missing:
            return False
        for each in missing:
            self._flows[each.flow].searched = True
        self._changed.release()
        try:
            if self._wakes is None:
                self._wakes = self._idle.enter_context(_no_slow_start_after_idle(self._netns, self._record))
            found = self._sockets.opened(missing) if self._wakes else {}
        finally:
            self._changed.acquire()
        for flow, descriptor in found.items():
            if flow in self._flows:
                self._flows[flow].descriptor = descriptor
        return True

    def _follow(self) -> int:
        """Apply what the schedules say now; returns when to do so again if none changes."""
        now = time.monotonic_ns()
        buckets: dict[int, bytes] = {}
        for flow, each in list(self._flows.items()):
            if each.due_ns > now:
                continue
            if each.schedule is None and each.applied[0] is None and each.silent_ns > now:
                self._forget(flow)
                continue
            index = each.schedule.index(now) if each.schedule else None
            if each.schedule is not None and index is None and now >= each.schedule.start_ns:
                each.schedule = None  # it has ended
            since_ns = each.silent_ns
            each.expect(now)
            if since_ns <= now < each.silent_ns and each.descriptor is not None:
                if not each.descriptor.wake():
                    del self._flows[flow]  # it is another socket now: found out with the next schedule
            elif each.enforcer == Enforcer.HTB and each.applied != (each.schedule, index):
                buckets[each.number] = self._bucket(flow, each, index, now)
                each.applied = (each.schedule, index)
        if buckets:
            self._interface.change(buckets)
        return min((each.due_ns for each in self._flows.values()), default=NEVER)

    def _bucket(self, flow: Flow, known: _Flow, index: int | None, now: int) -> bytes:
        schedule = known.schedule
        if schedule is None or index is None:
            return htb.UNLIMITED
        frame, payload = self._interface.frame, self._interface.payload
        if flow.protocol == socket.IPPROTO_UDP:
            payload = self._interface.udp_payload
        ahead = 0
        if index and known.applied == (schedule, index - 1):  # the last rate held until now
            late_ns = now - schedule.end_ns(index - 1)
            ahead = (schedule.rates[index - 1] - schedule.rates[index]) * late_ns // 10**9
        return htb.bucket_of(
            schedule.rates[index] * frame // payload,
            frame,
            schedule.slot_ns,
            schedule.end_ns(index) - now,
            ahead,
        )

    def _forget(self, flow: Flow) -> None:
        forgotten = self._flows.pop(flow)
        if forgotten.enforcer != Enforcer.PACING:
            self._interface.remove(flow, forgotten.number)


class _Interface:
    """What is attached to one interface, when the first flow comes that does not pace itself."""

    def __init__(
        self, name: str, ifindex: int, netns: str | None, schedules: Map, cookie: int, record: Record
    ) -> None:
        self.name, self._ifindex, self._netns = name, ifindex, netns
        self._schedules, self._cookie, self._record = schedules, cookie, record
        mtu = in_netns(netns, lambda: _mtu(name))
        self.frame = mtu + _ETHERNET_BYTES
        self.payload = mtu - _TCP_BYTES
        self.udp_payload = mtu - _UDP_BYTES
        self._stack = contextlib.ExitStack()
        self._buckets: Buckets | None = None
        self._classes: TypedMap[Any, int] | None = None
        self._departs = False

    def add(self, flow: Flow, enforcer: Enforcer, number: int) -> None:
        """Hold `flow` back by `enforcer`; `number` is that of its bucket."""
        self.prepare(enforcer)
        if self._buckets is None or self._classes is None:
            return
        if not number:
            raise EntrainError(f"flow {flow}: there are {len(htb.CLASSES)} flows with a class already")
        self._buckets.add(number)
        self._classes[flow_key(flow)] = self._buckets.major << 16 | number

    def change(self, buckets: Mapping[int, bytes]) -> None:
        """Other rates for buckets (HTB)."""
        if self._buckets is not None:
            self._buckets.change(buckets)

    def remove(self, flow: Flow, number: int) -> None:
        """Hold `flow` back no more."""
        if self._buckets is not None and self._classes is not None:
            self._classes.pop(flow_key(flow), None)
            self._buckets.remove(number)

    def prepare(self, enforcer: Enforcer) -> None:
        """Set the qdisc and attach the program, unless that is done. Raises EntrainError."""
        with contextlib.ExitStack() as stack:
            if enforcer == Enforcer.EDT and not self._departs:
                stack.enter_context(fair_queue(self.name, self._ifindex, self._netns, self._record))
                self._attach(stack, "slot_edt", "depart")
                self._departs = True
            if enforcer == Enforcer.HTB and self._buckets is None:
                buckets = stack.enter_context(
                    htb.queueing(self.name, self._ifindex, self._netns, self._record)
                )
                classes = self._attach(stack, "slot_htb", "classify").maps["classes"]
                self._buckets, self._classes = buckets, TypedMap(classes, KEY, Codec("=I", int))
            self._stack.push(stack.pop_all())

    def _attach(self, stack: contextlib.ExitStack, source: str, program: str) -> Object:
        obj = stack.enter_context(Object.open(compile_cached(SOURCES / f"{source}.bpf.c")))
        obj.set_rodata("netns", struct.pack("=Q", self._cookie))
        obj.reuse_map("schedules", self._schedules)
        obj.load()
        stack.enter_context(obj.programs[program].attach_interface(self._ifindex, "egress", self._netns))
        return obj

    def close(self) -> None:
        """Leave the interface as it was."""
        self._stack.close()


def _mtu(interface: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFMTU, struct.pack("=16sI12x", interface.encode(), 0))
    mtu: int = struct.unpack_from("=16sI", answer)[1]
    return mtu


@contextlib.contextmanager
def fair_queue(interface: str, ifindex: int, netns: str | None, record: Record) -> Iterator[None]:
    """Until `record` ends, `interface` has fq as its root qdisc: its own if it has one, else one of ours.

    Raises EntrainError where somebody has set another one.
    """
    with contextlib.ExitStack() as stack:
        netlink = stack.enter_context(Netlink(ifindex, netns))
        kind, handle = netlink.root()
        if kind != "fq":
            if handle:
                raise EntrainError(htb.taken(interface, kind, handle))
            resource = Resource("qdisc", interface, detail=f"root handle {_FQ_MAJOR:x}:")
            in_netns(netns, lambda: record.own(resource))
            message = netlink.message(
                rtnetlink.NEW_QDISC, rtnetlink.ROOT, _FQ_MAJOR << 16, "fq", b"", rtnetlink.CREATE
            )
            netlink.send([message], f"interface {interface}, fq")
        yield


@contextlib.contextmanager
def _no_slow_start_after_idle(netns: str | None, record: Record) -> Iterator[bool]:
    """Within, windows outlive pauses in `netns`; yields whether that is so. `record` restores the setting.

    Else TCP would shrink a silent flow's window after 200 ms, and slot_pacing.bpf.c does not close windows.
    """
    try:
        changed = in_netns(netns, lambda: record.set(_IDLE_SETTING, "0"))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        if changed is not None:
            with contextlib.suppress(OSError, EbpfError):  # the namespace may have gone
                in_netns(netns, lambda: record.release(changed))


@contextlib.contextmanager
def enforcing(
    interface: str,
    ifindex: int,
    clock: SlotClock,
    schedules: Map,
    record: Record,
    *,
    netns: str | None = None,
    cookie: int = 0,
    forced: Name | None = None,
) -> Iterator[Enforcers]:
    """Within, flows that leave by `interface` keep the schedules of `schedules`, whose keys have `cookie`.

    Give it to `hostbpf.rates.schedules.Schedules`. Raises MissingTool where the kernel lacks what is
    `forced`.
    """
    choice = choose(forced)
    place = _Interface(interface, ifindex, netns, schedules, cookie, record)
    with contextlib.ExitStack() as stack:
        stack.callback(place.close)
        if forced is not None and choice.other is not None:
            place.prepare(choice.other)
        diag = stack.enter_context(contextlib.closing(SocketDiag(netns)))
        enforcers = Enforcers(choice, place, clock, netns, record, diag)
        thread = threading.Thread(target=enforcers.run, name="enforcers")
        thread.start()
        stack.callback(thread.join)
        stack.callback(enforcers.stop)
        yield enforcers
