"""The rows of a simulated experiment have every figure of its summary."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from machine.rows import Row, chosen
from simulation.results import Completion, Decision, Parameters, Settings, Snapshot, Summary
from simulation.results import Row as Point
from simulation.rows import rows

TIMES = Completion(20.0, 10.0, 15.0, 18.0, 19.0, 10.0, 0.5, 0.75, 7, Decision(1.0, 2.0, 3.0, 4.0, 5), 3.0)


def summary(name: str, *points: Point) -> Summary:
    return Summary(name, "title", 3, 40, Settings(), {}, points)


def value(known: list[Row], **where: str) -> float:
    (row,) = chosen(known, where)
    return row.value


def test_figures_parameters_and_the_command_are_kept() -> None:
    known = rows(summary("parrot-eta", Point(Parameters("aalo", gbps=10, eta_ms=5), TIMES)))
    at = {"policy": "aalo", "gbps": "10", "eta_ms": "5", "limit": "40"}
    assert value(known, figure="total_jct_s", **at) == 20.0
    assert value(known, figure="decision_p90_us", **at) == 2.0
    assert value(known, figure="jct_to_alone", **at) == 2.0
    assert value(known, figure="total_jct_s", policy="alone") == 10.0
    assert {row.command for row in known} == {"entrain simulate parrot-eta --seed 3 --limit 40"}


def test_draws_are_seeds_and_changes_have_an_interval_over_them() -> None:
    points = [
        Point(
            Parameters(policy, load_percent=75),
            replace(TIMES, mean_jct_s=fmean(draws), draws_jct_s=draws),
        )
        for policy, draws in (("fair", (10.0, 20.0)), ("slots", (9.0, 19.0)), ("varys", (9.0, 17.0)))
    ]
    known = rows(summary("slots-load", *points))
    drawn = [
        row for row in chosen(known, {"policy": "varys", "figure": "mean_jct_s"}) if row.seed is not None
    ]
    assert [(row.seed, row.value) for row in drawn] == [(0, 9.0), (1, 17.0)]
    changes = {
        row.policy: (row.value, row.half, row.n)
        for row in chosen(known, {"figure": "mean_jct_against_fair_percent"})
    }
    assert changes["slots"] == (pytest.approx(-100 / 15), pytest.approx(0.0, abs=1e-9), 2)
    assert changes["varys"][:2] == (pytest.approx(-200 / 15), pytest.approx(84.7, abs=0.05))  # t is 12.7


def test_values_of_several_jobs_have_a_row_each() -> None:
    figures = Snapshot(0.9, (0.0, 0.1), (0.2, 0.3), (0.4, 0.5), 7.0, 1, 0.02)
    known = rows(summary("cassini-snapshots", Point(Parameters("themis", group="snapshot1"), figures)))
    assert [value(known, figure="iterations_s", job=job) for job in "12"] == [0.4, 0.5]
    assert value(known, figure="score", job="") == 0.9
