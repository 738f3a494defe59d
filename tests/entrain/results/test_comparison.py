"""Two experiments compared, and the page of HTML, from results made by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from entrain.commands.report import command
from entrain.experiment import Combination, load_experiment
from entrain.results import comparison, files, html
from entrain.results.comparison import Change, Held
from entrain.results.store import read, writing
from entrain.results.values import JobResult, RunResult
from entrain.run.contention import LinkContention
from machine.errors import BadInput
from workloads.records import Summary

EXPERIMENT = """
[experiment]
name = "made-up"
routing = ["ecmp", "source"]
seed = [1, 2, 3]
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
host_rate_mbps = {rate}
[[job]]
name = "alpha"
collective = "ring"
bytes = 1448000
compute_ms = 50
hosts = ["h1", "h3"]
"""

Make = Callable[..., Path]


def run(routing: str, seed: int, iteration_ms: float) -> RunResult:
    times = (iteration_ms, iteration_ms + 2)
    summary = Summary("alpha", "ring", 2, 2, times, times, sum(times) / 1e3, 99, 0.1, None)
    links = (LinkContention("leaf1->spine1", 2, 2, 2, 5, 1000),)
    overhead = {"processor_busy": 0.5, "unattributed_bytes": 0}
    combination = Combination(routing, "none", seed)  # type: ignore[arg-type]
    return RunResult(
        combination, "softswitch", (JobResult("alpha", ("h1", "h3"), summary, 100.0, 2),), links, overhead
    )


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a directory of results: iteration times by seed, for ECMP."""

    def made(name: str, *times: float, rate: int = 100, routing: str = "ecmp") -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(EXPERIMENT.format(rate=rate))
        with writing(files.NETWORK, tmp_path / name, load_experiment(path), resume=False) as store:
            for seed, time in enumerate(times, 1):
                store.add(run(routing, seed, time), f"{routing}-{seed}")
        return tmp_path / name

    return made


def held(directory: Path) -> Held:
    return read(files.NETWORK, directory)


def of(changes: list[Change], job: str) -> Change:
    (found,) = [each for each in changes if each.job == job]
    return found


def test_what_a_seed_does_to_both_cancels_out(make: Make) -> None:
    """The seeds differ by far more than the two experiments, which differ by 10 ms in each."""
    first, second = make("first", 200, 400, 600), make("second", 189.9, 390.0, 590.1)
    found = of(comparison.compare(held(first), held(second)), "alpha")
    assert found.change.mean == pytest.approx(-10 / 401)
    assert found.verdict == "shorter"
    back = of(comparison.compare(held(second), held(first)), "alpha")
    assert back.verdict == "longer"


def test_a_change_within_the_spread_is_none(make: Make) -> None:
    first, second = make("first", 200, 210, 220), make("second", 190, 225, 212)
    assert of(comparison.compare(held(first), held(second)), "alpha").verdict == "within the spread"


def test_different_numbers_of_seeds_are_compared_by_their_means(make: Make) -> None:
    first, second = make("first", 200, 210, 220), make("second", 100, 101)
    found = of(comparison.compare(held(first), held(second)), "alpha")
    assert found.change.mean == pytest.approx(101.5 / 211 - 1)
    assert found.verdict == "shorter"
    assert of(comparison.compare(held(make("one", 200)), held(second)), "alpha").verdict == "one seed"


def test_settings_that_differ_are_named_with_both_values(make: Make) -> None:
    first, second = make("first", 200), make("second", 200, rate=50)
    found = {where: values for where, *values in comparison.settings(held(first), held(second))}
    assert ["100.0", "50.0"] in found.values()
    assert all("rate_mbps" in where or "bound" in where for where in found)
    assert comparison.settings(held(first), held(first)) == []


def test_nothing_in_common_is_refused(make: Make) -> None:
    first, second = make("first", 200), make("second", 200, routing="source")
    with pytest.raises(BadInput, match="no run in common"):
        comparison.compare(held(first), held(second))


def test_the_command_compares_two_directories(make: Make) -> None:
    first, second = make("first", 200, 400, 600), make("second", 189.9, 390.0, 590.1, rate=50)
    done = CliRunner().invoke(command, [str(first), str(second)], catch_exceptions=False)
    assert "shorter" in done.output
    assert "rate_mbps" in done.output


def test_the_comparison_is_in_json_too(make: Make) -> None:
    first, second = make("first", 200, 400, 600), make("second", 189.9, 390.0, 590.1, rate=50)

    def printed(*directories: Path) -> dict[str, Any]:
        done = CliRunner().invoke(command, [*map(str, directories), "--json"], catch_exceptions=False)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    found = printed(first, second)
    assert found["experiments"] == [printed(first), printed(second)]
    (alpha,) = (each for each in found["comparison"]["runs"] if each["job"] == "alpha")
    assert (alpha["first"]["mean"], alpha["meaning"]) == (pytest.approx(401), "shorter")
    assert any("rate_mbps" in each["setting"] for each in found["comparison"]["settings"])
    assert printed(first, make("third", 200, routing="source"))["comparison"] is None


def test_the_page_loads_nothing_and_shows_every_run(make: Make, tmp_path: Path) -> None:
    first, second = make("first", 200, 400, 600), make("second", 189.9, 390.0, 590.1)
    path = tmp_path / "report.html"
    done = CliRunner().invoke(command, [str(first), str(second), "--html", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    text = path.read_text(encoding="utf-8")
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "default-src 'none'" in markup
    assert not re.search(r"(src|href)=", markup)
    for shown in (
        "401.00 (0.00 to 897.83)",
        "391.00 (0.00 to ",
        "-2.5 ±",
        "How long do the jobs take?",
        "3 seeds",
    ):
        assert shown in markup


def test_names_with_markup_stay_text(make: Make) -> None:
    """Results may come from somebody else: the file is not written by this program alone."""
    directory = make("first", 200)
    bad = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    for path in (directory / "experiment.json", *(directory / "runs").glob("*.json")):
        text = path.read_text(encoding="utf-8").replace('"made-up"', json.dumps(bad))
        path.write_text(text.replace("leaf1->spine1", bad))
    text = html.page([directory])
    assert bad not in text
    assert "&lt;script&gt;alert(1)" in text


def test_an_unfinished_or_foreign_directory_is_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no run is complete yet"):
        html.page([make("first")])
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "experiment.json").write_text("[]")
    with pytest.raises(BadInput, match="not written by this version"):
        html.page([tmp_path / "foreign"])


@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_plots_are_drawn_as_vectors(make: Make, form: str) -> None:
    directory = make("first", 200, 210)
    done = CliRunner().invoke(command, [str(directory), "--draw", "--format", form], catch_exceptions=False)
    assert done.exit_code == 0
    start = (directory / f"results.{form}").read_bytes()[:100]
    assert start.startswith((b"<?xml", b"%PDF"))


def test_what_differs_but_for_the_seed_is_one_combination(make: Make) -> None:
    """One row for each combination and job, and one for all jobs."""
    first = make("first", 200, 210, 220)
    assert [each.job for each in comparison.compare(held(first), held(first))] == ["all jobs", "alpha"]


def test_a_format_without_plots_is_refused(make: Make) -> None:
    done = CliRunner().invoke(command, [str(make("first", 200)), "--format", "svg"])
    assert done.exit_code == 2
    assert "--draw" in done.output


def test_a_key_that_an_older_version_did_not_have_is_no_difference(make: Make) -> None:
    """An older version wrote no table of a policy that it did not have, and no key that it did not know."""
    newer, older = make("newer", 200), make("older", 200)
    path = older / "experiment.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    tables = content["experiment"]["tables"]
    del tables["parrot"], tables["slots"]["scheduler"]
    path.write_text(json.dumps(content))
    assert comparison.settings(held(newer), held(older)) == []
    tables["slots"]["slot_ms"] = 30.0
    path.write_text(json.dumps(content))
    assert comparison.settings(held(newer), held(older)) == [("tables.slots.slot_ms", "60.0", "30.0")]


def test_the_first_directory_given_is_the_first(make: Make) -> None:
    later, earlier = make("z", 200, 400, 600), make("a", 189.9, 390.0, 590.1)
    done = CliRunner().invoke(command, [str(later), str(earlier)], catch_exceptions=False)
    assert "shorter" in done.output and "longer" not in done.output


def test_different_numbers_of_iterations_leave_completion_times_out(make: Make, tmp_path: Path) -> None:
    """Ten iterations take longer than three, which says nothing; the titles are the directories."""
    first, second = make("before", 200, 210), make("after", 190, 195)
    path = second / "experiment.json"
    path.write_text(path.read_text().replace('"iterations": 10', '"iterations": 3'))
    done = CliRunner().invoke(command, [str(first), str(second)], catch_exceptions=False)
    assert done.exit_code == 0
    comparison_text = " ".join(done.output.partition("Comparison, from before to after:")[2].split())
    assert "alpha 10 and 3" in comparison_text
    assert "job alpha: iterations" in comparison_text
    assert "mean completion" not in comparison_text and "iteration (ms)" in comparison_text
    assert "first" not in comparison_text and "second" not in comparison_text
    CliRunner().invoke(command, [str(first), str(second), "--html", str(tmp_path / "a.html")])
    assert "alpha 10 and 3" in (tmp_path / "a.html").read_text()
