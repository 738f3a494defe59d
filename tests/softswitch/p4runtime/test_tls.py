"""P4Runtime over TLS: who is served, who is not, and that a client knows which switch answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r

from controlplane.topology import leaf_spine
from entrain.certificates import issue, revoke
from machine import callers
from machine.errors import BadInput
from machine.patience import patience
from machine.tls import OPERATOR, OPERATORS, SERVER_OPTIONS, Identity, identity_of
from softswitch.__main__ import main
from softswitch.p4runtime import server
from tests.silent import OF_ONE, silent
from tests.softswitch.harness import Served, refused, serving

SWITCH, OTHER, HOST = "leaf1", "leaf2", "h1"
TOPOLOGY = leaf_spine(leaves=2, spines=1, hosts_per_leaf=1)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    issue(TOPOLOGY, directory, days=1)
    return directory


def run(certs: Path, scenario: Callable[[Served], Awaitable[None]]) -> None:
    async def served() -> None:
        async with serving(identity=identity_of(certs, SWITCH), clients=[OPERATOR]) as bench:
            await scenario(bench)

    asyncio.run(served())


def test_an_operator_controls_the_switch(certs: Path) -> None:
    async def scenario(bench: Served) -> None:
        operator = bench.controller(identity=identity_of(certs, OPERATORS), server_name=SWITCH)
        assert (await operator.arbitrate()).status.code == 0
        await operator.stub.Capabilities(p4r.CapabilitiesRequest())

    run(certs, scenario)


def test_a_host_with_a_certificate_is_refused_in_every_call(certs: Path) -> None:
    async def scenario(bench: Served) -> None:
        host = bench.controller(identity=identity_of(certs, HOST), server_name=SWITCH)
        requests = {
            host.stub.Capabilities: p4r.CapabilitiesRequest(),
            host.stub.Write: p4r.WriteRequest(),
            host.stub.SetForwardingPipelineConfig: p4r.SetForwardingPipelineConfigRequest(),
            host.stub.GetForwardingPipelineConfig: p4r.GetForwardingPipelineConfigRequest(),
        }
        for call, request in requests.items():
            error = await refused(call(request))
            assert error.code() == grpc.StatusCode.PERMISSION_DENIED
            assert HOST in str(error.details())
            assert OPERATOR in str(error.details())
        for stream in (host.read(p4r.TableEntry()), host.arbitrate()):
            assert (await refused(stream)).code() == grpc.StatusCode.PERMISSION_DENIED
        assert not bench.loaded

    run(certs, scenario)


def test_an_operator_whose_certificate_is_revoked_is_refused(tmp_path: Path) -> None:
    issue(TOPOLOGY, tmp_path, days=1)
    operator = identity_of(tmp_path, OPERATORS)
    copies = [path.rename(path.with_stem("lost")) for path in (operator.certificate, operator.key)]
    lost = Identity(operator.authority, *copies)
    issue(TOPOLOGY, tmp_path, days=1)

    async def scenario(bench: Served) -> None:
        thief = bench.controller(identity=lost, server_name=SWITCH)
        await thief.stub.Capabilities(p4r.CapabilitiesRequest())
        revoke(tmp_path, ["lost"])
        error = await refused(thief.stub.Capabilities(p4r.CapabilitiesRequest()))
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        honest = bench.controller(identity=operator, server_name=SWITCH)
        await honest.stub.Capabilities(p4r.CapabilitiesRequest())

    async def served() -> None:
        async with serving(identity=identity_of(tmp_path, SWITCH), clients=[OPERATOR]) as bench:
            await scenario(bench)

    asyncio.run(served())


def test_calls_of_a_host_without_a_message_keep_no_operator_waiting(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MOST_CALLS", 4)
    monkeypatch.setattr(callers, "MESSAGE_S", 1e4)

    async def scenario(bench: Served) -> None:
        host, calls = identity_of(certs, HOST), 4 * OF_ONE
        async with silent(bench.address, "/p4.v1.P4Runtime/Write", calls, host, SWITCH) as held:
            operator = bench.controller(identity=identity_of(certs, OPERATORS), server_name=SWITCH)
            assert (await operator.arbitrate()).status.code == 0
            await operator.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=patience(60))
            await held.until(lambda ended: len(ended) == calls)
            assert {code for code, _ in held.statuses} == {grpc.StatusCode.PERMISSION_DENIED}

    run(certs, scenario)


def test_who_connects_and_proves_nothing_does_not_stay(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = {**dict(SERVER_OPTIONS), "grpc.server_handshake_timeout_ms": 100}
    monkeypatch.setattr(server, "SERVER_OPTIONS", tuple(shorter.items()))

    async def scenario(bench: Served) -> None:
        reader, writer = await asyncio.open_connection(*bench.address.split(":"))
        assert await asyncio.wait_for(reader.read(), 60) == b""  # closed by the switch
        writer.close()

    run(certs, scenario)


def test_who_has_no_certificate_or_one_of_another_authority_is_not_served(
    certs: Path, tmp_path: Path
) -> None:
    issue(TOPOLOGY, tmp_path, days=1)
    foreign = identity_of(tmp_path, OPERATORS)

    async def scenario(bench: Served) -> None:
        for client in (
            bench.controller(),
            bench.controller(
                identity=Identity(certs / "ca.crt", foreign.certificate, foreign.key), server_name=SWITCH
            ),
        ):
            error = await refused(client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=10))
            assert error.code() == grpc.StatusCode.UNAVAILABLE

    run(certs, scenario)


def test_a_client_does_not_take_another_switch_for_the_one_it_wants(certs: Path) -> None:
    async def scenario(bench: Served) -> None:
        operator = bench.controller(identity=identity_of(certs, OPERATORS), server_name=OTHER)
        error = await refused(operator.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=10))
        assert error.code() == grpc.StatusCode.UNAVAILABLE

    run(certs, scenario)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--grpc-server-addr", "0.0.0.0:0"], "nobody would check who calls"),
        (["--grpc-server-addr", "[::]:0"], "nobody would check who calls"),
        (["--grpc-server-ssl"], "needs --grpc-server-cacert"),
        (["--client-name", "x"], "--grpc-server-ssl is missing"),
        (
            [
                *("--grpc-server-ssl", "--grpc-server-cacert", "a"),
                *("--grpc-server-cert", "b", "--grpc-server-key", "c"),
            ],
            "would serve everybody",
        ),
    ],
)
def test_a_switch_that_would_serve_anybody_does_not_start(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--no-p4", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ca\.crt: No such file.*entrain certs"):
        identity_of(tmp_path, SWITCH).read()
