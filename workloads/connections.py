"""The TCP connections of a rank: one to each peer that it sends to, and one from each that it receives from.

They stay open for the whole job. Sockets are non-blocking and watched edge-triggered: `advance` moves as much
as the kernel accepts or has, and is called again on the next event. A transfer is a header of 32 bytes
followed by the values.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from machine.errors import EntrainError
from machine.patience import patience
from wire.flow import Flow
from wire.progress import Address
from workloads.collectives import DDP
from workloads.jobs import SOURCE_PORTS, UNSENT_BYTES, JobSpec
from workloads.pattern import Buffer
from workloads.rendezvous import Control, JobFailed

_HELLO = struct.Struct("<4sI32s")  # magic, rank, proof that it knows the job's secret
_HEADER = struct.Struct("<4sIIxxxxQQ")  # magic, iteration, step, bytes, start in CLOCK_MONOTONIC ns
HEADER_BYTES = _HEADER.size
_MAGIC = b"ntrn"

_SEGMENT = 256 * 1024
"""Bytes that are received before they are added: about what fits into a CPU cache."""
_SEND = 256 * 1024
"""Most bytes per call of send."""
_RCVLOWAT = 64 * 1024
"""Bytes that must have arrived before the rank is woken, to reduce wake-ups."""
_RCVLOWAT_PART = 8
"""At most this part of the receive buffer, a quarter of the window: a sender that has filled the window waits
until the rank has woken up and read."""
_SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes in the send queue that were never sent
_PORT_ATTEMPTS = 64
_HELLO_TIMEOUT_S = patience(5.0)
_SILENT = "it does not say which rank it is"
_MOST_CALLERS = 256
"""Connections that have yet to say which rank they are from. A rank says so as soon as it is connected."""
_BACKLOG = 4096
"""Connections that wait until the rank has connected itself; Linux allows no more."""
_SECRET_BYTES = 32
"""Length of a job's secret, which rank 0 draws and tells the others over the rendezvous."""


_TOLD = 10
"""Refused connections that a rank tells of."""


class PeerLost(EntrainError):
    """A connection to another rank broke."""


def source_port(job: JobSpec, src: int, dst: int, attempt: int) -> int:
    """Return the source port from rank to rank; `attempt` counts conflicts.

    It derives from the seed, so that ECMP hashes are reproducible. A CRC would not do: it is linear like the
    switches' hash, so the same flows would collide with every seed.
    """
    text = f"{job.seed}/{job.name}/{src}/{dst}/{attempt}".encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    return SOURCE_PORTS[digest % len(SOURCE_PORTS)]


def flows_of(job: JobSpec) -> tuple[Flow, ...]:
    """Return the flows of a job's collective, unless another program has taken a source port.

    Those of training with PyTorch are known once they exist only: none are returned.
    """
    if job.collective == DDP:
        return ()
    pairs = dict.fromkeys((t.src, t.dst) for step in job.program().steps for t in step)
    return tuple(
        Flow(str(job.hosts[src]), source_port(job, src, dst, 0), str(job.hosts[dst]), job.port_base)
        for src, dst in pairs
    )


class Outgoing:
    """The connection to `peer` over which this rank sends."""

    def __init__(
        self,
        sock: socket.socket,
        peer: int,
        where: str,
        epoll: select.epoll,
        unsent_bytes: int = UNSENT_BYTES,
    ) -> None:
        """At most `unsent_bytes` wait in the socket (`JobSpec.unsent_bytes`)."""
        self.peer, self.where, self.fd = peer, where, sock.fileno()
        self._sock, self._epoll, self._unsent_bytes = sock, epoll, unsent_bytes
        self.flow: Address = (*sock.getsockname(), *sock.getpeername(), socket.IPPROTO_TCP)
        self._dscp = self._wanted_dscp = 0
        self._header = b""
        self._data = memoryview(b"")
        self._position = 0
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)
        epoll.register(self.fd, select.EPOLLOUT | select.EPOLLET)

    def begin(self, data: memoryview, iteration: int, step: int) -> None:
        """Start sending `data`, with the step modulo 64 as DSCP."""
        self._header = _HEADER.pack(_MAGIC, iteration, step, len(data), time.monotonic_ns())
        self._data, self._position, self._wanted_dscp = data, 0, step % 64

    @property
    def moved(self) -> int:
        """Bytes of the current transfer that the kernel has accepted, including the header."""
        return HEADER_BYTES - len(self._header) + self._position

    def advance(self) -> bool:
        """Send what the kernel accepts. Return True when it has accepted everything. Raises PeerLost."""
        if self._wanted_dscp != self._dscp and not self._mark():
            return False
        try:
            if self._header:
                self._header = self._header[self._sock.send(self._header, socket.MSG_MORE) :]
                if self._header:
                    return False
            while self._position < len(self._data):
                part = self._data[self._position : self._position + _SEND]
                sent = self._sock.send(part)
                self._position += sent
                if sent < len(part):
                    return False
        except BlockingIOError:
            return False
        except OSError as error:
            raise PeerLost(
                f"lost the connection to rank {self.peer} at {self.where}: {error.strerror}"
            ) from error
        return True

    def _mark(self) -> bool:
        """Set the DSCP once nothing of the previous step is unsent: the kernel marks packets on sending."""
        unsent = int.from_bytes(fcntl.ioctl(self.fd, _SIOCOUTQNSD, bytes(4)), "little")
        if unsent:
            self._sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1
            )  # writable = nothing unsent
            self._epoll.modify(
                self.fd, select.EPOLLOUT | select.EPOLLET
            )  # makes the kernel look and remember
            return False
        self._sock.setsockopt(
            socket.IPPROTO_IP, socket.IP_TOS, self._wanted_dscp << 2
        )  # TCP keeps the ECN bits
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._unsent_bytes)
        self._dscp = self._wanted_dscp
        return True

    def close(self) -> None:
        _close(self._sock)


class Incoming:
    """The connection from `peer` over which this rank receives."""

    def __init__(
        self, sock: socket.socket, peer: int, address: tuple[str, int], dtype: str, epoll: select.epoll
    ) -> None:
        self.peer, self.address, self.fd = peer, address, sock.fileno()
        self.where = f"{address[0]}:{address[1]}"
        self.start_ns = 0
        self.flow: Address = (*sock.getpeername(), *sock.getsockname(), socket.IPPROTO_TCP)
        self._sock = sock
        self._header = bytearray(_HEADER.size)
        self._header_filled = 0
        self._expected = (0, 0)
        self._target: Buffer = np.empty(0, dtype)
        self._bytes = memoryview(b"")
        self.size = self._received = self._staged = self._lowat = self._most = 0
        self._reduce = False
        self._staging: Buffer = np.empty(0, dtype)
        self._staging_bytes = memoryview(b"")
        sock.setblocking(False)
        epoll.register(self.fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def begin(self, target: Buffer, reduce: bool, iteration: int, step: int) -> None:
        """Start receiving values, which are added to `target` or replace it."""
        self._target, self._reduce, self._expected = target, reduce, (iteration, step)
        self._bytes = raw(target)
        self.size = len(self._bytes)
        self._received = self._staged = self._header_filled = 0
        buffer = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)  # it grows
        self._most = min(_RCVLOWAT, buffer // _RCVLOWAT_PART)
        if reduce and not self._staging_bytes:
            self._staging = np.empty(_SEGMENT // target.itemsize, target.dtype)
            self._staging_bytes = raw(self._staging)
        self._ask(_HEADER.size + self.size)

    @property
    def moved(self) -> int:
        """Bytes of the current transfer that have arrived, including the header."""
        return self._header_filled + self._received

    def advance(self) -> bool:
        """Receive what has arrived. Return True when the transfer is complete.

        Raises PeerLost, and JobFailed if it is not the expected transfer.
        """
        try:
            while self._header_filled < _HEADER.size:
                self._header_filled += self._take(memoryview(self._header)[self._header_filled :])
                if self._header_filled == _HEADER.size:
                    self._check_header()
            while self._received < self.size:
                room = self._room()
                got = self._take(room)
                self._received += got
                if self._reduce:
                    self._add(got)
                if got < len(room):
                    break  # the kernel has no more
        except BlockingIOError:
            pass
        except OSError as error:
            raise PeerLost(
                f"lost the connection from rank {self.peer} at {self.where}: {error.strerror}"
            ) from error
        left = _HEADER.size + self.size - self.moved
        if left:
            self._ask(left)  # else what is left may be less than the kernel wakes the rank for
        return not left

    def _take(self, room: memoryview) -> int:
        got = self._sock.recv_into(room)
        if not got:
            raise PeerLost(f"rank {self.peer} at {self.where} closed the connection")
        return got

    def _room(self) -> memoryview:
        if not self._reduce:
            return self._bytes[self._received :]
        return self._staging_bytes[self._staged : self._staged + self.size - self._received]

    def _add(self, got: int) -> None:
        width = self._target.itemsize
        first = (self._received - got - self._staged) // width
        self._staged += got
        whole, rest = divmod(self._staged, width)
        values = self._target[first : first + whole]
        np.add(values, self._staging[:whole], out=values)
        self._staging_bytes[:rest] = bytes(self._staging_bytes[whole * width : whole * width + rest])
        self._staged = rest

    def _ask(self, left: int) -> None:
        """Set how much must arrive before a wake-up, at most the rest of the transfer."""
        lowat = max(1, min(left, self._most))
        if lowat != self._lowat:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowat)
            self._lowat = lowat

    def _check_header(self) -> None:
        magic, iteration, step, size, self.start_ns = _HEADER.unpack(self._header)
        if (magic, iteration, step, size) != (_MAGIC, *self._expected, self.size):
            raise JobFailed(
                f"rank {self.peer} at {self.where} sent {size} bytes of iteration {iteration}, step {step}; "
                f"expected: {self.size} bytes of iteration {self._expected[0]}, step {self._expected[1]}"
            )

    def close(self) -> None:
        _close(self._sock)


def raw(values: Buffer) -> memoryview:
    """Return the bytes of an array without copying them."""
    return values.view(np.uint8).data


def _close(sock: socket.socket) -> None:
    """Close with a reset. It leaves no TIME_WAIT, so the next run can use the same ports.

    No data is lost: all of it has arrived, or the job has failed.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def connect_all(
    job: JobSpec, rank: int, control: Control, epoll: select.epoll
) -> tuple[dict[int, Outgoing], dict[int, Incoming]]:
    """Connect this rank with its peers. Return its connections by peer. Raises EntrainError."""
    transfers = [transfer for step in job.program().steps for transfer in step]
    receivers = sorted({t.dst for t in transfers if t.src == rank})
    senders = {t.src for t in transfers if t.dst == rank}
    with _listen(job, rank) as listener:
        secret = bytes.fromhex(control.barrier("listening", lambda: secrets.token_hex(_SECRET_BYTES)))
        outgoing = {
            peer: Outgoing(
                _connect(job, rank, peer, secret), peer, _where(job, peer), epoll, job.unsent_bytes
            )
            for peer in receivers
        }
        with Callers(listener, job, rank, secret) as callers:
            incoming = {
                peer: Incoming(sock, peer, address, job.dtype, epoll)
                for peer, (sock, address) in callers.wait_for(senders, control).items()
            }
    control.barrier("connected")
    return outgoing, incoming


@dataclass
class _Caller:
    """A connection that has yet to say which rank it is from."""

    sock: socket.socket
    address: tuple[str, int]
    until: float
    said: bytes = b""


class Callers:
    """Who connects to a rank. All are listened to at the same time, so that none holds up another."""

    def __init__(self, listener: socket.socket, job: JobSpec, rank: int, secret: bytes) -> None:
        self._listener, self._job, self._rank, self._secret = listener, job, rank, secret
        self._pending: dict[int, _Caller] = {}  # by descriptor, the oldest first
        self._poll = select.poll()
        self._strangers = 0

    def __enter__(self) -> Callers:
        self._listener.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        for caller in self._pending.values():
            caller.sock.close()

    def wait_for(
        self, senders: Collection[int], control: Control
    ) -> dict[int, tuple[socket.socket, tuple[str, int]]]:
        """Return the connection and the address of each of `senders`. Raises JobFailed after the timeout."""
        accepted: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
        deadline = time.monotonic() + self._job.timeout_s
        for sock in (self._listener, *control.sockets):
            self._poll.register(sock, select.POLLIN)
        while missing := set(senders) - set(accepted):
            now = time.monotonic()
            if now >= deadline:
                peers = ", ".join(f"{peer} at {self._job.hosts[peer]}" for peer in sorted(missing))
                limit = f"{self._job.timeout_s:g} s"
                raise JobFailed(f"rank {self._rank}: no connection from rank {peers} within {limit}")
            until = min([deadline, *(caller.until for caller in self._pending.values())])
            ready = {fd for fd, _ in self._poll.poll(max(0.0, until - now) * 1e3)}
            control.check()
            for fd in ready & self._pending.keys():
                if (peer := self._hear(self._pending[fd], missing)) is not None:
                    caller = self._pending.pop(fd)
                    self._poll.unregister(fd)
                    accepted[peer] = caller.sock, caller.address
                    missing.discard(peer)
            self._end_late()
            if self._listener.fileno() in ready:
                self._accept()
        return accepted

    def _accept(self) -> None:
        """Take connections that wait. Beyond the most, the oldest that have said nothing are closed."""
        with contextlib.suppress(OSError):  # no more, or one that has gone
            for _ in range(_MOST_CALLERS):
                sock, address = self._listener.accept()
                sock.setblocking(False)
                until = time.monotonic() + _HELLO_TIMEOUT_S
                self._pending[sock.fileno()] = _Caller(sock, (address[0], address[1]), until)
                self._poll.register(sock, select.POLLIN)
                if len(self._pending) > _MOST_CALLERS:
                    self._refuse(next(iter(self._pending.values())), "too many connect")

    def _hear(self, caller: _Caller, missing: Collection[int]) -> int | None:
        """Return which of the `missing` ranks a caller is, if it has said so; refuse it if it is none."""
        try:
            heard = caller.sock.recv(_HELLO.size - len(caller.said))
        except BlockingIOError:
            return None
        except OSError:
            heard = b""
        caller.said += heard
        if not heard or not caller.said.startswith(_MAGIC[: len(caller.said)]):
            self._refuse(caller, _SILENT)
            return None
        if len(caller.said) < _HELLO.size:
            return None
        _, peer, proof = _HELLO.unpack(caller.said)
        if not hmac.compare_digest(proof, _proof(self._secret, peer, self._rank)):
            self._refuse(caller, f"it says it is rank {peer}, and does not know the job's secret")
        elif peer not in missing:
            self._refuse(caller, f"no connection of rank {peer} is expected")
        else:
            return int(peer)
        return None

    def _end_late(self) -> None:
        now = time.monotonic()
        for caller in [caller for caller in self._pending.values() if caller.until <= now]:
            self._refuse(caller, _SILENT)

    def _refuse(self, caller: _Caller, why: str) -> None:
        del self._pending[caller.sock.fileno()]
        self._poll.unregister(caller.sock)
        caller.sock.close()
        self._strangers += 1
        if self._strangers <= _TOLD:
            where = f"workloads: job {self._job.name}, rank {self._rank}"
            address = f"{caller.address[0]}:{caller.address[1]}"
            print(f"{where}: refused a connection from {address}: {why}", file=sys.stderr, flush=True)


def _where(job: JobSpec, rank: int) -> str:
    return f"{job.hosts[rank]}:{job.port_base}"


def _proof(secret: bytes, sender: int, receiver: int) -> bytes:
    """Return what a rank shows to another. It differs for each pair, so that nobody can pass on another's."""
    return hmac.digest(secret, f"{sender}/{receiver}".encode(), "sha256")


def _socket(job: JobSpec) -> socket.socket:
    """Return a socket with the job's congestion control and mark. Raises JobFailed.

    Both ends of a connection need them: DCTCP needs ECN at both ends of the handshake, and an accepted
    connection inherits its listener's mark.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if job.congestion_control:
            _set_congestion_control(sock, job.congestion_control)
        if job.mark:
            _set_mark(sock, job.mark)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen(job: JobSpec, rank: int) -> socket.socket:
    listener = _socket(job)
    try:
        listener.bind((str(job.hosts[rank]), job.port_base))
    except OSError as error:
        listener.close()
        remedy = {
            errno.EADDRINUSE: "another program listens there; give the job another port_base",
            errno.EADDRNOTAVAIL: "this host lacks that address; start the rank on the host that has it",
        }.get(error.errno or 0, error.strerror)
        raise JobFailed(f"rank {rank} cannot listen on {_where(job, rank)}: {remedy}") from error
    listener.listen(_BACKLOG)
    return listener


def _connect(job: JobSpec, rank: int, peer: int, secret: bytes) -> socket.socket:
    for attempt in range(_PORT_ATTEMPTS):
        sock = _socket(job)
        try:
            sock.bind((str(job.hosts[rank]), source_port(job, rank, peer, attempt)))
            sock.settimeout(job.timeout_s)
            sock.connect((str(job.hosts[peer]), job.port_base))
            sock.sendall(_HELLO.pack(_MAGIC, rank, _proof(secret, rank, peer)))
            return sock
        except OSError as error:
            sock.close()
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                cause = "no answer" if isinstance(error, TimeoutError) else error.strerror
                raise JobFailed(
                    f"rank {rank} cannot reach rank {peer} at {_where(job, peer)}: {cause}"
                ) from error
    raise JobFailed(
        f"rank {rank} found no free source port for rank {peer} in {_PORT_ATTEMPTS} attempts; change the seed"
    )


def _set_congestion_control(sock: socket.socket, name: str) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as error:
        there = (
            Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="utf-8").split()
        )
        cause = (
            "not allowed without root"
            if error.errno == errno.EPERM
            else f"not available; available are {', '.join(there)}"
        )
        raise JobFailed(f"congestion_control: {name!r} is {cause}") from error


def _set_mark(sock: socket.socket, mark: int) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    except OSError as error:
        raise JobFailed(
            f"mark: sockets cannot be marked ({error.strerror}): run as root or with CAP_NET_ADMIN, or leave "
            f"the key out"
        ) from error
