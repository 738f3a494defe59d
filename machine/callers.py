"""Who may call a gRPC server, and how much of the server each caller can take.

gRPC starts a call when its headers arrive, and then waits for the message as long as the caller likes. A
server with a `Guard` checks the caller at the headers, gives each caller a limited number of places, and ends
a call whose message does not come in time. Operators have places of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import grpc
import grpc.aio

from machine.errors import EntrainError
from machine.patience import patience
from machine.revocation import Revocations
from machine.text import sendable
from machine.tls import Identity, names_of

MESSAGE_S = 5.0
"""Seconds (times `patience`) from a call's headers to its message."""

REVOKED_S = 1.0
"""Seconds between looks whether the certificate of a stream's caller has been revoked."""

REFUSAL_S = 0.1
"""Seconds that a refused call adds until its caller's next turn: few refusals suffice."""

Kind = Literal["calls", "streams"]


class Denied(EntrainError):
    """The caller has no right to do this."""


@dataclass(frozen=True)
class Caller:
    """Who makes a call. Calls are counted by `name`: a user's number, or a certificate's name.

    A `refusal` says why the caller may not make this call.
    """

    name: str
    operator: bool = False
    refusal: str = ""


ANYBODY = Caller("anybody", operator=True)
"""The caller of a server that cannot tell callers apart, and trusts everybody who reaches it."""


def anybody(context: Any, method: str) -> Caller:
    """Return `ANYBODY`, whatever is called."""
    return ANYBODY


@dataclass(frozen=True)
class Bound:
    """How many calls, or streams, are answered at a time.

    One caller has at most `of_one`, and all callers but operators together have `of_all`. Operators together
    have `of_operators` places, reserved for them.
    """

    of_one: int
    of_all: int
    of_operators: int


@dataclass(frozen=True)
class Places:
    """What a server's callers can have. A call that yields or takes several messages is a stream.

    One caller other than an operator begins `rate` calls a second, and `burst` at once after a pause; further
    calls wait for their turn, and longer after refused ones (`REFUSAL_S`). A flood then costs little.
    """

    calls: Bound
    streams: Bound
    rate: float
    burst: int


_present: contextvars.ContextVar[Caller] = contextvars.ContextVar("caller", default=ANYBODY)


def present_caller() -> Caller:
    """Return who makes the call that the present task answers."""
    return _present.get()


def certificate_of(context: Any) -> str:
    """Return the name of the certificate of a call's client; `nobody` without TLS.

    It is the subject's common name, which tells two readers apart, or else the alternative names.
    """
    found: tuple[bytes, ...] = tuple(context.auth_context().get("x509_common_name", ()))
    named = ", ".join(each.decode(errors="replace") for each in found if each)
    return named or ", ".join(names_of(context)) or "nobody"


class _Account:
    """What one caller has of a server."""

    def __init__(self) -> None:
        self.open: Counter[Kind] = Counter()
        self._turn = asyncio.Lock()
        self._paid = 0.0  # until when earlier calls use up the rate, by the monotonic clock

    @property
    def idle(self) -> bool:
        """Whether nothing has to be remembered."""
        return not self.open.total() and not self._turn.locked() and self._paid <= time.monotonic()

    async def turn(self, places: Places) -> None:
        """Wait until the caller may begin one more call."""
        async with self._turn:
            early = self._paid - (places.burst - 1) / places.rate - time.monotonic()
            if early > 0:
                await asyncio.sleep(early)
            self._paid = max(self._paid, time.monotonic()) + 1 / places.rate

    def refused(self) -> None:
        """Let the next call wait longer."""
        self._paid += REFUSAL_S


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """An interceptor for a grpc.aio server with asynchronous methods.

    `who` returns the caller of a method, from the call's context and the method's name. A call is refused
    with PERMISSION_DENIED where the caller has a refusal, and with RESOURCE_EXHAUSTED where there is no
    place. It ends with DEADLINE_EXCEEDED where its message does not come within `MESSAGE_S`. With the
    server's `identity`, certificates that its authority has revoked are refused, and their streams end.
    """

    def __init__(
        self, who: Callable[[Any, str], Caller], places: Places, identity: Identity | None = None
    ) -> None:
        """Raises BadInput where the authority's list of revoked certificates cannot be read."""
        self._who = who
        self._places = places
        self._revocations = Revocations(identity.authority) if identity is not None else None
        self._accounts: dict[str, _Account] = {}
        self._open: Counter[tuple[Kind, bool]] = Counter()  # by kind, and whether operators'
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return a handler that admits the caller first. gRPC calls this when a call's headers arrive."""
        path = handler_call_details.method
        if path not in self._handlers:
            found = await continuation(handler_call_details)
            if found is None:
                return self._unknown(path)
            self._handlers[path] = self._guarded(path.rpartition("/")[2], found)
        return self._handlers[path]

    def _unknown(self, path: str) -> Any:
        async def answer(_: Any, context: Any) -> None:
            account = await self._turn(self._caller(context, path))
            account.refused()
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, sendable(f"{path}: there is no such method"))

        return grpc.stream_unary_rpc_method_handler(answer)

    def _guarded(self, method: str, handler: Any) -> Any:
        named = (
            "stream" if streams else "unary"
            for streams in (handler.request_streaming, handler.response_streaming)
        )
        inner = getattr(handler, "_".join(named))
        coders = handler.request_deserializer, handler.response_serializer
        if not (handler.request_streaming or handler.response_streaming):

            async def call(messages: Any, context: Any) -> Any:
                async with self._admitted(method, "calls", context):
                    return await inner(await _first(method, messages, context), context)

            return grpc.stream_unary_rpc_method_handler(call, *coders)

        async def stream(messages: Any, context: Any) -> Any:
            async with self._admitted(method, "streams", context), self._until_revoked(method, context):
                asked = await _first(method, messages, context)
                if handler.request_streaming:
                    asked = _chain(asked, messages)
                answers = inner(asked, context)
                if inspect.isawaitable(answers):  # the method writes its answers itself, or has one only
                    return await answers
                async with contextlib.aclosing(answers):
                    async for answer in answers:
                        await context.write(answer)
                return None

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, *coders)
        return grpc.stream_unary_rpc_method_handler(stream, *coders)

    @contextlib.asynccontextmanager
    async def _admitted(self, method: str, kind: Kind, context: Any) -> AsyncIterator[None]:
        caller = self._caller(context, method)
        account = await self._turn(caller)
        if caller.refusal:
            account.refused()
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, sendable(caller.refusal))
        if taken := self._taken(caller, kind, account):
            account.refused()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{method}: {taken}")
        with self._counted(caller, kind, account):
            _present.set(caller)
            yield

    def _caller(self, context: Any, method: str) -> Caller:
        caller, revoked = self._who(context, method), self._revoked(context)
        return replace(caller, operator=False, refusal=f"{method}: {revoked}") if revoked else caller

    def _revoked(self, context: Any) -> str:
        return self._revocations.refusal(context) if self._revocations is not None else ""

    @contextlib.asynccontextmanager
    async def _until_revoked(self, method: str, context: Any) -> AsyncIterator[None]:
        """Within, the call ends with PERMISSION_DENIED once the caller's certificate is revoked."""
        answering = asyncio.current_task()
        assert answering is not None

        async def look() -> str:
            while not (revoked := self._revoked(context)):
                await asyncio.sleep(REVOKED_S)
            answering.cancel()
            return revoked

        if self._revocations is None:
            yield
            return
        looking = asyncio.create_task(look())
        try:
            yield
        except asyncio.CancelledError:
            if not looking.done() or answering.uncancel():  # the caller has left, or the server stops
                raise
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{method}: {looking.result()}")
        finally:
            looking.cancel()

    async def _turn(self, caller: Caller) -> _Account:
        if caller.name not in self._accounts:
            self._accounts = {name: each for name, each in self._accounts.items() if not each.idle}
            self._accounts[caller.name] = _Account()
        account = self._accounts[caller.name]
        if not caller.operator:
            await account.turn(self._places)
        return account

    def _taken(self, caller: Caller, kind: Kind, account: _Account) -> str:
        """Return which limit leaves the caller no place; empty if there is one."""
        bound: Bound = getattr(self._places, kind)
        if caller.operator:
            if self._open[kind, True] >= bound.of_operators:
                return f"operators have {bound.of_operators} {kind} already, the limit for all of them"
        elif account.open[kind] >= bound.of_one:
            return (
                f"{caller.name} has {bound.of_one} {kind} already, the limit for one caller; end one of them"
            )
        elif self._open[kind, False] >= bound.of_all:
            return (
                f"all callers have {bound.of_all} {kind} already, the limit for all of them; try again later"
            )
        return ""

    @contextlib.contextmanager
    def _counted(self, caller: Caller, kind: Kind, account: _Account) -> Iterator[None]:
        account.open[kind] += 1
        self._open[kind, caller.operator] += 1
        try:
            yield
        finally:
            account.open[kind] -= 1
            self._open[kind, caller.operator] -= 1


async def _first(method: str, messages: Any, context: Any) -> Any:
    """Return a call's message, or the first of them. Ends the call if there is none in time."""
    limit = patience(MESSAGE_S)
    try:
        async with asyncio.timeout(limit):
            return await anext(messages)
    except TimeoutError:
        why = f"{method}: no message within {limit:g} s of the call's begin"
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, why)
    except StopAsyncIteration:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{method}: the call has no message")


async def _chain(first: Any, others: Any) -> AsyncIterator[Any]:
    yield first
    async for each in others:
        yield each
