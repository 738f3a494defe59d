"""Profiles of jobs, and CCML's shifts."""

from __future__ import annotations

import numpy as np
import pytest

from schedulers.cassini.ccml import best_shift, excess
from schedulers.cassini.profile import Phase, Profile, of_ups, up_down


def test_a_profile_repeats() -> None:
    profile = up_down(0.3, 0.2, 8.0)
    assert profile.period == pytest.approx(0.5)
    assert profile.bytes == pytest.approx(1.6)
    assert profile.demand(np.array([0.1, 0.35, 0.6, 0.85, 100.35])).tolist() == [0.0, 8.0, 0.0, 8.0, 8.0]


@pytest.mark.parametrize(
    "phases", [(), (Phase(0.0, 1.0),), (Phase(-1.0, 1.0), Phase(2.0, 1.0)), (Phase(1.0, float("nan")),)]
)
def test_profiles_that_make_no_sense_are_refused(phases: tuple[Phase, ...]) -> None:
    with pytest.raises(ValueError, match="phases"):
        Profile(phases)


def test_ccml_interleaves_jobs_that_fit() -> None:
    """Three equal jobs that send a third of the time fit without any excess."""
    profile = up_down(0.4, 0.2, 1.0)
    first = (profile, 0.0)
    second = (profile, best_shift([[first]], profile, 1.0))
    third = best_shift([[first, second]], profile, 1.0)
    shifts = np.array([third])
    assert excess([first, second], profile, shifts, 1.0, 6.0, 600)[0] < 0.01
    assert excess([first, second], profile, np.array([0.0]), 1.0, 6.0, 600)[0] > 0.1


def test_ccml_does_not_wait_alone() -> None:
    assert best_shift([[], []], up_down(0.5, 0.5, 1.0), 1.0) == 0.0


def test_up_phases_become_a_profile_and_back() -> None:
    ups = [(0.5, 0.7, 3.0), (0.1, 0.2, 5.0), (0.2, 0.3, 4.0)]
    profile = of_ups(1.0, ups)
    assert profile.period == pytest.approx(1.0)
    assert profile.ups == pytest.approx(np.array(sorted(ups)))
    assert profile.demand(np.array([0.05, 0.15, 0.25, 0.4, 0.6, 0.9])).tolist() == [0, 5, 4, 0, 3, 0]


@pytest.mark.parametrize(
    ("period", "ups", "message"),
    [
        (0.0, [], "period"),
        (1.0, [(0.2, 0.2, 1.0)], "empty"),
        (1.0, [(0.5, 1.1, 1.0)], "not within the period"),
        (1.0, [(0.1, 0.5, 1.0), (0.4, 0.6, 1.0)], "before the one ahead of it ends"),
        (1.0, [(0.1, 0.5, -1.0)], "rates of at least 0"),
    ],
)
def test_wrong_up_phases_are_refused(
    period: float, ups: list[tuple[float, float, float]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        of_ups(period, ups)


def test_a_waiting_job_sends_the_same_in_a_longer_period() -> None:
    profile = up_down(0.3, 0.2, 8.0)
    waiting = profile.waiting(0.6)
    assert waiting.period == pytest.approx(0.6)
    assert waiting.ups.tolist() == profile.ups.tolist()
    with pytest.raises(ValueError, match="does not fit"):
        profile.waiting(0.4)
