"""Paces for jobs that run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.cassini.affinity import Link
from schedulers.cassini.plan import SLACK, Grid, Plan, later, plan, refit, stretched
from schedulers.cassini.profile import Profile, up_down

CAPACITY = 12.5e6


def busiest(found: Plan, profiles: Mapping[str, Profile], seconds: float) -> float:
    """The most that jobs with these paces demand at one time, as a multiple of the capacity."""
    times = np.arange(0.0, seconds, 1e-3)
    total = np.zeros_like(times)
    for job, grid in found.grids.items():
        since = np.mod(times - grid.anchor, grid.period)
        total += np.where(since < profiles[job].period, profiles[job].demand(since), 0.0)
    return float(total.max()) / CAPACITY


@settings(max_examples=15)
@given(
    st.integers(2, 3).flatmap(lambda n: st.lists(st.floats(0.05, 0.85 / n), min_size=n, max_size=n)),
    st.lists(st.floats(0.0, 10.0), min_size=4, max_size=4),
)
def test_jobs_that_fit_never_send_at_the_same_time(parts: list[float], starts: list[float]) -> None:
    names = [f"job{n}" for n in range(len(parts))]
    profiles = {name: up_down(1.0 - part, part, CAPACITY) for name, part in zip(names, parts, strict=True)}
    began = dict(zip(names, starts, strict=False))
    found = plan(profiles, [Link("link", CAPACITY, tuple(names))], began, bound=0.05)
    assert found.score == pytest.approx(1.0, abs=0.01)
    assert busiest(found, profiles, 5.0) <= 1.0
    for job, grid in found.grids.items():
        assert 1.0 + SLACK <= grid.period <= (1.0 + SLACK) * 1.01
        assert 0.0 <= found.shifts[job] < grid.period
        assert (grid.anchor - began[job] - found.shifts[job] + 0.06) % grid.period < 0.12
    assert 0.0 in found.shifts.values(), "one need not move"


def test_jobs_that_are_apart_already_stay() -> None:
    profiles = {name: up_down(0.6, 0.4, CAPACITY) for name in ("one", "two")}
    links = [Link("link", CAPACITY, ("one", "two"))]
    first = plan(profiles, links, {"one": 0.0, "two": 0.0}, bound=0.05)
    starts = {job: grid.anchor + 7 * grid.period for job, grid in first.grids.items()}
    again = plan(profiles, links, starts, bound=0.05)
    assert set(again.shifts.values()) == {0.0}


def test_room_is_shared_evenly() -> None:
    profiles = {name: up_down(0.6, 0.4, CAPACITY) for name in ("one", "two")}
    found = plan(profiles, [Link("link", CAPACITY, ("one", "two"))], dict.fromkeys(profiles, 0.0))
    assert max(found.shifts.values()) == pytest.approx(0.5, abs=0.02)


def test_phases_that_do_not_fit_get_longer_periods_in_which_they_do() -> None:
    """Each of two jobs sends for 60 % of its iteration: 1.2 of it is the best that both can have."""
    profiles = {name: up_down(0.4, 0.6, CAPACITY) for name in ("one", "two")}
    found = plan(profiles, [Link("link", CAPACITY, ("one", "two"))], dict.fromkeys(profiles, 0.0))
    assert found.score == pytest.approx(0.8, abs=0.01)
    assert {round(grid.period / (1 + SLACK), 2) for grid in found.grids.values()} == {1.2}
    assert busiest(found, profiles, 6.0) <= 1.0


def test_jobs_below_the_threshold_keep_their_time() -> None:
    profiles = {name: up_down(0.2, 0.8, CAPACITY) for name in ("one", "two")}
    found = plan(profiles, [Link("link", CAPACITY, ("one", "two"))], dict.fromkeys(profiles, 0.0))
    assert not found.grids
    assert set(found.reasons) == {"one", "two"}


def test_a_profile_at_another_rate_sends_as_much_and_computes_as_long() -> None:
    contended = up_down(0.4, 0.6, CAPACITY / 2)
    alone = contended.at_rate(CAPACITY)
    assert alone == up_down(0.4, 0.3, CAPACITY)


def test_padding_takes_its_time_from_the_pause_that_follows() -> None:
    padded = up_down(0.4, 0.6, CAPACITY).padded(0.1)
    assert padded.period == pytest.approx(1.0)
    assert padded.demand(np.array([0.05, 0.2, 0.5])).tolist() == [CAPACITY, 0.0, CAPACITY]
    full = up_down(0.4, 0.6, CAPACITY).padded(5.0)
    assert (full.period, float(full.demand(np.array([0.3]))[0])) == (pytest.approx(1.0), CAPACITY)


def test_jobs_that_are_connected_with_some_that_do_not_fit_keep_their_time() -> None:
    """One and two fit, but two meets three, with which it does not: then it is late in every iteration."""
    profiles = {"one": up_down(0.6, 0.4, CAPACITY), "two": up_down(0.6, 0.4, CAPACITY)}
    profiles["three"] = up_down(0.02, 0.98, CAPACITY)
    fits, not_ = Link("fits", CAPACITY, ("one", "two")), Link("not", CAPACITY, ("two", "three"))
    starts = dict.fromkeys(profiles, 0.0)
    assert set(plan(profiles, [fits], starts).grids) == {"one", "two"}
    found = plan(profiles, [fits, not_], starts)
    assert not found.grids
    assert not found.groups
    assert "not" in found.reasons["one"]


@given(st.floats(0.0, 50.0), st.floats(0.0, 0.5), st.floats(1.0, 1.1))
def test_grids_move_together(now: float, late: float, factor: float) -> None:
    """Each is later by as much, and no start comes before what it had been told."""
    grids = {"one": Grid(0.1, 1.0), "two": Grid(0.6, 1.0), "three": Grid(0.2, 0.5)}
    after = stretched(later(grids, late), now + late, factor)
    assert {job: grid.period for job, grid in after.items()} == pytest.approx(
        {job: grid.period * factor for job, grid in grids.items()}
    )
    first = after["one"].anchor
    for job, grid in after.items():
        ahead = (grids[job].anchor - grids["one"].anchor) % grids[job].period
        assert (grid.anchor - first - factor * ahead) % grid.period == pytest.approx(0.0, abs=1e-6) or (
            grid.period - (grid.anchor - first - factor * ahead) % grid.period
        ) == pytest.approx(0.0, abs=1e-6)
        assert grid.anchor >= now + late - 1e-9


@given(st.floats(0.1, 10.0), st.floats(1.0, 1.5), st.floats(0.5, 2.0))
def test_a_period_that_is_fitted_to_iterations_is_as_long_as_they_are(
    alone: float, longer: float, lasts: float
) -> None:
    """Unless they fit the longer one that phases need which collide: that stays."""
    solved = alone * longer
    period = solved * refit(alone, solved, alone * lasts)
    assert period == pytest.approx(solved * lasts if lasts < 1.0 else max(solved, alone * lasts))


def test_many_jobs_are_not_slowed_down_for_the_sake_of_two() -> None:
    """Two need longer periods, in which the others would have to wait as well."""
    profiles = {name: up_down(0.4, 0.6, CAPACITY) for name in ("one", "two")}
    links = [Link("shared", CAPACITY, ("one", "two"))]
    assert set(plan(profiles, links, dict.fromkeys(profiles, 0.0)).grids) == {"one", "two"}
    for name in ("three", "four", "five", "six"):
        profiles[name] = up_down(0.95, 0.05, CAPACITY)
        links.append(Link(name, CAPACITY, ("two", name)))
    found = plan(profiles, links, dict.fromkeys(profiles, 0.0))
    assert not found.grids
    assert "by chance" in found.reasons["three"]
