"""ECN marks in a fluid network."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulation.engine import Simulation
from simulation.jobs import chain, coflow
from simulation.marks import Marking, queueing
from simulation.slotted import SIMULATED, SlottedTransport
from simulation.topology import GBIT, leaf_spine

RATE = 10 * GBIT


def marked(*flows: list[tuple[int, int, float]]) -> float:
    """Segments marked where each list of flows is a job."""
    network = leaf_spine(2, 1, 4, RATE, RATE)
    transport = SlottedTransport(network, "fair", SIMULATED, marking=Marking())
    jobs = [chain(f"j{n}", 0.0, [coflow(each)]) for n, each in enumerate(flows)]
    Simulation(jobs, transport).run()
    return transport.marked


def test_a_sender_alone_is_not_marked() -> None:
    assert marked([(0, 4, 1e8)]) == 0.0
    assert marked([(0, 4, 1e8), (0, 5, 1e8)]) == 0.0, "its flows share its own link"


def test_flows_that_fill_a_link_are_marked_as_dctcps_fixed_point_says() -> None:
    """Two windows of (C RTT + K) / 2 each: the part √(2 / W*) of all segments. The uplink holds them back;
    the downlink gets no more than it carries."""
    its = Marking()
    window = (RATE * its.rtt + its.threshold) / its.segment / 2
    expected = math.sqrt(2 / window) * 2e8 / its.segment
    assert marked([(0, 4, 1e8)], [(1, 5, 1e8)]) == pytest.approx(expected, rel=1e-6)


def test_incast_is_marked_where_the_receiver_is() -> None:
    links = np.array([[0, 2], [1, 2]], np.int32)
    rows, capacity = np.arange(2), np.ones(3)
    half = np.array([0.5, 0.5])
    assert queueing(links, rows, half, half, capacity, False).tolist() == [0, 0, 1]
    assert queueing(links, rows, half, half, capacity, True).tolist() == [0, 0, 0], "a plan that fits"
    assert queueing(links, rows, half, 2 * half, capacity, True).tolist() == [0, 0, 1], "one that does not"
    assert queueing(links, rows, half / 2, half / 2, capacity, False).tolist() == [0, 0, 0]


def test_all_segments_are_the_most_that_can_be_marked() -> None:
    assert Marking().part(1e9, RATE) == 1.0
