"""MLTCP as a fluid: what becomes of jobs whose sending overlaps. Capacity is 1 byte/s, and T is 1 s."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machine.errors import BadInput
from schedulers.cassini.profile import Phase, Profile, up_down
from schedulers.mltcp import FAIR, Gain
from simulation.mltcp import PeriodicJob, best_period, fluid, shares, summary

MLTCP = Gain()


def _equal_jobs(
    n: int, part: float, *, apart: float = 0.01, connections: tuple[float, ...] = (1.0,)
) -> list[PeriodicJob]:
    """n jobs that communicate for `part` of their period, begun `apart` s one after the other."""
    profile = up_down(1.0 - part, part, 1.0)
    return [PeriodicJob(profile, apart * i, connections) for i in range(n)]


def test_fair_sharing_never_parts_two_jobs() -> None:
    """Begun 1 % of T apart, sending half of T, they take 1.49 T for ever: what one gains by beginning it
    loses by waiting for the other."""
    for times in fluid(_equal_jobs(2, 0.5), 1.0, 50, FAIR):
        assert times == pytest.approx([1.49] * len(times), abs=1e-9)


def test_mltcp_parts_two_jobs_within_six_iterations() -> None:
    for times in fluid(_equal_jobs(2, 0.5), 1.0, 50, MLTCP):
        assert max(times[6:]) <= 1.02
        assert min(times) >= 1.0 - 1e-9


@pytest.mark.parametrize("apart", [0.001, 0.01, 0.1, 0.3])
def test_fluid_agrees_with_the_exact_solution(apart: float) -> None:
    """In a time that runs at 1 / ΣF both ratios grow exponentially, so that the first meeting has a closed
    form."""
    part, offset = 0.5, MLTCP.intercept / MLTCP.slope
    ahead = apart / part
    growth = (1.0 + offset) / (ahead + offset)
    other = (growth - 1.0) * offset
    expected = (1.0 - part) + apart + part * (1.0 - ahead + other)
    times, _ = fluid(_equal_jobs(2, part, apart=apart), 1.0, 1, MLTCP)
    assert times[0] == pytest.approx(expected, abs=2e-4)


def test_identical_jobs_are_an_unstable_equilibrium() -> None:
    """A fluid has no noise: nothing parts jobs that begin at once; a millionth of T does."""
    for times in fluid(_equal_jobs(2, 0.5, apart=0.0), 1.0, 10, MLTCP):
        assert times == pytest.approx([1.5] * len(times))
    for times in fluid(_equal_jobs(2, 0.5, apart=1e-6), 1.0, 20, MLTCP):
        assert times[-1] == pytest.approx(1.0, abs=0.02)


def test_a_link_that_is_too_small_is_filled() -> None:
    """Two jobs that each need 0.6 T of the link cannot do better than 1.2 T; MLTCP does that, fair sharing
    1.59 T."""
    jobs = _equal_jobs(2, 0.6)
    assert best_period(jobs, 1.0) == pytest.approx(1.2)
    for times in fluid(jobs, 1.0, 40, MLTCP):
        assert summary(times[6:], 1.2).ratio == pytest.approx(1.0, abs=0.01)
        assert summary(times[6:], 1.2).maximum <= 1.2 * 1.02
    for times in fluid(jobs, 1.0, 40, FAIR):
        assert times == pytest.approx([1.59] * len(times))


@pytest.mark.parametrize(("n", "part"), [(3, 0.3), (3, 1 / 3), (6, 0.15), (6, 1 / 6)])
def test_compatible_jobs_come_to_run_as_if_alone(n: int, part: float) -> None:
    jobs = _equal_jobs(n, part)
    for times in fluid(jobs, 1.0, 20, MLTCP):
        assert max(times[10:]) <= 1.02
    assert max(max(times[10:]) for times in fluid(jobs, 1.0, 20, FAIR)) > 1.3


@pytest.mark.parametrize(
    "jobs",
    [
        _equal_jobs(4, 0.5),
        _equal_jobs(3, 0.9),
        [
            PeriodicJob(up_down(0.5, 0.5, 1.0)),
            PeriodicJob(up_down(0.7, 0.6, 1.0), 0.01),
            PeriodicJob(up_down(0.1, 0.3, 1.0), 0.02),
        ],
    ],
    ids=["four of a half", "three of nine tenths", "other periods"],
)
def test_incompatible_jobs_do_not_starve(jobs: list[PeriodicJob]) -> None:
    """Nobody gets less than F(0) against all others' F(1), and the link is not wasted either."""
    least = MLTCP.of(0.0) / (MLTCP.of(0.0) + (len(jobs) - 1) * MLTCP.of(1.0))
    outcome = fluid(jobs, 1.0, 30, MLTCP)
    for job, times in zip(jobs, outcome, strict=True):
        computing = job.profile.phases[0].seconds
        assert max(times) < computing + job.profile.bytes / least
        assert max(times[10:]) < 1.7 * best_period(jobs, 1.0)
    end = min(job.start + math.fsum(times) for job, times in zip(jobs, outcome, strict=True))
    carried = math.fsum(
        len(times) * job.profile.bytes * end / (job.start + math.fsum(times))
        for job, times in zip(jobs, outcome, strict=True)
    )
    assert 0.9 * end < carried < 1.05 * end


def test_connections_of_a_job_share_its_ratio() -> None:
    """Split evenly, they do what one would that weighs as much; split unevenly, jobs part all the same."""
    one = fluid(_equal_jobs(2, 0.5), 1.0, 12, MLTCP)
    four = fluid(_equal_jobs(2, 0.5, connections=(0.25,) * 4), 1.0, 12, MLTCP)
    for a, b in zip(one, four, strict=True):
        assert a == pytest.approx(b)
    for times in fluid(_equal_jobs(2, 0.5, connections=(0.6, 0.3, 0.1)), 1.0, 20, MLTCP):
        assert max(times[12:]) <= 1.02


def test_very_uneven_connections_keep_jobs_together() -> None:
    """The limit of a ratio over the sum: of connections with 70, 20 and 10 %, a job that is ahead has one
    left against three of the job behind, which outweighs the gain."""
    for times in fluid(_equal_jobs(2, 0.5, connections=(0.7, 0.2, 0.1)), 1.0, 30, MLTCP):
        assert min(times[20:]) > 1.2


def test_connections_weigh_one_by_one() -> None:
    """Four against one get four times as much where F is the same, as TCP's do."""
    jobs = [
        PeriodicJob(up_down(0.0, 0.8, 1.0), connections=(0.25,) * 4),
        PeriodicJob(up_down(0.0, 0.2, 1.0)),
    ]
    for times in fluid(jobs, 1.0, 3, FAIR):
        assert times == pytest.approx([1.0] * len(times))


def test_jobs_that_fit_at_once_do_not_slow_each_other() -> None:
    jobs = [PeriodicJob(up_down(0.5, 0.5, 0.5), 0.01 * i) for i in range(2)]
    for times in fluid(jobs, 1.0, 5, MLTCP):
        assert times == pytest.approx([1.0] * len(times))


def test_every_phase_of_a_profile_counts() -> None:
    """Alone, an iteration takes its period; on a link of half its rate, its Up phases take twice as long."""
    profile = Profile((Phase(0.1, 1.0), Phase(0.2, 0.0), Phase(0.3, 0.5), Phase(0.4, 0.0), Phase(0.2, 1.0)))
    job = PeriodicJob(profile, start=3.0)
    ((*alone,),) = fluid([job], 1.0, 3, MLTCP)
    assert alone == pytest.approx([1.2] * 3)
    ((*halved,),) = fluid([job], 0.5, 3, MLTCP)
    assert halved == pytest.approx([1.5] * 3)
    assert best_period([job], 0.5) == pytest.approx(1.5)


def test_same_input_same_result() -> None:
    jobs = _equal_jobs(3, 0.4)
    assert fluid(jobs, 1.0, 8, MLTCP) == fluid(jobs, 1.0, 8, MLTCP)


@given(
    flows=st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.01, 100.0)), min_size=1, max_size=8),
    capacity=st.floats(0.1, 100.0),
)
def test_shares_are_weighted_max_min(flows: list[tuple[float, float]], capacity: float) -> None:
    """The link is full or all have what they ask; who has less than it asks has the highest share per
    weight."""
    weights, demands = zip(*flows, strict=True)
    result = shares(weights, demands, capacity)
    assert math.fsum(result) == pytest.approx(min(capacity, math.fsum(demands)))
    level = max(r / w for r, w in zip(result, weights, strict=True))
    for r, w, d in zip(result, weights, demands, strict=True):
        assert r == pytest.approx(d) or r / w == pytest.approx(level)
        assert 0.0 <= r <= d * (1.0 + 1e-9)


def test_summary_holds_mean_tail_and_ratio() -> None:
    found = summary([1.0] * 99 + [3.0], 1.0)
    assert (found.mean, found.maximum, found.ratio) == pytest.approx((1.02, 3.0, 1.02))
    assert 1.0 <= found.p99 < 1.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": -1.0}, "starts at"),
        ({"start": math.nan}, "starts at"),
        ({"profile": up_down(1.0, 0.0, 1.0)}, "sends nothing"),
        ({"connections": ()}, "connections"),
        ({"connections": (0.5, 0.4)}, "sum to 1"),
        ({"connections": (1.5, -0.5)}, "above 0"),
    ],
)
def test_senseless_jobs_are_refused(change: dict[str, object], message: str) -> None:
    values: dict[str, object] = {"profile": up_down(0.5, 0.5, 1.0), **change}
    with pytest.raises(BadInput, match=message):
        PeriodicJob(**values)  # type: ignore[arg-type]


def test_senseless_runs_are_refused() -> None:
    jobs = _equal_jobs(2, 0.5)
    for arguments, message in [
        (([], 1.0, 1), "no jobs"),
        ((jobs, 0.0, 1), "capacity"),
        ((jobs, math.inf, 1), "capacity"),
        ((jobs, 1.0, 0), "iterations"),
    ]:
        with pytest.raises(BadInput, match=message):
            fluid(*arguments, MLTCP)
