"""Emulated switches: the delay and cost of negotiation (flow-scheduling paper, figures 12a, 13).

In the paper, one switch has six servers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import psutil

from controlplane.topology import Topology, dumbbell, parse_topology
from hostbpf.clock import SlotClock
from hostbpf.emulated.client import Emulated, load_paths
from hostbpf.scheduling.loads import RATE_UNIT
from mininet_topos.emulated_switches import write_files
from schedulers.slots.host import warm_up
from wire.flow import Flow
from wire.slot_header import LANES

SLOT_MS = 60.0
LINE_MBPS = 1000
WARM_UP = 10
"""Number of slots before measurement starts."""


@dataclass(frozen=True)
class Host:
    """One host's measurements: a delay (s) per flow and slot, the number of unanswered requests, bytes of
    messages, and its share of a processor."""

    delays: list[float]
    unanswered: int
    bytes: int
    cpu: float


def ready(together: Barrier) -> None:
    """Wait until all hosts can begin."""
    warm_up()
    together.wait(60)


def ask(paths: Path, flows: Sequence[Flow], slots: int) -> Host:
    """Act as a host's agent: at the start of each slot, request feedback on all flows and announce their
    schedules."""
    clock = SlotClock.shared(SLOT_MS)
    first = clock.slot() + 1
    delays: list[float] = []
    unanswered = bytes_before = 0
    began = cpu = 0.0
    with Emulated(load_paths(paths), LINE_MBPS * RATE_UNIT) as source:
        for number, slot in enumerate(range(first, first + WARM_UP + slots)):
            time.sleep(max(clock.start_ns(slot) - time.monotonic_ns(), 0) / 1e9)
            if number == WARM_UP:
                delays.clear()
                unanswered, bytes_before = 0, source.counts()["bytes"]
                began, cpu = time.monotonic(), time.process_time()
            source.ask(flows, slot)
            answered = 0
            for answer in source.answers(SLOT_MS / 2e3):
                answered += 1
                delays.append(answer.delay_s)
                source.tell(answer.flow, slot, np.minimum(answer.headroom, RATE_UNIT * (slot % LANES)))
            unanswered += len(flows) - answered
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        return Host(delays, unanswered, source.counts()["bytes"] - bytes_before, share)


def measure(topology: Topology, flows: int, slots: int) -> dict[str, float]:
    """Measure with `flows` flows from each host to the next hosts, over all switches of the topology."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        addresses = {each.name: f"unix:{name}/{each.name}.sock" for each in topology.switches}
        files, paths = write_files(topology, "source", Path(name), addresses, SLOT_MS)
        switches = [stack.enter_context(_running(file)) for file in files.values()]
        spawn = multiprocessing.get_context("spawn")
        together = spawn.Barrier(len(topology.hosts))
        hosts = stack.enter_context(
            ProcessPoolExecutor(len(topology.hosts), spawn, initializer=ready, initargs=(together,))
        )
        before = [sum(each.cpu_times()[:2]) for each in switches]
        measuring = [
            hosts.submit(ask, paths[host.name], _flows(topology, index, flows), slots)
            for index, host in enumerate(topology.hosts)
        ]
        results = [each.result() for each in measuring]
        spent = [sum(each.cpu_times()[:2]) - cpu for each, cpu in zip(switches, before, strict=True)]
    delays = 1e3 * np.array([delay for each in results for delay in each.delays])
    seconds = (slots + WARM_UP) * SLOT_MS / 1e3
    return {
        "negotiation_ms_p50": float(np.percentile(delays, 50)),
        "negotiation_ms_p90": float(np.percentile(delays, 90)),
        "negotiation_ms_p99": float(np.percentile(delays, 99)),
        "answered": 1 - sum(each.unanswered for each in results) / (slots * flows * len(results)),
        "switch_mbps": 8e-6 * sum(each.bytes for each in results) / (slots * SLOT_MS / 1e3) / len(switches),
        "switch_cpu_percent": 100 * float(np.mean(spent)) / seconds,
        "host_cpu_percent": 100 * float(np.mean([each.cpu for each in results])),
    }


@contextlib.contextmanager
def _running(file: Path) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "entrain.cli", "emulated-switch", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # ready
        yield psutil.Process(process.pid)
        process.terminate()


def _star(hosts: int) -> Topology:
    names = [f"h{number}" for number in range(1, hosts + 1)]
    tables = {
        "switch": [{"name": "s1"}],
        "host": [{"name": name} for name in names],
        "link": [{"a": "s1", "b": name} for name in names],
    }
    return parse_topology(tables, "star")


def _flows(topology: Topology, index: int, count: int) -> list[Flow]:
    hosts = topology.hosts
    others = [hosts[(index + 1 + number % (len(hosts) - 1)) % len(hosts)] for number in range(count)]
    return [Flow(hosts[index].ip, 20000 + n, other.ip, 7000) for n, other in enumerate(others)]


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks emulated_switch")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hosts", type=int, default=6, help="of each switch")
    parser.add_argument("--flows", type=int, default=2, help="of each host")
    parser.add_argument("--slots", type=int, default=200, help="slots measured")
    parser.add_argument("--far", action="store_true", help="two switches; most paths pass both")
    options = parser.parse_args(argv)
    topology = dumbbell(options.hosts) if options.far else _star(options.hosts)
    figures = {**measure(topology, options.flows, options.slots), "load_average": os.getloadavg()[0]}
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value:.4f}")
