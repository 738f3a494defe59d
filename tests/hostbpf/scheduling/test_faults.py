"""Faults while jobs train under the slot scheduler: nobody stalls, tables empty themselves, it is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from machine.patience import patience

pytestmark = [pytest.mark.root, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
BOTH = {"one": True, "two": True}


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    """What came of each fault; they are made one after the other on one fabric, which takes half a minute."""
    command = [sys.executable, "-m", "tests.hostbpf.scheduling.faulty_fabric"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=patience(280)
    )
    assert result.returncode == 0, result.stderr
    return {each["fault"]: each for each in map(json.loads, result.stdout.splitlines())}


def test_an_agent_that_is_killed_holds_nobody_and_its_successor_schedules(
    seen: dict[str, dict[str, Any]],
) -> None:
    fault = seen["agent_killed"]
    assert fault["without"] == fault["again"] == BOTH
    assert fault["decides"]


def test_a_switch_that_restarts_in_a_slot_is_survived(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["switch_restarted"]["again"] == BOTH


def test_two_seconds_of_heavy_loss_are_survived(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["packets_lost"]["lost"] > 0
    assert seen["packets_lost"]["again"] == BOTH


def test_nonsense_progress_is_refused_and_counted(seen: dict[str, dict[str, Any]]) -> None:
    fault = seen["nonsense_progress"]
    assert fault["again"] == BOTH
    assert "refused: claimed twice" in fault["refused"]
    assert any("more done than ready" in reason for reason in fault["refused"])


def test_a_clock_that_steps_by_five_seconds_stalls_nobody(seen: dict[str, dict[str, Any]]) -> None:
    fault = seen["clock_stepped"]
    assert fault["ahead"] == fault["again"] == BOTH
    assert fault["steps"] == 2
    assert fault["decides"]


def test_a_job_that_dies_in_an_iteration_leaves_the_others_alone(seen: dict[str, dict[str, Any]]) -> None:
    fault = seen["job_killed"]
    assert fault["failed"]
    assert fault["again"] == {"one": True}
    assert fault["flows"] == 0
    assert fault["left"] == []


def test_tables_empty_themselves(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["tables_empty"]["planned_mbps"] == 0
