"""Methods that are ordinary functions, on a server that is asynchronous."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from machine.callers import present_caller

T = TypeVar("T")
_END = object()


class Aborted(Exception):
    """The method ends its call with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class Context:
    """What a method learns of its call, and does to it, in any thread."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.ended = threading.Event()
        self.peer: Callable[[], str] = context.peer
        self.auth_context: Callable[[], Any] = context.auth_context
        self.invocation_metadata: Callable[[], Any] = context.invocation_metadata

    def is_active(self) -> bool:
        """Whether the caller still waits."""
        return not self.ended.is_set()

    def send_initial_metadata(self, metadata: Any) -> None:
        """Send the metadata now. Not for methods that run in the server's own thread."""
        sending = self._context.send_initial_metadata(metadata)
        asyncio.run_coroutine_threadsafe(sending, self._loop).result()

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the call. Does not return."""
        raise Aborted(code, details)


class Threads(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """An interceptor that runs methods in threads: operators' in some, and all others' in others.

    Without threads, methods run in the server's own, one after the other.
    """

    def __init__(self, operators: Executor | None, others: Executor | None) -> None:
        self._operators, self._others = operators, others

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the handler of a method with one request, as an asynchronous one."""
        found = await continuation(handler_call_details)
        if found is None:
            return None
        coders = found.request_deserializer, found.response_serializer
        if found.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(found.unary_stream), *coders)
        return grpc.unary_unary_rpc_method_handler(self._call(found.unary_unary), *coders)

    def _call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(request: Any, context: Any) -> Any:
            try:
                within = Context(context)
                return await self._run(within, method, request, within)
            except Aborted as aborted:
                await context.abort(aborted.code, aborted.details)

        return call

    def _stream(self, method: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            within = Context(context)
            answers = method(request, within)
            try:
                while (answer := await self._run(within, next, answers, _END)) is not _END:
                    yield answer
            except Aborted as aborted:
                await context.abort(aborted.code, aborted.details)
            finally:
                within.ended.set()
                await self._run(within, answers.close)  # type: ignore[attr-defined]

        return stream

    async def _run(self, context: Context, function: Callable[..., T], *arguments: Any) -> T:
        """Run the function. If the caller goes meanwhile, wait: its place is in use until then."""
        threads = self._operators if present_caller().operator else self._others
        if threads is None:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(threads, functools.partial(function, *arguments))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            context.ended.set()
            await asyncio.wait([running])
            running.exception()  # nobody waits for it any more
            raise
