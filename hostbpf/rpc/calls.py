"""What the gRPC services of this package share: listening, errors as statuses, flows as messages."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.threads import Threads
from machine.address import check_address
from machine.callers import Bound, Caller, Denied, Guard, Places, anybody
from machine.errors import BadInput, EntrainError
from machine.patience import patience
from machine.peers import somebody_listens
from machine.requests import Request, checked
from machine.text import sendable
from machine.tls import SERVER_OPTIONS, Identity, add_port, check_local
from wire.flow import Flow

T = TypeVar("T")
_END_S = 5.0
"""Seconds (times `patience`) in which methods end when the server stops."""
STREAMS = 32
"""Calls of one connection that are answered or wait at a time."""
PLACES = Places(calls=Bound(8, 64, 256), streams=Bound(4, 16, 32), rate=100.0, burst=100)
"""What callers can have of a server, if it says nothing else."""
MAX_REQUEST = 1 << 20
"""Bytes of a request: thousands of flows."""


class Exhausted(EntrainError):
    """The caller, or all callers together, have as much of something as they can have."""


_STATUSES = {
    BadInput: grpc.StatusCode.INVALID_ARGUMENT,
    Denied: grpc.StatusCode.PERMISSION_DENIED,
    Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def answers(model: type[Request]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The method gets its request as a `model`. Errors become gRPC statuses: see `abort`."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, request: Any, context: Any) -> Any:
            try:
                return method(self, checked(model, request), context)
            except EntrainError as error:
                abort(context, error)

        return call

    return decorate


def streams(model: type[Request]) -> Callable[[Callable[..., Iterator[Any]]], Callable[..., Iterator[Any]]]:
    """The same for a method that yields answers."""

    def decorate(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @functools.wraps(method)
        def call(self: Any, request: Any, context: Any) -> Iterator[Any]:
            try:
                yield from method(self, checked(model, request), context)
            except EntrainError as error:
                abort(context, error)

        return call

    return decorate


def abort(context: Any, error: EntrainError) -> NoReturn:
    """End the call: INVALID_ARGUMENT for bad input, PERMISSION_DENIED, RESOURCE_EXHAUSTED, or else
    FAILED_PRECONDITION.
    """
    context.abort(_STATUSES.get(type(error), grpc.StatusCode.FAILED_PRECONDITION), sendable(str(error)))
    raise AssertionError("abort raises")


def flow_of(message: Any) -> Flow:
    """The flow that a message of a server names."""
    return Flow(
        message.source,
        message.source_port,
        message.destination,
        message.destination_port,
        message.protocol or socket.IPPROTO_TCP,
    )


def message_of(flow: Flow) -> Any:
    """The message that names `flow`."""
    return pb.Flow(**flow._asdict())


@contextlib.contextmanager
def serving(
    add: Callable[[Any], None],
    address: str,
    threads: int,
    identity: Identity | None = None,
    *,
    who: Callable[[Any, str], Caller] = anybody,
    places: Places = PLACES,
) -> Iterator[int]:
    """Within, the service that `add` adds to a server answers at `address` (`unix:PATH` or HOST:PORT).

    Its methods are ordinary functions. As many `threads` run them for operators, and as many for others; with
    0 they run one after the other. `who` says who calls, and `places` what callers can have.

    With an `identity` it answers over TLS, and only clients with a certificate. Yields the port (HOST:0 takes
    a free one). Raises BadInput for an address that cannot be, or that other machines reach though there is
    no `identity`, and EntrainError for one that is taken.
    """
    check_address(address)
    if identity is None:
        check_local(address, "", "give certificates (`entrain certs`), or an address on loopback")
    if _somebody_listens(address):
        raise EntrainError(f"{address}: another process listens there; end it, or choose another address")
    guard = Guard(who, places, identity)
    with _loop() as loop, _pool(threads) as operators, _pool(threads) as others:
        interceptors = (guard, Threads(operators, others))
        server, port = _in(loop, _start(add, address, identity, interceptors))
        try:
            yield port
        finally:
            _in(loop, _stop(server))


async def _start(
    add: Callable[[Any], None], address: str, identity: Identity | None, interceptors: tuple[Any, ...]
) -> tuple[Any, int]:
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.max_receive_message_length", MAX_REQUEST),
        *SERVER_OPTIONS,
    ]
    server = grpc.aio.server(options=options, interceptors=interceptors)
    add(server)
    try:
        port = add_port(server, address, identity)
    except RuntimeError as error:
        raise EntrainError(f"{address}: cannot be served; is it in use?") from error
    if not port:
        raise EntrainError(f"{address}: cannot be served; is it in use?")
    await server.start()
    return server, port


async def _stop(server: Any) -> None:
    """End all calls, and wait until their methods have ended."""
    await server.stop(0.5)
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=patience(_END_S))


def _in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result()


@contextlib.contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Within, an event loop runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="grpc")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _pool(threads: int) -> contextlib.AbstractContextManager[ThreadPoolExecutor | None]:
    return ThreadPoolExecutor(threads) if threads else contextlib.nullcontext()


def _somebody_listens(address: str) -> bool:
    """Whether a Unix socket is served; gRPC itself would take it away from the other process."""
    return address.startswith("unix:") and somebody_listens(Path(address.removeprefix("unix:")))
