"""Parrot: its formulas, and the motivating example of the paper with every event time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from schedulers.coflow.parrot import Parrot, by_attained_service, inferred_weight, occupancy_ratio
from schedulers.coflow.rivals import Conservation, PriorityPolicy, Varys
from schedulers.coflow.view import CoflowPolicy, View
from schedulers.compiled import Ints
from simulation.engine import Outcome, Simulation
from simulation.jobs import Coflow, Job, chain, coflow
from simulation.scheduled import ScheduledTransport
from simulation.topology import switch

MEGA = 1e6
"""With a unit of a megabyte θ reaches 0.9 at t = 4, as the paper's figure has it; with a unit of a byte it is
0.80."""


def matrix(rows: list[list[float]]) -> Coflow:
    return coflow([(i, j, rows[i][j]) for i in (0, 1) for j in (0, 1)])


def example() -> list[Job]:
    c1, c2 = matrix([[3, 3], [2, 2]]), matrix([[6, 6], [5, 5]])
    c3, c4 = matrix([[1, 1], [1, 1]]), matrix([[4, 4], [3, 3]])
    return [chain("J1", 0.0, [c1, c2]), chain("J2", 0.0, [c3, c4])]


def run(policy: CoflowPolicy) -> Outcome:
    return Simulation(example(), ScheduledTransport(switch(2, 1.0), policy, check=True)).run()


def ccts(outcome: Outcome) -> dict[str, float]:
    names = {"J1/0/0": "C1", "J1/0/1": "C2", "J2/0/0": "C3", "J2/0/1": "C4"}
    return {names[c.ident]: c.finish for c in outcome.coflows}


@pytest.mark.parametrize("scope", ["link", "network"])
@pytest.mark.parametrize("conservation", ["factor", "filling", "ordered", "none"])
def test_the_example_has_the_papers_event_times(conservation: str, scope: str) -> None:
    outcome = run(Parrot(bytes_per_unit=MEGA, conservation=conservation, scope=scope))  # type: ignore[arg-type]
    assert ccts(outcome) == pytest.approx({"C3": 4.0, "C4": 4.0 + 8.0 / 0.9, "C1": 16.0, "C2": 28.0})
    assert ccts(outcome)["C4"] == pytest.approx(12.889, abs=5e-4)
    assert sum(job.jct for job in outcome.jobs) == pytest.approx(40.889, abs=5e-4)


SPARE = {
    "none": (6.0, 6.0, 6.0),
    "factor": (4.0, 4.0, 4.0),
    "filling": (4.0, 4.0, 2.0),
    "ordered": (10.0 / 3.0, 4.0, 2.0),
}
"""When A and B, which share port 0, and C, which meets nobody, end: 2 bytes each, unit ports, θ at most 1/2.

With weights that act in the whole network, each of the three weighs 1 at t = 0, since nothing was sent, and
gets 1/3 of its rate alone; port 0 has 1/3 left.
none: 1/3 each, 2 / (1/3) = 6. factor: times 3/2, which fills port 0. filling: C goes on to rate 1 and ends at
2; A and B keep 1/2. ordered: A, the first, takes all that port 0 has left and has 2/3, B 1/3, C 1; at t = 2 A
has 2/3 and B 4/3 bytes left and θ = 1/2, so each gets 1/2: A ends at 2 + 4/3; B's last 2/3 go at rate 1.
With weights that act where coflows meet, A and B get 1/2 each and C 1 at once, and nothing is left.
"""


@pytest.mark.parametrize("scope", ["link", "network"])
@pytest.mark.parametrize("conservation", SPARE)
def test_what_becomes_of_spare_bandwidth(conservation: str, scope: str) -> None:
    pairs = {"A": (0, 1), "B": (0, 2), "C": (3, 4)}
    jobs = [chain(name, 0.0, [coflow([(src, dst, 2.0)])]) for name, (src, dst) in pairs.items()]
    policy = Parrot(theta_max=0.5, conservation=conservation, scope=scope)  # type: ignore[arg-type]
    outcome = Simulation(jobs, ScheduledTransport(switch(5, 1.0), policy, check=True)).run()
    expected = SPARE[conservation] if scope == "network" else (4.0, 4.0, 2.0)
    assert [job.finish for job in outcome.jobs] == pytest.approx(expected)


def test_in_bytes_the_examples_ratio_is_lower() -> None:
    theta = 0.5 ** (1.0 / (math.log(22.0 / 3.0 + 1.0) + 1.0))
    assert ccts(run(Parrot()))["C4"] == pytest.approx(4.0 + 8.0 / theta)


@pytest.mark.parametrize("policy", [Varys(), Varys(dynamic=False)])
def test_the_example_under_varys(policy: Varys) -> None:
    outcome = run(policy)
    assert ccts(outcome) == pytest.approx({"C3": 2.0, "C1": 8.0, "C4": 16.0, "C2": 28.0})
    assert sum(ccts(outcome).values()) == pytest.approx(54.0)
    assert sum(job.jct for job in outcome.jobs) == pytest.approx(44.0)


class FixedOrder(PriorityPolicy):
    """Serves coflows in the order of a given list of their numbers."""

    name = "fixed-order"

    def __init__(self, idents: list[int], *, conservation: Conservation) -> None:
        super().__init__(conservation=conservation)
        self.position = {ident: i for i, ident in enumerate(idents)}

    def ranking(self, view: View) -> Ints:
        """By place in the list."""
        return np.argsort([self.position[int(i)] for i in view.ident], kind="stable")


@pytest.mark.parametrize("conservation", ["ordered", "shared", "factor", "none"])
def test_the_examples_orders(conservation: Conservation) -> None:
    """Each order that respects the dependencies: a coflow ends when the bottlenecks before it and its own
    have passed."""
    gamma = {"C1": 6.0, "C2": 12.0, "C3": 2.0, "C4": 8.0}
    totals = {}
    for order in itertools.permutations(gamma):
        if order.index("C1") > order.index("C2") or order.index("C3") > order.index("C4"):
            continue
        # Handles are given in order of validity, so follow the simulation: J1's first is 0, J2's first is 1.
        second = {"C1": 0, "C3": 1}
        later = [c for c in order if c in ("C2", "C4")]
        firsts = sorted(second, key=order.index)
        finish_first = dict(zip(firsts, (0, 1), strict=True))
        valid = sorted(later, key=lambda c: finish_first["C1" if c == "C2" else "C3"])
        handle = second | {c: 2 + i for i, c in enumerate(valid)}
        outcome = run(FixedOrder([handle[c] for c in order], conservation=conservation))
        expected = dict(zip(order, itertools.accumulate(gamma[c] for c in order), strict=True))
        assert ccts(outcome) == pytest.approx(expected), order
        totals[order] = (sum(expected.values()), sum(job.jct for job in outcome.jobs))
    assert totals["C3", "C4", "C1", "C2"] == pytest.approx((56.0, 38.0))
    assert min(jct for _, jct in totals.values()) == pytest.approx(38.0)
    assert len(totals) == 6


def test_least_attained_service_counts_nothing_completed_as_infinite() -> None:
    order = np.arange(3)
    assert by_attained_service(np.array([1.0, 9.0, 8.0]), np.array([0, 3, 2]), order).tolist() == [1, 2, 0]
    assert by_attained_service(np.zeros(3), np.zeros(3, np.int64), order[::-1].copy()).tolist() == [2, 1, 0]


def test_if_the_running_coflow_counts_a_job_that_begins_comes_first() -> None:
    sent, completed = np.array([1.0, 9.0, 8.0]), np.array([0, 3, 2])
    assert by_attained_service(sent, completed, np.arange(3), "started").tolist() == [0, 1, 2]


def test_the_occupancy_ratio_grows_from_fair_to_its_limit() -> None:
    assert occupancy_ratio(5, 0.0, 0.9) == pytest.approx(0.2)
    values = [occupancy_ratio(5, 10.0**k, 0.9) for k in range(12)]
    assert values == sorted(values)
    assert values[-1] == 0.9


@pytest.mark.parametrize("theta", [0.2, 0.5, 0.9])
def test_the_inferred_job_gets_the_ratio_in_competition(theta: float) -> None:
    weight = inferred_weight(5, theta)
    assert weight / (weight + 4) == pytest.approx(theta)
    assert inferred_weight(1, theta) == 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"theta_max": 1.0},
        {"theta_max": 0.0},
        {"conservation": "some"},
        {"scope": "some"},
        {"service": "some"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        Parrot(**options)  # type: ignore[arg-type]
