"""DCQCN's fluid and stepwise models."""

from __future__ import annotations

import numpy as np
import pytest

from machine.errors import BadInput
from schedulers.cassini.profile import Profile, up_down
from simulation.dcqcn import BIN, MODELS, Model, run

RATE = 42e9 / 8.0
T = 125e-6
JOB = up_down(0.0, 0.1, RATE)
"""Sends all the time."""


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
