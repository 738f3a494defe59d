"""What the server does not trust its controllers with: the machine's files, every role, all of its memory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import platform
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from finsy.proto import p4r

from ebpf.errors import CompilerError, EbpfError, describe
from machine import callers
from machine.errors import EntrainError
from machine.patience import patience
from machine.tls import SERVER_OPTIONS
from softswitch.__main__ import _arguments, _Formatter
from softswitch.contract import Full
from softswitch.p4runtime import server
from tests.silent import silent
from tests.softswitch.fake_datapath import FakeDatapath
from tests.softswitch.harness import (
    DEVICE,
    IDS,
    INSERT,
    Served,
    config,
    l2,
    refused,
    serving,
    update,
)

SECRET = "root:swordfish:19000"


def run(scenario: Callable[[Served], Awaitable[None]], **options: Any) -> None:
    async def served() -> None:
        async with serving(**options) as bench:
            await scenario(bench)

    asyncio.run(served())


@pytest.mark.parametrize(
    ("failure", "code", "stage"),
    [
        (CompilerError(f"x.c: clang failed\n{SECRET}"), "INVALID_ARGUMENT", "compiling"),
        (EbpfError(f"rejected by the verifier\nat: {SECRET}"), "INVALID_ARGUMENT", "loading"),
        (ZeroDivisionError(SECRET), "INTERNAL", "internal error"),
    ],
)
def test_messages_with_files_of_the_machine_stay_in_the_log(
    failure: Exception, code: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    def load(_: bytes) -> Any:
        raise failure

    async def scenario(bench: Served) -> None:
        controller = bench.controller()
        await controller.arbitrate()
        error = await refused(controller.set_pipeline(config()))
        assert error.code().name == code
        told = str(error.details()) + str(error.trailing_metadata())
        assert stage in told and "log" in told
        assert SECRET not in told

    run(scenario, load=load)
    assert SECRET in caplog.text


REFUSED = describe(
    f"/root/{SECRET}/p.o: cannot be loaded",
    errno.EACCES,
    f"libbpf: {SECRET}\nlibbpf: prog 'softswitch': -- BEGIN PROG LOAD LOG --\n"
    + "R1=pkt(off=0,r=14)\n" * 100
    + "; h->ttl -= 1; @ softswitch.c:7\nR1 invalid access to packet\n-- END PROG LOAD LOG --\n",
)
"""What the verifier says, with names of files around it."""


@pytest.mark.parametrize("stage", ["loading", "attaching"])
def test_a_controller_gets_the_verifiers_last_lines_and_the_kernel(
    stage: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> Any:
        raise REFUSED

    async def scenario(bench: Served) -> None:
        if stage == "attaching":
            monkeypatch.setattr(bench.ports, "attach", refuse)
        controller = bench.controller()
        await controller.arbitrate()
        told = str((await refused(controller.set_pipeline(config()))).details())
        assert told.startswith(stage) and "see this switch's log" not in told
        assert "rejected by the verifier: R1 invalid access to packet" in told
        assert "at: h->ttl -= 1; @ softswitch.c:7" in told
        assert f"kernel: Linux {platform.release()}" in told
        assert "report: to the maintainers" in told
        assert SECRET not in told

    run(scenario, **({"load": refuse} if stage == "loading" else {}))
    assert SECRET in caplog.text


def test_a_controller_gets_the_kernels_error_and_its_remedy() -> None:
    def load(_: bytes) -> Any:
        raise describe(f"/root/{SECRET}: cannot be loaded", errno.EPERM, f"libbpf: {SECRET}\n")

    async def scenario(bench: Served) -> None:
        controller = bench.controller()
        await controller.arbitrate()
        told = str((await refused(controller.set_pipeline(config()))).details())
        assert "Operation not permitted" in told and "lockdown" in told
        assert SECRET not in told

    run(scenario, load=load)


def test_a_program_that_cannot_be_attached_is_told_without_the_kernels_words(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: Served) -> None:
        def attach(_: Any) -> None:
            raise EntrainError(SECRET)

        monkeypatch.setattr(bench.ports, "attach", attach)
        controller = bench.controller()
        await controller.arbitrate()
        error = await refused(controller.set_pipeline(config()))
        assert error.code() == grpc.StatusCode.INTERNAL
        assert "attaching" in str(error.details()) and SECRET not in str(error.details())

    run(scenario)
    assert SECRET in caplog.text


def test_a_role_that_the_switch_was_not_given_is_refused_by_name() -> None:
    async def scenario(bench: Served) -> None:
        stranger = bench.controller(1, role="stranger")
        calls: list[Awaitable[Any]] = [
            stranger.arbitrate(),
            stranger.write(update(INSERT, l2(1))),
            stranger.set_pipeline(config()),
        ]
        read = p4r.ReadRequest(device_id=DEVICE, role="stranger")
        calls.append(stranger.stub.Read(read).read())
        for call in calls:
            error = await refused(call)
            assert error.code() == grpc.StatusCode.PERMISSION_DENIED
            assert "'stranger'" in str(error.details()) and "'telemetry'" in str(error.details())
        known = bench.controller(1, role="telemetry")
        await known.arbitrate()
        await known.set_pipeline(config())
        await known.write(update(INSERT, l2(1)))

    run(scenario, roles=["telemetry"])


def test_a_request_beyond_the_limit_is_refused_and_the_next_is_served() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        updates = [update(INSERT, l2(number)) for number in range(8000)]
        assert sum(each.ByteSize() for each in updates) > limit
        error = await refused(controller.write(*updates))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in str(error.details())
        await controller.write(update(INSERT, l2(1)))

    limit = config().ByteSize() + 10_000
    run(scenario, max_request=limit)


def test_streams_beyond_the_limit_are_refused_until_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_CALLS", 2)

    async def scenario(bench: Served) -> None:
        first, second = bench.controller(1), bench.controller(2)
        await first.arbitrate()
        await second.arbitrate()
        error = await refused(bench.controller(3).arbitrate())
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 streams already" in str(error.details())
        await second.stub.Capabilities(p4r.CapabilitiesRequest())
        await first.close()
        async with asyncio.timeout(patience(60)):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):  # the switch has yet to notice
                    await bench.controller(3).arbitrate()
                    break

    run(scenario)


@pytest.mark.parametrize("method", ["Capabilities", "StreamChannel"])
def test_calls_without_a_message_end_and_leave_their_places(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MOST_CALLS", 8)
    monkeypatch.setattr(callers, "MESSAGE_S", 0.1)

    async def scenario(bench: Served) -> None:
        async with silent(bench.address, f"/p4.v1.P4Runtime/{method}", 8) as held:
            await held.until(lambda ended: len(ended) == 8)
            monkeypatch.setattr(callers, "MESSAGE_S", 1e4)
            assert {code for code, _ in held.statuses} == {grpc.StatusCode.DEADLINE_EXCEEDED}
            controller = bench.controller()
            await controller.arbitrate()
            await controller.stub.Capabilities(p4r.CapabilitiesRequest())

    run(scenario)


def test_connections_beyond_the_limit_are_closed_until_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {**dict(SERVER_OPTIONS), "grpc.max_allowed_incoming_connections": 2}
    monkeypatch.setattr(server, "SERVER_OPTIONS", tuple(fewer.items()))

    async def scenario(bench: Served) -> None:
        async def served() -> asyncio.StreamWriter | None:
            """Connect. Return the connection, or None if the switch closes it."""
            reader, writer = await asyncio.open_connection(*bench.address.split(":"))
            with contextlib.suppress(ConnectionError):
                if await reader.read(1):  # what gRPC says first
                    return writer
            writer.close()
            return None

        first, second = await served(), await served()
        assert first is not None and second is not None
        assert await served() is None
        first.close()
        async with asyncio.timeout(10):
            while (third := await served()) is None:  # the switch has yet to notice
                pass
        second.close()
        third.close()

    run(scenario)


def test_a_read_of_too_much_is_refused_and_parts_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_READ", 3)

    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        await controller.write(*(update(INSERT, l2(number)) for number in range(3)))
        assert len(await controller.read(p4r.TableEntry(table_id=IDS["l2"]))) == 3
        await controller.write(update(INSERT, l2(3)))
        error = await refused(controller.read(p4r.TableEntry(table_id=IDS["l2"])))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(await controller.read(l2(3))) == 1

    run(scenario)


def test_a_program_with_too_much_state_is_resource_exhausted() -> None:
    def load(_: bytes) -> FakeDatapath:
        raise Full("the program's state takes 4096 MiB, most of it is register ingress.r")

    async def scenario(bench: Served) -> None:
        controller = bench.controller()
        await controller.arbitrate()
        error = await refused(controller.set_pipeline(config()))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "register ingress.r" in str(error.details())

    run(scenario, load=load)


def test_p4runtime_is_served_to_this_machine_only_unless_asked() -> None:
    assert _arguments(["--no-p4"]).grpc_server_addr.rpartition(":")[0] == "127.0.0.1"


def test_what_a_controller_sends_cannot_forge_a_log_entry() -> None:
    forged = "x\nINFO ready\r\x1b[2J\u202e\ud800"
    text = _Formatter("%(levelname)s %(message)s").format(
        logging.LogRecord("s1", logging.WARNING, "", 0, "role %s", (forged,), None)
    )
    assert [line for line in text.split("\n") if not line.startswith("\t")] == ["WARNING role x"]
    assert text.replace("\n", "").replace("\t", "").isprintable()
