"""`entrain simulate cassini-score`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entrain import cli

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    status: int | str | None
    stdout: str
    stderr: str


Simulate = Callable[..., Done]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simulate:
    """`entrain simulate`, in this process."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr("sys.argv", ["entrain", "simulate", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


def scored(simulate: Simulate, name: str, *arguments: str) -> dict[str, Any]:
    done = simulate("cassini-score", "--profiles", str(EXPERIMENTS / name), "--json", *arguments)
    assert done.status == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_anybody_can_check_score_and_demand_from_the_output(simulate: Simulate) -> None:
    """The demand of each link is that of its jobs, shifted; and its excess gives the score."""
    result = scored(simulate, "profiles-40-60.toml")
    assert result["score"] == pytest.approx(1.0)
    shifts = {job["name"]: job["shift_ms"] for job in result["jobs"]}
    assert (shifts["j2"] - shifts["j1"]) % 20 == pytest.approx(10)
    assert all(0 <= job["shift_ms"] < job["period_ms"] for job in result["jobs"])
    for link in result["links"]:
        assert link["perimeter_ms"] == pytest.approx(120)
        demand = link["demand"]
        assert [step["start_ms"] for step in demand[1:]] == [step["end_ms"] for step in demand[:-1]]
        assert demand[-1]["end_ms"] == pytest.approx(120)
        excess = sum(
            max(step["gbps"] - link["capacity_gbps"], 0.0) * (step["end_ms"] - step["start_ms"])
            for step in demand
        )
        assert 1.0 - excess / 120 / link["capacity_gbps"] == pytest.approx(link["shifted_score"])
        times = np.arange(0.5, 120.0)
        total = np.zeros(120)
        for name, period, begin in (("j1", 40, 30), ("j2", 60, 50)):
            since = (times - shifts[name]) % period
            total += 50.0 * ((since >= begin) & (since < begin + 10))
        shown = [next(s["gbps"] for s in demand if s["start_ms"] <= at < s["end_ms"]) for at in times]
        assert shown == pytest.approx(total.tolist())


def test_jobs_that_do_not_fit_are_not_shifted_and_told_why(simulate: Simulate) -> None:
    result = scored(simulate, "profiles-table-4.3.toml", "--threshold", "0.95")
    low = [link for link in result["links"] if link["score"] < 0.95]
    assert 0 < len(low) < len(result["links"])
    for job in result["jobs"]:
        if any(job["name"] in link["jobs"] for link in low):
            assert job["shift_ms"] == 0.0
            assert job["reason"] == "its links score less than 0.95"


def test_without_json_it_prints_tables(simulate: Simulate) -> None:
    done = simulate("cassini-score", "--profiles", str(EXPERIMENTS / "profiles-table-4.3.toml"))
    assert done.status == 0
    for word in ("snapshot5-bert-8", "shifted", "wideresnet101-800: its links score less than 0.7"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give it with --profiles"),
        (["--profiles", "/no/such/file"], "/no/such/file: cannot be read"),
        (["--profiles", "x", "--limit", "3", "--workers", "1"], "leave out --limit, --workers"),
        (["--profiles", "x", "--threshold", "1.5"], "no score is above 1"),
        (["--profiles", "x", "--seed", "-1"], "--seed is -1"),
    ],
)
def test_bad_input_ends_with_status_2_and_a_remedy(
    simulate: Simulate, arguments: list[str], message: str
) -> None:
    done = simulate("cassini-score", *arguments)
    assert done.status == 2
    assert message in done.stderr


def test_other_experiments_take_no_profiles(simulate: Simulate) -> None:
    done = simulate("mltcp-two-jobs", "--profiles", "x")
    assert done.status == 2
    assert "belong to cassini-score" in done.stderr
