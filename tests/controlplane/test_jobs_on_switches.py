"""A controller with jobs, over P4Runtime: a switch that dies or refuses while a job is admitted."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from finsy.proto import p4r

from controlplane import messages
from controlplane.admission import Admission
from controlplane.api_pb2 import JobRequest
from controlplane.cluster import ClusterSetup, cluster_of
from controlplane.controller import Controller
from controlplane.ledger import Ledger
from controlplane.network import Topology
from controlplane.tenants import Tenant, cluster_state
from controlplane.topology import leaf_spine
from machine.errors import BadInput
from schedulers.placement.cluster import Request
from schedulers.placement.strategies import STRATEGIES
from tests.controlplane.fake_switch import FakeSwitch
from tests.controlplane.kinds import FakeKind
from tests.controlplane.test_fabric import run, switches, until


@asynccontextmanager
async def cluster(
    kind: FakeKind, topology: Topology, directory: Path
) -> AsyncIterator[tuple[Controller, Admission, dict[str, FakeSwitch]]]:
    """A cluster of fake switches with a controller."""
    async with switches(kind, topology) as (served, fakes):
        setup = ClusterSetup(cluster_of(served, 2), STRATEGIES["vclos"])
        ledger = Ledger(directory / "jobs", setup.cluster)
        async with Controller(
            served, "source", cluster=setup, ledger=ledger, pipeline=kind.pipeline
        ) as controller:
            assert controller.admission is not None
            yield controller, controller.admission, fakes
        ledger.close()


async def submit(admission: Admission, name: str, gpus: int) -> None:
    await admission.submit(Request(name, gpus))
    await admission.settled()


def phases(admission: Admission) -> dict[str, str]:
    return {each.entry.name: each.entry.phase for each in admission.jobs()}


def tables(fakes: Mapping[str, FakeSwitch]) -> dict[str, dict[bytes, p4r.Entity]]:
    return {name: dict(fake.entities) for name, fake in fakes.items()}


def test_a_job_changes_no_entry_of_another_and_leaves_none(kind: FakeKind, tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(kind, leaf_spine(4, 4, 4), tmp_path) as (_, admission, fakes):
            idle = tables(fakes)
            await submit(admission, "a", 8)
            alone = tables(fakes)
            own = {
                name: {key: entity for key, entity in alone[name].items() if idle[name].get(key) != entity}
                for name in fakes
            }
            assert any(own.values())
            await submit(admission, "b", 8)
            for name, entities in own.items():
                assert entities.items() <= fakes[name].entities.items()
            assert phases(admission) == {"a": "running", "b": "running"}
            await admission.end("b")
            assert tables(fakes) == alone
            await admission.end("a")
            assert tables(fakes) == idle

    run(test)


def test_a_switch_that_dies_while_a_job_is_admitted_costs_nobody_else_anything(
    kind: FakeKind, tmp_path: Path
) -> None:
    async def test() -> None:
        async with cluster(kind, leaf_spine(4, 4, 4), tmp_path) as (controller, admission, fakes):
            await submit(admission, "a", 4)  # the whole first leaf
            before = tables(fakes)
            give = controller.give
            dead: list[str] = []

            async def dies(tenants: Sequence[Tenant], concerned: Sequence[Tenant]) -> None:
                if any(tenant.name == "b" for tenant in tenants) and not dead:
                    dead.append("leaf2")
                    await fakes["leaf2"].stop()
                    await until(lambda: bool(controller.failures().gpus))
                await give(tenants, concerned)

            admission._switches.apply = dies  # type: ignore[method-assign]
            await submit(admission, "b", 4)
            assert phases(admission) == {"a": "running", "b": "running"}
            [placement] = [each.entry.placement for each in admission.jobs() if each.entry.name == "b"]
            assert placement is not None
            assert set(placement.leaves) == {2}  # the third leaf instead of the second
            after = tables(fakes)
            assert after["leaf1"] == before["leaf1"]
            assert after["leaf4"] == before["leaf4"]
            await submit(admission, "c", 8)
            assert phases(admission)["c"] == "waiting"  # for the leaf that is away
            await fakes["leaf2"].start()
            await until(lambda: phases(admission)["c"] == "running")

    run(test)


@pytest.mark.usefixtures("impatient")
def test_jobs_come_and_go_while_a_switch_that_they_do_not_need_is_silent(
    kind: FakeKind, tmp_path: Path
) -> None:
    async def test() -> None:
        topology = leaf_spine(4, 4, 4)
        async with cluster(kind, topology, tmp_path) as (controller, admission, fakes):
            for name in ("a", "b"):  # a leaf each
                await submit(admission, name, 4)
            fakes["leaf2"].hangs = fakes["leaf2"].silent = True
            assert (await admission.end("b")).entry.phase == "leaving"
            assert "leaf2" in admission.problem and "gave no answer in time" in admission.problem
            assert (await admission.end("a")).entry.phase == "ended"
            await submit(admission, "c", 8)
            assert phases(admission) == {"b": "leaving", "c": "running"}
            placed = next(each.entry.placement for each in admission.jobs() if each.entry.name == "c")
            assert placed is not None and 1 not in placed.leaves
            fakes["leaf2"].hangs = fakes["leaf2"].silent = False
            await until(lambda: phases(admission) == {"c": "running"})
            jobs = controller._tenants
            policy = controller._policy("source")
            expected = controller._fabric.encoded(cluster_state(controller.topology, policy, jobs))
            assert tables(fakes) == expected
            assert controller.problem(admission) == ""

    run(test)


@pytest.mark.usefixtures("impatient")
def test_a_controller_that_starts_while_a_switch_is_silent_goes_on_with_the_others(
    kind: FakeKind, tmp_path: Path
) -> None:
    async def test() -> None:
        async with switches(kind, leaf_spine(4, 4, 4)) as (served, fakes):
            setup = ClusterSetup(cluster_of(served, 2), STRATEGIES["vclos"])

            @asynccontextmanager
            async def controlling() -> AsyncIterator[tuple[Controller, Admission]]:
                ledger = Ledger(tmp_path / "jobs", setup.cluster)
                async with Controller(
                    served, "source", cluster=setup, ledger=ledger, pipeline=kind.pipeline, strict=False
                ) as controller:
                    assert controller.admission is not None
                    yield controller, controller.admission
                ledger.close()

            async with controlling() as (_, admission):
                for name in ("a", "b"):
                    await submit(admission, name, 4)
                await fakes["leaf2"].stop()
            async with controlling() as (controller, admission):
                assert (await admission.end("a")).entry.phase == "ended"
                await submit(admission, "c", 4)
                assert phases(admission) == {"b": "running", "c": "running"}
                assert "leaf2" in controller.problem(admission)
                await fakes["leaf2"].start()
                await until(lambda: controller.problem(admission) == "")

    run(test)


def test_a_switch_that_refuses_a_job_leaves_all_as_it_was(kind: FakeKind, tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(kind, replace(leaf_spine(2, 2, 2), name="small"), tmp_path) as (
            _,
            admission,
            fakes,
        ):
            before = tables(fakes)
            fakes["leaf2"].refuse = lambda update: "full" if update.type != p4r.Update.DELETE else None
            await submit(admission, "a", 4)
            assert phases(admission) == {"a": "waiting"}
            assert "leaf2" in admission.problem and "full" in admission.problem
            assert tables(fakes) == before
            fakes["leaf2"].refuse = lambda _: None
            await admission.settled()
            assert phases(admission) == {"a": "running"}

    run(test)


def test_the_api_refuses_a_pattern_that_no_collective_has() -> None:
    known = ("ring", "halving-doubling")
    with pytest.raises(BadInput, match="'halving-doublng'; did you mean halving-doubling"):
        messages.request_of(JobRequest(name="a", gpus=1, pattern="halving-doublng"), 0.0, known)
    request, duration_s, deadline_s = messages.request_of(JobRequest(name="a", gpus=1), 5.0, known)
    assert (request, duration_s, deadline_s) == (Request("a", 1, "ring"), math.inf, None)


def test_two_controllers_take_turns_with_one_ledger(kind: FakeKind, tmp_path: Path) -> None:
    async def test() -> None:
        async with switches(kind, leaf_spine(2, 2, 2)) as (served, fakes):
            setup = ClusterSetup(cluster_of(served, 1), STRATEGIES["vclos"])
            for _ in range(2):
                ledger = Ledger(tmp_path / "jobs", setup.cluster)
                async with Controller(
                    served, "source", cluster=setup, ledger=ledger, pipeline=kind.pipeline
                ) as controller:
                    assert controller.admission is not None
                    if not phases(controller.admission):
                        await submit(controller.admission, "a", 4)
                        before = tables(fakes)
                    assert phases(controller.admission) == {"a": "running"}
                    assert tables(fakes) == before
                ledger.close()

    run(test)
