"""Connections over links that are cut end, and pings that find that out end no others."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from machine import tls
from machine.patience import patience
from tests.cut_link import cut_link

ROOT = Path(__file__).resolve().parents[2]


class Hanging(grpc.GenericRpcHandler):
    """Answers no call; `begun` is set at each."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def service(self, details: Any) -> Any:
        async def call(request: bytes, context: Any) -> bytes:
            self.begun.set()
            await asyncio.Event().wait()
            return b""

        return grpc.unary_unary_rpc_method_handler(call)


async def served(handler: Hanging) -> tuple[Any, int]:
    server = grpc.aio.server(options=tls.SERVER_OPTIONS)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def ending(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


def test_a_call_over_a_link_that_is_cut_ends_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        handler = Hanging()
        server, port = await served(handler)
        async with cut_link(port) as link, tls.open_channel(grpc.aio, f"127.0.0.1:{link.port}") as channel:
            call = channel.unary_unary("/a/b")(b"", timeout=patience(30))
            await handler.begun.wait()
            link.cut()
            assert await ending(call) is grpc.StatusCode.UNAVAILABLE
        await server.stop(0)

    monkeypatch.setattr(tls, "KEEPALIVE_S", 0.3)
    asyncio.run(test())


def test_servers_let_clients_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a server ends a connection with the third ping within five minutes."""

    async def test() -> None:
        server, port = await served(Hanging())
        async with tls.open_channel(grpc.aio, f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/a/b")(b"", timeout=6)  # five pings
            assert await ending(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        await server.stop(0)

    monkeypatch.setattr(tls, "KEEPALIVE_S", 1.1 / patience(1))
    asyncio.run(test())


def test_every_channel_is_opened_in_one_place() -> None:
    """But for a session of p4runtime-shell, whose environment has nothing of ours."""
    opens = re.compile(r"\bsecure_channel\(|\binsecure_channel\(")
    folders = [path for path in ROOT.iterdir() if (path / "__init__.py").exists() and path.name != "tests"]
    where = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in folder.rglob("*.py")
        if opens.search(path.read_text(encoding="utf-8"))
    }
    assert where == {"machine/tls.py", "entrain/p4shell_session.py"}
