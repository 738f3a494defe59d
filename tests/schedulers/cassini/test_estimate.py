"""Profiles from measurements."""

from __future__ import annotations

import numpy as np
import pytest

from schedulers.cassini.estimate import Estimate, estimate
from schedulers.cassini.profile import Profile, of_ups, up_down
from schedulers.compiled import Floats, Ints

STEP = 0.001


def measured(
    profile: Profile,
    iterations: int,
    *,
    jitter: float = 0.0,
    drift: float = 0.0,
    noise: float = 0.0,
    step: float = STEP,
    seed: int = 0,
) -> tuple[Floats, Floats, Ints]:
    """Counters of a job whose Down phases vary by `jitter` (s) and grow by `drift` (s) per iteration, read
    about every `step` (s), with `noise` (bytes) in the order of a read."""
    random = np.random.default_rng(seed)
    edges, sent, begins = [0.0], [0.0], []
    for n in range(iterations):
        begins.append(edges[-1])
        for phase in profile.phases:
            more = random.normal(0.0, jitter) + drift * n if phase.rate == 0.0 else 0.0
            edges.append(edges[-1] + max(phase.seconds + more, 1e-6))
            sent.append(sent[-1] + phase.rate * phase.seconds)
    times = np.arange(0.0, edges[-1], step)
    times += np.sort(random.uniform(-0.2, 0.2, len(times))) * 0.5 * step
    counts = np.interp(times, edges, sent) + random.uniform(0.0, noise, len(times))
    return times, np.maximum.accumulate(counts), np.searchsorted(begins, times, side="right") - 1


def difference(found: Estimate, truth: Profile, origin: float) -> float:
    """Mean distance of two demands, as a fraction of the truth's mean. The estimate begins `origin` (s) after
    the truth's iteration."""
    assert found.profile is not None
    times = np.arange(0.0, truth.period, truth.period / 5000)
    apart = np.abs(found.profile.demand(times) - truth.demand(times + origin))
    return float(apart.mean() / truth.demand(times).mean())


SIX = of_ups(
    0.5, [(0.02, 0.06, 2e9), (0.1, 0.14, 2e9), (0.18, 0.22, 2e9), (0.26, 0.3, 2e9), (0.34, 0.47, 5e9)]
)
"""Several phases of two demands, as in figure 4.1 (b)."""


@pytest.mark.parametrize("profile", [up_down(0.141, 0.114, 5e9), SIX], ids=["one phase", "several"])
def test_progress_and_counters_give_the_profile(profile: Profile) -> None:
    found = estimate(*measured(profile, 8))
    assert found.verdict == "periodic"
    assert found.period == pytest.approx(profile.period, rel=0.005)
    assert found.profile is not None
    assert found.profile.bytes == pytest.approx(profile.bytes, rel=0.02)
    assert len(found.profile.ups) == len(profile.ups)
    assert difference(found, profile, 0.0) < 0.1
    assert found.period_spread < 0.01
    assert found.rate_spread < 0.05


def test_noise_spreads_the_figures_and_does_not_hide_the_profile() -> None:
    profile = up_down(0.3, 0.2, 5e9)
    quiet = estimate(*measured(profile, 12))
    noisy = estimate(*measured(profile, 12, jitter=0.008, noise=2e6))
    assert noisy.verdict == "periodic"
    assert noisy.period == pytest.approx(0.5, rel=0.02)
    assert noisy.period_spread > 2.0 * quiet.period_spread
    assert noisy.phase_spread == pytest.approx(0.008, rel=0.7)
    assert noisy.profile is not None
    assert noisy.profile.bytes == pytest.approx(profile.bytes, rel=0.05)
    assert difference(noisy, profile, 0.0) < 0.2


@pytest.mark.parametrize("jitter", [0.0, 0.005])
def test_counters_alone_tell_period_and_phases(jitter: float) -> None:
    profile = up_down(0.3, 0.2, 5e9)
    times, counts, _ = measured(profile, 10, jitter=jitter)
    found = estimate(times, counts)
    assert found.verdict == "periodic"
    assert found.period == pytest.approx(0.5, rel=0.02)
    # Its iterations begin where the job sends after its pause.
    assert difference(found, profile, 0.3) < 0.15


def test_counters_alone_tell_iterations_of_several_phases_apart() -> None:
    times, counts, _ = measured(SIX, 10)
    found = estimate(times, counts)
    assert found.verdict == "periodic"
    assert found.period == pytest.approx(0.5, rel=0.02)
    assert found.profile is not None
    assert len(found.profile.ups) == 5


def test_a_job_whose_period_grows_drifts() -> None:
    found = estimate(*measured(up_down(0.3, 0.2, 5e9), 10, drift=0.005, jitter=0.001))
    assert found.verdict == "drifts"
    assert found.profile is None
    assert found.drift == pytest.approx(9 * 0.005 / 0.52, rel=0.2)


def test_jitter_is_not_called_drift() -> None:
    for seed in range(20):
        assert estimate(*measured(up_down(0.3, 0.2, 5e9), 8, jitter=0.01, seed=seed)).verdict == "periodic"


def test_a_job_whose_iterations_differ_is_not_periodic() -> None:
    times, counts, iterations = measured(up_down(0.3, 0.2, 5e9), 12, jitter=0.15, seed=3)
    assert estimate(times, counts, iterations).verdict == "not periodic"
    assert estimate(times, counts).verdict == "not periodic"


def test_a_steady_stream_is_not_periodic() -> None:
    times = np.arange(0.0, 5.0, STEP)
    assert estimate(times, 1e9 * times).verdict == "not periodic"
    assert estimate(times, 0.0 * times).verdict == "not periodic"


def test_few_iterations_are_too_short() -> None:
    times, counts, iterations = measured(up_down(0.3, 0.2, 5e9), 3)
    assert estimate(times, counts, iterations).verdict == "too short"
    assert estimate(times[:2], counts[:2]).verdict == "too short"


@pytest.mark.parametrize(
    ("times", "counts", "iterations", "message"),
    [
        ([0.0, 1.0, 2.0], [0.0, 1.0], None, "one value for each"),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0], None, "do not ascend"),
        ([0.0, 1.0, 2.0], [0.0, 2.0, 1.0], None, "counter fell"),
        ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0], "one value for each"),
    ],
)
def test_series_that_make_no_sense_are_refused(
    times: list[float], counts: list[float], iterations: list[int] | None, message: str
) -> None:
    numbers = None if iterations is None else np.array(iterations)
    with pytest.raises(ValueError, match=message):
        estimate(np.array(times), np.array(counts), numbers)
