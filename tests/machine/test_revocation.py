"""Certificates that the authority has revoked, on a server that runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from controlplane.topology import leaf_spine
from entrain.certificates import issue, revoke
from machine import callers
from machine.callers import ANYBODY, Guard
from machine.errors import BadInput
from machine.patience import patience
from machine.revocation import Revocations
from machine.tls import SERVER_OPTIONS, add_port, identity_of, open_channel
from tests.machine.test_callers import PLACES, Echo
from tests.silent import WAIT_S

NETWORK = leaf_spine(leaves=1, spines=1, hosts_per_leaf=2)
SERVER = "leaf1"


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    issue(NETWORK, tmp_path, days=1)
    return tmp_path


@contextlib.asynccontextmanager
async def serving(certs: Path) -> AsyncIterator[str]:
    own = identity_of(certs, SERVER)
    guard = Guard(lambda *_: ANYBODY, PLACES, own)
    server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[guard])
    server.add_generic_rpc_handlers((Echo(),))
    port = add_port(server, "127.0.0.1:0", own)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def code(channel: Any) -> grpc.StatusCode:
    try:
        await channel.unary_unary("/echo/call")(b"!", timeout=patience(WAIT_S))
    except grpc.RpcError as error:
        status: grpc.StatusCode = error.code()
        return status
    return grpc.StatusCode.OK


def test_a_running_server_refuses_a_revoked_certificate_and_ends_its_streams(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "REVOKED_S", 0.01)
    h1, h2 = identity_of(certs, "h1"), identity_of(certs, "h2")

    async def test() -> None:
        async with (
            serving(certs) as address,
            open_channel(grpc.aio, address, (), h1, SERVER) as first,
            open_channel(grpc.aio, address, (), h2, SERVER) as second,
        ):
            stream = first.stream_stream("/echo/stream")(timeout=patience(WAIT_S))
            await stream.write(b"!")
            assert await stream.read()
            revoke(certs, ["h1"])
            assert await code(first) == grpc.StatusCode.PERMISSION_DENIED
            assert await code(second) == grpc.StatusCode.OK
            assert await stream.code() == grpc.StatusCode.PERMISSION_DENIED
            assert "has been revoked" in await stream.details()
            (certs / "ca.crl").write_bytes(b"damaged")
            assert await code(first) == grpc.StatusCode.PERMISSION_DENIED
            (certs / "ca.crl").unlink()
            assert await code(first) == grpc.StatusCode.PERMISSION_DENIED
            assert await code(second) == grpc.StatusCode.OK

    asyncio.run(test())


def test_a_list_of_another_authority_is_refused_by_name(certs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    issue(NETWORK, other, days=1)
    path = revoke(other, ["h1"])
    path.rename(certs / "ca.crl")
    with pytest.raises(BadInput, match=r"ca\.crl: .*ca\.crt has not signed it"):
        Revocations(certs / "ca.crt")
    (certs / "ca.crl").write_bytes(b"rubbish")
    with pytest.raises(BadInput, match=r"ca\.crl: is no list of revoked certificates"):
        Revocations(certs / "ca.crt")
