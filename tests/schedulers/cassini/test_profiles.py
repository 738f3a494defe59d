"""Profiles of jobs, and CCML's shifts."""

from __future__ import annotations

import numpy as np
import pytest

from schedulers.cassini.ccml import best_shift, excess
from schedulers.cassini.profile import Phase, Profile, up_down


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
