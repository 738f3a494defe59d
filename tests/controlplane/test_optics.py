"""Admission over a real manager of circuits: ports map one to one, and what fails is avoided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.admission import Admission, Failures
from controlplane.cluster import cluster_of, hosts_by_gpu
from controlplane.ledger import Ledger
from controlplane.optics import Optics
from controlplane.tenants import Tenant
from controlplane.topology import leaf_spine
from ocs.crossbar import Circuit
from ocs.manager import CircuitManager
from ocs.settings import OcsTable
from schedulers.placement.cluster import Request, empty
from schedulers.placement.strategies import STRATEGIES
from tests.ocs.switch import FakeSwitch

TOPOLOGY = leaf_spine(4, 4, 4, ocs=OcsTable())
CLUSTER = cluster_of(TOPOLOGY, 2, ocs=True)


class NoSwitches:
    """Switches that take everything."""

    async def apply(self, tenants: Sequence[Tenant], concerned: Sequence[Tenant]) -> None:
        return None

    def failures(self) -> Failures:
        return Failures({}, {})


def run(
    directory: Path, switch: FakeSwitch, test: Callable[[Admission, Optics, CircuitManager], Awaitable[None]]
) -> None:
    async def main() -> None:
        assert TOPOLOGY.ocs is not None
        manager = CircuitManager(TOPOLOGY.ocs.crossbar, switch)
        optics = Optics(manager, TOPOLOGY, CLUSTER)
        ledger = Ledger(directory / "jobs", CLUSTER)
        async with Admission(
            empty(CLUSTER), hosts_by_gpu(TOPOLOGY), STRATEGIES["ocs-vclos"], ledger, NoSwitches(), optics
        ) as admission:
            await test(admission, optics, manager)
        ledger.close()

    asyncio.run(asyncio.wait_for(main(), 30))


async def placed(admission: Admission, name: str, gpus: int) -> str:
    """Submit a job; return its phase once all is done that can be done."""
    await admission.submit(Request(name, gpus))
    await admission.settled()
    return {each.entry.name: each.entry.phase for each in admission.jobs()}[name]


def test_the_first_circuits_are_the_cluster_s_wiring(tmp_path: Path) -> None:
    async def test(admission: Admission, optics: Optics, _: CircuitManager) -> None:
        joined = {circuit.a: circuit.b for circuit in await optics.joined()}
        assert len(joined) == 16
        for a, b in joined.items():
            assert (a.kind, b.kind, b.switch, b.port) == ("leaf", "spine", a.port, a.switch)

    run(tmp_path, FakeSwitch(TOPOLOGY.circuits), test)


@pytest.mark.parametrize("fault", ["dark", "refuses"])
def test_a_circuit_that_stays_dark_is_named_and_its_ports_are_avoided(fault: str, tmp_path: Path) -> None:
    switch = FakeSwitch(TOPOLOGY.circuits, faults=[fault])

    async def test(admission: Admission, optics: Optics, manager: CircuitManager) -> None:
        assert await placed(admission, "a", 8) == "running"
        [status] = admission.jobs()
        assert status.entry.placement is not None
        assert status.entry.problem
        ports = {port for circuit in status.entry.placement.circuits for port in circuit}
        avoided = admission.failures().ports
        assert avoided
        assert not ports & avoided.keys()
        assert manager.held["a"] <= switch.circuits
        assert set(admission.circuits()) <= set(await optics.joined())

    run(tmp_path, switch, test)


def test_a_switch_that_does_not_answer_holds_up_only_jobs_that_need_circuits(tmp_path: Path) -> None:
    switch = FakeSwitch(TOPOLOGY.circuits)

    async def test(admission: Admission, optics: Optics, manager: CircuitManager) -> None:
        assert await placed(admission, "a", 8) == "running"
        before = manager.held["a"]
        switch.unread = 10**6
        assert await placed(admission, "b", 6) == "waiting"
        assert "did not answer" in admission.problem
        assert await placed(admission, "near", 2) == "running"
        assert await placed(admission, "leaf", 4) == "running"
        jobs = {each.entry.name: each for each in admission.jobs()}
        assert jobs["b"].waiting is not None
        assert jobs["b"].waiting.cause == "failure"
        assert "did not answer" in jobs["b"].entry.problem
        assert (await admission.end("near")).entry.phase == "ended"
        assert manager.held == {"a": before}
        assert before <= switch.circuits
        await admission.end("leaf")
        switch.unread = 0
        while admission.problem:
            await admission.settled()
        assert {each.entry.name for each in admission.jobs() if each.entry.phase == "running"} == {"a", "b"}
        assert manager.held["a"] == before
        assert manager.held["b"] <= switch.circuits

    run(tmp_path, switch, test)


def test_a_job_leaves_while_the_switch_is_silent_and_a_restart_does_not_wait_for_it(tmp_path: Path) -> None:
    switch = FakeSwitch(TOPOLOGY.circuits)

    async def first(admission: Admission, optics: Optics, manager: CircuitManager) -> None:
        assert await placed(admission, "a", 8) == "running"
        assert await placed(admission, "b", 8) == "running"
        switch.unread = 10**6
        assert (await admission.end("a")).entry.phase == "ended"

    run(tmp_path, switch, first)
    switch.circuits = frozenset[Circuit]()  # it had died, and lost them

    async def second(admission: Admission, optics: Optics, manager: CircuitManager) -> None:
        assert "did not answer" in admission.problem
        assert await placed(admission, "near", 2) == "running"
        switch.unread = 0
        while admission.problem:
            await admission.settled()
        assert manager.held.keys() == {"b"}
        assert manager.held["b"] <= switch.circuits

    run(tmp_path, switch, second)


def test_circuits_of_nobody_are_found_by_the_next_controller(tmp_path: Path) -> None:
    """The switch lost its circuits while no controller was there: running jobs get theirs back."""
    switch = FakeSwitch(TOPOLOGY.circuits)

    async def first(admission: Admission, optics: Optics, manager: CircuitManager) -> None:
        assert await placed(admission, "a", 8) == "running"

    run(tmp_path, switch, first)
    before = switch.circuits
    switch.circuits = frozenset[Circuit]()

    async def second(admission: Admission, optics: Optics, manager: CircuitManager) -> None:
        assert not admission.problem
        assert manager.held["a"] <= switch.circuits <= before
        assert await placed(admission, "b", 8) == "running"

    run(tmp_path, switch, second)


def test_every_port_of_the_cluster_is_plugged_in() -> None:
    assert TOPOLOGY.ocs is not None
    part = replace(TOPOLOGY, ocs=replace(TOPOLOGY.ocs, plugs=TOPOLOGY.ocs.plugs[1:]))
    with pytest.raises(ValueError, match="ocs_ports: port 5 of leaf1 is not plugged into"):
        Optics(CircuitManager(TOPOLOGY.ocs.crossbar, FakeSwitch()), part, CLUSTER)
