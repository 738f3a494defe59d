"""The host datapath: how well flows follow their schedules, and what carriers and control cost."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ebpf import Map
from hostbpf import carriers, slots
from hostbpf.meter import metered
from hostbpf.slots import Schedules, SlotClock, netns_cookie
from hostbpf.trial import Trial, hosts, run_trial, traffic
from machine.errors import EntrainError


def _run_time_ns(program: str) -> int | None:
    """Time that a loaded BPF program has run, where the kernel counts it and bpftool is there."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        shown = subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, text=True, check=False)
        programs = [each for each in json.loads(shown.stdout) if each.get("name") == program[:15]]
        return sum(int(each.get("run_time_ns", 0)) for each in programs)
    return None


def rates(schedules: Map, trial: Trial) -> dict[str, float | None]:
    """Errors relative to the wanted bytes of a slot, the share of slots off by more than max(1 %, half an
    MSS), and the processor time of the pacing hook and of this process, which writes the schedules."""
    cpu, hook, began = time.process_time_ns(), _run_time_ns("slot_min_tso_segs"), time.monotonic_ns()
    results = run_trial(trial, schedules)
    spent, hook_after = time.process_time_ns() - cpu, _run_time_ns("slot_min_tso_segs")
    elapsed = time.monotonic_ns() - began
    errors = [each.error for each in results]
    delays = [each.first_packet_ms for each in results if each.first_packet_ms is not None]
    return {
        "mean": float(np.mean(errors)),
        "p99": float(np.percentile(errors, 99)),
        "over_bound": float(np.mean([not each.within_bound for each in results])),
        "first_packet_ms_p99": float(np.percentile(delays, 99)),
        "cpu_percent": None
        if hook is None or hook_after is None
        else 100 * (hook_after - hook + spent) / elapsed,
    }


def carrier_ratio(schedules: Map, seconds: float = 1.0, pairs: int = 9) -> list[float]:
    """TCP throughput with a carrier in every slot over that without anything attached, by pairs of runs.

    Which of a pair comes first alternates, so that a drift of the machine cancels out in the median.
    """
    _throughput(schedules, seconds, announced=True)  # compiles, and warms the caches
    ratios = []
    for pair in range(pairs):
        first = bool(pair % 2)
        measured = {each: _throughput(schedules, seconds, announced=each) for each in (first, not first)}
        ratios.append(measured[True] / measured[False])
    return ratios


def _throughput(schedules: Map, seconds: float, *, announced: bool) -> int:
    """Payload bytes that one connection sends, on a link without a rate."""
    clock = SlotClock.shared(60)
    with hosts(gso_segments=None) as where, contextlib.ExitStack() as stack:
        cookie = netns_cookie(where.a)
        meter = stack.enter_context(metered(clock, where.index_a, netns=where.a))
        if announced:
            sender = stack.enter_context(
                carriers.attached(where.index_a, clock, netns=where.a, schedules=schedules, cookie=cookie)
            )
            stack.enter_context(carriers.attached(where.index_b, clock, netns=where.b))
        end_ns = time.monotonic_ns() + round(seconds * 1e9)
        flows = stack.enter_context(traffic(where, "cubic", 1, end_ns))
        if announced:
            sender.announce(flows[0])
            Schedules(schedules, clock, netns=cookie).set(flows[0], clock.slot(), [1000.0] * 32)
        time.sleep(max(0, end_ns - time.monotonic_ns()) / 1e9)
        if announced and sender.counts()["sent"] < seconds * 1e9 / clock.slot_ns / 2:
            raise EntrainError(f"too few carriers to measure by: {sender.counts()}")
        return sum(each.payload_bytes for each in meter.read().values())


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
            for name, value in rates(schedules, Trial(slot_ms, 1, options.slots)).items():
                figures[f"rate_{name}_{slot_ms}ms"] = value
        for number in (16, 64):
            with _program_statistics() if number == 64 else contextlib.nullcontext():
                for name, value in rates(
                    schedules, Trial(60, number, options.slots // 2, gso_segments=1)
                ).items():
                    figures[f"rate_{name}_{number}_flows"] = value
        ratios = carrier_ratio(schedules)
        figures["carrier_throughput_ratio"] = float(np.median(ratios))
        figures["carrier_throughput_ratio_spread"] = float(np.subtract(*np.percentile(ratios, [75, 25])))
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
