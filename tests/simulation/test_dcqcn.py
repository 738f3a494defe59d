"""DCQCN's rules as published (Zhu et al., SIGCOMM 2015), its fluid and stepwise models, and MLTCP with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from machine.errors import BadInput
from schedulers.cassini.profile import Profile, up_down
from schedulers.mltcp import FAIR, Gain
from simulation.dcqcn import (
    ALPHA,
    ALPHA_S,
    BIN,
    BY_BYTES,
    BY_TIMER,
    COUNTER,
    GAIN,
    HYPER,
    MODELS,
    RAISE,
    ROUNDS,
    STEP,
    TARGET,
    Model,
    advance,
    run,
    start,
)
from simulation.dcqcn import RATE as CURRENT

RATE = 42e9 / 8.0
T = 125e-6
JOB = up_down(0.0, 0.1, RATE)
"""Sends all the time."""
PERIOD = 0.5


class Nic:
    """A sender in the stepwise model, and its time in steps."""

    def __init__(self) -> None:
        self.state = np.empty(9)
        start(self.state, T, RATE)
        self.steps = 0

    def step(self, *, notified: bool = False, size: float = 0.0, factor: float = 1.0) -> None:
        advance(self.state, self.steps * STEP, notified, size, T, factor, RATE)
        self.steps += 1

    def slowed(self) -> Nic:
        """Let two notifications come: the target is half of the link then."""
        self.step(notified=True)
        self.step(notified=True)
        return self

    def rises(self, steps: int, *, size: float, factor: float = 1.0) -> Iterator[tuple[int, int, float]]:
        """Yield, for each step with one increase, the timer's and the counter's rounds and what the target
        rose by."""
        for _ in range(steps):
            before = self.state.copy()
            self.step(size=size, factor=factor)
            timer, counter = int(self.state[BY_TIMER]), int(self.state[BY_BYTES])
            if timer + counter == before[BY_TIMER] + before[BY_BYTES] + 1:
                yield timer, counter, float(self.state[TARGET] - before[TARGET])


def test_a_notification_cuts_the_rate_by_half_of_alpha_and_makes_it_the_target() -> None:
    """Equation 1: R_T = R_C, R_C = R_C (1 - α / 2), α = (1 - g) α + g."""
    nic = Nic()
    for _ in range(3000):  # α decays meanwhile
        nic.step()
    before = nic.state.copy()
    assert before[ALPHA] < 0.5
    nic.step(notified=True)
    assert nic.state[TARGET] == before[CURRENT]
    assert nic.state[CURRENT] == pytest.approx(before[CURRENT] * (1.0 - before[ALPHA] / 2.0))
    assert nic.state[ALPHA] == pytest.approx((1.0 - GAIN) * before[ALPHA] + GAIN)
    for _ in range(10_000):
        nic.step(notified=True)
    assert nic.state[ALPHA] == pytest.approx(1.0)
    assert nic.state[CURRENT] == RAISE  # the least


def test_alpha_decays_once_in_55_microseconds_without_a_notification() -> None:
    """Equation 2: α = (1 - g) α."""
    nic = Nic()
    for _ in range(1001):
        nic.step()
    assert nic.state[ALPHA] == pytest.approx((1.0 - GAIN) ** int(1000 * STEP / ALPHA_S + 1e-9))


def test_five_rounds_of_fast_recovery_halve_the_way_to_the_target() -> None:
    """Equation 3: R_C = (R_T + R_C) / 2; MLTCP changes nothing in them."""
    for factor in (1.0, 2.0):
        nic = Nic().slowed()
        target = nic.state[TARGET]
        gap = target - nic.state[CURRENT]
        for timer, _, rise in nic.rises(int(ROUNDS * T / STEP) + 5, size=0.0, factor=factor):
            assert timer <= ROUNDS
            assert rise == 0.0
            assert target - nic.state[CURRENT] == pytest.approx(gap / 2.0**timer)
        assert nic.state[BY_TIMER] == ROUNDS


@pytest.mark.parametrize("factor", [1.0, 0.25, 2.0])
@pytest.mark.parametrize("by", ["timer", "counter", "both"])
def test_the_target_rises_by_what_the_rounds_of_timer_and_counter_say(by: str, factor: float) -> None:
    """Equation 4 once one of them is past five rounds; i times R_HAI from the i-th round that both are past
    five. F scales both."""
    size = {"timer": 0.0, "counter": COUNTER / 3.7, "both": COUNTER / 17.3}[by]
    nic = Nic().slowed()
    seen = set()
    for timer, counter, rise in nic.rises(60 if by == "counter" else 220, size=size, factor=factor):
        beyond = min(timer, counter) - ROUNDS
        kind = "hyper" if beyond > 0 else "additive" if max(timer, counter) > ROUNDS else "recovery"
        expected = {"hyper": HYPER * beyond, "additive": RAISE, "recovery": 0.0}[kind]
        assert rise == pytest.approx(factor * expected)
        seen.add(kind)
    assert seen == {"recovery", "additive"} | ({"hyper"} if by == "both" else set())


def test_the_target_never_exceeds_the_link() -> None:
    nic = Nic()
    for _ in range(2000):
        nic.step(size=COUNTER / 10.0)
    assert nic.state[TARGET] == nic.state[CURRENT] == RATE
    assert min(nic.state[BY_TIMER], nic.state[BY_BYTES]) > ROUNDS


@pytest.mark.parametrize("model", MODELS)
def test_a_job_alone_takes_its_time(model: Model) -> None:
    done = run([up_down(0.02, 0.03, RATE)], [T], RATE, 4, model)
    assert done.times == pytest.approx(0.05, rel=0.02)


@pytest.mark.parametrize("model", MODELS)
def test_equal_senders_share_equally_and_keep_the_link_busy(model: Model) -> None:
    done = run([JOB, JOB], [T, T], RATE, 2, model, bins=150)
    shares = done.rates[:, 50:].mean(axis=1)
    assert shares.sum() == pytest.approx(RATE, rel=0.1)
    assert shares[0] / shares[1] == pytest.approx(1.0, abs=0.25)
    assert done.marked.sum() > 0.0


@pytest.mark.parametrize("model", MODELS)
def test_a_shorter_period_of_increase_gets_more(model: Model) -> None:
    done = run([JOB, JOB], [T / 4, T], RATE, 2, model, bins=100)
    shares = done.rates[:, 40:].mean(axis=1)
    assert shares[0] > 1.2 * shares[1]


@pytest.mark.parametrize("model", MODELS)
def test_every_byte_is_sent_once(model: Model) -> None:
    jobs: list[Profile] = [up_down(0.01, 0.02, RATE), up_down(0.02, 0.02, 0.5 * RATE)]
    done = run(jobs, [T, T], RATE, 3, model, bins=1000)
    for job, times, rates in zip(jobs, done.times, done.rates, strict=True):
        assert rates.sum() * BIN >= 3 * job.bytes * (1.0 - 1e-6)
        assert times.min() >= job.period * (1.0 - 1e-3)
    assert done.rates.sum(axis=0).max() <= 2.0 * RATE


@pytest.mark.parametrize("model", MODELS)
def test_mltcp_parts_compatible_jobs_for_good(model: Model) -> None:
    """Two jobs that send 45 % of their time run as if alone in the end; plain DCQCN takes longer."""
    job = up_down(0.55 * PERIOD, 0.45 * PERIOD, RATE)
    plain, mltcp = (
        run([job, job], [T, T], RATE, 40, model, gains=[gain] * 2, starts=[0.0, 0.01 * PERIOD])
        for gain in (FAIR, Gain())
    )
    assert mltcp.times[:, 30:].max() < 1.02 * PERIOD
    assert mltcp.times.sum() < plain.times.sum()
    assert mltcp.marked.sum() < plain.marked.sum()


@pytest.mark.parametrize("model", MODELS)
def test_who_has_sent_more_gets_more(model: Model) -> None:
    """One job is half through its iteration when the other begins to send."""
    long = up_down(0.0, 0.4, RATE)
    done = run([long, long], [T, T], RATE, 1, model, gains=[Gain()] * 2, starts=[0.0, 0.2], bins=400)
    first, second = done.rates[:, 300:400].mean(axis=1)
    assert first > 1.15 * second


@pytest.mark.parametrize("model", MODELS)
def test_the_share_follows_the_fourth_root_of_the_gain(model: Model) -> None:
    """As at the fixed point of DCQCN's equations, where few segments are marked."""
    long = up_down(0.0, 1.0, RATE)
    gains = [Gain(0, 2048), Gain(0, 256)]
    done = run([long, long], [T, T], RATE, 1, model, gains=gains, bins=1000)
    first, second = done.rates[:, 500:].mean(axis=1)
    assert first / second == pytest.approx(8.0**0.25, rel=0.25)


@pytest.mark.parametrize("model", MODELS)
def test_a_gain_of_one_is_plain_dcqcn(model: Model) -> None:
    first, second = (run([JOB, JOB], [T, T], RATE, 2, model, gains=gains) for gains in (None, [FAIR] * 2))
    assert first.times.tolist() == second.times.tolist()


def test_the_stepwise_model_repeats_with_its_seed() -> None:
    first, second, other = (run([JOB, JOB], [T, T], RATE, 2, "stepwise", seed=s).times for s in (1, 1, 2))
    assert first.tolist() == second.tolist()
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("timers", "capacity", "iterations", "message"),
    [
        ([T], RATE, 1, "give 2"),
        ([T, 0.0], RATE, 1, "T is"),
        ([T, T], 0.0, 1, "more than 0"),
        ([T, T], RATE, 0, "0 it"),
    ],
)
def test_what_cannot_run_is_refused(
    timers: list[float], capacity: float, iterations: int, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        run([JOB, JOB], timers, capacity, iterations, "fluid")
