"""How starts of iterations follow a pace."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from schedulers.cassini.pace import PATIENCE, REST, Follower, Kind, Pace

TIMES = st.integers(0, 10**12)


def after_the_grid(pace: Pace, time: int) -> int:
    """How much later `time` is than the last point of the grid before it."""
    return (time - pace.anchor_ns) % pace.period_ns


@st.composite
def paces(draw: st.DrawFn) -> Pace:
    period = draw(st.integers(10, 10**10))
    return Pace(draw(st.integers(-(10**12), 10**12)), period, draw(st.integers(0, (period - 1) // 2)))


@given(st.lists(st.tuples(st.none() | paces(), TIMES), min_size=1))
def test_nothing_waits_longer_than_a_period(calls: list[tuple[Pace | None, int]]) -> None:
    follower = Follower()
    for pace, now in calls:
        waits = follower.start(pace, now).at_ns - now
        assert waits == 0 if pace is None else 0 <= waits <= pace.period_ns


@given(paces(), TIMES, st.lists(st.floats(0.0, 2.5), min_size=REST, max_size=4 * REST))
def test_a_start_is_on_the_grid_or_within_the_bound_unless_it_is_late_only_now(
    pace: Pace, now: int, lasts: list[float]
) -> None:
    """Iterations last so many periods."""
    follower = Follower()
    kinds = []
    for each in lasts:
        start = follower.start(pace, now)
        now = start.at_ns + round(each * pace.period_ns)
        kinds.append(start.kind)
        if start.kind is Kind.LATE:
            recent = kinds[-1 - REST :]
            assert Kind.CORRECTED in recent or set(kinds[-PATIENCE:]) != {Kind.LATE}
        else:
            assert after_the_grid(pace, start.at_ns) <= pace.bound_ns
    corrected = [place for place, kind in enumerate(kinds) if kind is Kind.CORRECTED]
    assert all(after - before > REST for before, after in itertools.pairwise(corrected))


@given(st.integers(51, 499))
def test_drift_beyond_the_bound_is_corrected(late: int) -> None:
    follower, pace = Follower(), Pace(0, 1000, 50)
    assert follower.start(pace, 0).kind is Kind.KEPT
    starts = [follower.start(pace, 1000 * turn + late) for turn in range(1, PATIENCE + 1)]
    assert [start.kind for start in starts] == [Kind.LATE] * (PATIENCE - 1) + [Kind.CORRECTED]
    assert starts[-1].at_ns == 1000 * (PATIENCE + 1)
    assert {start.drift_ns for start in starts} == {late}


@given(st.integers(0, 999))
def test_a_short_iteration_waits_for_its_turn(lasts: int) -> None:
    follower, pace = Follower(), Pace(0, 1000, 50)
    for turn in range(5):
        assert follower.start(pace, max(0, 1000 * (turn - 1) + lasts)).at_ns == 1000 * turn


@given(st.integers(1, 450))
def test_a_pace_that_is_moved_to_a_late_job_delays_the_others_by_no_more(late: int) -> None:
    follower, moved = Follower(), Pace(late, 1000, 50)
    assert follower.start(Pace(0, 1000, 50), 0).at_ns == 0
    assert follower.start(moved, 1000).at_ns == 1000 + late
    assert follower.start(moved, 2000 + late).at_ns == 2000 + late


@given(st.integers(0, 999), st.integers(900, 1000))
def test_clocks_that_disagree_cost_a_job_at_most_a_period_in_20(apart: int, lasts: int) -> None:
    """Two ranks start each iteration together with the other's data, by grids that are `apart`."""
    ranks = [(Follower(), Pace(anchor, 1000, 50)) for anchor in (0, apart)]
    now, iterations = 0, 200
    for _ in range(iterations):
        now = max(follower.start(pace, now).at_ns for follower, pace in ranks) + lasts
    assert now <= 1000 * (iterations * (1 + len(ranks) / REST) + 2 * len(ranks))


@given(st.integers(0, 999), st.integers(0, 400), st.integers(900, 1100))
def test_a_pace_that_moves_makes_no_job_wait_longer_than_it_moves(moved: int, late: int, lasts: int) -> None:
    """A job that lasts `lasts` of its old period and is late by `late` when its pace moves."""
    follower = Follower()
    assert follower.start(Pace(0, 1000, 50), 0).at_ns == 0
    now = lasts + late
    start = follower.start(Pace(moved, 1000, 50), now)
    assert start.at_ns <= max(now, 1000 + moved)
