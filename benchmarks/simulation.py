"""The simulator's speed: against CoflowSim on the same trace in the same run, at the slot scheduler's scale,
and per event.

Each figure covers a whole process, including start-up and reading the trace. A small run beforehand fills the
cache of compiled kernels. --coflowsim DIR or $COFLOWSIM is the directory of CoflowSim's compiled Java
classes; without it, its figures are null.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
COFLOWSIM = {"varys": "SEBF", "aalo": "DARK", "fifo": "FIFO"}
WHOLE = ("varys", "aalo")
"""The policies with which CoflowSim completes the whole trace within ten minutes. Its FIFO runs only with
--limit."""
ALIKE = "-alike"
"""Suffix of a policy's name: it runs with CoflowSim's decisions and time step, to explain differences in
results."""


def _coflows(policy: str, trace: Path, limit: int | None) -> Figures:
    from benchmarks.coflowsim import STEP_S, as_coflowsim
    from schedulers.coflow.rivals import DClas, Varys
    from schedulers.coflow.view import CoflowPolicy
    from simulation.engine import Simulation
    from simulation.policies import coflow_policy
    from simulation.scheduled import ScheduledTransport
    from simulation.sharing import SharedTransport
    from simulation.topology import GBIT, switch
    from simulation.traces import read_coflow_benchmark

    read = read_coflow_benchmark(trace, limit=limit, whole_megabytes=True, epoch_s=10.24)
    topology = switch(read.ports, 1.048576 * GBIT)
    # As in CoflowSim: Varys ranked at arrival, Aalo with strict queues.
    named: dict[str, CoflowPolicy] = {"varys": Varys(dynamic=False), "aalo": DClas()}
    if policy in ("fair", "equal"):
        shared = SharedTransport(topology, sharing="max-min" if policy == "fair" else "equal")
        outcome = Simulation(read.jobs, shared).run()
    elif policy.endswith(ALIKE):
        alike = as_coflowsim(policy.removesuffix(ALIKE), read.jobs, topology)
        outcome = Simulation(read.jobs, ScheduledTransport(topology, alike, interval=STEP_S)).run()
        for job in outcome.jobs:
            job.finish = job.arrival + math.ceil(job.jct / STEP_S - 1e-6) * STEP_S
    else:
        chosen = named[policy] if policy in named else coflow_policy(policy)
        outcome = Simulation(read.jobs, ScheduledTransport(topology, chosen)).run()
    ccts = {job.ident: job.jct for job in outcome.jobs}
    return {
        "flows": read.flows,
        "events": outcome.events,
        "mean_cct_s": sum(ccts.values()) / len(ccts),
        "ccts": ccts,
    }


def _parrot(jobs: int) -> Figures:
    from simulation.experiments.registry import EXPERIMENTS, points
    from simulation.results import Completion

    name = "parrot-jct" if jobs == 60 else "parrot-load"
    _, todo = points(name, None, "parrot", None, 0)
    begin = time.perf_counter()
    figures = EXPERIMENTS[name].run(todo[0]).figures
    assert isinstance(figures, Completion)
    return {"seconds_inside": time.perf_counter() - begin, "events": figures.events}


def _slots(servers: int, jobs: int) -> Figures:
    from simulation.experiments.slots import run_cluster
    from simulation.results import Completion

    point = {
        "policy": "slots",
        "servers": servers,
        "jobs": jobs,
        "limit": None,
        "seed": 0,
        "domain": 10,
        "window_s": 60.0,
        "iterations": 20,
        "slot_ms": 60,
    }
    figures = run_cluster(point).figures
    assert isinstance(figures, Completion)
    return {"events": figures.events, "mean_jct_s": figures.mean_jct_s}


def _latency() -> Figures:
    from simulation.latency import decision_latencies

    return asdict(decision_latencies(8, 10, rounds=5000))


def cost_per_event(groups: int) -> Figures:
    """Return the cost of an event, from `groups` pairs of hosts with four flows each, half of them at a
    time."""
    from simulation.engine import Simulation
    from simulation.jobs import chain, coflow
    from simulation.sharing import SharedTransport
    from simulation.topology import switch

    jobs = [
        chain(f"{g}-{i}", i * 0.5 + g / groups, [coflow([(2 * g, 2 * g + 1, 1.0)])])
        for g in range(groups)
        for i in range(4)
    ]
    transport = SharedTransport(switch(2 * groups, 1.0))
    begin = time.perf_counter()
    outcome = Simulation(jobs, transport, keep_coflows=False).run()
    seconds = time.perf_counter() - begin
    return {
        "flows": len(jobs),
        "events": outcome.events,
        "us_per_event": 1e6 * seconds / outcome.events,
        "classes_per_event": transport.classes_touched / outcome.events,
    }


def _curve() -> Figures:
    cost_per_event(100)  # warm-up
    return {"points": [cost_per_event(groups) for groups in (100, 1000, 10000)]}


def _one(name: str, arguments: list[str]) -> Figures:
    kind, _, rest = name.partition(":")
    if kind == "coflows":
        return _coflows(rest, Path(arguments[0]), int(arguments[1]) if len(arguments) > 1 else None)
    if kind == "parrot":
        return _parrot(int(rest))
    if kind == "slots":
        return _slots(*(int(x) for x in rest.split("x")))
    return {"latency": _latency, "curve": _curve}[kind]()


def _child(name: str, *arguments: object) -> Figures:
    """Run one measurement in a process of its own; add its wall time (s) and peak memory (MiB)."""
    command = [sys.executable, "-m", "benchmarks", "simulation", "--one", name, *map(str, arguments)]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - begin
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return {**figures, "seconds": seconds}


def _coflowsim(classes: Path, policy: str, trace: Path, limit: int | None, scratch: Path) -> Figures:
    if limit is not None:
        lines = trace.read_text(encoding="utf-8").splitlines()[: limit + 1]
        trace = scratch / "trace.txt"
        trace.write_text("\n".join([f"{lines[0].split()[0]} {limit}", *lines[1:]]) + "\n", encoding="utf-8")
    command = [
        "java",
        "-Xmx3g",
        "-cp",
        str(classes),
        "coflowsim.CoflowSim",
        COFLOWSIM[policy],
        "COFLOW-BENCHMARK",
    ]
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, str(trace)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    seconds = time.perf_counter() - begin
    ccts = {
        line.split()[0].removeprefix("JOB-"): float(line.split()[7]) / 1000.0
        for line in done.stdout.splitlines()
        if line.startswith("JOB-")
    }
    return {"seconds": seconds, "mean_cct_s": sum(ccts.values()) / len(ccts), "ccts": ccts}


def compare(ours: dict[str, float], theirs: dict[str, float]) -> Figures:
    """Return how coflow completion times differ: shares within 1 and 10 %, and percentiles of the ratio."""
    ratios = sorted(ours[c] / theirs[c] for c in theirs)
    n = len(ratios)
    return {
        "within_1_percent": sum(abs(r - 1) <= 0.01 for r in ratios) / n,
        "within_10_percent": sum(abs(r - 1) <= 0.1 for r in ratios) / n,
        "ratio_p5": ratios[int(0.05 * n)],
        "ratio_median": ratios[n // 2],
        "ratio_p95": ratios[min(n - 1, int(0.95 * n))],
    }


def measure(trace: Path, classes: Path | None, limit: int | None, servers: int, jobs: int) -> Figures:
    """Return all figures."""
    figures: Figures = {"coflows": limit or "all", "trace": trace.name}
    for policy in ("varys", "aalo", "fifo", "fair"):
        _child(f"coflows:{policy}", trace, 5)
        ours = _child(f"coflows:{policy}", trace, *([limit] if limit else []))
        own = ours.pop("ccts")
        figures[f"fb2010_{policy}"] = ours
        print(f"fb2010 {policy}: {ours['seconds']:.2f} s", file=sys.stderr)
        if policy in COFLOWSIM:
            figures[f"speedup_coflowsim_{policy}"] = None
            if classes is not None and shutil.which("java") and (limit or policy in WHOLE):
                with tempfile.TemporaryDirectory() as scratch:
                    theirs = _coflowsim(classes, policy, trace, limit, Path(scratch))
                reference = theirs.pop("ccts")
                alike = _child(f"coflows:{policy}{ALIKE}", trace, *([limit] if limit else []))["ccts"]
                figures[f"coflowsim_{policy}"] = {
                    **theirs,
                    **compare(own, reference),
                    "decided_alike": compare(alike, reference),
                }
                figures[f"speedup_coflowsim_{policy}"] = theirs["seconds"] / ours["seconds"]
                print(f"CoflowSim {policy}: {theirs['seconds']:.2f} s", file=sys.stderr)
    for count in (60, 100):
        figures[f"parrot_{count}_jobs"] = _child(f"parrot:{count}")
    figures["slot_decision"] = _child("latency")
    figures["slot_decision_us_p99"] = figures["slot_decision"]["p99_us"]
    figures["cost_per_event"] = _child("curve")["points"]
    _child("slots:40x10")
    slots = _child(f"slots:{servers}x{jobs}")
    figures["slots"] = {**slots, "servers": servers, "jobs": jobs}
    figures[f"slots_{servers}_servers_s"] = slots["seconds"]
    figures[f"slots_{servers}_servers_rss_mib"] = slots["rss_mib"]
    return figures


def main(argv: list[str]) -> None:
    """Run the benchmark and print its figures."""
    if argv[:1] == ["--one"]:
        figures = _one(argv[1], argv[2:])
        figures["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(figures))
        return
    from simulation.facebook import facebook_coflows

    parser = argparse.ArgumentParser(prog="python -m benchmarks simulation", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--trace",
        type=Path,
        help="FB2010-1Hr-150-0.txt of coflow/coflow-benchmark (default: drawn with its distributions)",
    )
    parser.add_argument(
        "--coflowsim", type=Path, default=os.environ.get("COFLOWSIM"), help="its compiled classes"
    )
    parser.add_argument("--limit", type=int, help="first coflows only, for a quick look")
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1200)
    options = parser.parse_args(argv)
    classes = Path(options.coflowsim) if options.coflowsim else None
    with tempfile.TemporaryDirectory() as scratch:
        trace = options.trace
        if trace is None:
            trace = Path(scratch, "drawn-coflows.txt")
            trace.write_text(facebook_coflows(), encoding="utf-8")
        figures = measure(trace, classes, options.limit, options.servers, options.jobs)
    if options.json:
        print(json.dumps(figures))
        return
    for key, value in figures.items():
        print(f"{key:32} {value}")
