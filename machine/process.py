"""Child processes that end with their parent. Errors show the end of their log."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from machine.errors import BadInput, EntrainError
from machine.limits import full_disk
from machine.record import Record, Resource, process

LOG_LINES = 15
"""Number of log lines that an error shows."""

GIVING_WAY = 10
"""By how much the niceness of a thread that gives way is higher: it gets a tenth of another's time."""


@dataclass(frozen=True, eq=False)
class Child:
    """A process started by `launch`. Messages call it `what`, such as "the agent of host h1"."""

    what: str
    process: subprocess.Popen[bytes]
    log: Path | None
    _record: Record
    _owned: Resource

    def check(self) -> None:
        """Raise EntrainError, with the end of the log, if the process has ended."""
        status = self.process.poll()
        if status is not None:
            raise self.failure(describe(status))

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until a process launched with `tells` writes a line that begins with `ready`.

        Raises EntrainError, with the end of the log, if it ends, writes something else, or takes too long.
        """
        assert self.process.stdout is not None
        deadline, said = time.monotonic() + timeout_s, b""
        while b"\n" not in said:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self.process.stdout], [], [], left_s)[0]:
                raise self.failure(f"was not ready within {timeout_s:g} s")
            new = os.read(self.process.stdout.fileno(), 4096)
            if not new:
                self.process.wait()
                raise self.failure(describe(self.process.returncode))
            said += new
        if not said.startswith(b"ready"):
            raise self.failure(f"said {said.decode(errors='replace').strip()!r} and not that it is ready")

    def failure(self, problem: str) -> EntrainError:
        """Return an error that names the process and its problem, and shows the end of the log."""
        full, where = "", ""
        if self.log is not None:
            full, where = full_disk(self.log), f"; the end of {self.log}:"
        return EntrainError(f"{self.what} {problem}{full}{where}{self.log_end()}")

    def log_end(self) -> str:
        """Return the last lines of the log, or nothing without a log."""
        if self.log is None:
            return ""
        try:
            lines = self.log.read_text(errors="replace", encoding="utf-8").splitlines()
        except FileNotFoundError:
            lines = []
        return "".join(f"\n  | {line}" for line in lines[-LOG_LINES:] or ["(the log is empty)"])

    def end(self) -> None:
        """End the process if it is running, and remove it from the record."""
        self._record.release(self._owned)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def launch(
    record: Record,
    what: str,
    command: Sequence[str],
    *,
    log: Path | None = None,
    death: Literal["TERM", "KILL"] = "TERM",
    tells: bool = False,
) -> Child:
    """Start `command`, owned by `record`.

    The kernel sends it signal `death` when the calling *thread* ends. Its output is appended to `log` if
    given. With `tells`, `Child.wait_ready` reads its standard output. It has its own session, so the
    terminal's SIGINT reaches only this process, which then ends it in order.
    """
    sink = log.open("ab") if log is not None else None
    try:
        started = subprocess.Popen(
            ["setpriv", "--pdeathsig", death, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if tells else sink or subprocess.DEVNULL,
            stderr=sink or subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        if sink is not None:
            sink.close()
    return Child(what, started, log, record, record.own(process(started.pid)))


def give_way() -> Callable[[], None]:
    """Let the calling thread, and processes that it starts, give way to others on busy processors.

    Returns what ends that for the thread that calls it, which needs CAP_SYS_NICE; it does nothing without.
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, own + GIVING_WAY)

    def end() -> None:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, own)

    return end


def become(program: Sequence[str], environment: Mapping[str, str], remedy: str = "") -> NoReturn:
    """Let a program, searched on PATH, take the place of this process.

    Raises BadInput, which ends with `remedy`, if there is none, and EntrainError if it cannot be run.
    """
    name = program[0]
    try:
        os.execvpe(name, list(program), environment)
    except OSError as error:
        # A directory of PATH that this user cannot enter gives EACCES, whatever it holds.
        absent = isinstance(error, FileNotFoundError) or ("/" not in name and shutil.which(name) is None)
        if absent:
            raise BadInput(f"{name}: no such program{remedy}") from None
        raise EntrainError(f"{name}: cannot be run: {error.strerror}") from error


def describe(status: int) -> str:
    """Describe a `Popen.returncode` in words."""
    if status < 0:
        by_kernel = " (the kernel does so when memory runs out: see `dmesg`)"
        return f"was killed by {signal.Signals(-status).name}{by_kernel if status == -signal.SIGKILL else ''}"
    return f"ended with status {status}"
