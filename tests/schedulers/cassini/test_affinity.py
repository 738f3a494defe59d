"""Shifts for a whole cluster, and the choice among placements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.cassini.affinity import LOOP_LOSS, Link, interleave
from schedulers.cassini.fit import curve, score
from schedulers.cassini.module import choose
from schedulers.cassini.profile import Profile, up_down
from tests.schedulers.cassini.jobs import CAPACITY, random_profile

THIRD = up_down(2.0 / 3.0, 1.0 / 3.0, 1.0)
HALF = up_down(0.5, 0.5, 1.0)


def link(name: str, jobs: str, capacity: float = CAPACITY) -> Link:
    return Link(name, capacity, tuple(jobs))


def placed(random: np.random.Generator, jobs: int, racks: int) -> tuple[dict[str, Profile], list[Link]]:
    """Jobs in random pairs of racks, each of which has an uplink and a downlink."""
    profiles = {f"j{n}": random_profile(random, [0.1, 0.15, 0.2], 0.4) for n in range(jobs)}
    crossing: dict[int, list[str]] = {rack: [] for rack in range(racks)}
    for job in profiles:
        for rack in random.choice(racks, 2, replace=False):
            crossing[int(rack)].append(job)
    return profiles, [
        Link(f"{direction}{rack}", CAPACITY, tuple(random.permutation(jobs)))
        for rack, jobs in crossing.items()
        if jobs
        for direction in ("up", "down")
    ]


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(2, 6))
def test_every_link_that_counts_sees_the_demand_that_its_optimiser_chose(
    seed: int, jobs: int, racks: int
) -> None:
    profiles, links = placed(np.random.default_rng(seed), jobs, racks)
    found = interleave(profiles, links, seed=seed)
    for shared in found.links:
        names = shared.link.jobs
        on_link = [found.profiles[job] for job in names]
        shifts = [found.shifts[job] for job in names]
        assert shared.shifted == pytest.approx(score(on_link, shifts, shared.perimeter, CAPACITY))
        if shared.fit is None:
            continue
        own = [shared.fit[job] for job in names]
        assert shared.shifted >= shared.score - LOOP_LOSS - 1e-9
        # The two curves are the same up to a rotation, known modulo the first job's period.
        # Random times are at no edge of a phase, where rounding would decide.
        times = np.random.default_rng(seed).uniform(0.0, shared.perimeter, 1000)
        seen = sum(p.demand(times - s) for p, s in zip(on_link, shifts, strict=True))
        turns = shifts[0] - own[0] + np.arange(0.0, shared.perimeter * 0.999, on_link[0].period)
        differing = [
            np.mean(
                np.abs(sum(p.demand(times - s - turn) for p, s in zip(on_link, own, strict=True)) - seen)
                > 1e-9
            )
            for turn in turns
        ]
        assert min(differing) == 0.0
    for job, shift in found.shifts.items():
        assert 0.0 <= shift < found.profiles[job].period
        assert job not in found.reasons or shift == 0.0


def test_two_jobs_that_share_an_uplink_and_a_downlink_are_no_loop() -> None:
    found = interleave({"a": HALF, "b": HALF}, [link("up", "ab"), link("down", "ba")])
    assert not found.loops
    assert abs(found.shifts["a"] - found.shifts["b"]) == pytest.approx(0.5)
    assert [shared.shifted for shared in found.links] == pytest.approx([1.0, 1.0])


def test_merged_links_are_fitted_to_the_one_of_least_capacity() -> None:
    found = interleave({"a": HALF, "b": HALF}, [link("wide", "ab", 2.0), link("narrow", "ab")])
    assert [shared.shifted for shared in found.links] == pytest.approx([1.0, 1.0])


def test_a_chain_gives_each_job_one_shift() -> None:
    """Figure 4.7: a meets b on one link, and b meets c on another; a and c may send at the same time."""
    found = interleave({"a": HALF, "b": HALF, "c": HALF}, [link("1", "ab"), link("2", "bc")])
    assert [shared.shifted for shared in found.links] == pytest.approx([1.0, 1.0])
    assert found.shifts["a"] == pytest.approx(found.shifts["c"])


@pytest.mark.parametrize("last", ["ca", "ac"])
def test_a_loop_is_accepted_where_it_is_consistent(last: str) -> None:
    """The last link's own shifts agree with the others' or not, as its first job is fixed."""
    jobs = {"a": THIRD, "b": THIRD, "c": THIRD}
    found = interleave(jobs, [link("1", "ab"), link("2", "bc"), link("3", last)])
    assert not found.loops
    assert [shared.shifted for shared in found.links] == pytest.approx([1.0, 1.0, 1.0])


def test_a_loop_is_refused_where_it_is_not_consistent() -> None:
    """Each pair fits by half a period, three of which cannot be."""
    jobs = {"a": HALF, "b": HALF, "c": HALF, "d": HALF, "e": HALF}
    links = [link("1", "ab"), link("2", "bc"), link("3", "ca"), link("4", "de")]
    found = interleave(jobs, links)
    assert len(found.loops) == 1
    for job in "abc":
        assert found.shifts[job] == 0.0
        assert "loop" in found.reasons[job]
    assert [shared.shifted for shared in found.links] == pytest.approx([0.5, 0.5, 0.5, 1.0])


def test_jobs_below_the_threshold_are_not_shifted() -> None:
    jobs = {"a": up_down(0.1, 0.9, 1.0), "b": up_down(0.1, 0.9, 1.0), "c": HALF}
    found = interleave(jobs, [link("1", "ab"), link("2", "c")])
    assert set(found.shifts.values()) == {0.0}
    assert found.links[0].score == pytest.approx(0.2)
    assert "score less than 0.7" in found.reasons["a"]
    assert found.reasons["c"] == "shares no link"
    assert found.links[1].score == 1.0


def test_jobs_without_a_common_multiple_are_not_shifted() -> None:
    """3.4 and 4.7 s meet on no circle of at most 64 times 0.1 s."""
    jobs = {f"j{n}": up_down(0.9 * period, 0.1 * period, 1.0) for n, period in enumerate((0.1, 3.4, 4.7))}
    found = interleave(jobs, [Link("1", CAPACITY, tuple(jobs))])
    assert set(found.shifts.values()) == {0.0}
    assert all("no common multiple" in found.reasons[job] for job in jobs)


def test_the_start_is_drawn_from_the_seed() -> None:
    jobs = dict.fromkeys("abcdef", THIRD)
    links = [link(str(n), "abcdef"[n : n + 2]) for n in range(5)]
    found = [interleave(jobs, links, seed=seed) for seed in range(8)]
    assert found[0] == interleave(jobs, links, seed=0)
    starts = {next(job for job, shift in each.shifts.items() if shift == 0.0) for each in found}
    assert len(starts) > 1


def test_the_module_takes_the_placement_whose_links_score_best() -> None:
    jobs = {"a": HALF, "b": HALF, "c": up_down(0.2, 0.8, 1.0)}
    worse, loop, better = [link("1", "ac")], [link(n, n) for n in ("ab", "bc", "ca")], [link("1", "ab")]
    choice = choose([worse, better], jobs)
    assert choice.candidate == 1
    assert choice.interleaving.score == pytest.approx(1.0)
    same = [link("1", "ab"), link("2", "bd"), link("3", "da")]
    assert choose([same, worse], {**jobs, "d": HALF}).candidate == 1, "a loop is worse than any score"
    odd = {"e": up_down(0.09, 0.01, 1.0), "f": up_down(3.3, 0.1, 1.0), "g": up_down(4.6, 0.1, 1.0)}
    assert choose([[link("1", "efg")], worse], {**jobs, **odd}).candidate == 1, "nor can e, f, g be shifted"
    assert choose([better, better], jobs).candidate == 0, "the scheduler prefers the first"
    assert choose([loop], jobs).candidate == 0
    assert choose([worse, []], jobs).interleaving.score == 1.0, "jobs that share no link score 1"
    with pytest.raises(ValueError, match="at least one"):
        choose([], jobs)


def test_a_demand_curve_is_steps_around_the_circle() -> None:
    assert curve([HALF, HALF], [0.25, 0.75], 1.0) == [(0.0, 1.0)]
    assert curve([HALF, THIRD], [0.0, 0.0], 1.0) == [(0.0, 0.0), (0.5, 1.0), (0.666666667, 2.0)]
