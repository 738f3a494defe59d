"""Who may call a server, how often and how much at a time, and for how long a call may say nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from machine import callers
from machine.callers import Bound, Caller, Guard, Places, present_caller
from machine.patience import patience
from tests.silent import WAIT_S, Silent

DENIED, EXHAUSTED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED
PLACES = Places(calls=Bound(2, 3, 1), streams=Bound(1, 1, 1), rate=1e6, burst=1000)


class Echo(grpc.GenericRpcHandler):
    """Says who calls; `/echo/stream` says it again and again, as often as it is asked."""

    def service(self, details: Any) -> Any:
        async def call(request: bytes, context: Any) -> bytes:
            return present_caller().name.encode() + request

        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for each in requests:
                yield await call(each, context)

        match details.method:
            case "/echo/call":
                return grpc.unary_unary_rpc_method_handler(call)
            case "/echo/stream":
                return grpc.stream_stream_rpc_method_handler(stream)
        return None


def who(context: Any, method: str) -> Caller:
    """Who calls, as the caller says."""
    name = dict(context.invocation_metadata())["name"]
    refusal = f"{name} may not {method}" if name == "stranger" else ""
    return Caller(name, operator=name == "root", refusal=refusal)


@contextlib.asynccontextmanager
async def serving(places: Places) -> AsyncIterator[Any]:
    """A channel to a server."""
    server = grpc.aio.server(interceptors=[Guard(who, places)])
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


class As:
    """A channel on which one caller calls."""

    def __init__(self, channel: Any, name: str) -> None:
        self._channel = channel
        self._options = {"metadata": (("name", name),), "timeout": patience(WAIT_S)}

    async def call(self, method: str = "call") -> bytes:
        answer: bytes = await self._channel.unary_unary(f"/echo/{method}")(b"!", **self._options)
        return answer

    async def code(self, method: str = "call") -> grpc.StatusCode:
        try:
            await self.call(method)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK

    def stream(self) -> Any:
        return self._channel.stream_stream("/echo/stream")(**self._options)


@contextlib.asynccontextmanager
async def held(channel: Any, name: str, calls: int, over: int = 0) -> AsyncIterator[Silent]:
    """Within, a caller has `calls` places; he tries to have `over` more."""
    silent = Silent()
    opened = asyncio.create_task(silent.open(channel, "/echo/call", calls + over, (("name", name),)))
    await silent.until(lambda ended: len(ended) == over)
    yield silent
    opened.cancel()
    await asyncio.gather(opened, return_exceptions=True)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls may say nothing for hours."""
    monkeypatch.setattr(callers, "MESSAGE_S", 1e4)


@pytest.mark.usefixtures("endless")
def test_each_caller_has_a_bounded_number_of_places_and_operators_their_own() -> None:
    async def test() -> None:
        async with serving(PLACES) as channel, held(channel, "ann", 2, over=1) as ann:
            assert ann.statuses == [
                (EXHAUSTED, "call: ann has 2 calls already, the limit for one caller; end one of them")
            ]
            assert await As(channel, "bob").call() == b"bob!"
            async with held(channel, "bob", 1, over=1) as bob:
                assert bob.statuses == [
                    (
                        EXHAUSTED,
                        "call: all callers have 3 calls already, the limit for all of them; try again later",
                    )
                ]
                assert await As(channel, "root").call() == b"root!"
                async with held(channel, "root", 1, over=1) as root:
                    assert "operators have 1 calls already" in root.statuses[0][1]

    asyncio.run(test())


@pytest.mark.usefixtures("endless")
def test_a_place_is_free_again_when_its_call_ends() -> None:
    async def test() -> None:
        async with serving(PLACES) as channel:
            for _ in range(5):
                async with held(channel, "ann", 2):
                    pass
                async with asyncio.timeout(patience(WAIT_S)):
                    while await As(channel, "ann").code() != grpc.StatusCode.OK:
                        await asyncio.sleep(0.01)  # the server has yet to notice

    asyncio.run(test())


@pytest.mark.usefixtures("endless")
def test_who_has_no_right_to_call_is_refused_before_the_message() -> None:
    async def test() -> None:
        async with serving(PLACES) as channel, held(channel, "stranger", 0, over=9) as stranger:
            assert stranger.statuses == [(DENIED, "stranger may not call")] * 9

    asyncio.run(test())


def test_a_method_that_is_not_there_needs_no_message() -> None:
    async def test() -> None:
        async with serving(PLACES) as channel:
            assert await As(channel, "ann").code("other") == grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(test())


def test_a_call_ends_without_a_message_and_a_stream_only_without_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with serving(PLACES) as channel:
            stream = As(channel, "ann").stream()
            for _ in range(2):
                await stream.write(b"?")
                assert await stream.read() == b"ann?"
            monkeypatch.setattr(callers, "MESSAGE_S", 0.05)
            async with held(channel, "ann", 0, over=2) as ann:
                assert {code for code, _ in ann.statuses} == {grpc.StatusCode.DEADLINE_EXCEEDED}
            silent = As(channel, "bob").stream()
            assert await silent.code() == EXHAUSTED  # ann has the only one
            await stream.write(b"?")
            assert await stream.read() == b"ann?"
            await stream.done_writing()
            assert await stream.code() == grpc.StatusCode.OK
            assert await As(channel, "bob").stream().code() == grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(test())


def test_calls_of_one_caller_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    now = 100.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds

    places = Places(PLACES.calls, PLACES.streams, rate=10.0, burst=3)

    async def test() -> None:
        account = callers._Account()
        for _ in range(6):
            await account.turn(places)

    with monkeypatch.context() as patched:
        patched.setattr(callers.asyncio, "sleep", sleep)
        patched.setattr(callers.time, "monotonic", lambda: now)
        asyncio.run(test())
    assert waits == [pytest.approx(0.1)] * 3
