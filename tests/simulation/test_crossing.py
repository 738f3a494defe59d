"""Coflows beside cross traffic."""

from __future__ import annotations

import numpy as np
import pytest

from schedulers.coflow.view import View
from simulation.crossing import CrossedTransport, CrossFlow
from simulation.engine import Simulation
from simulation.jobs import Job, chain, coflow
from simulation.policies import coflow_policy
from simulation.topology import switch

RATE = 100.0
"""Bytes/s of each host's link."""


def job(size: float, arrival: float = 0.0, source: int = 0, destination: int = 1) -> Job:
    return chain(f"{source}-{destination}-{arrival}", arrival, [coflow([(source, destination, size)])])


def finishes(jobs: list[Job], cross: list[CrossFlow], policy: str = "fair") -> list[float]:
    transport = CrossedTransport(switch(3, RATE), coflow_policy(policy), cross, check=True)
    return [record.finish for record in Simulation(jobs, transport).run().jobs]


@pytest.mark.parametrize("policy", ["fair", "varys"])
def test_cross_traffic_takes_half_of_a_flows_link_while_it_lasts(policy: str) -> None:
    """From 2 s to 6 s: 200 bytes before, 200 beside it, 200 after it."""
    assert finishes([job(600.0)], [CrossFlow(0, 2, 2.0, 6.0)], policy) == pytest.approx([8.0])


def test_cross_traffic_elsewhere_takes_nothing() -> None:
    assert finishes([job(600.0)], [CrossFlow(2, 0, 0.0, 60.0)]) == pytest.approx([6.0])


def test_cross_traffic_that_ended_before_the_jobs_takes_nothing() -> None:
    assert finishes([job(600.0, 10.0)], [CrossFlow(0, 1, 0.0, 9.0)]) == pytest.approx([16.0])


def test_an_order_divides_what_cross_traffic_leaves() -> None:
    """Three flows leave 2/3 of the link to the jobs. The shorter one has all of it: 66.7 bytes/s."""
    jobs, cross = [job(100.0), job(1000.0, destination=2)], [CrossFlow(0, 1, 0.0, 60.0)]
    shorter, _ = finishes(jobs, cross, "varys")
    assert shorter == pytest.approx(1.5)


def test_a_policy_sees_what_is_left_of_links() -> None:
    seen: list[float] = []

    class Watching:
        name = "watching"

        def allocate(self, view: View) -> None:
            seen.append(float(view.capacity[0]))
            view.rate[:] = np.where(view.remaining > 0.0, view.capacity[0], 0.0)

        def review_after(self, view: View) -> float:
            return float("inf")

    transport = CrossedTransport(switch(3, RATE), Watching(), [CrossFlow(0, 2, 1.0, 2.0)], check=True)
    Simulation([job(500.0)], transport).run()
    assert seen == pytest.approx([RATE, RATE / 2, RATE])
