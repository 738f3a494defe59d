"""How the ranks of a job find each other, start together and fail together, beside the network under test.

A star of Unix sockets in the job's rendezvous directory with rank 0 in the middle. It carries barriers, and
when one rank fails the reason to all others: the first reason wins, so that every rank tells the cause and
not its consequences.
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
from typing import Any

from machine.errors import EntrainError

_RETRY_S = 0.02
_ABORT_ECHO_S = 2.0


class JobFailed(EntrainError):
    """The job cannot go on; every rank raises it with the same reason."""


class Control:
    """One rank's end of the star. Use it as a context manager."""

    def __init__(self, directory: Path, name: str, rank: int, ranks: int, timeout_s: float) -> None:
        """Join the star; raises JobFailed when the others do not come within `timeout_s`."""
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
                raise JobFailed(reason) from error
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
        """What to wait on beside the data; when one is readable, call `check`."""
        return list(self._peers)

    def check(self, timeout_s: float = 0.0) -> None:
        """Take in what the other ranks have said; raises JobFailed when one has failed or is gone."""
        for fd, _ in self._poll.poll(timeout_s * 1e3):
            peer = next(peer for peer in self._peers if peer.fileno() == fd)
            try:
                data = peer.recv(65536)
            except ConnectionError:
                data = b""
            except BlockingIOError:
                continue
            if not data:
                self._fail(f"rank {self._peers[peer]} ended unexpectedly")
            message = json.loads(data)
            if "abort" in message:
                self._fail(str(message["abort"]))
            self._arrived.setdefault(message["barrier"], {})[self._peers[peer]] = message.get("value")

    def _fail(self, reason: str) -> None:
        if self._rank == 0:
            self._broadcast({"abort": reason})
        raise JobFailed(reason)

    def _broadcast(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.send(data)

    def barrier(self, name: str, value: Callable[[], Any] | None = None) -> Any:
        """Wait until all ranks are here. Rank 0 then asks `value`, and all ranks return what it said.

        Raises JobFailed when a rank does not come within the job's timeout, which rank 0 watches.
        """
        arrived = self._arrived.setdefault(name, {})
        if self._rank == 0:
            self._wait(arrived, self._ranks - 1, name, time.monotonic() + self._timeout_s)
            result = value() if value else None
            self._broadcast({"barrier": name, "value": result})
            return result
        self._broadcast({"barrier": name})
        while not arrived:
            self.check(self._timeout_s)
        return arrived[0]

    def _wait(self, arrived: dict[int, Any], count: int, name: str, deadline: float) -> None:
        while len(arrived) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = sorted(set(self._peers.values()) - set(arrived))
                self._fail(
                    f"{_ranks(missing)} did not reach the barrier {name!r} within {self._timeout_s:g} s"
                )
            self.check(left)

    def abort(self, reason: str) -> str:
        """Tell all ranks that this one has failed; returns the reason that all ranks report."""
        self._broadcast({"abort": reason})
        if self._rank == 0:
            return reason
        deadline = time.monotonic() + _ABORT_ECHO_S
        try:
            while (
                left := deadline - time.monotonic()
            ) > 0:  # until rank 0 passes on the first reason it heard
                self.check(left)
        except JobFailed as failure:
            return str(failure)
        return reason

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """A short name of a directory: the path of a Unix socket has room for 107 bytes."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
