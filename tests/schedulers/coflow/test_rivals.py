"""The rivals: who is served first, what is left over, and that no capacity is broken or wasted."""

from __future__ import annotations

import numpy as np
import pytest

from schedulers.coflow.allocation import bottleneck_time, primal_dual_order
from schedulers.coflow.filling import link_loads
from schedulers.coflow.parrot import Parrot, Scope
from schedulers.coflow.rivals import DClas, Fifo, LeastBytesSent, LeastCompletedCoflows, Mcs, Varys
from schedulers.coflow.view import CoflowPolicy, View


def view(coflows: list[list[tuple[int, int, float]]], ports: int = 4, **columns: list[float]) -> View:
    """Return the view of coflows of flows (source, destination, bytes) at a switch of rate 1, one job
    each."""
    flows = [flow for c in coflows for flow in c]
    links = np.array([[s, ports + d] for s, d, _ in flows], np.int32)
    size = np.array([b for _, _, b in flows])
    last = np.cumsum([len(c) for c in coflows])
    first = np.concatenate([[0], last[:-1]])
    capacity, n = np.ones(2 * ports), len(coflows)
    gamma = [
        bottleneck_time(links, size, a, b, capacity, np.zeros(2 * ports))
        for a, b in zip(first, last, strict=True)
    ]
    zeros = [0.0] * n
    return View(
        capacity,
        links,
        size,
        size.copy(),
        np.full(len(size), np.nan),
        first,
        last,
        np.arange(n),
        np.arange(n),
        np.array(gamma),
        np.array(columns.get("sent", zeros)),
        np.arange(n),
        np.array(columns.get("job_sent", zeros)),
        np.array(columns.get("job_completed", zeros)).astype(np.int64),
    )


def random_view(seed: int) -> View:
    rng = np.random.default_rng(seed)
    coflows = [
        [
            (int(rng.integers(4)), int(rng.integers(4)), float(rng.uniform(1, 9)))
            for _ in range(int(rng.integers(1, 9)))
        ]
        for _ in range(int(rng.integers(1, 7)))
    ]
    n = len(coflows)
    made = view(coflows, sent=list(rng.uniform(0, 1e8, n)), job_sent=list(rng.uniform(0, 1e8, n)))
    made.job_completed[:] = rng.integers(0, 4, n)
    return made


POLICIES: list[CoflowPolicy] = [
    Varys(),
    Varys(dynamic=False),
    Fifo(),
    LeastBytesSent(),
    LeastCompletedCoflows(),
    DClas(),
    DClas(weighted=True),
    DClas(entity="job"),
    DClas(entity="job", weighted=True),
    Mcs(),
    Parrot(),
    Parrot(conservation="filling"),
    Parrot(conservation="none"),
    Parrot(conservation="ordered"),
    Parrot(scope="network"),
    Parrot(service="started"),
    LeastBytesSent(conservation="shared"),
    LeastBytesSent(conservation="factor"),
    LeastBytesSent(allocation="max-min"),
    LeastBytesSent(conservation="none"),
]
CONSERVING = [p for p in POLICIES if getattr(p, "conservation", "") not in ("shared", "factor", "none")]
"""With "shared" the first coflow keeps to what MADD gives it, though its shorter flows could send more."""


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.name}-{POLICIES.index(p)}")
def test_rates_are_feasible_and_repeat(policy: CoflowPolicy) -> None:
    for seed in range(40):
        seen = random_view(seed)
        policy.allocate(seen)
        load = np.zeros(8)
        link_loads(seen.links, np.arange(len(seen.size)), seen.rate, load)
        assert (seen.rate >= 0.0).all()
        assert (load <= 1.0 + 1e-9).all()
        again = random_view(seed)
        policy.allocate(again)
        assert (again.rate == seen.rate).all()


@pytest.mark.parametrize("policy", CONSERVING, ids=lambda p: f"{p.name}-{POLICIES.index(p)}")
def test_work_conservation_leaves_no_flow_that_could_send_more(policy: CoflowPolicy) -> None:
    for seed in range(40):
        seen = random_view(seed)
        policy.allocate(seen)
        load = np.zeros(8)
        link_loads(seen.links, np.arange(len(seen.size)), seen.rate, load)
        assert (load[seen.links].max(axis=1) >= 1.0 - 1e-6).all()


@pytest.mark.parametrize("scope", ["link", "network"])
def test_one_common_factor_speeds_nobody_up_by_more_than_one_over_theta(scope: Scope) -> None:
    """Whatever the workload: the inferred job alone loads its own bottleneck with θ."""
    for seed in range(20):
        seen, alone = random_view(seed), random_view(seed)
        Parrot(scope=scope).allocate(seen)
        Parrot(scope=scope, conservation="none").allocate(alone)
        weight = Parrot().weights(seen)[0]
        theta = (weight / weight.sum()).max()
        assert (seen.rate <= alone.rate / theta * (1 + 1e-9)).all()


SPARE = {
    "none": [1, 0, 0, 0],
    "ordered": [1, 1, 0, 1],
    "shared": [1, 1 / 2, 1 / 2, 1],
    "factor": [1, 2 / 3, 1 / 3, 2 / 3],
}
"""Rates where the first coflow meets nobody, the second meets the first of the third's two flows.

none: only the first sends. ordered: the second fills its links, so MADD skips the third, whose other flow
takes what is spare. shared: the rest is max-min fair by flow. factor: alone, the second has rate 1, the third
1/2 and 1 (its flows end together); the link that they share is asked for 3/2, so all get 2/3 of that.
"""


@pytest.mark.parametrize("conservation", SPARE)
def test_what_the_first_leaves_goes_to_nobody_or_by_order_flow_or_factor(conservation: str) -> None:
    seen = view([[(0, 1, 9.0)], [(2, 3, 4.0)], [(2, 3, 1.0), (4, 5, 2.0)]], ports=6)
    Fifo(conservation=conservation).allocate(seen)  # type: ignore[arg-type]
    assert seen.rate == pytest.approx(SPARE[conservation])


def test_filling_gives_at_least_what_the_common_factor_gives() -> None:
    for seed in range(20):
        factor, filling = random_view(seed), random_view(seed)
        Parrot().allocate(factor)
        Parrot(conservation="filling").allocate(filling)
        assert (filling.rate >= factor.rate * (1 - 1e-9)).all()


def test_the_first_coflow_gets_its_rates_alone() -> None:
    short, long = [(0, 1, 1.0), (0, 2, 2.0)], [(0, 1, 9.0)]
    seen = view([long, short])
    Varys().allocate(seen)
    assert seen.rate == pytest.approx([0.0, 1 / 3, 2 / 3])
    seen = view([long, short], job_sent=[0.0, 1.0])
    LeastBytesSent().allocate(seen)
    assert seen.rate == pytest.approx([1.0, 0.0, 0.0])
    seen = view([long, short], job_completed=[3, 2])
    LeastCompletedCoflows().allocate(seen)
    assert seen.rate[0] == 0.0


def test_without_work_conservation_only_the_first_sends() -> None:
    seen = view([[(0, 1, 4.0)], [(2, 3, 1.0)]])
    Fifo(conservation="none").allocate(seen)
    assert seen.rate == pytest.approx([1.0, 0.0])
    Fifo().allocate(seen)
    assert seen.rate == pytest.approx([1.0, 1.0])


def test_d_clas_queues_by_bytes_sent_and_is_reviewed_at_thresholds() -> None:
    policy = DClas(queues=3, first_threshold=10.0, factor=10.0)
    seen = view([[(0, 1, 500.0)], [(0, 1, 5.0)]], sent=[40.0, 4.0])
    assert policy.queue(seen).tolist() == [1, 0]
    policy.allocate(seen)
    assert seen.rate == pytest.approx([0.0, 1.0])
    assert policy.review_after(seen) == pytest.approx(6.0)
    seen.sent[:] = [99.9999999999, 1e9]
    assert policy.queue(seen).tolist() == [2, 2]
    weighted = view([[(0, 1, 500.0)], [(0, 1, 5.0)]], sent=[40.0, 4.0])
    DClas(queues=3, first_threshold=10.0, weighted=True).allocate(weighted)
    assert weighted.rate == pytest.approx([2 / 5, 3 / 5])


def test_aalo_takes_all_coflows_of_a_job_as_one_and_d_clas_each_by_itself() -> None:
    """Job 0 has sent much, but its two present coflows little; job 1 some, all in its one coflow.

    Coflows of one job share one entity's queue: by coflow job 0's are first, by job it is job 1's.
    """
    coflows = [[(0, 1, 500.0)], [(0, 2, 500.0)], [(0, 3, 500.0)]]
    expected = {"coflow": [0.0, 1.0, 0.0], "job": [0.0, 0.0, 1.0]}
    for entity, rates in expected.items():
        seen = view(coflows, sent=[4.0, 2.0, 40.0], job_sent=[900.0, 900.0, 40.0])
        seen.job[:] = [0, 0, 1]
        seen.order[:] = [2, 1, 0]
        policy = DClas(entity=entity, queues=3, first_threshold=10.0)  # type: ignore[arg-type]
        policy.allocate(seen)
        assert seen.rate == pytest.approx(rates), entity
    seen.job_sent[:] = [5.0, 5.0, 7.0]
    policy = DClas(entity="job", queues=3, first_threshold=10.0)
    assert policy.ranking(seen).tolist() == [1, 0, 2]  # job 0 came first, and its second coflow before
    LeastBytesSent().allocate(seen)
    assert seen.rate == pytest.approx([0.0, 1.0, 0.0])


def test_a_job_crosses_a_threshold_at_the_sum_of_its_coflows_rates() -> None:
    seen = view([[(0, 1, 500.0)], [(2, 3, 500.0)]], job_sent=[4.0, 4.0])
    seen.job[:] = [0, 0]
    policy = DClas(entity="job", queues=3, first_threshold=10.0)
    policy.allocate(seen)
    assert seen.rate == pytest.approx([1.0, 1.0])
    assert policy.review_after(seen) == pytest.approx(3.0)


def test_the_primal_dual_order_puts_the_heaviest_last() -> None:
    seen = view([[(0, 1, 9.0)], [(0, 2, 1.0)], [(0, 3, 4.0)]])
    order = primal_dual_order(seen.first, seen.last, seen.links, seen.remaining, seen.capacity)
    assert order.tolist() == [1, 2, 0]


def test_several_coflows_of_a_job_share_its_weight() -> None:
    seen = view([[(0, 1, 4.0)], [(1, 2, 4.0)], [(2, 3, 4.0)]])
    seen.job[:] = [0, 0, 1]
    assert Parrot().weights(seen)[0] == pytest.approx([0.5, 0.5, 1.0])


def test_weights_act_among_the_coflows_that_meet_on_a_link() -> None:
    """The flow of the third coflow meets nobody and has the rate that it would have alone; with the sum over
    all coflows it has a third of that. The second's flows meet the first on one of two links."""
    coflows = [[(0, 1, 4.0)], [(0, 2, 2.0), (3, 2, 2.0)], [(4, 5, 4.0)]]
    met, letter = view(coflows, ports=6), view(coflows, ports=6)
    Parrot(conservation="none").allocate(met)
    Parrot(conservation="none", scope="network").allocate(letter)
    assert letter.rate == pytest.approx([1 / 3, 1 / 6, 1 / 6, 1 / 3])
    assert met.rate == pytest.approx([1 / 2, 1 / 4, 1 / 2, 1])


def test_a_coflow_counts_once_on_a_link_whatever_its_flows() -> None:
    seen = view([[(0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0)], [(0, 4, 3.0)]], ports=5)
    Parrot(conservation="none").allocate(seen)
    assert seen.rate == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_where_all_coflows_meet_on_each_link_the_letter_is_the_same() -> None:
    for seed in range(10):
        random = np.random.default_rng(seed)
        coflows = [[(0, 1, float(size))] for size in random.uniform(1.0, 9.0, 5)]
        seen, letter = view(coflows), view(coflows)
        seen.job_sent[:] = letter.job_sent[:] = random.uniform(1.0, 9.0, 5)
        Parrot().allocate(seen)
        Parrot(scope="network").allocate(letter)
        assert seen.rate == pytest.approx(letter.rate)


def test_thresholds_must_make_sense() -> None:
    with pytest.raises(ValueError, match="D-CLAS"):
        DClas(first_threshold=0.0)
    with pytest.raises(ValueError, match="entity"):
        DClas(entity="flow")  # type: ignore[arg-type]
