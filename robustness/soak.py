"""Let jobs come and go, and look whether what the processes hold grows.

The cluster of `robustness.vclos_faults`: each second a job is submitted, admitted and cancelled, while
two others iterate, and a process publishes its progress to the agent of a host and ends. Now and then each
process is asked for its memory, descriptors, threads, and BPF maps and programs, and the machine for their
records and what these name. A line is fitted to each quantity after a warm-up. It is flat if its
slope is within three standard errors of 0, or amounts to less than `NOISE` of the mean over the whole time.

The warm-up is long enough for two hours: by then the controller keeps as many jobs that are over as it ever
does (`controlplane.ledger.KEPT`), and Python's garbage collector has gone through all objects. In a shorter
run memory grows for these reasons.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from entrain.live_cluster import CIRCUITS
from hostbpf.agent.agent import Scheduling
from machine import origin
from machine.errors import EntrainError
from machine.process import Child, launch
from machine.processors import Use
from machine.record import clean_stale, records
from mininet_topos.agents import agent_command
from robustness.vclos_faults import OTHERS, TIMEOUT_S, Cluster, cluster
from wire.flow import Flow
from wire.progress import Direction, Publisher, make_directory

EVERY_S = 1.0
SAMPLE_S = 5.0
WARM_UP = 0.5
"""The part of the time that is left out: caches fill. What leaks goes on to do so."""
BLOCKS = 24
"""Means of so many blocks of samples are fitted. One sample is much like the one before, and the errors of a
line through all of them would be too small."""
NOISE = 0.02
FEWEST = 8
"""Samples, however short the run is."""
THIRD = 8

Sample = dict[str, float]


def held(pid: int) -> Sample:
    """Return what a process holds: bytes of memory of its own, and numbers of the rest.

    What it has mapped, such as libraries and BPF maps, is not counted: it has a size, and pages of it appear
    as they are used.
    """
    folder = Path(f"/proc/{pid}")
    status = dict(
        line.split(":", 1)
        for line in (folder / "status").read_text(encoding="utf-8").splitlines()
        if ":" in line
    )
    found = {"memory": float(status["RssAnon"].split()[0]) * 1024, "threads": float(status["Threads"])}
    descriptors = list((folder / "fdinfo").iterdir())
    maps = programs = 0
    for descriptor in descriptors:
        try:
            text = descriptor.read_text(encoding="utf-8")
        except OSError:  # it has just been closed
            continue
        maps += "map_id:" in text
        programs += "prog_id:" in text and "link_type:" not in text
    return {**found, "descriptors": len(descriptors), "maps": maps, "programs": programs}


def processes(running: Cluster, agent: Child) -> dict[str, int]:
    """Return the ids of the processes of the cluster, by name."""
    assert running.controller is not None
    assert running.ocs is not None
    found = {"controller": running.controller, "ocs": running.ocs, "agent": agent}
    switches = {name: node.process_id or 0 for name, node in running.network.switches.items()}
    return {name: child.process.pid for name, child in found.items()} | switches


def look(pids: Mapping[str, int], state: Path) -> Sample:
    """Return what all processes hold, by process and quantity.

    The audit log of circuits is left out: it is to grow (`ocs.audit`).
    """
    found = {f"{name} {what}": value for name, pid in pids.items() for what, value in held(pid).items()}
    owners = {str(pid) for pid in (os.getpid(), *pids.values())}
    own = [owned for _, owner, owned, alive in records() if alive and owner.name in owners]
    files = [path for path in state.rglob("*") if path.is_file() and path.name != CIRCUITS]
    return found | {
        "records": len(own),
        "recorded": sum(map(len, own)),
        "files": len(files),
        "files' bytes": sum(path.stat().st_size for path in files),
    }


def slopes(times_s: Sequence[float], samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    """Return the slope of each quantity per hour, its standard error, the mean, and whether it is flat.

    `course` is how it went, the warm-up included: the means of `BLOCKS` blocks of samples.
    """
    first = int(len(samples) * WARM_UP)
    at = np.array(times_s[first:]) / 3600
    found = {}
    for name in samples[0]:
        values = np.array([sample[name] for sample in samples[first:]])
        mean = float(values.mean())
        number = min(BLOCKS, len(values))
        means, middles = (
            np.array([part.mean() for part in np.array_split(each, number)]) for each in (values, at)
        )
        if np.ptp(values) == 0:
            slope, error = 0.0, 0.0
        else:
            (slope, _), covariance = np.polyfit(middles, means, 1, cov=True)
            error = float(np.sqrt(covariance[0, 0]))
        growth = float(slope) * float(np.ptp(at))
        flat = abs(slope) <= 3 * error or abs(growth) < NOISE * mean
        every = np.array_split([sample[name] for sample in samples], min(BLOCKS, len(samples)))
        found[name] = {
            "per_hour": float(slope),
            "error": error,
            "mean": mean,
            "flat": bool(flat),
            "course": [float(block.mean()) for block in every],
        }
    return found


@dataclass
class Course:
    """What was seen of a run; `problem` says why it ended early."""

    times_s: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    jobs: int = 0
    lasted_s: float = 0.0
    problem: str = ""


def course(
    seconds: float, job: Callable[[int], None], sample: Callable[[], Sample], tell: Callable[[str], None]
) -> Course:
    """Let job after job come and go for so long, and sample meanwhile.

    A failure or a signal (Ctrl-C) ends the run; what was seen until then is returned.
    """
    found = Course()
    began = due = time.monotonic()
    try:
        while (now := time.monotonic()) - began < seconds or len(found.samples) < FEWEST:
            if not found.times_s or now - began - found.times_s[-1] >= SAMPLE_S:
                found.samples.append(sample())
                found.times_s.append(now - began)
                tell(f"{now - began:.0f} s, {found.jobs} jobs")
            job(found.jobs)
            found.jobs += 1
            due = max(due + EVERY_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    except (EntrainError, OSError) as error:  # OSError: a process that was to be sampled has ended
        found.problem = str(error)
    except (KeyboardInterrupt, SystemExit):
        found.problem = "interrupted"
    del found.samples[len(found.times_s) :]
    found.lasted_s = time.monotonic() - began
    return found


def soak(minutes: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run for so long, and return the slopes, the number of jobs, and what of the processors was used."""
    with cluster() as running:
        progress = running.directory / "progress"
        make_directory(progress)
        agent = _agent(running, progress)
        pids = processes(running, agent)
        for name, gpus in OTHERS.items():
            running.submit(name, gpus)
            running.running(name)
            running.start_ranks(name)

        def job(number: int) -> None:
            with Publisher("third", directory=progress) as publisher:
                publisher.flow(Flow("10.0.0.1", 1 + number % 60_000, "10.0.0.2", 2), Direction.SENT)
                running.submit("third", THIRD)
                running.running("third")
                running.cancel("third")
            agent.check()

        used, spent = psutil.cpu_times(), _spent_s(pids)
        seen = course(minutes * 60, job, lambda: look(pids, running.state), tell)
        now_s = _spent_s(pids)
        per_process = {name: (each - spent[name]) / seen.lasted_s for name, each in now_s.items()}
        machine = asdict(Use.since(used))
    return {
        "minutes": seen.lasted_s / 60,
        "jobs": seen.jobs,
        "problem": seen.problem,
        "samples": len(seen.samples),
        "processors": {"machine": machine, "by_process": per_process},
        "slopes": slopes(seen.times_s, seen.samples) if len(seen.samples) >= FEWEST else {},
    }


def _agent(running: Cluster, progress: Path) -> Child:
    """Start the agent of a host that the measured jobs do not have."""
    host = running.network.topology.hosts[-1]
    address = f"unix:{running.directory}/agent.sock"
    command = agent_command(running.network, host, address, 60.0, Scheduling("host-only"), progress=progress)
    log = running.directory / "agent.log"
    child = launch(running.record, "the agent", command, log=log, tells=True)
    child.wait_ready(TIMEOUT_S)
    return child


def _spent_s(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the processor time so far of each process that has not ended."""
    found = {}
    for name, pid in pids.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            found[name] = times.user + times.system
    return found


def main(argv: Sequence[str]) -> None:
    """Run and print the slopes. The exit status is 1 if something grows."""
    parser = argparse.ArgumentParser(prog="python -m robustness soak", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--minutes", type=float, default=120.0, help="how long (120)")
    options = parser.parse_args(argv)
    clean_stale()
    found = soak(options.minutes, lambda line: print(line, file=sys.stderr, flush=True))
    growing = [name for name, each in found["slopes"].items() if not each["flat"] and each["per_hour"] > 0]
    if options.json:
        print(
            json.dumps(
                {
                    **found,
                    "growing": growing,
                    "origin": asdict(origin.here()),
                    "load_average": os.getloadavg()[0],
                }
            )
        )
    else:
        for name, each in found["slopes"].items():
            print(
                f"{name:24} {each['mean']:>14.0f} {each['per_hour']:>+12.1f} ± {each['error']:.1f} per hour"
            )
        print(f"processors busy: {found['processors']['machine']['busy']:.0%}")
    if found["problem"]:
        raise EntrainError(found["problem"])
    if growing:
        raise EntrainError(f"these grow: {', '.join(growing)}")
