"""Our values beside the papers' claims, and the legends of simulated tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from entrain.commands.simulate import summary_legend, summary_table
from simulation.claims import here
from simulation.results import Completion, Parameters, Row, Settings, Summary


def summary(*rows: tuple[str, int, float]) -> Summary:
    """Mean completion times by policy and domain."""
    points = tuple(
        Row(
            Parameters(policy, domain=domain, gbps=10),
            Completion(10 * jct_s, jct_s, jct_s, jct_s, jct_s, 1.0, 0.0, 0.0, 9, None),
        )
        for policy, domain, jct_s in rows
    )
    return Summary("made-up", "", 0, None, Settings(), {}, points)


def test_a_claim_is_answered_from_all_points_that_have_both_policies() -> None:
    both = summary(("slots", 1, 3.0), ("mcs", 1, 4.0), ("slots", 2, 2.0), ("mcs", 2, 4.0), ("slots", 3, 9.0))
    assert here("slots against mcs", both) == "-50.0 to -25.0 %"
    assert here("JCT, mcs against slots, 10 Gbit/s", both) == "+33.3 to +100.0 %"
    one = summary(("slots", 1, 3.0), ("mcs", 1, 4.0))
    assert here("slots against mcs", one) == "-25.0 %"


@pytest.mark.parametrize(
    "claim", ["slots against ccml", "slots against mcs, 40 Gbit/s", "JRT, slots against mcs", "within 1.5 ms"]
)
def test_what_was_not_run_has_no_answer(claim: str) -> None:
    assert here(claim, summary(("slots", 1, 3.0), ("mcs", 1, 4.0))) is None


def test_the_legend_explains_parameters_figures_and_variants() -> None:
    legend = " ".join(summary_legend(summary(("slots", 1, 3.0), ("slots-horizon", 2, 4.0))).split())
    for words in ("domain: servers among which a job is placed", "mean jct s:", "Algorithm 1 is printed"):
        assert words in legend
    assert "marks" not in legend


@pytest.mark.parametrize(("limit", "shown"), [(None, True), (99, False), (100, True)])
def test_a_p99_of_few_jobs_is_not_shown(limit: int | None, shown: bool) -> None:
    found = replace(summary(("slots", 1, 3.0)), limit=limit)
    headings = [str(column.header).replace("\n", " ") for column in summary_table(found).columns]
    assert ("p99 jct s" in headings) == shown
