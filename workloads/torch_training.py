"""Run one rank of a job that actually trains: PyTorch's DistributedDataParallel on CPUs, over Gloo.

Losses are bit-identical whatever the timing of packets: Gloo sums in the order of its ring, and every rank
computes with one thread.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from datetime import timedelta
from typing import Any, TextIO

import psutil
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wire.progress import DIRECTORY_VARIABLE, JOB_VARIABLE
from workloads import torch_monitor
from workloads.jobs import JobSpec
from workloads.pacing import record
from workloads.rendezvous import Control, JobFailed
from workloads.tcp_counters import (
    Connection,
    Counters,
    Signals,
    count,
    own_connections,
    set_congestion_control,
    set_mark,
    signals,
    signals_since,
)
from workloads.torch_models import make_task


class Training:
    """The model, the data and the connections of one rank."""

    def __init__(self, job: JobSpec, rank: int, control: Control, records: TextIO) -> None:
        self._job, self._rank, self._control, self._records = job, rank, control, records
        self._counted: dict[Connection, Counters] = {}
        self._signals = Signals()  # to all connections
        self._failure: Exception | None = None
        self._complete = False

    def connect(self) -> None:
        """Join the process group and give every rank the same model."""
        job, ranks = self._job, len(self._job.hosts)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        os.environ["GLOO_SOCKET_IFNAME"] = _interface(str(job.hosts[self._rank]))
        store = job.rendezvous / f"{job.name}.store"
        if self._rank == 0:
            store.unlink(missing_ok=True)  # what an earlier run left
        self._control.barrier("store")
        timeout = timedelta(seconds=job.timeout_s)
        self._task = make_task(job.model or "", job.seed)
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=self._rank, world_size=ranks, timeout=timeout
            )
            self._model = DistributedDataParallel(self._task.model)
        except RuntimeError as error:
            raise JobFailed(f"rank {self._rank} cannot join the others: {_first_line(error)}") from error
        self._optimizer = self._task.optimizer(self._model.parameters())
        self._configure()
        if job.progress:
            os.environ |= {DIRECTORY_VARIABLE: str(job.progress), JOB_VARIABLE: job.name}
            torch_monitor.watch(self._model)
        self._control.barrier("connected")

    def _configure(self) -> None:
        """Give Gloo's connections the job's congestion control and mark. Raises JobFailed."""
        job, key = self._job, ""
        try:
            for connection in own_connections():
                key = "congestion_control"
                if job.congestion_control:
                    set_congestion_control(connection, job.congestion_control)
                key = "mark"
                if job.mark:
                    set_mark(connection, job.mark)
        except OSError as error:
            raise JobFailed(f"{key}: {getattr(job, key)!r} cannot be set: {error.strerror}") from error

    def run(self, start_ns: int) -> None:
        """Run all iterations, the first at `start_ns`.

        Python handles no signal while Gloo waits. Training therefore runs in its own thread, while this one
        handles signals and messages of the other ranks.
        """
        ended, ending = os.pipe()
        thread = threading.Thread(target=self._train, args=(start_ns, ending), daemon=True)
        thread.start()
        while True:
            others = [each.fileno() for each in self._control.sockets]
            readable, _, _ = select.select([ended, *others], [], [])
            if ended in readable:
                break
            self._control.check()
        thread.join()
        if self._failure:
            raise self._failure
        self._complete = True

    def _train(self, start_ns: int, ending: int) -> None:
        iteration = 0
        try:
            while (left := start_ns - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)
            self._count()
            for iteration in range(self._job.iterations):
                self._iterate(iteration)
        except Exception as error:
            where = f"rank {self._rank}, iteration {iteration}"
            self._failure = JobFailed(f"{where}: {_first_line(error)}")
        finally:
            os.write(ending, b"!")

    def _iterate(self, iteration: int) -> None:
        begin = time.monotonic_ns()
        if iteration:
            self._optimizer.step()
            self._optimizer.zero_grad()
        loss = self._task.loss(self._model, self._rows(iteration))
        begun = torch_monitor.begun()
        waited = begun.waited_ns if begun else 0
        computed = begin + waited + self._job.compute_ns(self._rank, iteration)
        while (left := computed - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
        compute_end = time.monotonic_ns()
        loss.backward()  # and averages the gradients over the ranks
        end = time.monotonic_ns()
        moved = self._count()
        common = {"job": self._job.name, "iteration": iteration}
        self._write(
            {
                **common,
                "kind": "iteration",
                "rank": self._rank,
                "start_ns": begin,
                "compute_end_ns": compute_end,
                "end_ns": end,
                "bytes": sum(sent for sent, _ in moved.values()),
                "loss": loss.item(),
                **self._new_signals(),
                **(record(begun) if begun else {}),
            }
        )
        source, received = max(moved.items(), key=lambda each: each[1][1])
        self._write(
            {
                **common,
                "kind": "flow",
                "step": 0,
                "src_rank": (self._rank + 1) % len(self._job.hosts),  # Gloo's ring runs to the rank below
                "dst_rank": self._rank,
                "src_ip": source.remote[0],
                "src_port": source.remote[1],
                "dst_ip": source.local[0],
                "dst_port": source.local[1],
                "bytes": received[1],
                "start_ns": compute_end,
                "end_ns": end,
            }
        )

    def _rows(self, iteration: int) -> Any:
        """Return this rank's samples of an iteration. The ranks take turns, and start over at the end."""
        samples, batch, ranks = len(self._task.inputs), self._task.batch, len(self._job.hosts)
        first = (iteration * ranks + self._rank) * batch
        return torch.arange(first, first + batch) % samples

    def _count(self) -> dict[Connection, tuple[int, int]]:
        """Return the bytes sent and received by connection since the last call."""
        now = {each: count(each) for each in own_connections()}
        before, self._counted = self._counted, now
        zero = Counters(0, 0, 0)
        return {
            each: (new.handed - before.get(each, zero).handed, new.received - before.get(each, zero).received)
            for each, new in now.items()
        }

    def _new_signals(self) -> dict[str, int | None]:
        """Return what the network has signalled since the last call."""
        before, self._signals = self._signals, signals(connection.fd for connection in self._counted)
        return signals_since(self._signals, before)._asdict()

    def _write(self, record: dict[str, Any]) -> None:
        self._records.write(json.dumps(record) + "\n")
        self._records.flush()

    def close(self) -> None:
        """Leave the process group, unless our thread may still wait in it for ranks that are gone."""
        if self._complete:
            dist.destroy_process_group()


def _interface(address: str) -> str:
    """Return the name of the network interface with an address, for Gloo. Raises JobFailed."""
    if address.startswith("127."):
        return "lo"
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == address for each in addresses):
            return name
    raise JobFailed(f"no interface of this host has the address {address}: start the rank on its own host")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
