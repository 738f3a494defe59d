"""How long it takes from a job's submission until it is ready, in a network of 8 softswitches.

4 leaves, 4 spines and 16 hosts, without circuits, under vClos. Jobs of 2 to 8 GPUs are submitted through the
API, one after another; each is timed from the request until the API says that it runs. As many jobs as fit
run at the same time: when one would have to wait, the oldest ends first. Times are wall-clock times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np

from controlplane import api_pb2 as api
from controlplane import api_pb2_grpc as api_grpc
from controlplane.cluster import ClusterSetup, cluster_of
from controlplane.controller import Controller, serving
from controlplane.ledger import LEDGER, Ledger
from controlplane.store import Store
from controlplane.topology import Topology, leaf_spine
from machine.record import Record, clean_stale
from machine.signals import ending_once
from machine.tls import open_channel
from mininet_topos.isolation import private_namespace
from mininet_topos.network import Network
from schedulers.placement.strategies import STRATEGIES

SIZES = (2, 2, 4, 4, 6, 8)
"""GPUs of the jobs: within a server, within a leaf, and over several leaves."""


async def measure(topology: Topology, directory: Path, count: int, seed: int) -> dict[str, float]:
    """Submit `count` jobs and return the figures."""
    setup = ClusterSetup(cluster_of(topology, 2), STRATEGIES["vclos"])
    ledger = Ledger(directory / LEDGER, setup.cluster)
    draw = random.Random(seed)
    admitted: list[float] = []
    left: list[float] = []
    wide = 0
    running: deque[str] = deque()
    async with (
        Controller(
            topology, "source", store=Store(directory / "state.sqlite"), cluster=setup, ledger=ledger
        ) as controller,
        serving(controller, directory / "api.sock", controller.access),
        open_channel(grpc.aio, f"unix:{directory}/api.sock") as channel,
    ):
        stub = api_grpc.ControllerStub(channel)

        async def end_oldest() -> None:
            begin = time.perf_counter()
            done = await stub.Cancel(api.CancelRequest(name=running.popleft(), ended=True))
            left.append(1e3 * (time.perf_counter() - begin))
            assert done.phase == "ended", done

        for number in range(count):
            request = api.JobRequest(name=f"j{number}", gpus=draw.choice(SIZES), pattern="ring")
            while not (await stub.Place(request)).HasField("placement"):
                await end_oldest()
            begin = time.perf_counter()
            async for job in stub.SubmitAndWatch(request):
                if job.phase == "running":
                    break
            admitted.append(1e3 * (time.perf_counter() - begin))
            wide += bool(job.placement.links)
            running.append(request.name)
        while running:
            await end_oldest()
    ledger.close()
    return {
        "admit_ms_p99": float(np.percentile(admitted, 99)),
        "admit_ms_median": statistics.median(admitted),
        "admit_ms_max": max(admitted),
        "leave_ms_p99": float(np.percentile(left, 99)),
        "jobs": count,
        "jobs_with_links": wide,
        "switches": len(topology.switches),
        "load_average": os.getloadavg()[0],
    }


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks admission", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=300, help="how many (300)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    clean_stale()
    topology = leaf_spine(4, 4, 4, name="admission")
    with (
        ending_once(),
        Record("benchmark-admission") as record,
        private_namespace(record) as namespace,
        tempfile.TemporaryDirectory() as directory,
        Network(topology, record, Path(directory), namespace=namespace),
    ):
        figures = asyncio.run(measure(topology, Path(directory), options.jobs, options.seed))
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:20} {value:.3f}")
