"""Let jobs come and go, and look whether what the processes hold grows.

The cluster of `benchmarks.vclos_faults`: each second a job is submitted, admitted and cancelled, while
two others iterate. Now and then each process is asked for its resident memory, descriptors, threads, and
BPF maps and programs, and the machine for records. A line is fitted to each quantity after a warm-up. It
is flat if its slope is within three standard errors of 0, or amounts to less than `NOISE` of the mean
over the whole time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.vclos_faults import OTHERS, Cluster, cluster
from machine.errors import EntrainError
from machine.record import clean_stale, records

EVERY_S = 1.0
SAMPLE_S = 5.0
WARM_UP = 0.2
"""The part of the time that is left out: caches fill."""
NOISE = 0.02
THIRD = 8

Sample = dict[str, float]


def held(pid: int) -> Sample:
    """Return what a process holds: bytes of memory, and numbers of the rest."""
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    found = {"memory": float(status["VmRSS"].split()[0]) * 1024, "threads": float(status["Threads"])}
    descriptors = list((folder / "fdinfo").iterdir())
    maps = programs = 0
    for descriptor in descriptors:
        try:
            text = descriptor.read_text()
        except OSError:  # it has just been closed
            continue
        maps += "map_id:" in text
        programs += "prog_id:" in text and "link_type:" not in text
    return {**found, "descriptors": len(descriptors), "maps": maps, "programs": programs}


def look(running: Cluster) -> Sample:
    """Return what all processes of the cluster hold, by process and quantity."""
    assert running.controller is not None
    assert running.ocs is not None
    pids = {"controller": running.controller.process.pid, "ocs": running.ocs.process.pid}
    pids |= {name: node.process_id or 0 for name, node in running.network.switches.items()}
    found = {f"{name} {what}": value for name, pid in pids.items() for what, value in held(pid).items()}
    found["records"] = sum(1 for _, owner, _, alive in records() if alive and owner.name == str(os.getpid()))
    found["files"] = sum(1 for _ in running.state.rglob("*"))
    return found


def slopes(times_s: Sequence[float], samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    """Return the slope of each quantity per hour, its standard error, the mean, and whether it is flat."""
    first = int(len(samples) * WARM_UP)
    at = np.array(times_s[first:]) / 3600
    found = {}
    for name in samples[0]:
        values = np.array([sample[name] for sample in samples[first:]])
        mean = float(values.mean())
        if np.ptp(values) == 0:
            slope, error = 0.0, 0.0
        else:
            (slope, _), covariance = np.polyfit(at, values, 1, cov=True)
            error = float(np.sqrt(covariance[0, 0]))
        growth = float(slope) * float(np.ptp(at))
        flat = abs(slope) <= 3 * error or abs(growth) < NOISE * mean
        found[name] = {"per_hour": float(slope), "error": error, "mean": mean, "flat": bool(flat)}
    return found


def soak(minutes: float, tell: Any) -> dict[str, Any]:
    """Run for so long, and return the slopes and the number of jobs."""
    times_s: list[float] = []
    samples: list[Sample] = []
    jobs = 0
    with cluster() as running:
        for name, gpus in OTHERS.items():
            running.submit(name, gpus)
            running.running(name)
            running.start_ranks(name)
        began = due = time.monotonic()
        while (now := time.monotonic()) - began < minutes * 60 or len(samples) < 8:
            if not times_s or now - began - times_s[-1] >= SAMPLE_S:
                times_s.append(now - began)
                samples.append(look(running))
                tell(f"{now - began:.0f} s, {jobs} jobs")
            running.submit("third", THIRD)
            running.running("third")
            running.cancel("third")
            jobs += 1
            due = max(due + EVERY_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    return {"minutes": minutes, "jobs": jobs, "samples": len(samples), "slopes": slopes(times_s, samples)}


def main(argv: Sequence[str]) -> None:
    """Run and print the slopes. The exit status is 1 if something grows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--minutes", type=float, default=120.0, help="how long (120)")
    options = parser.parse_args(argv)
    clean_stale()
    found = soak(options.minutes, lambda line: print(line, file=sys.stderr, flush=True))
    growing = [name for name, each in found["slopes"].items() if not each["flat"] and each["per_hour"] > 0]
    if options.json:
        print(json.dumps({**found, "growing": growing, "load_average": os.getloadavg()[0]}))
    else:
        for name, each in found["slopes"].items():
            print(
                f"{name:24} {each['mean']:>14.0f} {each['per_hour']:>+12.1f} ± {each['error']:.1f} per hour"
            )
    if growing:
        raise EntrainError(f"these grow: {', '.join(growing)}")
