"""Slots with decisions at the times at which agents take them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulation.collectives import Pipelined, parameter_server, ring, training_job
from simulation.engine import Simulation
from simulation.jobs import Job, chain, coflow
from simulation.slotted import SIMULATED, SlottedTransport
from simulation.topology import switch
from simulation.turns import TURN, TurnsTransport

NETWORK = switch(2, 10.0)


def jobs(*transfers: tuple[float, float]) -> list[Job]:
    """Transfers over the same link of 10 bytes/s: when they begin, and of how many bytes they are."""
    return [chain(str(i), at, [coflow([(0, 1, size)])]) for i, (at, size) in enumerate(transfers)]


def finishes(transport: SlottedTransport, *transfers: tuple[float, float]) -> list[float]:
    return [record.finish for record in Simulation(jobs(*transfers), transport).run().jobs]


def turns(slot_s: float, *, take_back: bool = False, hasten: bool = True) -> TurnsTransport:
    its = replace(SIMULATED, slot_s=slot_s, hasten=hasten)
    return TurnsTransport(NETWORK, its, take_back=take_back, check=True)


@pytest.mark.parametrize("begin", [0.0, 0.1, 0.7, 5.3])
def test_a_flow_that_finds_the_link_free_sends_at_once(begin: float) -> None:
    assert finishes(turns(2.0), (begin, 5.0)) == pytest.approx([begin + 0.5])


def test_what_a_flow_leaves_of_its_slot_is_used_in_the_same_slot() -> None:
    """The first transfer ends in the middle of a slot, before the turns."""
    first, second = finishes(turns(2.0), (0.0, 10.0), (0.3, 10.0))
    assert first == pytest.approx(1.0)
    assert second == pytest.approx(2.0 * TURN + 1.0)
    at_boundaries = SlottedTransport(NETWORK, parameters=replace(SIMULATED, slot_s=2.0), check=True)
    assert second < max(finishes(at_boundaries, (0.0, 10.0), (0.3, 10.0)))


def test_a_flow_takes_back_what_longer_ones_have_planned() -> None:
    """The short transfer begins when the long one has planned this slot and the next."""
    transfers = (0.0, 200.0), (1.05, 1.0)
    waits, takes = finishes(turns(0.2), *transfers), finishes(turns(0.2, take_back=True), *transfers)
    assert takes[1] == pytest.approx(1.15)
    assert waits[1] >= 1.2 + 0.1
    assert takes[0] == pytest.approx(20.1)
    assert takes[0] <= waits[0]


def test_a_flow_does_not_take_back_what_shorter_ones_have_planned() -> None:
    short, long = finishes(turns(0.2, take_back=True), (0.0, 20.0), (0.5, 200.0))
    assert short == pytest.approx(2.0)
    assert long == pytest.approx(22.0)


@pytest.mark.parametrize("flows", [parameter_server([0, 1], [2, 3], 1e9), ring([0, 1, 2], 1e9)])
@pytest.mark.parametrize("take_back", [False, True])
def test_a_job_alone_takes_hardly_longer_than_its_links_need(flows: Pipelined, take_back: bool) -> None:
    job, network = training_job("alone", 0.0, 0.5, [flows], 4), switch(4, 1e9)
    its = replace(SIMULATED, slot_s=0.015, hasten=True)
    transport = TurnsTransport(network, its, take_back=take_back, check=True)
    (record,) = Simulation([job], transport).run().jobs
    assert job.lower_bound(network) <= record.jct <= job.lower_bound(network) + 4 * 2 * 0.015
    assert np.abs(transport._table).max() <= 1e-3
