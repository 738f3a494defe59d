"""The cost of publishing and reading progress."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hostbpf.scheduling.monitor import Direction, Monitor, Phase, Publisher
from wire.flow import Flow

HEADER = Path(__file__).parents[1] / "wire"
FLOWS = (1, 8, 64)
_LOOP = """
#include "progress.h"
int main(void)
{
	struct entrain_publisher publisher;
	struct sockaddr_in end = {.sin_family = AF_INET};
	struct entrain_flow_progress *entry;
	uint64_t begin;
	if (entrain_progress_open(&publisher, "benchmark", 1))
		return 1;
	entry = entrain_progress_flow(&publisher, &end, &end, 6, ENTRAIN_SENT, ENTRAIN_FREE, 0, 0);
	begin = entrain_progress_now_ns();
	for (uint64_t i = 0; i < 1000000; i++)
		entrain_progress_update(entry, 0, ENTRAIN_COMMUNICATING, i, i, i);
	printf("%f", (entrain_progress_now_ns() - begin) / 1e9);
	entrain_progress_close(&publisher);
}
"""


def _microseconds(call: Callable[[], object], times: int) -> float:
    """Return the time of one call (µs): the best of five rounds."""
    rounds = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times):
            call()
        rounds.append((time.perf_counter() - begin) / times * 1e6)
    return min(rounds)


def measure(directory: Path) -> dict[str, float]:
    """Return the times (µs) of an update in Python, an update in C, and a reading of all flows of a host."""
    figures: dict[str, float] = {}
    for count in FLOWS:
        with Publisher("benchmark", directory=directory, capacity=count) as publisher:
            entries = [
                publisher.flow(Flow("10.0.0.1", port + 1, "10.0.0.2", 7000), Direction.SENT)
                for port in range(count)
            ]
            with Monitor(directory) as monitor:
                figures[f"read_us_{count}_flows"] = _microseconds(monitor.read, 200)
            update = entries[0].update
            figures["update_us_python"] = _microseconds(
                lambda update=update: update(0, Phase.COMMUNICATING, 3, 2, 1),  # type: ignore[misc]
                10_000,
            )
    program = directory / "loop"
    command = ["cc", "-O2", "-I", str(HEADER), "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=_LOOP, text=True, check=True)
    environment = {**os.environ, "ENTRAIN_PROGRESS": str(directory)}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    figures["update_us_c"] = float(done.stdout)
    return figures


def ring(directory: Path, progress: bool) -> float:
    """Return the CPU time (s per GB sent) of a ring of three ranks on loopback: 30 iterations of 20 MB."""
    job = {
        "name": "ring",
        "collective": "ring",
        "hosts": [f"127.9.0.{rank}" for rank in (1, 2, 3)],
        "bytes": 20_000_000,
        "iterations": 30,
        "rendezvous": str(directory / "rendezvous"),
        "output": str(directory / "records"),
        "progress": str(directory) if progress else None,
    }
    (directory / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-m", "workloads", "launch", "--job", str(directory / "job.json"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [summary] = json.loads(done.stdout)["jobs"]
    return float(summary["cpu_s"]) / (float(summary["bytes"]) / 1e9)


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks monitor")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        figures = measure(directory)
        for name, progress in (("without", False), ("with", True)):
            figures[f"ring_cpu_s_per_gb_{name}"] = min(ring(directory, progress) for _ in range(3))
    figures["load_average"] = os.getloadavg()[0]
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value:.4f}")
