"""What `entrain run --dry-run` says is what `entrain run` would do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from entrain.commands.run import command
from entrain.experiment import Experiment, load_experiment
from entrain.run.plan import chosen, name_parts, plan
from machine.errors import BadInput

ROOT = Path(__file__).parents[3]
MATRIX = ROOT / "experiments/matrix.toml"


@pytest.fixture(scope="module")
def matrix() -> Experiment:
    return load_experiment(MATRIX)


def test_without_only_every_run_is_chosen(matrix: Experiment) -> None:
    assert chosen(matrix, ()) == list(matrix.combinations())


def test_only_keeps_the_runs_that_have_one_value_of_each_key(matrix: Experiment) -> None:
    some = chosen(matrix, ("policy=slots,none", "load=25"))
    expected = [c for c in matrix.combinations() if c.policy in ("slots", "none") and c.load == 25.0]
    assert some == expected
    assert {name_parts(each)["routing"] for each in some} == {"ecmp", "source", "vclos"}


@pytest.mark.parametrize(
    ("only", "told"),
    [
        ("polic=slots", "did you mean policy?"),
        ("policy", "as in --only policy=none"),
        ("seed=77", "no run has seed '77'; there is 1"),
    ],
)
def test_a_wrong_choice_names_what_there_is(matrix: Experiment, only: str, told: str) -> None:
    with pytest.raises(BadInput, match="--only") as error:
        chosen(matrix, (only,))
    assert told in str(error.value)


def test_a_run_lasts_at_least_as_long_as_its_longest_job_alone(matrix: Experiment) -> None:
    """At half the load each iteration takes twice as long, for communication takes the same time."""
    seconds = {
        load: plan(matrix, chosen(replace(matrix, loads=(load,)), ("policy=none",))).run_seconds[0]
        for load in (20.0, 40.0)
    }
    assert seconds[20.0] == pytest.approx(2 * seconds[40.0], rel=0.02)


def test_bmv2_wants_more_processors(matrix: Experiment) -> None:
    on = {target: plan(load_experiment(MATRIX, target=target), ()) for target in ("softswitch", "bmv2")}
    assert on["bmv2"].processors > 10 * on["softswitch"].processors


def test_a_dry_run_creates_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(
        command,
        [str(MATRIX), "--dry-run", "--json", "--only", "policy=slots", "--out", str(out), "--resume"],
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {run["policy"] for run in found["runs"]} == {"slots"}
    assert found["seconds_at_least"] > sum(run["seconds_at_least"] for run in found["runs"])
    assert not out.exists()
