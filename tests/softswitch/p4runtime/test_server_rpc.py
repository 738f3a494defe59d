"""The service over gRPC: arbitration, pipelines, batches, streams, with a plain client and with finsy."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import pytest
from finsy.proto import U128, p4r

from machine.errors import BadInput, EntrainError
from softswitch.compiler.program import Unsupported
from softswitch.p4runtime import server
from tests.softswitch.fake_datapath import FakeDatapath
from tests.softswitch.harness import (
    DELETE,
    DEVICE,
    IDS,
    INSERT,
    MODIFY,
    P4INFO,
    PROGRAM,
    PROGRAMS,
    Served,
    action,
    config,
    details,
    entry,
    l2,
    refused,
    serving,
    update,
)

OK, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS = 0, 3, 5, 6


def run(
    scenario: Callable[[Served], Awaitable[None]],
    load: Callable[[bytes], Any] = FakeDatapath,
    roles: Sequence[str] = (),
) -> None:
    async def served() -> None:
        async with serving(load, roles) as bench:
            await scenario(bench)

    asyncio.run(served())


def test_capabilities() -> None:
    async def scenario(bench: Served) -> None:
        stub = bench.controller().stub
        assert (await stub.Capabilities(p4r.CapabilitiesRequest())).p4runtime_api_version == "1.4.1"
        await stub.Capabilities(p4r.CapabilitiesRequest(device_id=DEVICE))
        error = await refused(stub.Capabilities(p4r.CapabilitiesRequest(device_id=DEVICE + 1)))
        assert error.code() == grpc.StatusCode.NOT_FOUND

    run(scenario)


# Arbitration


def test_the_highest_election_id_is_primary_and_all_are_told() -> None:
    async def scenario(bench: Served) -> None:
        first, second = bench.controller(1), bench.controller(2)
        told = await first.arbitrate()
        assert (told.status.code, U128.decode(told.election_id)) == (OK, 1)
        told = await second.arbitrate()
        assert (told.status.code, U128.decode(told.election_id)) == (OK, 2)
        told = (await first.next()).arbitration
        assert (told.status.code, U128.decode(told.election_id)) == (ALREADY_EXISTS, 2)
        assert "election id 2" in told.status.message
        third = bench.controller(1 << 70)  # both halves of the id count
        assert (await third.arbitrate()).status.code == OK

    run(scenario)


def test_the_loser_is_told_who_is_primary() -> None:
    async def scenario(bench: Served) -> None:
        await bench.primary()
        winner, loser = bench.controller(9), bench.controller(3)
        await winner.arbitrate()
        assert (await loser.arbitrate()).status.code == ALREADY_EXISTS
        error = await refused(loser.write(update(INSERT, l2(1))))
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        assert "the primary has election id 9" in str(error.details())
        assert "this request has election id 3" in str(error.details())
        error = await refused(loser.set_pipeline(config()))
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        await winner.write(update(INSERT, l2(1)))

    run(scenario)


def test_when_the_primary_goes_nobody_is_until_someone_asks() -> None:
    async def scenario(bench: Served) -> None:
        primary, backup = bench.controller(5), bench.controller(4)
        await primary.arbitrate()
        await backup.arbitrate()
        await primary.close()
        told = (await backup.next()).arbitration
        assert (told.status.code, U128.decode(told.election_id)) == (NOT_FOUND, 5)
        error = await refused(backup.write())
        assert "there is no primary: the last one, with election id 5, has gone" in str(error.details())
        assert (await backup.arbitrate()).status.code == NOT_FOUND  # 4 is below what was seen
        assert (await backup.arbitrate(election_id=5)).status.code == OK

    run(scenario)


def test_a_primary_may_step_down() -> None:
    async def scenario(bench: Served) -> None:
        first, second = bench.controller(5), bench.controller(4)
        await first.arbitrate()
        await second.arbitrate()
        assert (await first.arbitrate(election_id=3)).status.code == NOT_FOUND
        assert (await second.next()).arbitration.status.code == NOT_FOUND
        assert (await second.arbitrate(election_id=6)).status.code == OK

    run(scenario)


def test_a_controller_without_election_id_only_watches() -> None:
    async def scenario(bench: Served) -> None:
        watcher = bench.controller(None)
        told = await watcher.arbitrate()
        assert told.status.code == NOT_FOUND
        assert not told.HasField("election_id")
        error = await refused(watcher.write())
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        await bench.primary()
        assert (await watcher.next()).arbitration.status.code == ALREADY_EXISTS
        assert await watcher.read(p4r.TableEntry(table_id=IDS["l2"])) == []

    run(scenario)


def test_roles_have_their_own_primaries() -> None:
    async def scenario(bench: Served) -> None:
        primary = await bench.primary()
        other = bench.controller(1, role="telemetry")
        told = await other.arbitrate()
        assert (told.status.code, told.role.name) == (OK, "telemetry")
        await other.write(update(INSERT, l2(1)))
        await primary.write(update(INSERT, l2(2)))

    run(scenario, roles=["telemetry"])


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"device_id": DEVICE + 1}, "NOT_FOUND"),
        ({"device_id": DEVICE, "election_id": {"low": 1}}, "INVALID_ARGUMENT"),  # taken
        ({"device_id": DEVICE, "role": {"config": {}}}, "INVALID_ARGUMENT"),
        ({"device_id": DEVICE, "role": {"name": "x"}}, "PERMISSION_DENIED"),
    ],
)
def test_arbitration_that_ends_the_stream(message: dict[str, Any], code: str) -> None:
    async def scenario(bench: Served) -> None:
        await bench.controller(1).arbitrate()
        stream = bench.controller().stub.StreamChannel()
        await stream.write(p4r.StreamMessageRequest(arbitration=message))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stream.read()
        assert error.value.code().name == code

    run(scenario)


@pytest.mark.parametrize("change", [{"device_id": DEVICE + 1}, {"device_id": DEVICE, "role": {"name": "x"}}])
def test_a_stream_keeps_its_device_and_role(change: dict[str, Any]) -> None:
    async def scenario(bench: Served) -> None:
        controller = bench.controller(1)
        await controller.arbitrate()
        await controller.stream.write(p4r.StreamMessageRequest(arbitration=change))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await controller.next()
        assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION

    run(scenario)


# Pipelines


def test_nothing_works_without_a_pipeline() -> None:
    async def scenario(bench: Served) -> None:
        controller = bench.controller()
        await controller.arbitrate()
        for call in (controller.write(update(INSERT, l2(1))), controller.read(p4r.TableEntry())):
            error = await refused(call)
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert "no forwarding pipeline config" in str(error.details())
        answer = await controller.stub.GetForwardingPipelineConfig(
            p4r.GetForwardingPipelineConfigRequest(device_id=DEVICE)
        )
        assert not answer.HasField("config")

    run(scenario)


def test_the_config_is_given_back_as_asked() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()

        async def get(kind: str) -> Any:
            request = p4r.GetForwardingPipelineConfigRequest(device_id=DEVICE)
            request.response_type = p4r.GetForwardingPipelineConfigRequest.ResponseType.Value(kind)
            return (await controller.stub.GetForwardingPipelineConfig(request)).config

        assert await get("ALL") == config()
        assert await get("COOKIE_ONLY") == p4r.ForwardingPipelineConfig(cookie={"cookie": 1})
        assert await get("P4INFO_AND_COOKIE") == p4r.ForwardingPipelineConfig(
            p4info=P4INFO, cookie={"cookie": 1}
        )
        assert await get("DEVICE_CONFIG_AND_COOKIE") == p4r.ForwardingPipelineConfig(
            p4_device_config=PROGRAM, cookie={"cookie": 1}
        )

    run(scenario)


def test_verify_changes_nothing() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        await controller.write(update(INSERT, l2(1)))
        before = bench.datapath
        await controller.set_pipeline(config(2), "VERIFY")
        assert bench.datapath is before
        assert bench.loaded[1].closed
        assert len(await controller.read(entry("l2"))) == 1

    run(scenario)


def test_commit_replaces_the_program_and_clears_its_state() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        await controller.write(update(INSERT, l2(1)))
        await controller.set_pipeline(config(2))
        assert [datapath.closed for datapath in bench.loaded] == [True, False]
        assert bench.ports.attached == bench.loaded
        assert await controller.read(entry("l2")) == []

    run(scenario)


def test_a_saved_program_is_written_before_it_is_committed() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        error = await refused(controller.set_pipeline(None, "COMMIT"))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        await controller.set_pipeline(config(2), "VERIFY_AND_SAVE")
        await controller.write(update(INSERT, l2(1)))
        assert bench.ports.attached == bench.loaded[:1]  # the old one still forwards
        error = await refused(controller.set_pipeline(config(2), "COMMIT"))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        await controller.set_pipeline(None, "COMMIT")
        assert bench.ports.attached == bench.loaded
        assert [datapath.closed for datapath in bench.loaded] == [True, False]
        assert len(await controller.read(entry("l2"))) == 1

    run(scenario)


def test_reconcile_keeps_what_controllers_wrote() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        await controller.write(
            update(INSERT, l2(1)),
            update(MODIFY, entry("acl", None, action("deny"), is_default_action=True)),
            update(
                MODIFY,
                entry(
                    "preset",
                    {1: ("ternary", {"value": 0x20, "mask": 0xF0})},
                    action("to_port", 9),
                    priority=1,
                ),
            ),
        )
        everything = await controller.read(p4r.TableEntry())
        await controller.set_pipeline(config(2), "RECONCILE_AND_COMMIT")
        assert len(bench.loaded) == 1  # the same program goes on running
        changed = config(3)
        changed.p4_device_config += b"\n"
        await controller.set_pipeline(changed, "RECONCILE_AND_COMMIT")
        assert len(bench.loaded) == 2
        assert await controller.read(p4r.TableEntry()) == everything
        assert bench.datapath.defaults["FeaturesIngress.acl"] is not None

    run(scenario)


def test_reconcile_refuses_what_the_new_program_cannot_hold() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        await controller.write(update(INSERT, l2(1)), update(INSERT, l2(2)))
        smaller = config(2)
        smaller.p4info.tables[0].size = 1
        error = await refused(controller.set_pipeline(smaller, "RECONCILE_AND_COMMIT"))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "FeaturesIngress.l2 is full" in str(error.details())
        assert bench.loaded[1].closed
        assert len(await controller.read(entry("l2"))) == 2

    run(scenario)


def test_what_cannot_run_is_refused_and_the_old_program_stays() -> None:
    refusing = False

    def load(program: bytes) -> FakeDatapath:
        if refusing:
            raise Unsupported("features.p4(12): the extern foo is not supported")
        return FakeDatapath(program)

    async def scenario(bench: Served) -> None:
        nonlocal refusing
        controller = await bench.primary()
        wrong = config()
        wrong.p4info.tables[0].preamble.name = "Other.l2"
        error = await refused(controller.set_pipeline(wrong))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "'Other.l2'" in str(error.details())
        for broken in (None, p4r.ForwardingPipelineConfig(p4info=P4INFO)):
            error = await refused(controller.set_pipeline(broken))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        refusing = True
        error = await refused(controller.set_pipeline(config()))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "the extern foo" in str(error.details())
        await controller.write(update(INSERT, l2(1)))

    run(scenario, load)


def test_a_controller_may_go_while_its_pipeline_is_set() -> None:
    started, go_on = threading.Event(), threading.Event()

    def load(program: bytes) -> FakeDatapath:
        started.set()
        assert go_on.wait(60)
        return FakeDatapath(program)

    async def scenario(bench: Served) -> None:
        controller = bench.controller(1)
        await controller.arbitrate()
        setting = asyncio.create_task(controller.set_pipeline(config()))
        await asyncio.to_thread(started.wait, 10)
        assert (await controller.arbitrate()).status.code == OK  # the server still answers
        setting.cancel()
        go_on.set()
        async with bench.switch.lock:  # taken only when the pipeline is set
            assert bench.ports.attached == bench.loaded

    run(scenario, load)


# Batches


def test_a_batch_reports_each_update() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        error = await refused(
            controller.write(
                update(INSERT, l2(1)), update(INSERT, l2(1)), update(DELETE, l2(3)), update(INSERT, l2(2))
            )
        )
        assert error.code() == grpc.StatusCode.UNKNOWN
        assert "2 of 4 updates failed; update 1: ALREADY_EXISTS" in str(error.details())
        assert [code for code, _ in details(error)] == [OK, ALREADY_EXISTS, NOT_FOUND, OK]
        assert len(await controller.read(entry("l2"))) == 2
        assert bench.datapath.batches == 1

    run(scenario)


def test_a_large_failing_batch_still_tells_why() -> None:
    """gRPC clients take 8 KiB of trailers unless told otherwise; then details would lose the whole answer."""

    async def scenario(bench: Served) -> None:
        await bench.primary()
        async with grpc.aio.insecure_channel(bench.address) as channel:
            request = p4r.WriteRequest(device_id=DEVICE, election_id=U128.encode(1))
            request.updates.extend(update(DELETE, l2(i)) for i in range(3000))
            error = await refused(server.p4r_grpc.P4RuntimeStub(channel).Write(request))
        assert error.code() == grpc.StatusCode.UNKNOWN
        assert "3000 of 3000 updates failed; update 0: NOT_FOUND" in str(error.details())

    run(scenario)


def test_writes_for_another_device_or_with_another_atomicity_are_refused() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        error = await refused(controller.stub.Write(p4r.WriteRequest(device_id=DEVICE + 1)))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        request = p4r.WriteRequest(device_id=DEVICE, election_id=U128.encode(1), atomicity=2)
        assert (await refused(controller.stub.Write(request))).code() == grpc.StatusCode.UNIMPLEMENTED
        error = await refused(controller.stub.Write(p4r.WriteRequest(device_id=DEVICE)))
        assert "this request has no election id" in str(error.details())

    run(scenario)


def test_a_batch_of_reads_gives_what_it_can_and_reports_the_rest() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        await controller.write(update(INSERT, l2(1)))
        request = p4r.ReadRequest(device_id=DEVICE)
        request.entities.add().table_entry.table_id = IDS["l2"]
        request.entities.add().table_entry.table_id = 1
        call = controller.stub.Read(request)
        found = []
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for response in call:
                found += response.entities
        assert [e.table_entry for e in found] == [l2(1)]
        assert [code for code, _ in details(error.value)] == [OK, INVALID_ARGUMENT]

    run(scenario)


def test_a_large_read_comes_in_pieces() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        routes = [
            update(
                INSERT,
                entry("route", {1: ("lpm", {"value": i << 8, "prefix_len": 24})}, action("route_drop")),
            )
            for i in range(5000)
        ]
        await controller.write(*routes)
        assert await controller.read(entry("route")) == [u.entity for u in routes]

    run(scenario)


# Streams


def packet_out(port: int, payload: bytes = b"payload") -> Any:
    message = p4r.StreamMessageRequest()
    message.packet.payload = payload
    message.packet.metadata.add(metadata_id=1, value=port.to_bytes(2, "big"))
    return message


def test_packets_out_carry_their_header() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        await controller.stream.write(packet_out(257))
        await controller.arbitrate()  # answered after the packet
        assert bench.cpu.sent == [b"\x80\x80payload"]

    run(scenario)


def test_packets_in_go_to_the_primary_with_their_metadata() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        backup = bench.controller(0)
        await backup.arbitrate()
        bench.cpu.waiting = [b"\x80\x80payload", b"\x80"]  # the second is shorter than its header
        bench.service.packets_in()
        packet = (await controller.next()).packet
        assert packet.payload == b"payload"
        assert [(m.metadata_id, m.value) for m in packet.metadata] == [(1, b"\x01\x01"), (2, b"\0")]
        assert (await controller.arbitrate()).status.code == OK
        assert (await backup.next()).HasField("arbitration")

    run(scenario)


@pytest.mark.parametrize(
    ("message", "code", "named"),
    [
        (packet_out(512), 3, "'egress_port': 0x200 does not fit 9 bits"),
        (p4r.StreamMessageRequest(packet={"payload": b"x"}), 3, "'egress_port' is missing"),
        (p4r.StreamMessageRequest(packet={"metadata": [{"metadata_id": 9, "value": b"1"}]}), 3, "id 9"),
        (p4r.StreamMessageRequest(digest_ack={"digest_id": 1}), 3, "no digest has id 0x1"),
        (p4r.StreamMessageRequest(other={}), 12, "not supported"),
    ],
)
def test_wrong_stream_messages_are_answered_with_an_error(message: Any, code: int, named: str) -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        await controller.stream.write(message)
        error = (await controller.next()).error
        assert error.canonical_code == code
        assert named in error.message
        assert error.WhichOneof("details") is not None
        assert bench.cpu.sent == []
        assert (await controller.arbitrate()).status.code == OK  # the stream goes on

    run(scenario)


def test_a_controller_that_reads_nothing_costs_packets_not_memory() -> None:
    async def scenario(bench: Served) -> None:
        await bench.primary()
        message = p4r.StreamMessageResponse(packet={"payload": bytes(1000)})
        for _ in range(10_000):  # without a turn of the loop, so that nothing can be sent meanwhile
            bench.service.broadcast(message)
        assert 0 < bench.service.dropped < 10_000

    run(scenario)


def test_a_backup_sends_no_packets() -> None:
    async def scenario(bench: Served) -> None:
        await bench.primary()
        backup = bench.controller(0)
        await backup.arbitrate()
        await backup.stream.write(packet_out(1))
        error = (await backup.next()).error
        assert error.canonical_code == grpc.StatusCode.PERMISSION_DENIED.value[0]
        assert bench.cpu.sent == []

    run(scenario)


def test_digests_reach_the_primary_over_the_stream() -> None:
    async def scenario(bench: Served) -> None:
        controller = await bench.primary()
        wanted = p4r.DigestEntry(digest_id=IDS["learn_t"], config={"max_list_size": 1})
        await controller.write(update(INSERT, wanted))
        assert bench.switch.committed is not None
        bench.switch.committed.entities.digests.learned("learn_t", (0xAA, 3))
        digest = (await controller.next()).digest
        assert [m.bitstring for m in digest.data[0].struct.members] == [b"\xaa", b"\x03"]

    run(scenario)


# Other clients


def test_a_second_server_cannot_have_the_address() -> None:
    async def scenario(bench: Served) -> None:
        with pytest.raises(EntrainError, match=f"cannot listen on {bench.address}"):
            server.listen(bench.service, bench.address)

    run(scenario)


def test_an_address_that_cannot_be_is_refused() -> None:
    async def scenario(bench: Served) -> None:
        with pytest.raises(BadInput, match=r"127\.0\.0\.1:99999: must be"):
            server.listen(bench.service, "127.0.0.1:99999")

    run(scenario)


def test_a_controller_that_leaves_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC logs an error when a client leaves while it is sent a message, which is a race."""
    log = logging.getLogger("grpc._cython.cygrpc")
    departure = type("ExecuteBatchError", (Exception,), {})()

    async def scenario(bench: Served) -> None:
        await bench.primary()
        log.error("left", exc_info=departure)
        log.error("broke", exc_info=ValueError())

    run(scenario)
    assert [record.getMessage() for record in caplog.records if record.name == log.name] == ["broke"]


def test_finsy_programs_the_switch() -> None:
    import finsy as fy

    async def scenario(bench: Served) -> None:
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        async def ready(switch: fy.Switch) -> None:
            await switch.write(
                [
                    +fy.P4TableEntry("l2", match=fy.Match(dst=0xAA), action=fy.Action("to_port", port=3)),
                    +fy.P4MulticastGroupEntry(1, replicas=[1, 2]),
                    ~fy.P4RegisterEntry("seen", index=2, data=77),
                ]
            )
            read = [
                e async for e in switch.read([fy.P4TableEntry("l2"), fy.P4RegisterEntry("seen", index=2)])
            ]
            done.set_result(read)

        options = fy.SwitchOptions(
            p4info=PROGRAMS / "features.p4info.txtpb",
            p4blob=PROGRAMS / "features.json",
            device_id=DEVICE,
            ready_handler=ready,
        )
        switch = fy.Switch("s", bench.address, options)
        task = asyncio.create_task(switch.run())
        try:
            table, register = await asyncio.wait_for(done, 30)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (table.action.name, table.action.args) == ("to_port", {"port": 3})
        assert register.data == 77
        assert bench.datapath.multicast == {1: ((1, 0), (2, 0))}

    run(scenario)
