"""What is likely not meant is told by name, before anything starts, by `entrain run` and `entrain up`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from entrain.cli import cli
from entrain.experiment import load_emulated
from entrain.run.doubts import doubts

ROOT = Path(__file__).resolve().parents[3]
READY = {"process_id": 1, "namespace": "none", "seconds": 0.0, "removed": 0}
"""What a network that has come up reports."""
TOPOLOGY = """
[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 1000
bottleneck_rate_mbps = 1000
queue_packets = 50
"""
JOB = '[[job]]\nname = "one"\ncollective = "ring"\nbytes = 1000\ncount = 2\n'


def written(path: Path, old: str = "", new: str = "", network: str = "") -> Path:
    """An experiment, with `old` replaced by `new`."""
    text = f'[experiment]\nname = "{path.stem}"\n{TOPOLOGY}[network]\n{network}\n{JOB}'
    assert old in text
    path.write_text(text.replace(old, new) if old else text)
    return path


def told(path: Path) -> tuple[str, ...]:
    return doubts(path, *load_emulated(path))


def test_a_file_that_says_all_raises_no_doubt(tmp_path: Path) -> None:
    assert told(written(tmp_path / "net.toml")) == ()


@pytest.mark.parametrize(
    ("old", "new", "network", "about"),
    [
        ("queue_packets = 50\n", "", "", "bottleneck_rate_mbps without queue_packets"),
        ("packets = 50", "packets = 8", "", "link left-h1 and 4 more: queue_packets = 8 is 12112 bytes"),
        ("", "", "host_queue_packets = 8", "[network]: link left-h1 and 3 more: host_queue_packets = 8"),
        ("", "", 'shaping = "none"\nhost_queue_packets = 99', "[network], host_queue_packets: has no effect"),
    ],
)
def test_run_and_up_warn_in_one_line_with_file_and_key(
    old: str, new: str, network: str, about: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrain.doctor.check_network", lambda *_: None)
    monkeypatch.setattr("entrain.run.starting.start", lambda plan: dict(READY))
    path = written(tmp_path / "net.toml", old, new, network)
    (line,) = told(path)
    assert line.startswith(f"{path}: ") and about in line
    for command in (["up"], ["run", "--dry-run"]):
        done = CliRunner().invoke(cli, [*command, str(path)])
        assert done.exit_code == 0
        assert [each for each in done.stderr.splitlines() if "warning" in each] == [f"warning: {line}"]


def test_the_value_that_the_warning_gives_silences_it(tmp_path: Path) -> None:
    (line,) = told(written(tmp_path / "net.toml", "packets = 50", "packets = 8"))
    asked = line.rpartition("give at least ")[2]
    assert told(written(tmp_path / "net.toml", "queue_packets = 50", asked)) == ()


def test_a_topology_in_a_file_of_its_own_is_named_by_that_file(tmp_path: Path) -> None:
    (tmp_path / "links.toml").write_text(TOPOLOGY.replace("queue_packets = 50\n", ""))
    path = tmp_path / "experiment.toml"
    path.write_text(f'[experiment]\nname = "e"\ntopology = "links.toml"\n{JOB}')
    (line,) = told(path)
    assert line.startswith(f"{tmp_path / 'links.toml'}: [topology]")
    assert told(tmp_path / "links.toml") == (line,)


def test_a_clusters_rate_without_a_queue_is_named(tmp_path: Path) -> None:
    text = (ROOT / "experiments/vclos-small.toml").read_text(encoding="utf-8")
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    assert told(path) == ()
    path.write_text(re.sub("queue_packets = 64.*\n", "", text))
    assert [line for line in told(path) if "[cluster]: rate_mbps without queue_packets" in line]


OURS = [
    path
    for folder in ("experiments", "examples")
    for path in sorted((ROOT / folder).rglob("*.toml"))
    if re.search(r"^\[(topology|cluster)\]", text := path.read_text(), re.MULTILINE)
    and ("[experiment]" in text or "[cluster]" not in text)
    and path.parent.name not in ("collective", "scheduler", "policy", "ocs_driver")  # of plugins
]


@pytest.mark.parametrize("file", OURS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_file_of_ours_raises_a_doubt(file: Path) -> None:
    assert told(file) == ()
