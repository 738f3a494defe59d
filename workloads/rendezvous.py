"""Let the ranks of a job find each other, start together and fail together, outside the network under test.

The ranks form a star of Unix sockets in the job's rendezvous directory, with rank 0 in the middle. The star
carries barriers. When a rank fails, it sends the reason to all others before any connection closes, so that
every rank reports the cause and not its consequences.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from machine.errors import EntrainError
from machine.patience import patience

_RETRY_S = 0.02
_GATHER_S = patience(0.3)
"""How long rank 0 collects further errors: the first may only be a consequence of another."""
_MOST_REASONS = 4
"""Number of reasons that rank 0 reports at most."""
_ECHO_S = patience(2.0)
"""How long a failed rank waits for rank 0's answer."""


class JobFailed(EntrainError):
    """The job cannot continue, and the other ranks must be told (`Control.abort`)."""


class JobAborted(JobFailed):
    """The job has been aborted, and all ranks know why."""


class Control:
    """One rank's end of the star. Use it as a context manager."""

    def __init__(self, directory: Path, name: str, rank: int, ranks: int, timeout_s: float) -> None:
        """Join the star. Raises JobFailed if the other ranks do not join within `timeout_s`."""
        self._name, self._rank, self._ranks, self._timeout_s = name, rank, ranks, timeout_s
        self._peers: dict[socket.socket, int] = {}
        self._arrived: dict[str, dict[int, Any]] = {}
        self._poll = select.poll()
        directory.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + timeout_s
        if rank == 0:
            self._gather(directory, deadline)
        else:
            self._join(directory, deadline)

    def _gather(self, directory: Path, deadline: float) -> None:
        path = directory / f"{self._name}.sock"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            with _short(directory) as prefix:
                listener.bind(f"{prefix}/{path.name}")
            listener.listen(self._ranks)
            try:
                while len(self._peers) < self._ranks - 1:
                    listener.settimeout(max(0.001, deadline - time.monotonic()))
                    peer, _ = listener.accept()
                    peer.settimeout(self._timeout_s)
                    self._add(peer, int(json.loads(peer.recv(4096))["rank"]))
            except TimeoutError as error:
                missing = sorted(set(range(1, self._ranks)) - set(self._peers.values()))
                reason = f"{_ranks(missing)} did not start within {self._timeout_s:g} s"
                self._broadcast({"abort": reason})
                raise JobAborted(reason) from error
            finally:
                path.unlink(missing_ok=True)

    def _join(self, directory: Path, deadline: float) -> None:
        with _short(directory) as prefix:
            while True:
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    peer.connect(f"{prefix}/{self._name}.sock")
                    break
                except (FileNotFoundError, ConnectionRefusedError) as error:
                    peer.close()
                    if time.monotonic() > deadline:
                        where = directory / f"{self._name}.sock"
                        raise JobFailed(
                            f"rank 0 did not start within {self._timeout_s:g} s (no {where})"
                        ) from error
                    time.sleep(_RETRY_S)
        peer.send(json.dumps({"rank": self._rank}).encode())
        self._add(peer, 0)

    def _add(self, peer: socket.socket, rank: int) -> None:
        peer.setblocking(False)
        self._peers[peer] = rank
        self._poll.register(peer, select.POLLIN)

    @property
    def sockets(self) -> list[socket.socket]:
        """Sockets to watch besides the data's. If one is readable, call `check`."""
        return list(self._peers)

    def check(self, timeout_s: float = 0.0) -> None:
        """Process messages of the other ranks. Raises JobAborted if one has failed or is gone."""
        reasons = self._listen(timeout_s)
        if not reasons:
            return
        if self._rank == 0:
            deadline = time.monotonic() + _GATHER_S
            while (left := deadline - time.monotonic()) > 0:
                reasons += self._listen(left)
        self._fail(reasons)

    def _listen(self, timeout_s: float) -> list[str]:
        """Process received messages, and return the reasons of ranks that failed."""
        reasons = []
        for fd, _ in self._poll.poll(timeout_s * 1e3):
            peer = next(peer for peer in self._peers if peer.fileno() == fd)
            rank = self._peers[peer]
            data = _receive(peer)
            if data is None:
                continue
            if not data:
                self._poll.unregister(peer)
                reasons.append(f"rank {rank} ended unexpectedly")
                continue
            message = json.loads(data)
            if "abort" in message:
                reasons.append(str(message["abort"]))
            else:
                self._arrived.setdefault(message["barrier"], {})[rank] = message.get("value")
        return reasons

    def _fail(self, reasons: list[str]) -> NoReturn:
        reason = "; ".join(dict.fromkeys(reasons[:_MOST_REASONS]))
        if self._rank == 0:
            self._broadcast({"abort": reason})
        raise JobAborted(reason)

    def _broadcast(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.send(data)

    def barrier(self, name: str, value: Callable[[], Any] | None = None) -> Any:
        """Wait for all ranks. Rank 0 then calls `value`, and all ranks return its result.

        Each barrier has a name of its own. Raises JobAborted if a rank does not arrive within the job's
        `timeout_s`, which rank 0 enforces.
        """
        arrived = self._arrived.setdefault(name, {})
        if self._rank == 0:
            self._wait(arrived, name)
            result = value() if value else None
            self._broadcast({"barrier": name, "value": result})
        else:
            self._broadcast({"barrier": name})
            while not arrived:
                self.check(self._timeout_s)
            result = arrived[0]
        del self._arrived[name]
        return result

    def _wait(self, arrived: dict[int, Any], name: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while len(arrived) < self._ranks - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = sorted(set(self._peers.values()) - set(arrived))
                self._fail([f"{_ranks(missing)} did not reach {name!r} within {self._timeout_s:g} s"])
            self.check(left)

    def abort(self, reason: str) -> str:
        """Tell all ranks that this one has failed. Return the reason that all ranks report."""
        if self._rank != 0:
            self._broadcast({"abort": reason})
        deadline = time.monotonic() + (_GATHER_S if self._rank == 0 else _ECHO_S)
        reasons = [reason]
        while (left := deadline - time.monotonic()) > 0:
            heard = self._listen(left)
            if heard and self._rank != 0:  # rank 0 has decided
                return heard[0]
            reasons += heard
        try:
            self._fail(reasons)
        except JobAborted as failure:
            return str(failure)

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Yield a short path of a directory: the path of a Unix socket is limited to 107 bytes."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _receive(peer: socket.socket) -> bytes | None:
    """Return one message: empty if the peer is gone, None if there is none."""
    for _ in range(2):  # the first attempt may report the peer's end although a message is still waiting
        try:
            return peer.recv(65536)
        except ConnectionError:
            continue
        except BlockingIOError:
            return None
    return b""


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
