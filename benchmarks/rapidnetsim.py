"""The same jobs in the vClos authors' public simulator and in entrain's: do job times agree, and which is
faster?

    git clone https://github.com/nothepeople/RapidNetSim && git -C RapidNetSim checkout 62e552a
    python -m benchmarks rapidnetsim RapidNetSim

Nothing of that project is part of entrain. At this commit a link's capacity is divided by its flows; in later
ones it is not. Its scheduler for switched networks needs T servers of T GPUs; it takes the first idle ones.
Two servers share a leaf with T uplinks, so jobs meet. GPU i sends over spine i mod T. Jobs take one or
several servers. In each iteration they send a model's bytes in a ring within servers, then among them, then
within again; they do not compute. Entrain runs all iterations as one round, as its experiments do.

At this commit each event also restarts the steps of all jobs: what they have sent is forgotten. So jobs that
run at the same time delay each other even where they share nothing. It is therefore run twice, as it is and
with that mended here: `kept`. Seconds are processor time for the events.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from machine.errors import BadInput
from schedulers.compiled import Ints
from schedulers.placement.cluster import Cluster, Placement, Request, State, empty
from schedulers.placement.queue import Job as QueuedJob
from schedulers.placement.queue import Queue
from schedulers.placement.stages import Cause
from schedulers.placement.strategies import Strategy
from simulation.engine import Simulation
from simulation.jobs import Coflow, Compute, Job, chain
from simulation.sharing import SharedTransport
from simulation.tenancy import ClusterNetwork

COMMIT = "62e552a"
NIC, SERVER = 100.0, 1000.0
"""Rates, in the units of its configuration."""
UNIT = 1e6
"""A size of 1 takes this long at a rate of 1."""

DRIVER = """
import configparser, json, sys, time
import rapidnetsim.core.simulator as module
from rapidnetsim.core.event.taskstep_finish_event import TaskStepFinishEvent
from rapidnetsim.task.task_generator import Task

def kept():
    # As network_refresh.refresh_taskstep_finish_event, but a step keeps what it has sent.
    simulator, first, soonest = module.Simulator, None, float("inf")
    now = simulator.get_current_time()
    if simulator.LAST_TASKSTEPFINISHEVENT is not None:
        simulator.LAST_TASKSTEPFINISHEVENT.change_to_inactive()
    for step in simulator.get_inflight_taskstep_info().values():
        if hasattr(step, "left"):
            step.left = max(0.0, step.left - (now - step.since) / step.whole)
        else:
            step.left = 1.0
        step.since, step.whole = now, step.get_expected_finish_time()
        if step.left * step.whole < soonest:
            first, soonest = step, step.left * step.whole
    if first is not None:
        event = TaskStepFinishEvent(soonest, first)
        simulator.register_event(event)
        simulator.LAST_TASKSTEPFINISHEVENT = event

if sys.argv[2] == "kept":
    module.refresh_taskstep_finish_event = kept
simulator, conf = module.Simulator, configparser.ConfigParser()
conf.optionxform = str
conf.read(sys.argv[1])
simulator.init_logger()
simulator.setup(conf)
simulator.create_infrastructure()
simulator.load_scheduler()
Task().generate()
begin = time.process_time()
simulator.core_run()
seconds = time.process_time() - begin
simulator.clos_logger()
open("seconds", "w").write(str(seconds))
"""

Task = tuple[float, float, int]
"""Arrival, size and GPUs."""


def task_list(count: int, per_server: int, load: float, seed: int, iterations: int) -> list[Task]:
    """Return tasks of one to eight servers that would keep `load` of the GPUs busy."""
    random = np.random.default_rng(seed)
    servers = random.choice([1, 2, 3, 4, 8], count, p=[0.3, 0.25, 0.15, 0.15, 0.15])
    sizes = random.uniform(0.5, 2.0, count)
    busy = [s * n * _alone(n, per_server) for s, n in zip(sizes, servers.tolist(), strict=True)]
    gap = iterations * float(np.mean(busy)) / (load * per_server)
    arrivals = np.cumsum(random.exponential(gap, count))
    return [
        (float(a), float(s), int(n) * per_server) for a, s, n in zip(arrivals, sizes, servers, strict=True)
    ]


def _alone(servers: int, per_server: int) -> float:
    """How long a task of size 1 takes alone."""
    within = 2 * (per_server - 1) / per_server * UNIT / SERVER
    return within + 2 * (servers - 1) / (servers * per_server) * UNIT / NIC


def theirs(
    checkout: Path, tasks: Sequence[Task], per_server: int, iterations: int, *, kept: bool
) -> tuple[list[float], float]:
    """Run the authors' simulator; return each task's running time and the seconds that it took.

    Raises BadInput if the checkout is not that commit's, or does not finish all tasks.
    """
    gpus, leaves = per_server**2, per_server // 2
    links = [(gpu, gpus + gpu // (2 * per_server), 1) for gpu in range(gpus)]
    links += [(gpus + n, gpus + leaves + m, 1) for n in range(leaves) for m in range(per_server)]
    links += [(b, a, count) for a, b, count in links]
    given: dict[str, dict[str, object]] = {
        "Parameter": {
            "seed": 1,
            "NIC_num": gpus,
            "NIC_num_in_a_server": per_server,
            "leaf_switch_num": leaves,
            "spine_switch_num": per_server,
            "inner_server_bandwidth": SERVER,
            "switch_port_bandwidth": NIC,
            "computation_time": 0,
            "joint_scheduler": "hw_eps_allreduce",
            "find_path_method": "shortest",
            "find_next_hop_method": "static_routing",
            "reconfiguration": "no",
        },
        "Topology": {"topo_type": "clos", "connect_info_list": links},
        "Task": {
            "task_type": "hw_eps_allreduce",
            "task_iteration_num": iterations,
            "waiting_task_order_mode": "FIFO",
            "task_list": list(tasks),
        },
    }
    text = "".join(
        f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())
        for section, keys in given.items()
    )
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "exp.ini").write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, "exp.ini", "kept" if kept else "as-is"],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            problem = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BadInput(f"{checkout}: its simulator failed ({problem}); give a checkout of {COMMIT}")
        times: dict[tuple[str, int], float] = {}
        for line in (Path(directory) / "task_time.log").read_text(encoding="utf-8").splitlines():
            _, task, what, at = line.split(",")
            times[what, int(task)] = float(at)
        seconds = float((Path(directory) / "seconds").read_text(encoding="utf-8"))
    missing = [n for n in range(len(tasks)) if ("finish_time", n) not in times]
    if missing:
        raise BadInput(f"{checkout}: its simulator never finished tasks {missing[:5]}; give other tasks")
    return [times["finish_time", n] - times["start_time", n] for n in range(len(tasks))], seconds


class Alike:
    """Start tasks as the authors' simulator does, with the steps that it has (`Admission`)."""

    def __init__(self, tasks: Sequence[Task], network: ClusterNetwork, iterations: int) -> None:
        self._tasks = tasks
        self._iterations = iterations
        self._network = network
        self._queue = Queue(empty(network.cluster), Strategy("first", "source", _first_idle))
        self._changed = False

    def arrived(self, job: int) -> None:
        """See Admission."""
        arrival, _, gpus = self._tasks[job]
        self._queue.submit(job, QueuedJob(Request(str(job), gpus), arrival, 1.0))
        self._changed = True

    def ended(self, job: int) -> None:
        """See Admission."""
        self._queue.end(job)
        self._changed = True

    def started(self, now: float) -> Iterator[tuple[int, Job]]:
        """See Admission."""
        if self._changed:
            self._changed = False
            for index, outcome in self._queue.start(now):
                yield index, self._job(index, np.array(outcome.placement.gpus))

    def _job(self, index: int, gpus: Ints) -> Job:
        arrival, size, count = self._tasks[index]
        network, per_server = self._network, self._network.cluster.gpus_per_server
        buffer, servers = self._iterations * size * UNIT, count // per_server
        within = Compute(buffer * (per_server - 1) / per_server / SERVER)
        if servers == 1:
            return chain(str(index), arrival, [within, within])
        to = np.roll(gpus, -per_server)
        part = 2 * (servers - 1) / count
        across = network.leaf(gpus) != network.leaf(to)
        if not across.any():
            return chain(str(index), arrival, [within, Compute(part * buffer / NIC), within])
        src, dst = gpus[across], to[across]
        sizes = np.full(len(src), part * buffer)
        routes = network.over(src, dst, src % network.cluster.uplinks)
        return chain(str(index), arrival, [within, Coflow(src, dst, sizes, routes=routes), within])


def _first_idle(
    state: State, request: Request, *, locality: bool = True, solver: bool = False
) -> Placement | Cause:
    per_server = state.cluster.gpus_per_server
    idle = np.flatnonzero(state.gpus.reshape(-1, per_server).all(axis=1))[: request.gpus // per_server]
    if len(idle) < request.gpus // per_server:
        return "gpus"
    gpus = (idle[:, None] * per_server + np.arange(per_server)).reshape(-1)
    leaves = gpus // state.cluster.gpus_per_leaf
    return Placement(request.job, 1, tuple(gpus.tolist()), tuple(leaves.tolist()))


def ours(tasks: Sequence[Task], per_server: int, iterations: int) -> tuple[list[float], float]:
    """Run entrain's simulator; return each task's running time and the seconds that it took."""
    cluster = Cluster(per_server // 2, per_server, servers_per_leaf=2, gpus_per_server=per_server)
    network = ClusterNetwork(cluster, rate=NIC, server_rate=SERVER)
    jobs = [chain(str(n), task[0], [Compute(0.0)]) for n, task in enumerate(tasks)]
    begin = time.process_time()
    transport = SharedTransport(network.topology, sharing="equal")
    alike = Alike(tasks, network, iterations)
    simulation = Simulation(jobs, transport, admission=alike, keep_coflows=False)
    records = simulation.run().jobs
    seconds = time.process_time() - begin
    return [record.finish - record.start for record in records], seconds


def compare(
    checkout: Path, count: int, per_server: int, load: float, seed: int, iterations: int
) -> dict[str, float]:
    """Return how job times differ, over those that entrain finds, and how much faster entrain is."""
    tasks = task_list(count, per_server, load, seed, iterations)
    ours(tasks[:50], per_server, iterations)  # compiles
    mine, my_seconds = ours(tasks, per_server, iterations)
    apart = [(1e11 * n, size, gpus) for n, (_, size, gpus) in enumerate(tasks[:50])]
    figures: dict[str, float] = {
        "tasks": count,
        "gpus": per_server**2,
        "iterations": iterations,
        "entrain_s": my_seconds,
    }
    for name, kept in (("as_is", False), ("kept", True)):
        found, seconds = theirs(checkout, tasks, per_server, iterations, kept=kept)
        ratio = np.array(found) / np.array(mine)
        figures |= {
            f"{name}_ratio_mean": float(ratio.mean()),
            f"{name}_ratio_min": float(ratio.min()),
            f"{name}_ratio_max": float(ratio.max()),
            f"{name}_equal": float((np.abs(ratio - 1.0) < 1e-3).mean()),
            f"{name}_s": seconds,
        }
    alone = np.array(theirs(checkout, apart, per_server, iterations, kept=False)[0])
    figures["one_at_a_time_difference"] = float(
        np.abs(alone / np.array(ours(apart, per_server, iterations)[0]) - 1.0).max()
    )
    figures["speedup_rapidnetsim"] = figures["as_is_s"] / my_seconds
    return figures


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks rapidnetsim")
    parser.add_argument("checkout", type=Path, help=f"a checkout of RapidNetSim at {COMMIT}")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--iterations", type=int, default=10, help="of each task (10)")
    parser.add_argument("--gpus-per-server", type=int, default=16, help="an even T: T servers of T GPUs (16)")
    parser.add_argument("--load", type=float, default=0.8, help="GPUs in use if no task waited (0.8)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    if not (options.checkout / "rapidnetsim" / "core" / "simulator.py").is_file():
        raise BadInput(f"{options.checkout}: is no checkout of RapidNetSim; give the path to one")
    if options.gpus_per_server < 8 or options.gpus_per_server % 2:
        raise BadInput(f"--gpus-per-server: is {options.gpus_per_server}; give an even number from 8")
    figures = compare(
        options.checkout,
        options.tasks,
        options.gpus_per_server,
        options.load,
        options.seed,
        options.iterations,
    )
    figures["load_average"] = os.getloadavg()[0]
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:.6g}")
