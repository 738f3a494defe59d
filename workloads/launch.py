"""All ranks of one or more jobs as children of one process, which has imported everything once.

A fresh interpreter per rank would spend more time on imports than a short job on its iterations.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from machine.errors import BadInput, EntrainError, MissingTool
from workloads.collectives import DDP
from workloads.engine import Terminated, run_rank
from workloads.jobs import JobSpec

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1


def launch(jobs: Sequence[JobSpec]) -> dict[str, dict[int, int]]:
    """Run all ranks of all jobs, each in its namespace where the job names them, and wait for all.

    Returns the exit status of each rank by job: 0, 1 (failed), 128 + n after signal n. SIGTERM and SIGINT
    are passed on to the ranks, and so is the end of this process. Raises BadInput when a namespace is not
    there.
    """
    for job in jobs:
        for rank, path in enumerate(job.netns):
            if not Path(path).exists():
                raise BadInput(
                    f"job {job.name}: netns.{rank}: there is no namespace {path}; give that of a process"
                )
    if any(job.collective == DDP for job in jobs):
        _import_pytorch()
    status: dict[str, dict[int, int]] = {job.name: {} for job in jobs}
    children: dict[int, tuple[JobSpec, int]] = {}
    with _passed_on(children):
        for job in jobs:
            job.rendezvous.mkdir(parents=True, exist_ok=True)
            job.exits.write_text("")
            for rank in range(len(job.hosts)):
                children[_fork(job, rank)] = job, rank
        while children:
            pid, wait_status = os.wait()
            if pid in children:
                job, rank = children.pop(pid)
                code = os.waitstatus_to_exitcode(wait_status)
                with job.exits.open("a") as exits:
                    exits.write(f"{rank} {code}\n")
                status[job.name][rank] = code if code >= 0 else 128 - code
    return status


def to_blame(job: JobSpec) -> tuple[int, int] | None:
    """Return the rank that made the job fail, and its status (negative: a signal); None if no rank failed.

    It is the first rank that was killed, otherwise the first that failed.
    """
    if not job.exits.exists():
        return None
    ends = [tuple(map(int, line.split())) for line in job.exits.read_text().splitlines()]
    failed = sorted((end for end in ends if end[1]), key=lambda end: end[1] > 0)
    return (failed[0][0], failed[0][1]) if failed else None


def _import_pytorch() -> None:
    """Once for all ranks; raises MissingTool."""
    try:
        importlib.import_module("workloads.torch_training")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise MissingTool(
            "collective ddp needs PyTorch: run `pip install -e '.[torch]'` in the checkout "
            "(--extra-index-url https://download.pytorch.org/whl/cpu installs it without CUDA)"
        ) from error


@contextlib.contextmanager
def _passed_on(children: dict[int, tuple[JobSpec, int]]) -> Iterator[None]:
    def pass_on(number: int, _: FrameType | None) -> None:
        for pid in list(children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _fork(job: JobSpec, rank: int) -> int:
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(status)
        if job.netns:
            enter_netns(job.netns[rank])
        status = run_status(job, rank)
    except EntrainError as error:
        print(f"job {job.name}, rank {rank}: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def run_status(job: JobSpec, rank: int) -> int:
    """Run one rank, and return its exit status. Its last record has the error, if any."""
    try:
        run_rank(job, rank)
    except Terminated:
        return 128 + signal.SIGTERM
    except EntrainError:
        return 1
    return 0


def enter_netns(path: str) -> None:
    """Move this process into a network namespace. Raises EntrainError; MissingTool without the privilege."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise EntrainError(f"netns: cannot open {path}: {error.strerror}") from error
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _CLONE_NEWNET):
            raise MissingTool(f"netns: cannot enter {path}: {os.strerror(ctypes.get_errno())}; run as root")
    finally:
        os.close(fd)
