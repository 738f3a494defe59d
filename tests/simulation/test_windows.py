"""MLTCP window by window: 1 Gbit/s, a round trip of 1 ms, a queue of one bandwidth-delay product."""

from __future__ import annotations

import math

import pytest

from machine.errors import BadInput
from schedulers.cassini.profile import up_down
from schedulers.mltcp import FAIR, Gain, Progress
from simulation.mltcp import PeriodicJob, summary
from simulation.windows import CONTROLS, SEGMENT, Bottleneck, Cubic, Dctcp, Reno, configured, run

RATE = 125e6
RTT = 1e-3
PERIOD = 0.5
LINK = Bottleneck(RATE, RTT, RATE * RTT, mark_above=0.3 * RATE * RTT)
DROPTAIL = Bottleneck(RATE, RTT, RATE * RTT)


def _link(control: str) -> Bottleneck:
    return LINK if control == "dctcp" else DROPTAIL


def _equal_jobs(n: int, part: float, connections: tuple[float, ...] = (1.0,)) -> list[PeriodicJob]:
    profile = up_down((1.0 - part) * PERIOD, part * PERIOD, RATE)
    return [PeriodicJob(profile, 0.01 * PERIOD * i, connections) for i in range(n)]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("seed", [0, 1])
def test_mltcp_parts_compatible_jobs(control: str, seed: int) -> None:
    """Within 30 iterations two jobs that send 45 % of their time run as if alone; the plain control takes
    longer on the way and loses or marks more."""
    jobs = _equal_jobs(2, 0.45)
    plain = run(jobs, _link(control), 30, control, seed=seed)
    mltcp = run(jobs, _link(control), 30, control, [configured(job) for job in jobs], seed=seed)
    for with_it, without in zip(mltcp.times, plain.times, strict=True):
        assert summary(with_it[25:], PERIOD).ratio < 1.02
        assert math.fsum(with_it[:30]) < math.fsum(without[:30])
    assert (mltcp.lost + mltcp.marked) / mltcp.sent < 0.7 * (plain.lost + plain.marked) / plain.sent


def test_dctcp_alone_never_parts_jobs() -> None:
    """Nothing is drawn where nothing is lost: two jobs that meet go on meeting."""
    for times in run(_equal_jobs(2, 0.45), LINK, 40, "dctcp").times:
        assert min(times[2:]) > 1.3 * PERIOD


@pytest.mark.parametrize("control", ["reno", "cubic"])
def test_three_jobs_part(control: str) -> None:
    jobs = _equal_jobs(3, 0.25)
    outcome = run(jobs, DROPTAIL, 40, control, [configured(job) for job in jobs])
    for times in outcome.times:
        assert summary(times[35:], PERIOD).ratio < 1.02


def test_learned_progress_does_what_configured_progress_does() -> None:
    """Once it is learned: the total to a segment, the threshold below the pause; and the jobs part."""
    jobs = _equal_jobs(2, 0.45)
    progress = [Progress(), Progress()]
    outcome = run(jobs, DROPTAIL, 40, "cubic", progress)
    for job, learned, times in zip(jobs, progress, outcome.times, strict=True):
        assert abs(learned.learned_total - job.profile.bytes) < SEGMENT
        assert 0.5 < learned.learned_gap_ns / (0.55 * PERIOD * 1e9) < 1.0
        assert learned.iteration == len(times) - 1 or learned.iteration == len(times)
        assert summary(times[35:], PERIOD).ratio < 1.02


@pytest.mark.parametrize("control", CONTROLS)
def test_incompatible_jobs_come_close_to_the_best_and_do_not_starve(control: str) -> None:
    """Two that need 60 % each cannot do better than 1.2 T."""
    jobs = _equal_jobs(2, 0.6)
    outcome = run(jobs, _link(control), 30, control, [configured(job) for job in jobs])
    plain = run(jobs, _link(control), 30, control)
    for with_it, without in zip(outcome.times, plain.times, strict=True):
        assert summary(with_it[15:], 1.2 * PERIOD).ratio < 1.15
        assert max(with_it) < 1.7 * PERIOD
        assert math.fsum(with_it[:30]) < math.fsum(without[:30])


@pytest.mark.parametrize("control", CONTROLS)
def test_jobs_with_several_connections_part(control: str) -> None:
    """The ratio is taken over the sum of a job's connections."""
    jobs = _equal_jobs(2, 0.4, (1 / 3,) * 3)
    outcome = run(jobs, _link(control), 40, control, [configured(job) for job in jobs])
    for times in outcome.times:
        assert summary(times[35:], PERIOD).ratio < 1.02


@pytest.mark.parametrize("control", CONTROLS)
def test_a_gain_of_one_is_the_plain_control(control: str) -> None:
    jobs = _equal_jobs(2, 0.5)
    plain = run(jobs, _link(control), 5, control, seed=3)
    assert run(jobs, _link(control), 5, control, [configured(job, FAIR) for job in jobs], seed=3) == plain


def test_the_seed_decides_all_and_matters() -> None:
    jobs = _equal_jobs(2, 0.5)
    first, again, other = (run(jobs, DROPTAIL, 5, "reno", seed=seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(("buffer", "used"), [(RATE * RTT, 1.0), (SEGMENT, 0.75)])
def test_reno_fills_a_link_as_its_queue_allows(buffer: float, used: float) -> None:
    """Its sawtooth lies between half a window and a whole one: with a queue of a bandwidth-delay product the
    link is always busy, with none three quarters of the time."""
    job = PeriodicJob(up_down(0.0, 10.0, 2.0 * RATE))
    ((time, *_),) = run([job], Bottleneck(RATE, RTT, buffer), 1, "reno").times
    assert job.profile.bytes / RATE / time == pytest.approx(used, abs=0.03)


@pytest.mark.parametrize(("control", "exponent"), [("reno", 0.5), ("cubic", 0.5), ("dctcp", 1.0)])
def test_how_the_share_follows_the_gain(control: str, exponent: float) -> None:
    """Where losses fall at random, windows go as the square root of the increase over their common rate;
    marks that all see alike make them proportional to it, as the fluid has them."""
    jobs = [PeriodicJob(up_down(0.0, 5.0, 2.0 * RATE))] * 2
    gains = (Gain(0, 2048), Gain(0, 256))
    ratios = []
    for seed in range(3):
        progress = [Progress(gain, total_bytes=1, gap_ns=10**9) for gain in gains]
        (time, *_), _ = run(jobs, _link(control), 1, control, progress, seed=seed).times
        share = jobs[0].profile.bytes / (RATE * time)
        ratios.append(share / (1.0 - share))
    assert sum(ratios) / 3 == pytest.approx(8.0**exponent, rel=0.2)


@pytest.mark.parametrize("control", CONTROLS)
def test_no_more_arrives_than_the_link_carries(control: str) -> None:
    jobs = [PeriodicJob(up_down(0.0, 0.1 * (1 + i), 2.0 * RATE)) for i in range(3)]
    outcome = run(jobs, _link(control), 3, control)
    end = max(math.fsum(times) for times in outcome.times)
    carried = sum(len(times) * job.profile.bytes for job, times in zip(jobs, outcome.times, strict=True))
    assert carried <= RATE * end * (1.0 + 1e-9)
    assert carried <= outcome.sent - outcome.lost + SEGMENT


def test_slow_start_is_not_scaled() -> None:
    for gain in (0.25, 2.0):
        window = Reno()
        window.grow(10.0, gain, RTT)
        assert window.cwnd == 20.0
    window.ssthresh = 25.0
    window.grow(20.0, 2.0, RTT)
    assert window.cwnd == pytest.approx(25.0 + 2.0 * 15.0 / 25.0)


@pytest.mark.parametrize("factor", [0.25, 1.0, 2.0])
def test_cubic_is_back_at_its_maximum_after_k(factor: float) -> None:
    """K = (0.3 W / C)^(1/3) s (RFC 9438, figure 2), F times as soon."""
    window = Cubic()
    window.cwnd = window.ssthresh = 4000.0
    window.lose()
    assert window.cwnd == pytest.approx(2800.0)
    seconds, rtt = 0.0, 0.1
    while window.cwnd < 3999.9:
        window.grow(window.cwnd, factor, rtt)
        seconds += rtt
    assert seconds == pytest.approx(math.cbrt(0.3 * 4000.0 / 0.4) / factor, rel=0.05)


def test_cubic_is_reno_friendly_where_the_curve_is_slow() -> None:
    """On short round trips it grows by 3 (1 - 0.7) / (1 + 0.7) segments in each (RFC 9438, section 4.3)."""
    window = Cubic()
    window.cwnd = window.ssthresh = 50.0
    window.lose()
    before = window.cwnd
    for _ in range(10):
        window.grow(window.cwnd, 1.0, 1e-4)
    assert window.cwnd - before == pytest.approx(10 * 0.9 / 1.7)


def test_dctcp_cuts_by_half_its_share_of_marks() -> None:
    window = Dctcp()
    for _ in range(200):
        window.cwnd = 100.0
        assert window.see_marks(0.2)
    assert window.alpha == pytest.approx(0.2, abs=1e-4)
    assert window.cwnd == pytest.approx(90.0, abs=0.01)
    assert not window.see_marks(0.0)
    assert window.cwnd == pytest.approx(90.0, abs=0.01)


def test_the_part_of_a_round_trip_above_the_threshold_is_marked() -> None:
    link = Bottleneck(RATE, RTT, 10_000, mark_above=4_000)
    assert link.marked(0, 4_000) == 0.0
    assert link.marked(2_000, 6_000) == link.marked(6_000, 2_000) == 0.5
    assert link.marked(5_000, 6_000) == link.marked(5_000, 5_000) == 1.0
    assert DROPTAIL.marked(0, 10_000) == 0.0


def test_senseless_links_and_runs_are_refused() -> None:
    for arguments, message in [
        ((RATE, 0.0, 1e5), "round trip"),
        ((1.0, RTT, 1e5), "segment"),
        ((RATE, RTT, 10.0), "queue"),
        ((RATE, RTT, 1e5, 1e5), "marking"),
    ]:
        with pytest.raises(BadInput, match=message):
            Bottleneck(*arguments)
    jobs = _equal_jobs(2, 0.5)
    for control, progress, message in [
        ("vegas", None, "unknown"),
        ("dctcp", None, "marks"),
        ("reno", [Progress()], "one each"),
    ]:
        with pytest.raises(BadInput, match=message):
            run(jobs, DROPTAIL, 1, control, progress)
    with pytest.raises(BadInput, match="never pauses"):
        configured(PeriodicJob(up_down(0.0, 1.0, 1.0)), Gain())
