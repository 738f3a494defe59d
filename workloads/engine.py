"""Run one rank of a job: in each iteration compute, communicate, check and record."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np

from machine.errors import EntrainError
from machine.signals import handled_by
from wire.progress import Publisher
from workloads.barrier import StepBarrier
from workloads.collectives import DDP, contributors, tasks
from workloads.connections import HEADER_BYTES, Incoming, Outgoing, PeerLost, connect_all, raw
from workloads.jobs import JobSpec
from workloads.pacing import Pacing, record
from workloads.pattern import Buffer, Pattern
from workloads.progress import Reported, reported
from workloads.rendezvous import Control, JobAborted, JobFailed
from workloads.tcp_counters import Signals, signals, signals_since

if TYPE_CHECKING:
    from workloads.torch_training import Training

_GO_POLL_S = 0.005
_START_MARGIN_NS = 20_000_000
"""Time between the start barrier and the first iteration, so that all ranks know its start."""


class Terminated(EntrainError):
    """SIGTERM or SIGINT asked the rank to end."""


class WrongSum(EntrainError):
    """A collective's result differs from the sum of its inputs."""


class Memory:
    """A rank's buffers, and their expected contents."""

    def __init__(self, job: JobSpec, rank: int) -> None:
        program = job.program()
        itemsize = np.dtype(job.dtype).itemsize
        elements = max(1, -(-job.total_bytes() // (itemsize * program.units)))
        self._program, self._rank, self._elements = program, rank, elements
        self._pattern = Pattern(job.seed, program.ranks, program.units, elements, job.dtype)
        self.values: Buffer = np.zeros(program.units * elements, job.dtype)
        self.arrived: Buffer = np.zeros_like(self.values) if program.exchange else self.values
        masks = contributors(program)[rank]
        self._contributors = np.array(
            [[mask >> r & 1 for mask in masks] for r in range(program.ranks)]
        )  # (ranks, units)
        self.fill(0)  # avoid page faults in the first iteration
        self.arrived += 0

    def part(self, values: Buffer, first: int, count: int) -> Buffer:
        """Return `count` units of a buffer."""
        return values[first * self._elements : (first + count) * self._elements]

    def fill(self, iteration: int) -> None:
        """Fill the buffer with this rank's input of an iteration."""
        if self._rank not in self._program.sources:
            self.values[:] = 0
            return
        for unit, weight in enumerate(self._pattern.weights(iteration)[self._rank]):
            self._pattern.fill(self.part(self.values, unit, 1), int(weight))

    def check(self, iteration: int) -> None:
        """Compare the collective's result with the sum of the inputs. Raises WrongSum."""
        weights = self._pattern.weights(iteration)
        if self._program.exchange:
            weights = np.broadcast_to(
                weights[:, self._rank, None], weights.shape
            )  # from each rank its unit for this one
        for unit, weight in enumerate((weights * self._contributors).sum(axis=0)):
            if not weight:
                continue
            wrong = self._pattern.first_difference(self.part(self.arrived, unit, 1), int(weight))
            if wrong is not None:
                value = self.part(self.arrived, unit, 1)[wrong]
                raise WrongSum(
                    f"rank {self._rank}, iteration {iteration}: the result is wrong: "
                    f"element {wrong} of unit {unit} is {value}"
                )


class _Send(NamedTuple):
    """A transfer of a step that this rank sends."""

    step: int
    connection: Outgoing
    data: memoryview

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.data)

    def begin(self, iteration: int) -> None:
        self.connection.begin(self.data, iteration, self.step)


class _Receive(NamedTuple):
    """A transfer of a step that this rank receives."""

    step: int
    connection: Incoming
    target: Buffer
    reduce: bool

    @property
    def size(self) -> int:
        return HEADER_BYTES + self.target.nbytes

    def begin(self, iteration: int) -> None:
        self.connection.begin(self.target, self.reduce, iteration, self.step)


class Engine:
    """The connections and buffers of one rank."""

    def __init__(self, job: JobSpec, rank: int, control: Control, records: TextIO) -> None:
        self._job, self._rank, self._control, self._records = job, rank, control, records
        self._program = job.program()
        self._memory = Memory(job, rank)
        self._epoll = select.epoll()
        self._control_fds = {sock.fileno() for sock in control.sockets}
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}
        self._waiting: dict[int, list[_Send | _Receive]] = {}  # by how many steps must be complete before
        self._awaited: Counter[int] = Counter()  # by step, the transfers that complete it
        self._pending: dict[int, deque[_Send | _Receive]] = {}  # by descriptor; the first is in progress
        self._sent = 0  # bytes of values in an iteration
        self._signals = Signals()  # to all outgoing connections
        self._barrier: StepBarrier | None = None
        self._publisher: Publisher | None = None
        self._pacing: Pacing | None = None  # of a rank that computes, if the job publishes its progress
        self._reported: dict[int, Reported] = {}  # by descriptor; empty unless the job publishes its progress
        self._flows: list[tuple[int, int, int, int, int]] = []  # step, peer, bytes, start, end
        self._stall_s = job.timeout_s + 2 * (job.compute_s() + job.jitter_ms / 1e3)  # a peer may be computing

    def connect(self) -> None:
        """Open all connections of the job."""
        path, ranks = self._job.rendezvous / f"{self._job.name}.steps", len(self._job.hosts)
        if self._job.barrier and self._rank == 0:
            StepBarrier.create(path, ranks)
        self._outgoing, self._incoming = connect_all(self._job, self._rank, self._control, self._epoll)
        if self._job.barrier:  # all ranks have connected, so rank 0 has created the file
            self._barrier = StepBarrier(path, self._rank, ranks)
        for fd in self._control_fds:
            self._epoll.register(fd, select.EPOLLIN)
        self._divide()
        if self._job.progress:
            self._publish(self._job.progress)

    def _divide(self) -> None:
        """Prepare this rank's transfers of an iteration."""
        memory = self._memory
        for step, after, t in tasks(self._program, self._rank):
            each: _Send | _Receive
            if t.src == self._rank:
                data = raw(memory.part(memory.values, t.first, t.units))
                each = _Send(step, self._outgoing[t.dst], data)
                self._sent += len(data)
            else:
                target = memory.part(memory.arrived, t.into, t.units)
                each = _Receive(step, self._incoming[t.src], target, t.reduce)
            self._waiting.setdefault(after, []).append(each)
            self._awaited[step] += self._is_awaited(each)

    def _is_awaited(self, each: _Send | _Receive) -> bool:
        return self._program.lockstep or isinstance(each, _Receive)

    def _publish(self, directory: Path) -> None:
        name = f"{self._job.name}-rank{self._rank}"
        capacity = len(self._outgoing) + len(self._incoming)
        self._publisher = Publisher(self._job.name, directory=directory, name=name, capacity=capacity)
        transfers = [(each.connection, each.size) for some in self._waiting.values() for each in some]
        self._reported = reported(self._publisher, self._job, self._rank, transfers)
        if self._rank in self._program.sources:
            self._pacing = Pacing(self._publisher)

    def run(self, start_ns: int) -> None:
        """Run all iterations, the first at `start_ns`."""
        self._idle(start_ns)
        finished: dict[str, Any] | None = None
        for iteration in range(self._job.iterations):
            begin = time.monotonic_ns()
            begun = self._pacing.begin() if self._pacing else None
            start = begun.at_ns if begun else begin
            if finished:  # check and record during the next compute phase, which delays no other rank
                self._finish(finished)
            self._memory.fill(iteration)
            for each in self._reported.values():
                each.compute(iteration)
            self._idle(start)
            computes = self._rank in self._program.sources  # a parameter server does not
            if computes:
                self._compute(start + self._job.compute_ns(self._rank, iteration))
            compute_end = time.monotonic_ns()
            self._communicate(iteration)
            if not computes:  # its communication begins with the first transfer to it
                compute_end = min(start for _, _, _, start, _ in self._flows)
            finished = {
                "kind": "iteration",
                "job": self._job.name,
                "rank": self._rank,
                "iteration": iteration,
                "start_ns": begin,
                "compute_end_ns": compute_end,
                "end_ns": time.monotonic_ns(),
                "bytes": self._sent,
                **self._new_signals(),
                **(record(begun) if begun else {}),
            }
        if finished:
            self._finish(finished)

    def _new_signals(self) -> dict[str, int | None]:
        """Return what the network has signalled since the last call."""
        before = self._signals
        self._signals = signals(connection.fd for connection in self._outgoing.values())
        return signals_since(self._signals, before)._asdict()

    def _idle(self, until_ns: int) -> None:
        while (left := until_ns - time.monotonic_ns()) > 0:
            if select.select(self._control.sockets, [], [], left / 1e9)[0]:
                self._control.check()

    def _compute(self, until_ns: int) -> None:
        if self._job.busy:
            while time.monotonic_ns() < until_ns:
                pass
        else:
            self._idle(until_ns)

    def _communicate(self, iteration: int) -> None:
        """Run all steps of the collective."""
        for each in self._reported.values():
            each.communicate()
        awaited, completed = self._awaited.copy(), 0
        moving = deque(self._release(0, iteration))
        while True:
            while completed < len(self._program.steps) and not awaited[completed]:
                completed += 1
                if self._barrier is not None:
                    self._barrier.wait(self._control.check, self._stall_s)
                moving.extend(self._release(completed, iteration))
            if not self._pending:
                return
            while not moving:
                moving.extend(self._wait(iteration))
            fd = moving.popleft()
            if complete := self._advance(fd, iteration):
                awaited[complete.step] -= self._is_awaited(complete)
                if fd in self._pending:
                    moving.append(fd)

    def _release(self, completed: int, iteration: int) -> Iterator[int]:
        """Start what waited for the first `completed` steps. Yield descriptors that were idle."""
        for each in self._waiting.get(completed, ()):
            fd = each.connection.fd
            if progress := self._reported.get(fd):
                progress.release(each.size)
            if fd in self._pending:
                self._pending[fd].append(each)
            else:
                self._pending[fd] = deque([each])
                each.begin(iteration)
                yield fd  # earlier events are not raised again

    def _wait(self, iteration: int) -> list[int]:
        """Wait, and return the descriptors that are ready."""
        events = self._epoll.poll(self._stall_s)
        if not events:
            current = [transfers[0] for transfers in self._pending.values()]
            peers = ", ".join(f"{each.connection.peer} at {each.connection.where}" for each in current)
            raise JobFailed(
                f"rank {self._rank}, iteration {iteration}, step {min(each.step for each in current)}: "
                f"nothing moved for {self._stall_s:g} s; waiting for rank {peers}"
            )
        if any(fd in self._control_fds for fd, _ in events):
            self._control.check()
        return [fd for fd, _ in events if fd in self._pending]

    def _advance(self, fd: int, iteration: int) -> _Send | _Receive | None:
        """Advance the current transfer of `fd`. Return it when it is complete."""
        current = self._pending[fd][0]
        try:
            complete = current.connection.advance()
        except PeerLost as error:
            raise JobFailed(
                f"rank {self._rank}, iteration {iteration}, step {current.step}: {error}"
            ) from error
        if progress := self._reported.get(fd):
            progress.moved(current.connection.moved, complete)
        if not complete:
            return None
        if isinstance(current, _Receive):
            source = current.connection
            self._flows.append((current.step, source.peer, source.size, source.start_ns, time.monotonic_ns()))
        self._pending[fd].popleft()
        if self._pending[fd]:
            self._pending[fd][0].begin(iteration)
        else:
            del self._pending[fd]
        return current

    def _finish(self, iteration: dict[str, Any]) -> None:
        self._memory.check(iteration["iteration"])
        lines = [iteration, *self._flow_records(iteration["iteration"])]
        self._flows.clear()
        self._records.write("".join(json.dumps(line) + "\n" for line in lines))
        self._records.flush()

    def _flow_records(self, iteration: int) -> Iterator[dict[str, Any]]:
        hosts = self._job.hosts
        for step, peer, size, start, end in self._flows:
            yield {
                "kind": "flow",
                "job": self._job.name,
                "iteration": iteration,
                "step": step,
                "src_rank": peer,
                "dst_rank": self._rank,
                "src_ip": str(hosts[peer]),
                "src_port": self._incoming[peer].address[1],
                "dst_ip": str(hosts[self._rank]),
                "dst_port": self._job.port_base,
                "bytes": size,
                "start_ns": start,
                "end_ns": end,
            }

    def close(self) -> None:
        """Close all connections."""
        for outgoing in self._outgoing.values():
            outgoing.close()
        for incoming in self._incoming.values():
            incoming.close()
        self._epoll.close()
        if self._publisher:
            self._publisher.close()


def run_rank(job: JobSpec, rank: int, on_start: Callable[[], None] = lambda: None) -> None:
    """Run one rank of a job to its end; its records are in `job.records(rank)`.

    `on_start` is called once all ranks are connected, before the first iteration.
    Raises EntrainError with the cause, the same one on every rank, when the job fails; Terminated after
    SIGTERM.
    """
    job.output.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        _remove_stale(job)
    with job.records(rank).open("w", encoding="utf-8") as records, _terminable():
        records.write(json.dumps(_clock(job, rank)) + "\n")
        error: EntrainError | None = None
        try:
            with Control(job.rendezvous, job.name, rank, len(job.hosts), job.timeout_s) as control:
                _run(job, rank, control, records, on_start)
        except EntrainError as failure:
            error = failure
            raise
        finally:
            records.write(json.dumps(_end(job, rank, error)) + "\n")


def _remove_stale(job: JobSpec) -> None:
    """Remove records of an earlier run of the job, of ranks that it no longer has."""
    mine = {job.records(rank) for rank in range(len(job.hosts))}
    for path in job.output.glob(f"{job.name}-rank*.jsonl"):
        if path not in mine and path.stem.removeprefix(f"{job.name}-rank").isdigit():
            path.unlink(missing_ok=True)


def _run(job: JobSpec, rank: int, control: Control, records: TextIO, on_start: Callable[[], None]) -> None:
    engine = _engine(job, rank, control, records)
    try:
        engine.connect()
        on_start()
        engine.run(int(control.barrier("start", lambda: _start_ns(job, control))))
        control.barrier("end")
    except Terminated:
        control.abort(f"rank {rank} was terminated")
        raise
    except JobAborted:
        raise
    except JobFailed as failure:
        raise JobFailed(control.abort(str(failure))) from failure
    except EntrainError as failure:
        control.abort(str(failure))
        raise
    finally:
        engine.close()


def _engine(job: JobSpec, rank: int, control: Control, records: TextIO) -> Engine | Training:
    if job.collective != DDP:
        return Engine(job, rank, control, records)
    from workloads.torch_training import Training  # PyTorch is optional, and takes seconds to import

    return Training(job, rank, control, records)


def _start_ns(job: JobSpec, control: Control) -> int:
    """Return the start time of the first iteration. Rank 0 calls it when all ranks are connected."""
    origin = time.monotonic_ns() + _START_MARGIN_NS
    if job.go:
        (job.rendezvous / f"{job.name}.ready").touch()
        while not (text := job.go.read_text(encoding="utf-8").strip() if job.go.exists() else ""):
            control.check(_GO_POLL_S)
        origin = int(text)
    return origin + round(job.start_ms * 1e6)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Raise Terminated inside the block on SIGTERM and SIGINT."""

    def end(number: int, _: FrameType | None) -> None:
        raise Terminated(f"ended by {signal.Signals(number).name}")

    with handled_by(end, (signal.SIGTERM, signal.SIGINT)):
        yield


def _clock(job: JobSpec, rank: int) -> dict[str, Any]:
    monotonic = time.monotonic_ns()
    return {
        "kind": "clock",
        "job": job.name,
        "rank": rank,
        "ranks": len(job.hosts),
        "collective": job.collective,
        "iterations": job.iterations,
        "monotonic_ns": monotonic,
        "realtime_offset_ns": time.time_ns() - monotonic,
    }


def _end(job: JobSpec, rank: int, error: EntrainError | None) -> dict[str, Any]:
    usage = os.times()
    return {
        "kind": "end",
        "job": job.name,
        "rank": rank,
        "error": str(error) if error else None,
        "cpu_s": round(usage.user + usage.system, 3),
    }
