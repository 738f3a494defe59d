"""The host datapath: how closely flows follow their schedules, and the cost of carriers and control."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from ebpf import Map
from entrain.trials.slot_rates import TrialResult, load, run_one
from hostbpf.carriers import carriers
from hostbpf.clock import SlotClock
from hostbpf.flow import netns_cookie
from hostbpf.rates import schedules as slots
from hostbpf.rates.meter import metered
from hostbpf.rates.schedules import Schedules
from hostbpf.rates.trial import Trial, hosts, traffic
from machine.errors import EntrainError

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "slot-rates.toml"
CARRIER_GOAL = 0.98


def rates(schedules: Map, slots: int | None) -> list[TrialResult]:
    """Run the experiment's trials; `slots` overrides how many slots each has."""
    results = []
    for trial, goals in load(EXPERIMENT).trials:
        shortened = replace(trial, slots=slots) if slots else trial
        results.append(run_one(shortened, goals, schedules))
    return results


def _name(trial: Trial, figure: str) -> str:
    return f"{figure}_{trial.control}_{trial.flows}_flows_{trial.slot_ms:g}ms"


def carrier_ratio(schedules: Map, seconds: float = 1.0, pairs: int = 9) -> list[float]:
    """Return the ratio of TCP throughput with a carrier in every slot to that with nothing attached, from
    pairs of runs.

    The order within pairs alternates, so that drift of the machine cancels out in the median.
    """
    _throughput(schedules, seconds, announced=True)  # compiles and warms the caches
    ratios = []
    for pair in range(pairs):
        first = bool(pair % 2)
        measured = {each: _throughput(schedules, seconds, announced=each) for each in (first, not first)}
        ratios.append(measured[True] / measured[False])
    return ratios


def _throughput(schedules: Map, seconds: float, *, announced: bool) -> int:
    """Return the payload throughput of one connection on a link without a rate limit."""
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


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures beside the goals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks host")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--slots", type=int, help="slots measured per trial (default: as in the experiment)")
    options = parser.parse_args(argv)
    figures: dict[str, float | None] = {}
    goals: dict[str, float] = {"carrier_throughput_ratio": CARRIER_GOAL}
    with slots.pacing_registered() as schedules:
        results = rates(schedules, options.slots)
        ratios = carrier_ratio(schedules)
    for result in results:
        measured = asdict(result.figures)
        for name in ("rate_error_own_mean", "rate_error_own_p99"):
            figures[_name(result.trial, name)] = measured[name]
        for cause, number in result.figures.off_by_cause.items():
            figures[_name(result.trial, f"slots_off_{cause}")] = number
        for name, goal in result.goals.model_dump().items():
            figures[_name(result.trial, name)] = measured[name]
            if goal is not None:
                goals[_name(result.trial, name)] = goal
    alone, many = results[0], next(each for each in results if each.trial.flows == 64)
    for name in ("rate_error_mean", "rate_error_p99", "boundary_delay_ms_p99"):
        figures[name] = asdict(alone.figures)[name]
        goals[name] = goals[_name(alone.trial, name)]
    for name in ("rate_error_own_mean", "rate_error_own_p99"):
        figures[name] = asdict(alone.figures)[name]
    cpu = many.figures.host_cpu
    figures |= {
        "host_cpu_percent_64_flows": None if cpu is None else 100 * cpu,
        "carrier_throughput_ratio": float(np.median(ratios)),
        "carrier_throughput_ratio_spread": float(np.subtract(*np.percentile(ratios, [75, 25]))),
        "load_average": os.getloadavg()[0],
    }
    goals["host_cpu_percent_64_flows"] = 100 * goals[_name(many.trial, "host_cpu")]
    if options.json:
        print(json.dumps(figures | {"goals": goals}))
        return
    for name, value in figures.items():
        goal = f"(goal {goals[name]:g})" if name in goals else ""
        print(f"{name:54} {'-' if value is None else f'{value:10.4f}'} {goal}")
