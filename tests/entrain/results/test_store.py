"""`--out` of `entrain run`: nothing that was measured is lost, and nothing is mixed."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrain.experiment import Combination, Experiment, load_experiment
from entrain.policies.reports import HostReport, Learned
from entrain.results import files
from entrain.results.store import Store, read, writing
from entrain.results.values import JobResult, RunResult, Timeline
from entrain.run.contention import LinkContention
from entrain.run.queues import QueueUse
from entrain.run.samples import Throughput, Window
from entrain.trials.slot_rates import KIND as SLOT_RATES
from entrain.trials.slot_rates import load as load_slot_rates
from machine.errors import BadInput, EntrainError
from workloads.records import Summary

ROOT = Path(__file__).resolve().parents[3]

EXPERIMENT = """
[experiment]
name = "made-up"
routing = ["ecmp", "source"]
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
[[job]]
name = "a"
collective = "ring"
bytes = 1448000
compute_ms = 50
hosts = ["h1", "h3"]
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load(tmp_path, EXPERIMENT)


def load(directory: Path, text: str) -> Experiment:
    path = directory / "made-up.toml"
    path.write_text(text)
    return load_experiment(path)


def run(combination: Combination) -> RunResult:
    """A run in which no field has its default."""
    times = (100.25, 101.5)
    summary = Summary("a", "ring", 2, 2, times, (50.0, 51.0), 0.2, 99, 0.1, None, ((0.5, 0.25), (0.4, 0.2)))
    return RunResult(
        combination,
        "softswitch",
        (JobResult("a", ("h1", "h3"), summary, 90.0, 1, 95.0),),
        (LinkContention("leaf1->spine1", 1, 2, 3, 4, 5),),
        {"processor_busy": 0.5, "unattributed_bytes": 0, "bursts": 7},
        Timeline(
            (Throughput("leaf1->spine1", "a", 10.0, (1.0, 2.5)),), (Window(0.1, "a", "h1", 9, None, 1, 2),)
        ),
        (Learned("a", "h1", 3, 1000, 12.5, 1),),
        (
            HostReport(
                *("h1", ("begun",), {"decisions": 1}, {"sent": 2}, (1.0,), (0.5,), 10.0, 1.2, 99, 100.0),
                *({"10.1.1.2": (-0.5, 0.5)}, (0.1,), {"wanted": 2.5}),
            ),
        ),
        {"anything": [1, 2.5, None, "else"]},
        queues=(QueueUse("leaf1->spine1", 1, 2, 3),),
    )


@contextlib.contextmanager
def stored(
    directory: Path, experiment: Experiment, *, resume: bool = False
) -> Iterator[Store[Experiment, RunResult]]:
    with writing(files.NETWORK, directory, experiment, resume=resume) as store:
        yield store


def measured(experiment: Experiment) -> list[RunResult]:
    return [run(combination) for combination in experiment.combinations()]


def fill(directory: Path, experiment: Experiment, number: int) -> None:
    with stored(directory, experiment) as store:
        for each in measured(experiment)[:number]:
            store.add(each, files.name(each))


def test_what_is_read_is_what_was_written(tmp_path: Path, experiment: Experiment) -> None:
    fill(tmp_path / "out", experiment, 2)
    found = read(files.NETWORK, tmp_path / "out")
    assert (found.experiment, found.runs) == (experiment, measured(experiment))


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for path in (ROOT / "experiments").glob("*.toml")
        if "[experiment]" in path.read_text(encoding="utf-8")
    ),
    ids=lambda path: path.stem,
)
def test_every_experiment_that_comes_with_it_can_be_read_back(tmp_path: Path, path: Path) -> None:
    if path.stem == "slot-rates":
        rates = load_slot_rates(path)
        with writing(SLOT_RATES, tmp_path, rates, resume=False):
            pass
        assert read(SLOT_RATES, tmp_path).experiment == rates
    else:
        experiment = load_experiment(path)
        fill(tmp_path, experiment, 0)
        assert read(files.NETWORK, tmp_path).experiment == experiment


def test_the_same_experiment_goes_on_where_it_ended(tmp_path: Path, experiment: Experiment) -> None:
    first, second = measured(experiment)
    fill(tmp_path / "out", experiment, 1)
    with stored(tmp_path / "out", experiment, resume=True) as store:
        assert store.runs == [first]
        store.add(second, files.name(second))
    assert read(files.NETWORK, tmp_path / "out").runs == [first, second]


def test_runs_are_in_the_experiments_order_whichever_came_first(
    tmp_path: Path, experiment: Experiment
) -> None:
    first, second = measured(experiment)
    with stored(tmp_path / "out", experiment) as store:
        store.add(second, files.name(second))
        store.add(first, files.name(first))
        assert store.runs == [first, second]
    assert read(files.NETWORK, tmp_path / "out").runs == [first, second]


def test_runs_that_stand_there_stay_until_a_new_one_has_ended(tmp_path: Path, experiment: Experiment) -> None:
    first, second = measured(experiment)
    fill(tmp_path / "out", experiment, 2)
    with stored(tmp_path / "out", experiment) as store:
        assert store.runs == []
        assert read(files.NETWORK, tmp_path / "out").runs == [first, second]
        store.add(first, files.name(first))
    assert read(files.NETWORK, tmp_path / "out").runs == [first]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("bytes = 1448000", "bytes = 1448001", r"jobs\.1\.spec\.bytes is 1448000 there and 1448001 here"),
        ('["ecmp", "source"]', '["source"]', "routing"),
        ("compute_ms = 50", "compute_ms = 50\niterations = 20", "iterations is 10 there and 20 here"),
    ],
)
def test_results_of_another_experiment_are_not_touched(
    tmp_path: Path, experiment: Experiment, old: str, new: str, difference: str, resume: bool
) -> None:
    fill(tmp_path / "out", experiment, 1)
    other = load(tmp_path, EXPERIMENT.replace(old, new))
    with pytest.raises(BadInput, match=difference), stored(tmp_path / "out", other, resume=resume):
        pass
    assert read(files.NETWORK, tmp_path / "out").runs == measured(experiment)[:1]


def test_a_directory_without_runs_is_of_no_experiment(tmp_path: Path, experiment: Experiment) -> None:
    """A first try that failed does not keep anybody from mending the file."""
    fill(tmp_path / "out", experiment, 0)
    fill(tmp_path / "out", load(tmp_path, EXPERIMENT.replace("1448000", "1448001")), 1)


def test_what_the_file_is_called_makes_no_difference(tmp_path: Path, experiment: Experiment) -> None:
    fill(tmp_path / "out", experiment, 1)
    moved = tmp_path / "elsewhere.toml"
    moved.write_text(EXPERIMENT)
    with stored(tmp_path / "out", load_experiment(moved), resume=True) as store:
        assert len(store.runs) == 1


@pytest.mark.parametrize("name", ["results.json", "summary.json"])
def test_results_of_unknown_origin_are_not_touched(tmp_path: Path, experiment: Experiment, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with (
        pytest.raises(BadInput, match=f"{name} is from another experiment"),
        stored(tmp_path, experiment),
    ):
        pass
    assert [path.name for path in tmp_path.glob("*.json")] == [name]


def test_two_writers_do_not_meet(tmp_path: Path, experiment: Experiment) -> None:
    with stored(tmp_path / "out", experiment) as store:
        with (
            pytest.raises(BadInput, match="another run is writing there"),
            stored(tmp_path / "out", experiment),
        ):
            pass
        store.add(measured(experiment)[0], "first")
    with stored(tmp_path / "out", experiment, resume=True) as store:  # its end gives the directory free
        assert len(store.runs) == 1


@contextlib.contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Within, no file of this process can grow beyond `limit` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_the_runs_before(tmp_path: Path, experiment: Experiment) -> None:
    out = tmp_path / "out"
    first, second = measured(experiment)
    with stored(out, experiment) as store:
        store.add(first, files.name(first))
        files.write(out, experiment, store.runs)
        before = (out / "results.json").read_text()
        with full_disk(500):
            with pytest.raises(EntrainError, match=r"cannot be written .*--resume"):
                store.add(second, files.name(second))
            with pytest.raises(OSError):
                files.write(out, experiment, [first, second])
    assert read(files.NETWORK, out).runs == [first]
    assert (out / "results.json").read_text() == before
    assert not [path for path in out.rglob(".*") if path.is_file()]


def test_a_run_that_cannot_be_read_is_named(tmp_path: Path, experiment: Experiment) -> None:
    fill(tmp_path / "out", experiment, 1)
    (path,) = (tmp_path / "out" / "runs").iterdir()
    path.write_text(path.read_text()[:-20])
    with pytest.raises(BadInput, match=path.name), stored(tmp_path / "out", experiment, resume=True):
        pass


@pytest.mark.parametrize("name", ["made-up", "slot-rates"])
def test_out_is_checked_before_anything_else(tmp_path: Path, name: str) -> None:
    file = tmp_path / "made-up.toml"
    file.write_text(EXPERIMENT)
    (tmp_path / "file").touch()
    source = ROOT / "experiments" / "slot-rates.toml" if name == "slot-rates" else file
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "entrain.cli",
            "run",
            str(source),
            "--json",
            "--out",
            str(tmp_path / "file/out"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "run as root" in done.stderr:
        pytest.skip("needs root")
    assert done.returncode == 2, done.stderr
    assert "--out" in json.loads(done.stdout)["error"]
    assert "Traceback" not in done.stderr
    assert "bringing up" not in done.stderr
