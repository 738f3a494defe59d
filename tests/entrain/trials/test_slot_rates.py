"""`entrain run` on a slot-rates file: what it measures, what it writes, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from entrain.commands.run import command
from entrain.trials.slot_rates import Goals, TrialResult, load, plan
from hostbpf.rates.trial import FlowSlot, Outcome, Trial
from machine.errors import BadInput
from tests.attempts import undisturbed

GOOD = """
[experiment]
name = "small"
kind = "slot-rates"

[[trial]]
slot_ms = 40
flows = 3
slots = 12
link_mbps = 30
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rates.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("slot_ms = 40", "slot_ms = 0"), "slot_ms"),
        (("flows = 3", "flow = 3"), "flow"),
        (
            ("link_mbps = 30", 'control = "vegan"'),
            r"\[\[trial\]\] 1, control: this kernel has no 'vegan'; known are (.*)slot_cubic",
        ),
        (("link_mbps = 30", "goals = { rate_error = 1 }"), "rate_error"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=rf"rates\.toml(.|\n)*{message}"):
        load(write(tmp_path, GOOD.replace(*change)))


TWO = GOOD + "\n[[trial]]\nslot_ms = 10\nslots = 20\n"


def test_trials_are_chosen_and_those_that_are_done_are_left_out(tmp_path: Path) -> None:
    rates = load(write(tmp_path, TWO))
    assert plan(rates).todo == (0, 1)
    assert plan(rates, ["slot_ms=10"]).todo == (1,)
    (first, goals), _ = rates.trials
    left = plan(rates, (), [TrialResult(first, goals, Outcome((), 0.0, None))])
    assert (left.todo, left.kept, left.run_seconds) == ((1,), 1, (0.2,))


def test_a_dry_run_says_what_would_run_and_creates_nothing(tmp_path: Path) -> None:
    path, out = write(tmp_path, TWO), tmp_path / "out"
    arguments = [str(path), "--dry-run", "--json", "--only", "trial=1", "--out", str(out)]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["seconds_at_least"] == pytest.approx(12 * 0.04)
    assert isinstance(CliRunner().invoke(command, [str(path), "--only", "trial=3"]).exception, BadInput)
    assert not out.exists()


def test_error_and_bound() -> None:
    assert FlowSlot(0, 0, 1000.0, 1500, None).error == 0.5
    assert FlowSlot(0, 0, 1000.0, 1500, None).within_bound  # half a segment
    assert not FlowSlot(0, 0, 1000.0, 1800, None).within_bound
    assert FlowSlot(0, 0, 1e6, 1_009_000, None).within_bound  # one percent
    assert not FlowSlot(0, 0, 1e6, 1_011_000, None).within_bound


def test_a_slot_is_off_by_what_accounts_for_half_of_it_or_by_pacing() -> None:
    def cause(sent: int, **lost: float) -> str | None:
        return FlowSlot(0, 0, 1e6, sent, None, lost).cause

    assert cause(1_000_000, data=400_000) is None  # made up for
    assert cause(600_000, data=250_000, processor=100_000) == "data"
    assert cause(600_000, data=150_000, processor=140_000) == "pacing"
    assert cause(1_100_000, repeated=60_000) == "repeated"
    assert cause(600_000) == "pacing"


def test_errors_without_the_machines_leave_out_its_slots_only() -> None:
    slots = (
        FlowSlot(0, 0, 1e6, 1_000_000, None),
        FlowSlot(0, 1, 1e6, 900_000, None),
        FlowSlot(0, 2, 1e6, 500_000, None, {"receiver": 400_000.0}),
    )
    figures = TrialResult(Trial(60.0), Goals(), Outcome(slots, 0.1, None)).figures
    assert figures.off_by_cause == {"pacing": 1, "receiver": 1}
    assert figures.rate_error_mean == pytest.approx(0.2)
    assert figures.rate_error_own_mean == pytest.approx(0.05)


@pytest.mark.root
def test_run_measures_every_slot_of_every_flow(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def measured() -> Any:
        shutil.rmtree(out, ignore_errors=True)
        result = CliRunner().invoke(command, [str(write(tmp_path, GOOD)), "--out", str(out), "--json"])
        assert result.exit_code == 0, result.output
        (run,) = json.loads((out / "results.json").read_text())["runs"]
        return run

    run = undisturbed(measured, lambda run: 0 <= run["rate_error_mean"] < 0.5)
    assert (run["policy"], run["flows"], run["slot_ms"]) == ("slots", 3, 40)
    rows = (out / "slots.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * 12
    assert (out / "results.png").read_bytes().startswith(b"\x89PNG")
