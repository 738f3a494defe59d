"""The simulator's sections of docs/results.md: their figures follow from the summaries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from simulation import report
from simulation.experiments.registry import EXPERIMENTS
from simulation.results import (
    Completion,
    Decision,
    Figures,
    Iterations,
    Latency,
    Parameters,
    Row,
    Settings,
    Summary,
)

DECISION = Decision(1.0, 2.0, 3000.0, 4.0, 5)
TIMES = Completion(20.0, 10.0, 15.0, 18.0, 19.0, 10.0, 0.5, 0.75, 7, DECISION, 3.0, 4.0)


def section(
    directory: Path, name: str, *points: tuple[Parameters, Figures], settings: Settings | None = None
) -> str:
    """The section of experiment `name`, from a summary that was written and read back."""
    experiment, rows = EXPERIMENTS[name], tuple(Row(*each) for each in points)
    summary = Summary(name, experiment.title, 0, None, settings or Settings(), experiment.paper, rows)
    (directory / "summary.json").write_text(json.dumps(summary.document()))
    return report.sections([directory])[experiment.title]


def total(seconds: float) -> Completion:
    return replace(TIMES, total_jct_s=seconds)


def test_a_sweep_names_the_best_values_and_where_parrot_is_behind(tmp_path: Path) -> None:
    points = [
        (Parameters(policy, gbps=10, eta_ms=eta), total(seconds))
        for eta, times in ((1, (30.0, 40.0, 60.0)), (50, (50.0, 40.0, 80.0)))
        for policy, seconds in zip(("parrot", "aalo", "lccf"), times, strict=True)
    ]
    text = section(tmp_path, "parrot-eta", *points)
    assert "| observation interval η (ms) | parrot | aalo | lccf | lower bound |" in text
    assert "| 50 | 50.0 | 40.0 | 80.0 | 10.0 |" in text
    assert "| parrot | -25.0 % at 1 | -50.0 % at 1 | 3.00 to 5.00 | 50 |" in text


def test_parrots_gain_is_compared_with_the_papers(tmp_path: Path) -> None:
    competitive = replace(total(30.0), competitive_ratio=1.5, competitive_bound=600.0)
    points = [
        (Parameters(policy, gbps=speed), figures)
        for speed in (10, 40)
        for policy, figures in (("parrot", competitive), ("aalo", total(60.0)))
    ]
    text = section(tmp_path, "parrot-jct", *points, settings=Settings(iteration_scale=110, arrival_scale=10))
    assert "--seed 0`: iterations divided by 110, arrival times by 10\n" in text
    for claim in (
        "parrot against aalo, 10 Gbit/s | up to -58.4 % | -50.0 %",
        "parrot against aalo, 40 Gbit/s | a smaller gain | -50.0 %",
        "parrot / lower bound, 10 Gbit/s | at most 2.75 | 3.00",
        "parrot, competitive ratio (theorem 4), 10 Gbit/s | at most 600 | 1.500",
    ):
        assert f"| {claim} |" in text
    assert "against lccf" not in text
    assert "The paper reports" not in text  # for it stands in the table


def test_a_parameter_that_only_later_points_have_is_read_back(tmp_path: Path) -> None:
    points = [(Parameters("fair", gbps=10), TIMES), (Parameters("fair", gbps=10, delta=4), TIMES)]
    assert "| fair | 3.00 |" in section(tmp_path, "coflow-fb2010", *points)


def test_jobs_anywhere_and_in_one_rack_have_their_own_tables(tmp_path: Path) -> None:
    points = [
        (Parameters(policy, domain=domain, slot_ms=60), replace(TIMES, mean_jct_s=mean))
        for domain in (10, 100)
        for policy, mean in (("slots", 30.0), ("mcs", 40.0))
    ]
    text = section(tmp_path, "slots-jct", *points, settings=Settings(servers=100, jobs=1200, window_s=10))
    assert "100 servers, 1,200 jobs, arrivals within 10 s\n" in text
    assert text.index("in one rack:") < text.index("anywhere:")
    assert "| slots | 30.0 | 18.0 | 19.0 | 2.00 |\n" in text
    for where in ("in one rack", "anywhere"):
        assert f"| slots against mcs, {where} | -33.6 % | -25.0 % |" in text


def test_changes_from_fair_sharing_have_an_interval_over_draws(tmp_path: Path) -> None:
    points = [
        (
            Parameters(policy, load_percent=75),
            replace(TIMES, mean_jct_s=fmean(draws), draws_jct_s=draws, mean_queued_s=4.0),
        )
        for policy, draws in (("fair", (10.0, 20.0)), ("slots", (9.0, 19.0)), ("varys", (9.0, 17.0)))
    ]
    text = section(tmp_path, "slots-load", *points)
    assert "| slots | 14.00 (-6.7 ± 0.0 %) |" in text
    assert "| varys | 13.00 (-13.3 ± 84.7 %) |" in text  # -1 and -3 of 15; t is 12.7
    assert "| slots | 4.0 |" in text
    assert "| slots against max-min sharing, 75 % load | at least -15 % | -6.7 ± 0.0 % |" in text


@pytest.mark.parametrize(
    ("name", "point", "row"),
    [
        ("slots-tau", (Parameters("slots", slot_ms=20), TIMES), "| 20 | 5.0 | 10.0 |"),
        ("slots-latency", (Parameters("slots", flows=8, horizon=5), Latency(DECISION)), "| 8 | 5 | 1.0 |"),
        ("parrot-scale", (Parameters("aalo", scale="110/1"), TIMES), "| 110/1 | 75.0 % | 50.0 % |"),
        (
            "parrot-readings",
            (Parameters("parrot", length_of="flow", bytes_per_unit=1e-6, scale="110/110"), TIMES),
            "| parrot | MB | 20.0 | 2.00 | 50.0 % |",
        ),
        ("coflow-fb2010", (Parameters("fair", gbps=1), TIMES), "| fair | 3.00 | 4.00 | 20 | 7 |"),
        (
            "mltcp-two-jobs",
            (Parameters("fair", model="reno", sending_percent=45), Iterations(None, 1, 2, 3, 0.5, 2, 0.01)),
            "| 45 % | reno | fair | never | 1 | 2 | 3 | 0.5 | 2 | 1.00 % |",
        ),
    ],
)
def test_a_point_becomes_a_row(
    tmp_path: Path, name: str, point: tuple[Parameters, Figures], row: str
) -> None:
    assert row in section(tmp_path, name, point)


def test_what_mltcp_gains_is_that_of_models_with_a_congestion_control_where_jobs_fit(tmp_path: Path) -> None:
    def point(model: str, policy: str, percent: int, *figures: float | None) -> tuple[Parameters, Figures]:
        after, mean, p99, lost = figures
        found = Iterations(None if after is None else int(after), mean, p99, 3, 0.5, 2, lost)  # type: ignore[arg-type]
        return Parameters(policy, model=model, sending_percent=percent), found

    points = [
        *(point("reno", "mltcp", 45, 11, 0.5, 0.5, 0.01), point("reno", "fair", 45, None, 0.6, 1.0, 0.02)),
        *(point("dcqcn", "mltcp", 45, 20, 0.5, 0.5, 0.01), point("dcqcn", "fair", 45, 22, 0.7, 0.6, 0.05)),
        *(point("fluid", "mltcp", 45, 4, 0.1, 0.1, None), point("fluid", "fair", 45, None, 0.9, 0.9, None)),
        *(point("reno", "mltcp", 60, 1, 0.1, 0.1, 0.1), point("reno", "fair", 60, 1, 0.9, 0.9, 0.9)),
    ]
    text = section(tmp_path, "mltcp-two-jobs", *points)
    assert "| iterations until interleaved | about 30 | 11 to 20 (in 2 of 2 models) |" in text
    assert "| mean iteration time, plain / MLTCP | up to 1.9 | 1.20 to 1.40 |" in text
    assert "| 99th percentile, plain / MLTCP | up to 2.7 | 1.20 to 2.00 |" in text
    assert "| lost or marked segments, plain / MLTCP | up to 28.87 | 2.00 to 5.00 |" in text


def test_summaries_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """They wrote {} for policies without decisions."""
    section(tmp_path, "coflow-fb2010", (Parameters("fair", gbps=1), replace(TIMES, decision=None)))
    path = tmp_path / "summary.json"
    content = json.loads(path.read_text())
    assert content["points"][0]["decision"] is None
    content["points"][0]["decision"] = {}
    path.write_text(json.dumps(content))
    assert "| fair | 3.00 |" in report.sections([tmp_path])[EXPERIMENTS["coflow-fb2010"].title]
