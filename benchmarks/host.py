"""The host datapath: how well flows follow their schedules, and what carriers and control cost.

Two hosts joined by a cable, real TCP. Senders and receivers are processes of their own. What left in each
slot is counted by eBPF at the sender's egress, payload bytes, and compared with rate times slot length.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from ebpf import Map, in_netns
from hostbpf import carriers, slots
from hostbpf.meter import metered
from hostbpf.slots import Flow, Schedules, SlotClock, netns_cookie
from machine.record import Record, Resource

LINK_MBPS = 1000.0
GSO_SEGMENTS = 2
SERVER = ("10.78.0.2", 5000)
HORIZON = slots.HORIZON_MAX
TCP_NOTSENT_LOWAT = 25
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
    a, b = f"bha{os.getpid()}", f"bhb{os.getpid()}"
    with Record("bench-host") as record:
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
    sink = _spawn(_sink, listener, number)

    def connect() -> socket.socket:
        sender = socket.socket()
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        sender.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1 << 17)
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


def _run_time_ns(program: str) -> int | None:
    """Time that a loaded BPF program has run, where the kernel counts it and bpftool is there."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        shown = subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, text=True, check=False)
        programs = [each for each in json.loads(shown.stdout) if each.get("name") == program[:15]]
        return sum(int(each.get("run_time_ns", 0)) for each in programs)
    return None


def rates(
    schedules: Map, slot_ms: float, number: int, slots_measured: int, seed: int = 1
) -> dict[str, float | None]:
    """Errors of `number` flows with random rates (2 to 100 % of their share of the link) in every slot.

    Errors are relative to the wanted bytes of the slot; `over_bound` is the share of slots whose error is
    above max(1 %, half an MSS). CPU is that of the pacing hook and of this process, which writes the
    schedules.
    """
    draw = random.Random(seed)
    clock = SlotClock.shared(slot_ms)
    share = LINK_MBPS / number
    with hosts() as where, metered(clock, where.index_a, netns=where.a) as meter:
        own = Schedules(schedules, clock, netns=netns_cookie(where.a), link_mbps=LINK_MBPS)
        first = clock.slot() + round(500 / slot_ms)
        last = first + slots_measured
        with traffic(where, "slot_cubic", number, clock.start_ns(last + 1)) as flows:
            wanted = {
                flow: {
                    slot: draw.uniform(0.02, 1) * share for slot in range(clock.slot(), last + HORIZON + 1)
                }
                for flow in flows
            }
            cpu, hook, began = time.process_time_ns(), _run_time_ns("slot_min_tso_segs"), time.monotonic_ns()
            while (slot := clock.slot()) <= last:
                for flow in flows:
                    ahead = range(slot, min(slot + HORIZON, last + 1))
                    own.set(flow, slot, [wanted[flow][each] for each in ahead])
                time.sleep(max(0, clock.start_ns(slot + HORIZON // 2) - time.monotonic_ns()) / 1e9)
            spent = time.process_time_ns() - cpu
            hook_after, elapsed = _run_time_ns("slot_min_tso_segs"), time.monotonic_ns() - began
        sent = meter.read()
    errors, over, delays = [], [], []
    for flow in flows:
        for slot in range(first, last):
            want = wanted[flow][slot] * 125 * slot_ms
            got = sent.get((flow, slot))
            off = abs((got.payload_bytes if got else 0) - want)
            errors.append(off / want)
            over.append(off > max(0.01 * want, 724))
            if got:
                delays.append((got.first_ns - clock.start_ns(slot)) / 1e6)
    busy = None if hook is None or hook_after is None else 100 * (hook_after - hook + spent) / elapsed
    return {
        "mean": float(np.mean(errors)),
        "p99": float(np.percentile(errors, 99)),
        "over_bound": float(np.mean(over)),
        "first_packet_ms_p99": float(np.percentile(delays, 99)),
        "cpu_percent": busy,
    }


def carrier_ratio(schedules: Map, seconds: float = 1.5, rounds: int = 3) -> float:
    """TCP throughput with a carrier in every slot over that without, medians of alternating rounds."""
    totals: dict[bool, list[int]] = {False: [], True: []}
    clock = SlotClock.shared(60)
    for _ in range(rounds):
        for announced in (False, True):
            with hosts(gso_segments=None) as where, contextlib.ExitStack() as stack:
                cookie = netns_cookie(where.a)
                meter = stack.enter_context(metered(clock, where.index_a, netns=where.a))
                end_ns = time.monotonic_ns() + round(seconds * 1e9)
                flows = stack.enter_context(traffic(where, "cubic", 1, end_ns))
                if announced:
                    sender = stack.enter_context(
                        carriers.attached(where.index_a, netns=where.a, schedules=schedules, cookie=cookie)
                    )
                    stack.enter_context(carriers.attached(where.index_b, netns=where.b))
                    sender.announce(flows[0], 1)
                    Schedules(schedules, clock, netns=cookie).set(flows[0], clock.slot(), [1000.0] * 32)
                time.sleep(max(0, end_ns - time.monotonic_ns()) / 1e9)
                totals[announced].append(sum(each.payload_bytes for each in meter.read().values()))
    return float(np.median(totals[True]) / np.median(totals[False]))


@contextlib.contextmanager
def _program_statistics() -> Iterator[None]:
    """Within, the kernel counts how long BPF programs run."""
    switch = Path("/proc/sys/kernel/bpf_stats_enabled")
    before = switch.read_text()
    switch.write_text("1")
    try:
        yield
    finally:
        switch.write_text(before)


def main(argv: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks host")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--slots", type=int, default=100, help="slots measured per case")
    options = parser.parse_args(argv)
    figures: dict[str, float | None] = {}
    with slots.pacing_registered() as schedules:
        for slot_ms in (60, 20, 5):
            for name, value in rates(schedules, slot_ms, 1, options.slots).items():
                figures[f"rate_{name}_{slot_ms}ms"] = value
        for number in (16, 64):
            with _program_statistics() if number == 64 else contextlib.nullcontext():
                for name, value in rates(schedules, 60, number, options.slots // 2).items():
                    figures[f"rate_{name}_{number}_flows"] = value
        figures["carrier_throughput_ratio"] = carrier_ratio(schedules)
    figures |= {
        "rate_error_mean": figures["rate_mean_60ms"],
        "rate_error_p99": figures["rate_p99_60ms"],
        "boundary_delay_ms_p99": figures["rate_first_packet_ms_p99_60ms"],
        "host_cpu_percent_64_flows": figures["rate_cpu_percent_64_flows"],
        "load_average": os.getloadavg()[0],
    }
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {'-' if value is None else f'{value:.4f}'}")
