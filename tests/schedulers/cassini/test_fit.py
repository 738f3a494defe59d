"""The fit of jobs on one link, against brute force."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.cassini.circle import common_multiple, samples
from schedulers.cassini.fit import SLACK, Fit, arcs_of, best, curve, score
from schedulers.cassini.kernels import sampled, search, wheels_of
from schedulers.cassini.profile import Profile, of_ups, up_down
from schedulers.compiled import Floats
from tests.schedulers.cassini.jobs import CAPACITY, random_profile
from workloads.profiles import read_profiles

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"


def on_circle(profiles: list[Profile]) -> tuple[list[Profile], float]:
    common = common_multiple([profile.period for profile in profiles])
    periods = common.periods.tolist()
    return [p.waiting(t) for p, t in zip(profiles, periods, strict=True)], common.perimeter


def circles(profiles: list[Profile], perimeter: float, angles: int) -> tuple[Floats, list[int]]:
    """Each job's samples, and within how many rotations its first iteration lies."""
    periods = np.array([profile.period for profile in profiles])
    count = samples(perimeter, periods, angles)
    turned = sampled(*arcs_of(profiles, perimeter), np.zeros(len(profiles)), perimeter, count)
    return turned, np.ceil(periods / perimeter * count * (1.0 - 1e-9)).astype(int).tolist()


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(0, 215))
def test_rotating_samples_is_shifting_the_job(seed: int, rotation: int) -> None:
    """Also where phases begin and end at the middle of a sample."""
    profiles = [random_profile(np.random.default_rng(seed), [0.04, 0.06]), up_down(0.02, 0.02, 3.0)]
    arcs, owner = arcs_of(profiles, 0.12)
    still = sampled(arcs, owner, np.zeros(2), 0.12, 216)
    middles = (np.arange(216) + 0.5) * 0.12 / 216
    expected = [profile.demand(middles) for profile in profiles]
    assert np.mean(np.array(expected) != still) < 0.02
    shifted = sampled(arcs, owner, np.full(2, rotation * 0.12 / 216), 0.12, 216)
    assert shifted.tolist() == np.roll(still, rotation, axis=1).tolist()


def brute_force(turned: Floats, reach: list[int]) -> float:
    """The least mean excess over all rotations of the jobs except the first."""
    rolled = [np.array([np.roll(row, s) for s in range(n)]) for row, n in zip(turned, reach, strict=True)]
    least = np.inf
    for rotation in itertools.product(*(range(n) for n in reach[1:-1])):
        base = turned[0] + sum((rolled[j + 1][s] for j, s in enumerate(rotation)), np.zeros(len(turned[0])))
        least = min(least, float(np.maximum(base + rolled[-1] - CAPACITY, 0.0).mean(axis=1).min()))
    return least


def searched(turned: Floats, reach: list[int]) -> float:
    """The mean excess of the search's rotations."""
    rotations, cost = search(
        turned[0] - CAPACITY,
        wheels_of(turned[1:]),
        np.array(reach[1:]),
        SLACK * len(turned[0]),
        20_000_000,
        0,
    )
    shifted = turned[0] + sum(np.roll(row, s) for row, s in zip(turned[1:], rotations, strict=True))
    excess = float(np.maximum(shifted - CAPACITY, 0.0).mean())
    assert cost / len(turned[0]) == pytest.approx(excess, abs=1e-9)
    return excess


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("jobs", "angles"), [(2, 72), (3, 36)])
def test_two_and_three_jobs_are_exact_on_the_circle(jobs: int, angles: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    profiles, perimeter = on_circle([random_profile(random, [0.1, 0.15, 0.2]) for _ in range(jobs)])
    turned, reach = circles(profiles, perimeter, angles)
    assert searched(turned, reach) == pytest.approx(brute_force(turned, reach), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("jobs", "angles"), [(4, 18), (5, 9), (6, 6), (8, 4), (12, 2)])
def test_more_jobs_are_within_a_hundredth_of_exact(jobs: int, angles: int, seed: int) -> None:
    random = np.random.default_rng(100 * jobs + seed)
    profiles, perimeter = on_circle([random_profile(random, [0.1, 0.2], 3.0 / jobs) for _ in range(jobs)])
    turned, reach = circles(profiles, perimeter, angles)
    reach = [min(n, angles + 1) for n in reach]  # what brute force has time for
    assert searched(turned, reach) <= brute_force(turned, reach) + 0.01


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("jobs", [6, 12])
def test_jobs_that_are_known_to_fit_nearly_fit(jobs: int, seed: int) -> None:
    """The link's time is cut into as many pieces as there are jobs, with a twentieth to spare. The rest that
    is missing is due to the samples, and not to the search: it finds no more with twenty times the budget."""
    random = np.random.default_rng(seed)
    cuts = np.sort(random.choice(np.arange(1, 72), jobs - 1, replace=False)) / 72.0
    lengths = 0.95 * np.diff(np.concatenate(([0.0], cuts, [1.0])))
    profiles = [up_down(1.0 - length, length, 1.0) for length in lengths.tolist()]
    assert best(profiles, 1.0, CAPACITY).score >= 0.98


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_the_score_is_one_less_the_mean_excess_of_the_shifted_jobs(seed: int, jobs: int) -> None:
    random = np.random.default_rng(seed)
    profiles, perimeter = on_circle([random_profile(random, [0.1, 0.15, 0.2]) for _ in range(jobs)])
    shifts = [float(random.uniform(0.0, profile.period)) for profile in profiles]
    times = (np.arange(60_000) + 0.5) * perimeter / 60_000
    load = sum(profile.demand(times - shift) for profile, shift in zip(profiles, shifts, strict=True))
    expected = 1.0 - np.maximum(load - CAPACITY, 0.0).mean() / CAPACITY
    assert score(profiles, shifts, perimeter, CAPACITY) == pytest.approx(expected, abs=2e-3)
    steps = curve(profiles, shifts, perimeter)
    begins = np.array([begin for begin, _ in steps])
    levels = np.array([level for _, level in steps])
    shown = levels[np.searchsorted(begins, times, side="right") - 1]
    assert np.mean(np.abs(shown - load) > 1e-9) < 1e-3


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_no_shift_is_longer_than_a_period_and_no_single_one_helps_further(seed: int, jobs: int) -> None:
    random = np.random.default_rng(seed)
    profiles, perimeter = on_circle([random_profile(random, [0.1, 0.15, 0.2]) for _ in range(jobs)])
    fit = best(profiles, perimeter, CAPACITY)
    assert all(0.0 <= shift < p.period for shift, p in zip(fit.shifts, profiles, strict=True))
    assert fit.score == pytest.approx(score(profiles, fit.shifts, perimeter, CAPACITY))
    for j, profile in enumerate(profiles):
        for shift in np.linspace(0.0, profile.period, 25):
            moved = [*fit.shifts[:j], float(shift), *fit.shifts[j + 1 :]]
            # A rotation by 5° may miss the edges of several jobs at once by half of that.
            assert score(profiles, moved, perimeter, CAPACITY) <= fit.score + 0.02


def test_jobs_of_40_and_60_ms_fit() -> None:
    """Figure 4.5: on a circle of 120 ms. Full phases of 10 ms leave a single shift modulo 20 ms."""
    profiles = [up_down(0.030, 0.010, 1.0), up_down(0.050, 0.010, 1.0)]
    profiles, perimeter = on_circle(profiles)
    assert perimeter == pytest.approx(0.120)
    fit = best(profiles, perimeter, CAPACITY)
    assert fit.score == pytest.approx(1.0)
    begins = [shift + down for shift, down in zip(fit.shifts, (0.030, 0.050), strict=True)]
    assert (begins[1] - begins[0]) % 0.020 == pytest.approx(0.010)
    # They overlap half of the time in which either sends when the phases of both begin alike modulo 20 ms.
    assert score(profiles, (0.020, 0.0), perimeter, CAPACITY) == pytest.approx(1.0 - 10.0 / 120.0)


def test_a_phase_that_just_fits_fits_exactly() -> None:
    """5° of 255 ms are 3.5 ms; the shift that fits is none of these steps."""
    profiles = [up_down(0.141, 0.114, 1.0), up_down(0.114, 0.141, 1.0)]
    fit = best(profiles, 0.255, CAPACITY)
    assert fit.score == pytest.approx(1.0, abs=1e-9)


def test_scores_of_too_many_jobs_are_negative() -> None:
    profiles = [up_down(0.0, 1.0, 1.0)] * 4
    assert best(profiles, 1.0, CAPACITY).score == pytest.approx(1.0 - 3.0)


def test_fixed_jobs_stay_where_they_are() -> None:
    profiles = [up_down(0.7, 0.3, 1.0)] * 3
    fit = best(profiles, 1.0, CAPACITY, fixed={0: 0.25, 2: 0.6})
    assert (fit.shifts[0], fit.shifts[2]) == (0.25, 0.6)
    assert fit.score == pytest.approx(1.0)


def test_a_search_repeats() -> None:
    random = np.random.default_rng(7)
    profiles, perimeter = on_circle([random_profile(random, [0.1, 0.15, 0.2]) for _ in range(7)])
    assert best(profiles, perimeter, CAPACITY) == best(profiles, perimeter, CAPACITY)


TABLE_4_3 = {
    "snapshot1": (1.0, (0.0, 0.150)),
    "snapshot2": (1.0, (0.0, 0.158, 0.046)),
    "snapshot3": (0.9, (0.0, 0.100)),
    "snapshot4": (0.8, (0.0, 0.060)),
    "snapshot5": (0.6, (0.0, 0.042, 0.191)),
}
"""Score and shifts (s) of Cassini's table 4.3."""


def fit_of(snapshot: str) -> tuple[Fit, list[Profile], float, float]:
    file = read_profiles(EXPERIMENTS / "profiles-table-4.3.toml")
    link = next(link for link in file.links if link.name == snapshot)
    profiles, perimeter = on_circle([file.profiles[job] for job in link.jobs])
    return best(profiles, perimeter, link.capacity), profiles, perimeter, link.capacity


@pytest.mark.parametrize("snapshot", TABLE_4_3)
def test_table_4_3s_scores(snapshot: str) -> None:
    """On profiles put together from the thesis (the file says how); the paper's shifts do as well on them."""
    fit, profiles, perimeter, capacity = fit_of(snapshot)
    paper, shifts = TABLE_4_3[snapshot]
    assert fit.score == pytest.approx(paper, abs=0.1)
    assert score(profiles, shifts, perimeter, capacity) == pytest.approx(fit.score, abs=0.1)


@pytest.mark.parametrize("snapshot", ["snapshot1", "snapshot2", "snapshot3", "snapshot4"])
def test_table_4_3s_shifts(snapshot: str) -> None:
    """Relative to the first job, and up to whole periods, they are those of the table within 15 ms. Snapshot
    5's profile of BERT is too uncertain for that."""
    fit, profiles, _, _ = fit_of(snapshot)
    for shift, paper, profile in zip(fit.shifts, TABLE_4_3[snapshot][1], profiles, strict=True):
        apart = (shift - fit.shifts[0] - paper) % profile.period
        assert min(apart, profile.period - apart) < 0.015


def test_a_job_with_several_phases_fits_between_anothers() -> None:
    several = of_ups(1.0, [(0.0, 0.2, 1.0), (0.4, 0.6, 1.0), (0.7, 0.8, 1.0)])
    gaps = of_ups(1.0, [(0.5, 0.7, 1.0), (0.9, 1.0, 1.0), (0.1, 0.3, 1.0)])
    assert best([several, gaps], 1.0, CAPACITY).score == pytest.approx(1.0, abs=1e-9)
