"""All ranks of one or more jobs as children of one process, which has imported everything once.

A fresh interpreter per rank would spend more time on imports than a short job on its iterations.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from machine.errors import BadInput, EntrainError, MissingTool
from machine.process import give_way
from machine.signals import handled_by
from workloads.collectives import DDP
from workloads.engine import Terminated, run_rank
from workloads.jobs import JobSpec, load_job

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1


def launch(jobs: Sequence[JobSpec]) -> dict[str, dict[int, int]]:
    """Run all ranks of all jobs, each in its namespace where the job names them, and wait for all.

    Returns the exit status of each rank by job: 0, 1 (failed), 128 + n after signal n. SIGTERM and SIGINT
    are passed on to the ranks, and so is the end of this process. Raises BadInput when a namespace is not
    there.
    """
    for job in jobs:
        _check_namespaces(job)
    if any(job.collective == DDP for job in jobs):
        _import_pytorch()
    status: dict[str, dict[int, int]] = {job.name: {} for job in jobs}
    ranks = _Ranks()
    with _passed_on(ranks.children):
        for job in jobs:
            ranks.start(job)
        while ranks.children:
            if ended := ranks.ended(*os.wait()):
                job, rank, code = ended
                status[job.name][rank] = code if code >= 0 else 128 - code
    return status


def serve(orders: Path) -> None:
    """Run each job whose file is named by a line in the named pipe `orders`, until SIGTERM or SIGINT.

    A job's ranks start at once, because this process has imported everything. Until their first iteration
    they give way to those of other jobs, which starting ranks would slow down. `ends` tells when they have
    ended. Raises BadInput for a file that is not a job's.
    """
    ranks = _Ranks(give_way())
    asked: list[int] = []
    wake, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only its byte in the pipe counts
    signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
    with orders.open("r+b", buffering=0) as pipe, _passed_on(ranks.children, asked):
        print("ready", flush=True)
        rest = b""
        while not asked or ranks.children:
            if wake in select.select([wake, pipe.fileno()], [], [])[0]:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                ranks.reap()
                continue
            *lines, rest = (rest + pipe.read(4096)).split(b"\n")
            for line in lines:
                job = load_job(Path(line.decode()))
                _check_namespaces(job)
                ranks.start(job)


class _Ranks:
    """The ranks that run as children of this process. Each calls `on_start` before its first iteration."""

    def __init__(self, on_start: Callable[[], None] = lambda: None) -> None:
        self.children: dict[int, tuple[JobSpec, int]] = {}
        self._on_start = on_start

    def start(self, job: JobSpec) -> None:
        """Start all ranks of a job."""
        job.rendezvous.mkdir(parents=True, exist_ok=True)
        job.exits.write_text("", encoding="utf-8")
        for rank in range(len(job.hosts)):
            self.children[_fork(job, rank, self._on_start)] = job, rank

    def ended(self, pid: int, wait_status: int) -> tuple[JobSpec, int, int] | None:
        """Note that a child has ended. Return its job, its rank and its status; None for another process."""
        if pid not in self.children:
            return None
        job, rank = self.children.pop(pid)
        code = os.waitstatus_to_exitcode(wait_status)
        with job.exits.open("a", encoding="utf-8") as exits:
            exits.write(f"{rank} {code}\n")
        return job, rank, code

    def reap(self) -> None:
        """Note all children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self.ended(pid, wait_status)


def _check_namespaces(job: JobSpec) -> None:
    for rank, path in enumerate(job.netns):
        if not Path(path).exists():
            raise BadInput(
                f"job {job.name}: netns.{rank}: namespace {path} does not exist; give one of a running "
                f"process"
            )


def ends(job: JobSpec) -> dict[int, int]:
    """Return the statuses of the ranks that have ended, in that order (negative: a signal)."""
    if not job.exits.exists():
        return {}
    whole, _, _ = job.exits.read_text(encoding="utf-8").rpartition("\n")
    return {int(rank): int(code) for rank, code in (line.split() for line in whole.splitlines())}


def to_blame(job: JobSpec) -> tuple[int, int] | None:
    """Return the rank that made the job fail, and its status (negative: a signal); None if no rank failed.

    It is the first rank that was killed, otherwise the first that failed.
    """
    failed = sorted((end for end in ends(job).items() if end[1]), key=lambda end: end[1] > 0)
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
def _passed_on(children: dict[int, tuple[JobSpec, int]], asked: list[int] | None = None) -> Iterator[None]:
    """Pass SIGTERM and SIGINT on to the children, and add them to `asked`."""

    def pass_on(number: int, _: FrameType | None) -> None:
        if asked is not None:
            asked.append(number)
        for pid in list(children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    with handled_by(pass_on, (signal.SIGTERM, signal.SIGINT)):
        yield


def _fork(job: JobSpec, rank: int, on_start: Callable[[], None]) -> int:
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
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if job.netns:
            enter_netns(job.netns[rank])
        status = run_status(job, rank, on_start)
    except EntrainError as error:
        print(f"job {job.name}, rank {rank}: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def run_status(job: JobSpec, rank: int, on_start: Callable[[], None]) -> int:
    """Run one rank, and return its exit status. Its last record has the error, if any."""
    try:
        run_rank(job, rank, on_start)
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
