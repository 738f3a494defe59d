"""The controller converges: from anything, twice without a write, after restarts, failures and take-overs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import finsy as fy
import grpc
import pytest
from finsy.proto import U128, p4r

from controlplane import constants as p4
from controlplane.controller import apply_routing
from controlplane.fabric import Fabric
from controlplane.p4client import NotPrimary, Refused, SwitchClient, Unreachable, describe_primary
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy, desired_state
from controlplane.store import Store
from controlplane.topology import Topology, dumbbell, leaf_spine
from machine import tls
from machine.errors import BadInput, EntrainError
from tests.controlplane.fake_switch import FakeSwitch
from tests.controlplane.kinds import FakeKind
from tests.cut_link import cut_link


@asynccontextmanager
async def switches(
    kind: FakeKind, topology: Topology
) -> AsyncIterator[tuple[Topology, dict[str, FakeSwitch]]]:
    """Fake switches for `topology`, and the topology with their ports."""
    fakes = {switch.name: kind.make(switch.device_id) for switch in topology.switches}
    for fake in fakes.values():
        await fake.start()
    served = tuple(replace(switch, grpc_port=fakes[switch.name].port) for switch in topology.switches)
    try:
        yield replace(topology, switches=served), fakes
    finally:
        for fake in fakes.values():
            await fake.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_applying_twice_writes_nothing_and_each_change_is_one_batch(kind: FakeKind) -> None:
    async def test() -> None:
        async with (
            switches(kind, leaf_spine(2, 2, 2)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            first = await fabric.apply(desired_state(topology, FabricPolicy("ecmp")))
            assert all(applied.inserted > 0 for applied in first)
            assert all(len(fake.batches) == 1 for fake in fakes.values())
            again = await fabric.apply(desired_state(topology, FabricPolicy("ecmp")))
            assert [applied.written for applied in again] == [0, 0, 0, 0]
            changed = await fabric.apply(desired_state(topology, FabricPolicy("source")))
            assert {a.switch: a.inserted for a in changed} == {
                "leaf1": 2,
                "leaf2": 2,
                "spine1": 0,
                "spine2": 0,
            }
            assert all(fake.pipelines_set == 1 for fake in fakes.values())

    run(test)


def test_a_connection_that_breaks_during_a_write_is_an_error_and_cancels_nobody(kind: FakeKind) -> None:
    async def test() -> None:
        async with (
            switches(kind, leaf_spine(2, 2, 2)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            fakes["leaf2"].hangs = True
            applying = asyncio.create_task(fabric.apply(desired_state(topology)))
            await until(lambda: bool(fakes["leaf2"].batches))
            fakes["leaf2"].break_streams()
            with pytest.raises(Unreachable, match="leaf2"):
                await applying
            fakes["leaf2"].hangs = False
            await until(lambda: fabric.statuses()["leaf2"] == "ready")
            await fabric.apply(desired_state(topology))
            assert fakes["leaf2"].entities

    run(test)


def test_a_second_controller_process_finds_everything_in_place(kind: FakeKind) -> None:
    async def test() -> None:
        async with switches(kind, dumbbell(2)) as (topology, fakes):
            for _ in range(2):
                async with Fabric(topology, kind.pipeline) as fabric:
                    await fabric.apply(desired_state(topology))
            assert all(len(fake.batches) == 1 and fake.pipelines_set == 1 for fake in fakes.values())

    run(test)


def test_any_state_converges_to_any_other_in_one_batch(kind: FakeKind) -> None:
    """Groups and members appear, change and vanish in an order in which every reference resolves."""
    shapes = [leaf_spine(2, 2, 2, 2), leaf_spine(2, 1, 2, 4), leaf_spine(2, 1, 1, 1), leaf_spine(2, 3, 2, 1)]

    async def test() -> None:
        async with (
            switches(kind, leaf_spine(2, 1, 1)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            for before in shapes:
                for after in shapes:
                    for shape in (before, after):
                        desired = desired_state(shape, FabricPolicy("source"))
                        await fabric.apply({name: desired[name] for name in fakes})
                        for name, fake in fakes.items():
                            assert len(fake.entities) == len(desired[name])

    run(test)


def test_foreign_entries_are_removed(kind: FakeKind) -> None:
    async def test() -> None:
        async with (
            switches(kind, dumbbell(1)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            await fabric.apply(desired_state(dumbbell(3)))
            applied = await fabric.apply(desired_state(topology))
            assert all(one.deleted > 0 for one in applied)
            assert len(fakes["left"].entities) == len(desired_state(topology)["left"])

    run(test)


def test_entries_of_a_table_that_a_user_has_added_stay() -> None:
    """Those of entrain's own tables that it does not want are removed, as ever."""
    p4info = type(Pipeline.load().schema.p4info)()
    p4info.CopyFrom(Pipeline.load().schema.p4info)
    added = p4info.tables.add()
    added.CopyFrom(next(table for table in p4info.tables if table.preamble.name == p4.TABLE_VRF))
    added.preamble.id += 1
    added.preamble.name, added.preamble.alias = "FabricIngress.mine", "mine"
    del added.direct_resource_ids[:]
    pipeline = Pipeline("added", fy.P4Schema(p4info, b"{}"))
    kind = FakeKind(FakeSwitch, pipeline)
    mine = fy.P4TableEntry(
        "FabricIngress.mine",
        match=fy.P4TableMatch(ingress_port=1),
        action=fy.P4TableAction(p4.ACTION_SET_VRF, vrf=7),
    ).encode(pipeline.schema)

    async def test() -> None:
        async with switches(kind, dumbbell(1)) as (topology, fakes), Fabric(topology, pipeline) as fabric:
            await fabric.apply(desired_state(dumbbell(3)))
            user = SwitchClient(topology.switch_by_name["left"], pipeline)
            user._election_id = 1 << 100
            await user.connect(5)
            await user.write([p4r.Update(type=p4r.Update.INSERT, entity=mine)])
            await user.close()
            await until(lambda: fabric.tables()["left"].get("FabricIngress.mine") == 1)
            applied = await fabric.apply(desired_state(topology))
            assert all(one.deleted > 0 for one in applied)
            assert len(fakes["left"].entities) == len(desired_state(topology)["left"]) + 1

    run(test)


def test_another_program_is_set_once_and_its_tables_stay_as_they_are() -> None:
    state = Path(__file__).parents[1] / "p4/programs/build/state"
    pipeline = Pipeline.load(state.with_suffix(".p4info.txtpb"), state.with_suffix(".json"))

    async def test() -> None:
        kind = FakeKind(FakeSwitch, pipeline)
        async with switches(kind, dumbbell(1)) as (topology, fakes), Fabric(topology, pipeline) as fabric:
            first = await apply_routing(fabric, FabricPolicy())
            again = await apply_routing(fabric, FabricPolicy())
            assert [one.pipeline_set for one in first + again] == [True, True, False, False]
            assert not any(fake.batches for fake in fakes.values())

    run(test)


def test_a_switch_that_is_away_matters_only_if_it_is_needed(kind: FakeKind) -> None:
    async def test() -> None:
        async with (
            switches(kind, leaf_spine(2, 2, 2)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            first, second = (
                fabric.encoded(desired_state(topology, FabricPolicy(r))) for r in ("ecmp", "source")
            )
            await fabric.advance(first, fakes)
            await fakes["spine1"].stop()
            await until(lambda: fabric.statuses()["spine1"] != "ready")
            applied = await fabric.advance(second, ["leaf1", "leaf2"])  # source routes are on leaves only
            assert {one.switch: one.inserted for one in applied} == {
                "leaf1": 2,
                "leaf2": 2,
                "spine1": 0,
                "spine2": 0,
            }
            leaf = dict(fakes["leaf1"].entities)
            with pytest.raises(Unreachable, match="spine1"):
                await fabric.advance({**first, "spine1": {}}, ["spine1"])
            assert fakes["leaf1"].entities == leaf
            await fabric.advance({**first, "spine1": {}}, ["leaf1"])
            assert fakes["spine1"].entities
            await fakes["spine1"].start()
            await until(lambda: fabric.statuses()["spine1"] == "ready")
            assert not fakes["spine1"].entities

    run(test)


def test_refused_carriers_are_read_though_a_leaf_is_away(kind: FakeKind) -> None:
    async def test() -> None:
        async with (
            switches(kind, leaf_spine(2, 1, 1)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            await fakes["leaf1"].stop()
            await until(lambda: fabric.statuses()["leaf1"] != "ready")
            before = fakes["leaf2"].reads
            with pytest.raises(Unreachable, match="leaf1"):
                await fabric.refused()
            assert await fabric.refused(besides_away=True) == {}
            assert fakes["leaf2"].reads > before

    run(test)


def test_a_restarted_switch_is_set_again_unasked(kind: FakeKind) -> None:
    async def test() -> None:
        events: list[str] = []
        async with (
            switches(kind, dumbbell(2)) as (topology, fakes),
            Fabric(topology, kind.pipeline, on_event=events.append) as fabric,
        ):
            await fabric.apply(desired_state(topology))
            before = dict(fakes["left"].entities)
            await fakes["left"].lose_everything()
            await until(lambda: len(fakes["left"].entities) == len(before))
            await until(lambda: fabric.statuses()["left"] == "ready")
            assert fakes["left"].entities == before
            assert any("connection broke" in event for event in events)

    run(test)


def test_a_restarted_controller_converges_from_its_store(kind: FakeKind, tmp_path: Path) -> None:
    async def test() -> None:
        async with switches(kind, dumbbell(2)) as (topology, fakes):
            async with Fabric(topology, kind.pipeline, store=Store(tmp_path / "state")) as fabric:
                await fabric.apply(desired_state(topology), routing="ecmp")
            expected = dict(fakes["right"].entities)
            await fakes["right"].lose_everything()
            async with Fabric(topology, kind.pipeline, store=Store(tmp_path / "state")):
                assert fakes["right"].entities == expected
            assert Store(tmp_path / "state").load()[1]["routing"] == "ecmp"

    run(test)


def test_a_refusal_names_the_entry_and_leaves_every_switch_as_it_was(kind: FakeKind, tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            switches(kind, leaf_spine(2, 2, 2)) as (topology, fakes),
            Fabric(topology, kind.pipeline, store=Store(tmp_path / "state")) as fabric,
        ):
            await fabric.apply(desired_state(topology, FabricPolicy("ecmp")))
            before = {name: dict(fake.entities) for name, fake in fakes.items()}
            source_route = kind.pipeline.schema.tables["source_route"].id
            fakes["leaf2"].refuse = lambda update: (
                "the table is full"
                if update.entity.table_entry.table_id == source_route and update.type == p4r.Update.INSERT
                else None
            )
            with pytest.raises(Refused) as error:
                await fabric.apply(desired_state(topology, FabricPolicy("source")), routing="source")
            for part in (
                "leaf2",
                "refused 2 of 2 updates",
                "source_route",
                "ingress_port=0x1",
                "table is full",
            ):
                assert part in str(error.value)
            assert {name: fake.entities for name, fake in fakes.items()} == before
            assert "routing" not in Store(tmp_path / "state").load()[1]
            fakes["leaf2"].refuse = lambda _: None
            applied = await fabric.apply(desired_state(topology, FabricPolicy("source")))
            assert sum(one.inserted for one in applied) == 4

    run(test)


def test_advancing_writes_the_difference_without_reading_and_back_again(
    kind: FakeKind, tmp_path: Path
) -> None:
    async def test() -> None:
        async with (
            switches(kind, leaf_spine(2, 2, 2)) as (topology, fakes),
            Fabric(topology, kind.pipeline, store=Store(tmp_path / "state")) as fabric,
        ):
            states = [
                fabric.encoded(desired_state(topology, FabricPolicy("source", vrfs=vrfs)))
                for vrfs in ({}, {"h1": 7, "h3": 7}, {"h2": 8})
            ]
            await fabric.advance(states[0], fakes)
            batches = {name: len(fake.batches) for name, fake in fakes.items()}
            reads = {name: fake.reads for name, fake in fakes.items()}
            for state in (*states, *reversed(states)):
                await fabric.advance(state, fakes, number=states.index(state))
                assert {name: fake.entities for name, fake in fakes.items()} == state
                assert Store(tmp_path / "state").load() == (
                    state,
                    {"number": states.index(state), "cookie": kind.pipeline.cookie},
                )
            assert {name: fake.reads for name, fake in fakes.items()} == reads
            for name, fake in fakes.items():
                # Spines do not know of VRFs; on leaves four of the six steps change something.
                assert len(fake.batches) - batches[name] == (4 if "leaf" in name else 0)

    run(test)


def test_a_refusal_takes_an_advance_back_everywhere(kind: FakeKind) -> None:
    async def test() -> None:
        async with (
            switches(kind, leaf_spine(2, 2, 2)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            before = fabric.encoded(desired_state(topology))
            after = fabric.encoded(desired_state(topology, FabricPolicy(vrfs={"h1": 7, "h3": 7})))
            await fabric.advance(before, fakes)
            fakes["leaf2"].refuse = lambda update: "no" if update.type == p4r.Update.INSERT else None
            with pytest.raises(Refused, match="leaf2"):
                await fabric.advance(after, fakes)
            fakes["leaf2"].refuse = lambda _: None
            await fabric.advance(
                before, fakes
            )  # what leaf2 could not restore while it refused is restored now
            assert {name: fake.entities for name, fake in fakes.items()} == before
            await fabric.advance(after, fakes)
            assert {name: fake.entities for name, fake in fakes.items()} == after

    run(test)


def test_an_advance_reads_what_somebody_else_may_have_written(kind: FakeKind) -> None:
    async def test() -> None:
        async with (
            switches(kind, dumbbell(1)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            state = fabric.encoded(desired_state(topology))
            await fabric.advance(state, fakes)
            intruder = SwitchClient(topology.switch_by_name["left"], kind.pipeline)
            intruder._election_id = 1 << 100
            await intruder.connect(5)
            key = next(key for key, entity in state["left"].items() if entity.HasField("table_entry"))
            await intruder.write([p4r.Update(type=p4r.Update.DELETE, entity=state["left"][key])])
            await intruder.close()
            await until(lambda: fabric.statuses()["left"] == "ready")
            await fabric.advance(state, fakes)
            assert fakes["left"].entities == state["left"]
            await fakes["right"].lose_everything()
            await until(lambda: fakes["right"].entities == state["right"])
            await fabric.advance(state, fakes)
            assert fakes["right"].entities == state["right"]

    run(test)


def test_the_loser_of_an_arbitration_says_who_is_primary(kind: FakeKind) -> None:
    async def test() -> None:
        async with switches(kind, dumbbell(1)) as (topology, _), Fabric(topology, kind.pipeline) as first:
            await first.apply(desired_state(topology))
            with pytest.raises(
                NotPrimary, match=f"another controller is primary: process {os.getpid()} .*python"
            ):
                async with Fabric(topology, kind.pipeline):
                    pass
            applied = await first.apply(desired_state(topology))  # and the winner was not disturbed
            assert [one.written for one in applied] == [0, 0]

    run(test)


@pytest.mark.parametrize("identities", [(11, 22), (22, 11), (11, 22, 33)])
def test_of_controllers_that_start_at_once_exactly_one_wins(
    kind: FakeKind, identities: tuple[int, ...]
) -> None:
    async def test() -> None:
        async with switches(kind, dumbbell(1)) as (topology, _):
            switch = topology.switch_by_name["left"]
            clients = [SwitchClient(switch, kind.pipeline, identity=identity) for identity in identities]
            await asyncio.gather(*(client.connect(10) for client in clients))
            # Who was overtaken in the meantime has been told so by the time that the switch answers again.
            for client in clients:
                with suppress(NotPrimary):
                    await client.set_pipeline(force=True)
            await until(lambda: sum(client.primary for client in clients) == 1)
            for client in clients:
                await client.close()

    run(test)


def test_who_is_taken_over_waits_and_takes_the_switch_back(kind: FakeKind) -> None:
    async def test() -> None:
        async with (
            switches(kind, dumbbell(1)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            await fabric.apply(desired_state(topology))
            before = dict(fakes["left"].entities)
            intruder = SwitchClient(topology.switch_by_name["left"], kind.pipeline)
            intruder._election_id = 1 << 100  # a foreign controller that does not ask first
            await intruder.connect(5)
            await until(lambda: "another controller is primary" in fabric.statuses()["left"])
            with pytest.raises(NotPrimary):
                await fabric.apply(desired_state(topology, FabricPolicy(ecn_threshold_packets=1)))
            key = next(key for key, entity in before.items() if entity.HasField("table_entry"))
            await intruder.write([p4r.Update(type=p4r.Update.DELETE, entity=before[key])])
            await intruder.close()
            await until(lambda: fakes["left"].entities == before)
            await until(lambda: fabric.statuses()["left"] == "ready")

    run(test)


def test_election_ids_tell_their_holder() -> None:
    assert f"process {os.getpid()} " in describe_primary(3 << 64 | os.getpid())
    assert "not one of entrain's" in describe_primary(17)
    assert "on another machine" in describe_primary(1 << 64 | 2**40)
    assert U128.decode(U128.encode(3 << 64 | 5)) == 3 << 64 | 5


def test_an_accident_in_a_session_is_raised_and_not_waited_for(
    kind: FakeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: SwitchClient) -> None:
        raise ZeroDivisionError("an accident")

    async def test() -> None:
        async with switches(kind, dumbbell(1)) as (topology, _):
            with pytest.raises(ZeroDivisionError, match="an accident"):
                async with Fabric(topology, kind.pipeline):
                    pass

    monkeypatch.setattr(SwitchClient, "read_state", fail)
    run(test)


def test_an_absent_switch_is_named(kind: FakeKind) -> None:
    async def test() -> None:
        topology = dumbbell(1, grpc_port=1)
        with pytest.raises(Unreachable, match=r"left \(softswitch at 127.0.0.1:1\).*is the switch running"):
            async with Fabric(topology, kind.pipeline, connect_timeout_s=0.5):
                pass

    run(test)


def test_a_refused_pipeline_is_told_in_the_targets_words(kind: FakeKind) -> None:
    async def test() -> None:
        async with switches(kind, dumbbell(1)) as (topology, fakes):
            fakes["left"].refuse_pipeline = "varbit in fabric.p4:7 is not supported"
            with pytest.raises(Refused, match=r"left.*refused the pipeline fabric: varbit in fabric.p4:7"):
                async with Fabric(topology, kind.pipeline):
                    pass

    run(test)


def test_pipeline_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    p4info = tmp_path / "other.p4info.txtpb"
    config = tmp_path / "other.json"
    for missing in (p4info, Path("x" * 1000)):
        with pytest.raises(BadInput, match="no such file"):
            Pipeline.load(missing, config)
    good = Path("p4src/build/fabric.p4info.txtpb").read_text()
    p4info.write_text(good.replace('"FabricIngress.route"', '"FabricIngress.path"'))
    config.write_text("{")
    with pytest.raises(BadInput, match="is not the JSON"):
        Pipeline.load(p4info, config)
    config.write_bytes(Path("p4src/build/fabric.json").read_bytes())
    with pytest.raises(BadInput, match=r"does not fit .*other.json: it has table FabricIngress.path"):
        Pipeline.load(p4info, config)
    p4info.write_text("tables { nonsense }")
    with pytest.raises(BadInput, match="is not P4Info"):
        Pipeline.load(p4info, config)
    p4info.write_text(good)
    assert Pipeline.load(p4info, config).cookie == Pipeline.load().cookie


def test_a_store_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text(
        "not a database, but long enough to be taken for the header of one\n" * 20
    )
    with pytest.raises(EntrainError, match="is not a state file"):
        Store(tmp_path / "state")


def test_a_switch_that_does_not_tell_what_a_port_counted_is_named() -> None:
    class Silent(FakeSwitch):
        async def Read(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
            if not any(entity.counter_entry.HasField("index") for entity in request.entities):
                async for answer in super().Read(request, context):
                    yield answer

    async def counters(make: type[FakeSwitch]) -> set[tuple[str, int]]:
        kind = FakeKind(make, Pipeline.load())
        async with switches(kind, dumbbell(1)) as (topology, _), Fabric(topology, kind.pipeline) as fabric:
            await fabric.apply(desired_state(topology, FabricPolicy("ecmp")))
            return set(await fabric.counters())

    assert asyncio.run(counters(FakeSwitch)) == {
        (s.name, p.number) for s in dumbbell(1).switches for p in s.ports
    }
    with pytest.raises(EntrainError, match=r"(left|right): does not say what port 1 has counted"):
        asyncio.run(counters(Silent))


@pytest.mark.usefixtures("impatient")
def test_a_silent_switch_is_named_ends_what_is_asked_of_it_and_is_brought_up_to_date(kind: FakeKind) -> None:
    async def test() -> None:
        events: list[str] = []
        async with (
            switches(kind, leaf_spine(2, 2, 2)) as (topology, fakes),
            Fabric(topology, kind.pipeline, on_event=events.append) as fabric,
        ):
            state = fabric.encoded(desired_state(topology))
            fakes["leaf2"].hangs = fakes["leaf2"].silent = True
            with pytest.raises(Unreachable, match=r"leaf2 .*gave no answer in time"):
                await fabric.advance(state, fakes)
            assert not fakes["leaf1"].entities
            assert "gave no answer in time" in fabric.statuses()["leaf2"]
            assert fabric.problems() == [fabric.statuses()["leaf2"]]
            assert fabric.problems()[0] in events
            with pytest.raises(Unreachable, match=r"leaf2 .*gave no answer in time"):
                await fabric.advance(state, ["leaf2"])
            others = [one.switch for one in await fabric.advance(state, ["leaf1"]) if one.written]
            assert others == ["leaf1", "spine1", "spine2"]
            fakes["leaf2"].hangs = fakes["leaf2"].silent = False
            await until(lambda: fabric.statuses()["leaf2"] == "ready")
            assert {name: fake.entities for name, fake in fakes.items()} == state
            assert fabric.problems() == []

    run(test)


@pytest.mark.usefixtures("impatient")
def test_a_link_that_is_whole_again_is_used_though_the_switch_has_noticed_nothing(kind: FakeKind) -> None:
    """It still has the earlier session, whose controller is primary."""

    async def test() -> None:
        async with (
            switches(kind, dumbbell(1)) as (topology, fakes),
            cut_link(fakes["left"].port) as link,
        ):
            left = replace(topology.switch_by_name["left"], grpc_port=link.port)
            others = [switch for switch in topology.switches if switch.name != "left"]
            there = replace(topology, switches=(left, *others))
            async with Fabric(there, kind.pipeline) as fabric:
                await fabric.apply(desired_state(there))
                link.cut()
                await until(lambda: "gave no answer in time" in fabric.statuses()["left"])
                link.mend()
                await until(lambda: fabric.statuses()["left"] == "ready")

    run(test)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_allows_no_pings_and_knows_no_capabilities_is_no_silent_one(
    kind: FakeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake switch has gRPC's defaults, as BMv2 has: with the third ping it would end the connection."""

    async def unknown(self: FakeSwitch, request: Any, context: Any) -> None:
        self.questions += 1
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not implemented!")

    async def test() -> None:
        async with (
            switches(kind, dumbbell(1)) as (topology, fakes),
            Fabric(topology, kind.pipeline) as fabric,
        ):
            await until(lambda: all(fake.questions > 60 for fake in fakes.values()))
            assert [fake.streams for fake in fakes.values()] == [1, 1]
            assert set(fabric.statuses().values()) == {"ready"}

    monkeypatch.setattr(kind.make, "Capabilities", unknown)
    monkeypatch.setattr(tls, "KEEPALIVE_S", 0.3)
    run(test)
