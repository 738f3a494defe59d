"""DistributedDataParallel under `entrain train`: the same numbers, bit for bit; its progress is published."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hostbpf.scheduling.monitor import Direction, Monitor, Phase, Role
from wire.progress import ENTRY, HEADER, Fields, Header

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch: the extra [torch]"),
]

ROOT = Path(__file__).resolve().parents[2]
RANKS, ITERATIONS = 3, 6
WATCHED = ("default", "views", "accumulating", "unused", "sparse")
UNWATCHED = ("own-hook",)
TRAIN = [sys.executable, "-m", "entrain.cli", "train", "--job", "mine", "--"]

Results = dict[str, list[dict[str, Any]]]


def _environment(directory: Path, **variables: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "STORE": str(directory / "store"),
        "ENTRAIN_PROGRESS": str(directory / "progress"),
        **variables,
    }


def _script(directory: Path) -> Path:
    """The training script in a directory of its own, with a module that has the name of one of ours."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "machine.py").write_text("ANSWER = 42\n")
    return shutil.copy(Path(__file__).with_name("scenarios.py"), directory / "scenarios.py")


def _run(directory: Path, *scenarios: str, prefix: list[str], ranks: int = RANKS) -> tuple[Results, str]:
    """What each rank said, by scenario, and what stood on stderr."""
    command = [*prefix, sys.executable, str(_script(directory)), str(ranks), str(ITERATIONS), *scenarios]
    done = subprocess.run(
        command, env=_environment(directory), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(map(json.loads, done.stdout.splitlines()), key=lambda line: line["rank"])
    assert [line["own"] for line in lines] == [42] * ranks
    return {each: [line["results"][each] for line in lines] for each in scenarios}, done.stderr


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return _run(tmp_path_factory.mktemp("plain"), *WATCHED, *UNWATCHED, prefix=[])[0]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, str]:
    return _run(tmp_path_factory.mktemp("watched"), *WATCHED, *UNWATCHED, prefix=TRAIN)


@pytest.mark.parametrize("scenario", [*WATCHED, *UNWATCHED])
def test_losses_and_parameters_are_bit_for_bit_those_without(
    scenario: str, plain: Results, watched: tuple[Results, str]
) -> None:
    found = [each["digest"] for each in watched[0][scenario]]
    assert found == [each["digest"] for each in plain[scenario]]
    assert len(set(found)) == RANKS, "every rank has its own data"


@pytest.mark.parametrize("scenario", ["default", "accumulating", "unused"])
def test_the_bytes_of_an_iteration_are_those_of_a_ring(scenario: str, watched: tuple[Results, str]) -> None:
    ends = set()
    for result in watched[0][scenario]:
        [data] = map(bytes.fromhex, result["progress"])
        header = Header._make(HEADER.unpack_from(data))
        assert header.job.rstrip(b"\0") == b"mine"
        sent, received = (
            Fields._make(ENTRY.unpack_from(data, HEADER.size + number * ENTRY.size))
            for number in range(header.used - 2, header.used)
        )
        gradients = result["bytes"]
        for each, direction in ((sent, Direction.SENT), (received, Direction.RECEIVED)):
            assert (each.direction, each.role) == (direction, Role.RING)
            assert each.chunk == pytest.approx(gradients / RANKS, rel=0.01)
            assert each.total == pytest.approx(2 * (RANKS - 1) / RANKS * gradients, rel=0.1)
            assert each.total <= each.carried <= (ITERATIONS - 1) * 1.1 * each.total
            assert (each.phase, each.done) == (Phase.COMPUTING, 0)
        ends |= {("sent", sent.source_port, sent.destination_port)}
        ends |= {("received", received.source_port, received.destination_port)}
    assert len(ends) == 2 * RANKS
    assert len({ports for _, *ports in map(list, ends) for ports in [tuple(ports)]}) == RANKS


def test_pickles_copies_and_hooks_of_a_script_work_as_without(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("hooked.py"))
    for number, prefix in enumerate(([], TRAIN)):
        command = [*prefix, sys.executable, script, str(tmp_path / f"store{number}")]
        done = subprocess.run(
            command, env=_environment(tmp_path), capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr
    said = "the progress of fully_shard is not published, only that of DistributedDataParallel"
    assert done.stderr.count(said) == 1
    assert "it has a communication hook of its own" in done.stderr


def test_a_model_that_is_not_watched_says_so(watched: tuple[Results, str]) -> None:
    assert "it has a communication hook of its own" in watched[1]


def test_gradients_kept_as_views_are_watched_where_that_changes_no_bit(tmp_path: Path) -> None:
    three, warnings = _run(tmp_path / "three", "views-kept", prefix=TRAIN)
    assert "may round differently" in warnings
    assert not any(each["progress"] for each in three["views-kept"])
    two, _ = _run(tmp_path / "two", "views-kept", prefix=TRAIN, ranks=2)
    without, _ = _run(tmp_path / "without", "views-kept", prefix=[], ranks=2)
    assert [each["digest"] for each in two["views-kept"]] == [
        each["digest"] for each in without["views-kept"]
    ]
    assert all(each["progress"] for each in two["views-kept"])


def test_training_goes_on_where_progress_cannot_be_published(tmp_path: Path, plain: Results) -> None:
    script = _script(tmp_path)
    hook = ROOT / "workloads" / "torch_hook"
    command = [sys.executable, script, str(RANKS), str(ITERATIONS), "default"]
    (tmp_path / "file").touch()
    environment = _environment(tmp_path, PYTHONPATH=str(hook), ENTRAIN_PROGRESS=str(tmp_path / "file"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "progress is no longer published" in done.stderr
    lines = sorted(map(json.loads, done.stdout.splitlines()), key=lambda line: line["rank"])
    assert [line["results"]["default"]["digest"] for line in lines] == [
        each["digest"] for each in plain["default"]
    ]


def test_a_monitor_sees_iterations_and_phases_and_nothing_after_the_end(tmp_path: Path) -> None:
    directory = tmp_path / "progress"
    command = [*TRAIN, sys.executable, str(_script(tmp_path)), "2", "100000", "default"]
    process = subprocess.Popen(command, env=_environment(tmp_path), start_new_session=True)
    try:
        with Monitor(directory) as monitor:
            seen: dict[Phase, set[int]] = {phase: set() for phase in Phase}
            while min(map(len, seen.values())) < 20:
                assert process.poll() is None
                for each in monitor.read():
                    assert each.job == "mine"
                    assert each.done <= each.ready <= each.total
                    seen[each.phase].add(each.iteration)
            assert not monitor.refused
            os.killpg(process.pid, 9)
            process.wait()
            while list(directory.iterdir()):  # its children may take a moment to die
                assert monitor.read() is not None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
