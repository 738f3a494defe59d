"""The relay that delays a link: how exact its delay is at a rate, its cost, and how much it can pass."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from controlplane.topology import Link
from ebpf import Object, RingBuffer, compile_cached, in_netns
from hostbpf.rates.trial import MSS, SERVER, Hosts, traffic
from machine.record import Record, Resource
from mininet_topos import relays
from mininet_topos.links import FRAME_BYTES, gso_max_bytes, tc_commands
from mininet_topos.loss import lossy

SOURCE = Path(__file__).parent / "bpf" / "transit.bpf.c"
DELAY_MS = 5.0
SETTLE_S = 0.5
LOSSES = (0.001, 0.01)
GOALS = {"mbps": 300.0, "error_ms_p99": 0.2}


@dataclass(frozen=True)
class Measured:
    """Figures of one run. Errors are of the time between the relay's two interfaces, against the delay."""

    mbps: float
    frames_per_s: float
    error_ms_median: float
    error_ms_p99: float
    late_ms_p99: float | None
    cpu: float
    dropped: int


@contextlib.contextmanager
def apart(record: Record, rate_mbps: float, offloads: bool) -> Iterator[tuple[Hosts, str]]:
    """Two hosts, and a namespace between them with the far ends of their cables, `left` and `right`."""
    a, between, b = (f"rl{each}{os.getpid()}" for each in "axb")
    for name in (a, between, b):
        record.own(Resource("netns", name))
        subprocess.run(["ip", "netns", "add", name], check=True)
    link = Link("a", 1, "b", 1, rate_mbps, 1000)
    for name, address, inner in ((a, "10.78.0.1", "left"), (b, SERVER[0], "right")):
        commands = [
            f"ip -n {name} link add eth0 type veth peer name {inner} netns {between}",
            f"ip -n {name} addr add {address}/24 dev eth0",
            f"ip -n {name} link set eth0 gso_max_size {gso_max_bytes(rate_mbps)} up",
            f"ip -n {between} link set {inner} up",
            *(f"tc -n {name} {each}" for each in tc_commands("eth0", link, "htb")),
        ]
        if not offloads:
            commands.append(f"ip -n {name} link set eth0 gso_max_segs 1")  # else one loss would be of many
            commands.append(f"ip netns exec {name} ethtool -K eth0 tx off tso off gso off gro off")
        for command in commands:
            subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)
    yield (
        Hosts(
            a,
            b,
            *(in_netns(each, lambda: socket.if_nametoindex("eth0")) for each in (a, b)),
        ),
        between,
    )


def measure(rate_mbps: float, seconds: float, *, offloads: bool, loss: float = 0.0) -> Measured:
    """Send over a link of that rate for so long, with one TCP connection (CUBIC)."""
    link = Link("left", 0, "right", 0, rate_mbps, 0, delay_ms=DELAY_MS)
    with (
        tempfile.TemporaryDirectory() as directory,
        Record("benchmark-relay") as record,
        apart(record, rate_mbps, offloads) as (where, between),
        Object.open(compile_cached(SOURCE)) as obj,
        contextlib.ExitStack() as stack,
    ):
        for name in (where.a, where.b):
            relays.steer(link, "eth0", ["ip", "netns", "exec", name])
        relay = relays.start(record, link, ("left", "right"), Path(directory), netns=between)
        relay.child.wait_ready(relays.READY_TIMEOUT_S)
        obj.set_rodata("port", struct.pack("=H", SERVER[1]))
        obj.load()
        left = in_netns(between, lambda: socket.if_nametoindex("left"))
        stack.enter_context(obj.programs["begin"].attach_interface(left, "ingress", between))
        stack.enter_context(obj.programs["end"].attach_interface(where.index_b, "ingress", where.b))
        if loss:
            stack.enter_context(lossy([where.index_a], loss, netns=where.a))
        took: list[bytes] = []
        buffer = RingBuffer(obj.maps["transits"], took.append)
        stack.callback(buffer.close)
        begin_ns = time.monotonic_ns() + round(SETTLE_S * 1e9)
        end_ns = begin_ns + round(seconds * 1e9)
        with traffic(where, "cubic", 1, end_ns):
            time.sleep(max(0, begin_ns - time.monotonic_ns()) / 1e9)
            buffer.consume()
            took.clear()
            before, bytes_before = relays.passed([relay]), _received(where.b)
            began_ns = time.monotonic_ns()
            while time.monotonic_ns() < end_ns:
                time.sleep(max(0, min(0.5, (end_ns - time.monotonic_ns()) / 1e9)))
                buffer.consume()
            passed, received = relays.passed([relay]).since(before), _received(where.b) - bytes_before
            elapsed_s = (time.monotonic_ns() - began_ns) / 1e9
        relay.child.end()
    errors = np.abs(np.frombuffer(b"".join(took), np.uint64).astype(float) / 1e6 - DELAY_MS)
    return Measured(
        received * 8 / 1e6 / elapsed_s,
        passed.frames / elapsed_s,
        float(np.median(errors)),
        float(np.percentile(errors, 99)),
        passed.late_ms_p99,
        passed.cpu_s / elapsed_s,
        passed.dropped,
    )


def windows(rate_mbps: float, seconds: float) -> dict[str, float]:
    """Return what CUBIC gets at some loss rates, relative to sqrt(1.5 / p) segments per round trip.

    That is TCP's mean window at random loss (Mathis et al., CCR 1997) without delayed acknowledgements: Linux
    counts the segments that are acknowledged. At short round trips, CUBIC is as fast as Reno (RFC 9438, 4.3).
    """
    result = {}
    for loss in LOSSES:
        measured = measure(rate_mbps, seconds, offloads=False, loss=loss)
        expected = MSS * 8 * math.sqrt(1.5 / loss) / (2 * DELAY_MS * 1e3)  # Mbit/s
        result[f"cubic_mbps_loss_{loss:g}"] = measured.mbps * MSS / FRAME_BYTES
        result[f"cubic_of_theory_loss_{loss:g}"] = measured.mbps * MSS / FRAME_BYTES / expected
    return result


def _received(netns: str) -> int:
    """Return the bytes that eth0 there has received."""
    read = in_netns(netns, Path("/proc/thread-self/net/dev").read_text)
    (line,) = (each for each in read.splitlines() if each.strip().startswith("eth0:"))
    return int(line.split(":")[1].split()[0])


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures beside the goals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks relay")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mbps", type=float, default=320.0, help="rate of the link (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (default: %(default)s)")
    options = parser.parse_args(argv)
    runs = {
        "frames": measure(options.mbps, options.seconds, offloads=False),
        "offloaded": measure(options.mbps, options.seconds, offloads=True),
        "frames_most": measure(10_000, options.seconds, offloads=False),
    }
    figures = {f"{run}_{name}": value for run, found in runs.items() for name, value in vars(found).items()}
    figures |= windows(options.mbps, options.seconds)
    figures["load_average"] = os.getloadavg()[0]
    goals = {f"{run}_{name}": goal for run in ("frames", "offloaded") for name, goal in GOALS.items()}
    if options.json:
        print(json.dumps(figures | {"goals": goals}))
        return
    for name, value in figures.items():
        goal = f"(goal {goals[name]:g})" if name in goals else ""
        print(f"{name:32} {'-' if value is None else f'{value:12.4f}'} {goal}")
