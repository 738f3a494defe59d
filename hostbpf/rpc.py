"""What the gRPC services of this package share: listening, errors as statuses, flows as messages."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from hostbpf import agent_pb2 as pb
from hostbpf.slots import Flow
from machine.errors import BadInput, EntrainError


def answers(method: Callable[..., Any]) -> Callable[..., Any]:
    """Errors become gRPC statuses: bad input INVALID_ARGUMENT, other failures FAILED_PRECONDITION."""

    @functools.wraps(method)
    def call(self: Any, request: Any, context: Any) -> Any:
        try:
            return method(self, request, context)
        except BadInput as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except EntrainError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    return call


def flow_of(message: Any) -> Flow:
    """The flow that a message names."""
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
def serving(add: Callable[[Any], None], address: str, threads: int) -> Iterator[int]:
    """Within, the service that `add` adds to a server answers at `address` (`unix:PATH` or HOST:PORT).

    Yields the port (HOST:0 takes a free one). Raises EntrainError when the address is taken.
    """
    if _somebody_listens(address):
        raise EntrainError(f"{address}: another process listens there; end it, or choose another address")
    server = grpc.server(futures.ThreadPoolExecutor(threads), options=[("grpc.so_reuseport", 0)])
    add(server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise EntrainError(f"{address}: cannot be served; is it in use?") from error
    if not port:
        raise EntrainError(f"{address}: cannot be served; is it in use?")
    server.start()
    try:
        yield port
    finally:
        server.stop(0.5).wait()


def _somebody_listens(address: str) -> bool:
    """Whether a Unix socket is served; gRPC itself would take it away from the other process."""
    if not address.startswith("unix:"):
        return False
    with socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(address.removeprefix("unix:")) == 0
