"""Flows that follow random schedules between two hosts on a cable: real TCP, measured where it leaves.

Senders and receivers are processes of their own. What left in each slot (for flows that are held back: what
arrived) is counted in payload bytes and compared with rate times slot length (figure 7(a) of the slot
scheduler's paper).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import select
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from ebpf import Map, in_netns
from hostbpf.clock import SlotClock
from hostbpf.flow import netns_cookie
from hostbpf.rates.enforcers import enforcing
from hostbpf.rates.meter import Sent, metered
from hostbpf.rates.schedules import HORIZON_MAX, PACED, Schedules
from hostbpf.rates.waits import Wait, explained
from machine.errors import EntrainError
from machine.record import Record, Resource
from wire.flow import Flow

GSO_SEGMENTS = 2
SERVER = ("10.78.0.2", 5000)
TCP_NOTSENT_LOWAT, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 25, 32, 33
WRITTEN_AHEAD = 4 << 20
"""Bytes that a sender has written ahead: at 1 Gbit/s, its process may be without a processor for 16 ms."""
BUFFER = 16 << 20
"""Of the sender, with what is on its way, and of the receiver, whose window is half of it: at 1 Gbit/s, its
process may be without a processor for 64 ms."""
SETTLE_MS = 500
MSS = 1448
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Hosts:
    """The namespaces of sender and receiver, and the index of the sender's and the receiver's interface."""

    a: str
    b: str
    index_a: int
    index_b: int


@contextlib.contextmanager
def hosts(*, gso_segments: int | None = GSO_SEGMENTS) -> Iterator[Hosts]:
    """Two hosts with a cable; `gso_segments` bounds what the sender's TCP hands down at once."""
    a, b = f"rta{os.getpid()}", f"rtb{os.getpid()}"
    with Record("rate-trial") as record:
        for name in (a, b):
            record.own(Resource("netns", name))
            subprocess.run(["ip", "netns", "add", name], check=True)
        commands = [(a, f"link add eth0 type veth peer name eth0 netns {b}")]
        for name, address in ((a, "10.78.0.1"), (b, SERVER[0])):
            segments = f" gso_max_segs {gso_segments}" if gso_segments else ""
            commands += [(name, f"addr add {address}/24 dev eth0"), (name, f"link set eth0{segments} up")]
        for name, command in commands:
            subprocess.run(["ip", "-n", name, *command.split()], check=True)
        index_a, index_b = (in_netns(name, lambda: socket.if_nametoindex("eth0")) for name in (a, b))
        yield Hosts(a, b, index_a, index_b)


def _sink(listener: socket.socket, number: int) -> None:
    """Accept `number` connections and discard what arrives, without copying it."""
    poll = select.epoll()
    accepted = {}
    for _ in range(number):
        connection, _ = listener.accept()
        accepted[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)
    buffer = bytearray(1 << 20)
    while accepted:
        for fd, _ in poll.poll():
            if not accepted[fd].recv_into(buffer, len(buffer), socket.MSG_TRUNC):
                poll.unregister(fd)
                del accepted[fd]


def _feed(senders: Sequence[socket.socket], end_ns: int) -> None:
    """Keep every sender supplied until `end_ns` (CLOCK_MONOTONIC)."""
    poll = select.epoll()
    by_fd = {each.fileno(): each for each in senders}
    for each in senders:
        each.setblocking(False)
        poll.register(each, select.EPOLLOUT)
    data = bytes(1 << 17)
    while time.monotonic_ns() < end_ns:
        for fd, _ in poll.poll(0.05):
            with contextlib.suppress(BlockingIOError):
                by_fd[fd].send(data)
    for each in senders:
        each.close()


def _spawn(target: Callable[..., None], *args: object) -> BaseProcess:
    process = _FORK.Process(target=target, args=args)
    process.start()
    return process


@contextlib.contextmanager
def traffic(where: Hosts, control: str, number: int, end_ns: int) -> Iterator[list[Flow]]:
    """Within, `number` connections that always have something to send until `end_ns`; waits for their end."""
    listener = in_netns(where.b, lambda: socket.create_server(SERVER, backlog=number))
    listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    sink = _spawn(_sink, listener, number)

    def connect() -> socket.socket:
        sender = socket.socket()
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        sender.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, WRITTEN_AHEAD)
        sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER)
        sender.connect(SERVER)
        return sender

    senders = [in_netns(where.a, connect) for _ in range(number)]
    flows = [Flow.of(each) for each in senders]
    feed = _spawn(_feed, senders, end_ns)
    listener.close()
    for each in senders:
        each.close()
    try:
        yield flows
    finally:
        feed.join()
        sink.join()


@dataclass(frozen=True)
class FlowSlot:
    """One flow in one slot: payload bytes wanted and sent, and how long after the boundary the first packet
    left (None: nothing was sent).

    `lost` has what each cause of the machine's has kept from being sent in this slot, in bytes, and what was
    sent for a second time (`repeated`), or without asking for the pace (`unasked`). It is empty where the
    flow does not pace itself.
    """

    flow: int
    slot: int
    wanted: float
    sent: int
    first_packet_ms: float | None
    lost: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Relative to what was wanted."""
        return abs(self.sent - self.wanted) / self.wanted

    @property
    def cause(self) -> str | None:
        """Why the slot is off by more than its bound: the cause that accounts for most of it, if that is at
        least half. Else it is what paces that is off: `pacing`. None: it is not off."""
        if self.within_bound:
            return None
        cause, lost = max(self.lost.items(), key=lambda each: each[1], default=("", 0.0))
        return cause if 2 * lost >= abs(self.sent - self.wanted) else "pacing"

    @property
    def within_bound(self) -> bool:
        """Whether it is off by at most 1 %, or half a segment where that is more."""
        return abs(self.sent - self.wanted) <= max(0.01 * self.wanted, MSS / 2)


@dataclass(frozen=True)
class Trial:
    """What to try: `flows` connections share `link_mbps` evenly; each slot each has a new random rate between
    `lowest` and all of its share."""

    slot_ms: float
    flows: int = 1
    slots: int = 100
    link_mbps: float = 1000.0
    lowest: float = 0.02
    seed: int = 1
    control: str = "slot_cubic"
    gso_segments: int = GSO_SEGMENTS
    """What TCP may hand down at once: a slot is off by half of it."""

    def boundary_delay_ms(self, each: FlowSlot) -> float | None:
        """How long after the slot's start the new rate was in force; None: nothing was sent.

        A socket that paces itself sends its first burst half a burst's time after that, which is left out.
        """
        if each.first_packet_ms is None:
            return None
        half = self.gso_segments * MSS / 2 / each.wanted * self.slot_ms if self.control in PACED else 0.0
        return max(0.0, each.first_packet_ms - half)


@dataclass(frozen=True)
class Outcome:
    """What came of a trial, by slot, then by flow, and the processor time of the sending host's side."""

    slots: tuple[FlowSlot, ...]
    agent_cpu: float
    """Share of one processor of this process, which writes the schedules and does what the agent does."""
    kernel_cpu: float | None
    """That of the eBPF `PROGRAMS`; None where the kernel does not count it (kernel.bpf_stats_enabled)."""


PROGRAMS = ("slot_min_tso_segs", "cubic_in_ack", "classify", "depart")


def _run_time_ns() -> int:
    """Time that the loaded `PROGRAMS` have run; 0 where nobody counts it, or bpftool is missing."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        shown = subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, text=True, check=False)
        names = {each[:15] for each in PROGRAMS}
        programs = [each for each in json.loads(shown.stdout) if each.get("name") in names]
        return sum(int(each.get("run_time_ns", 0)) for each in programs)
    return 0


def run_trial(trial: Trial, schedules: Map) -> Outcome:
    """Run it with the schedules' map of `hostbpf.rates.schedules.pacing_registered`.

    Slots that began before all flows had a schedule are left out: on a busy machine, set-up may take longer
    than `SETTLE_MS`. Raises EntrainError if these are all.

    A control that does not pace itself is held back by what the agent would choose for it.
    """
    draw = random.Random(trial.seed)
    clock = SlotClock.shared(trial.slot_ms)
    share = trial.link_mbps / trial.flows
    with (
        hosts(gso_segments=trial.gso_segments) as where,
        Record("rate-trial-enforcers") as record,
        metered(clock, where.index_a, netns=where.a)
        if trial.control in PACED
        else metered(clock, where.index_b, netns=where.b, direction="ingress") as meter,
        explained(where.index_a, netns=where.a)
        if trial.control in PACED
        else contextlib.nullcontext() as waits,
    ):
        cookie = netns_cookie(where.a)
        with enforcing(
            "eth0", where.index_a, clock, schedules, record, netns=where.a, cookie=cookie
        ) as enforcers:
            own = Schedules(schedules, clock, netns=cookie, link_mbps=trial.link_mbps, enforcement=enforcers)
            begin = clock.slot()
            first = begin + max(1, round(SETTLE_MS / trial.slot_ms))
            last = first + trial.slots
            rates = [
                {slot: draw.uniform(trial.lowest, 1) * share for slot in range(begin, last + HORIZON_MAX)}
                for _ in range(trial.flows)
            ]
            with traffic(where, trial.control, trial.flows, clock.start_ns(last + 1)) as flows:
                for flow in flows:
                    enforcers.assign(flow)  # takes milliseconds each, which a slot may not have
                began = used = ran = free_until = 0
                while (slot := clock.slot()) <= last:
                    if slot >= first and not began:
                        began, used, ran = time.monotonic_ns(), time.process_time_ns(), _run_time_ns()
                    for flow, wanted in zip(flows, rates, strict=True):
                        now = min(clock.slot(), last)
                        own.set(flow, now, [wanted[each] for each in range(now, now + HORIZON_MAX)])
                    free_until = free_until or clock.slot() + 1  # flows had no schedule yet when it began
                    if waits:
                        waits.collect()
                    time.sleep(max(0, clock.start_ns(slot + HORIZON_MAX // 2) - time.monotonic_ns()) / 1e9)
                elapsed = time.monotonic_ns() - began
                agent, kernel = time.process_time_ns() - used, _run_time_ns() - ran
            told = waits.take() if waits else []
            sent = meter.read()
    if free_until >= last:
        raise EntrainError(
            f"rate trial: the flows had no schedule until slot {free_until - first} of {trial.slots}: the "
            f"machine is too busy; take more slots"
        )
    lost = _lost(told, clock, dict(zip(flows, rates, strict=True)))
    return Outcome(
        tuple(
            _flow_slot(
                number,
                slot - first,
                rates[number][slot] * 125 * trial.slot_ms,
                sent.get((flow, slot)),
                clock.start_ns(slot),
                lost[flow, slot],
            )
            for slot in range(max(first, free_until), last)
            for number, flow in enumerate(flows)
        ),
        agent / elapsed,
        kernel / elapsed if kernel else None,
    )


def _lost(
    told: Sequence[Wait], clock: SlotClock, rates: Mapping[Flow, Mapping[int, float]]
) -> dict[tuple[Flow, int], dict[str, float]]:
    """Return by flow and slot what each cause kept from being sent in it, in bytes; see `FlowSlot`.

    What a flow makes up for within the slot counts as well, so the sum may exceed what is missing in the end.
    """
    result: dict[tuple[Flow, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for wait in told:
        if wait.flow not in rates:
            continue
        for slot in range(clock.slot(wait.from_ns), clock.slot(wait.until_ns) + 1):
            name = wait.cause.name.lower()
            if wait.from_ns == wait.until_ns:
                result[wait.flow, slot][name] += wait.payload_bytes
            else:
                late_ns = wait.within(clock.start_ns(slot), clock.start_ns(slot + 1))
                result[wait.flow, slot][name] += rates[wait.flow].get(slot, 0.0) * 125e-6 * late_ns
    return result


def _flow_slot(
    flow: int, slot: int, wanted: float, sent: Sent | None, start_ns: int, lost: Mapping[str, float]
) -> FlowSlot:
    if sent is None:
        return FlowSlot(flow, slot, wanted, 0, None, dict(lost))
    return FlowSlot(flow, slot, wanted, sent.payload_bytes, (sent.first_ns - start_ns) / 1e6, dict(lost))
