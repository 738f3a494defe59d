"""Cross traffic: drawn from the seed alone, within what the file says."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from entrain.experiment import Experiment, load_experiment
from entrain.run.cross import Cross, CrossFlow, draw
from machine.errors import BadInput
from tests.attempts import undisturbed

FILE = """
[experiment]
name = "cross"
policy = ["slots"]
timeout_s = 20
[topology]
kind = "dumbbell"
hosts_per_side = 2
[[job]]
name = "one"
bytes = 1000
collective = "ring"
hosts = ["h1", "h3"]
"""


def load(directory: Path, cross: str) -> Experiment:
    path = directory / "cross.toml"
    path.write_text(FILE + "[[cross]]\n" + cross)
    return load_experiment(path)


def test_flows_are_what_the_file_says(tmp_path: Path) -> None:
    experiment = load(tmp_path, "every_ms = 2000\nlasts_ms = [200, 2000]\nrate_mbps = 5")
    flows = draw(experiment, 1)
    assert len(flows) == 4 * 10
    assert all(0.2 <= flow.duration_s <= 2.0 and flow.source != flow.destination for flow in flows)
    assert [flow.start_s for flow in flows] == sorted(flow.start_s for flow in flows)
    assert {flow.rate_mbps for flow in flows} == {5}
    assert len({flow.on(experiment.topology) for flow in flows}) == len(flows)


def test_the_seed_decides(tmp_path: Path) -> None:
    experiment = load(tmp_path, "")
    assert draw(experiment, 1) == draw(experiment, 1)
    assert draw(experiment, 1) != draw(experiment, 2)


def test_one_flow_at_a_given_time(tmp_path: Path) -> None:
    experiment = load(
        tmp_path, 'hosts = ["h1"]\nto = ["h3"]\nstart_ms = 3000\nlasts_ms = [6000, 6000]\nflows = 1'
    )
    (flow,) = draw(experiment, 1)
    assert (flow.source, flow.destination, flow.start_s, flow.duration_s) == ("h1", "h3", 3.0, 6.0)


@pytest.mark.parametrize(
    ("cross", "message"),
    [
        ('hosts = ["h9"]', "there is no host 'h9'"),
        ("lasts_ms = [2000, 200]", "put the shorter time first"),
        ('hosts = ["h1"]\nto = ["h1"]', "cannot send to itself"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, cross: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load(tmp_path, cross)


class Loopback:
    """A network whose hosts are all this machine."""

    def __init__(self) -> None:
        self.topology = SimpleNamespace(
            host_by_name={name: SimpleNamespace(ip="127.0.0.1") for name in ("h1", "h2")}
        )

    def popen(self, host: str, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        if "--cport" in command:  # both ends are on one host
            own = command.index("--cport") + 1
            command = [*command[:own], str(int(command[own]) + 1000), *command[own + 1 :]]
        with log.open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    def end(self, processes: Iterable[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.kill()
            process.wait()


def test_goodput_is_what_servers_have_received(tmp_path: Path) -> None:
    """Of the flows that have ended, whose clients are stopped in the middle; reports do not pile up."""
    flows = [CrossFlow(n, "h1", "h2", 0.0, 0.5, 40.0) for n in range(2)]

    def goodput_mbps() -> float | None:
        cross = Cross(Loopback(), flows, tmp_path / "cross.log")  # type: ignore[arg-type]
        assert cross.goodput_mbps is None
        try:
            cross.start(time.monotonic_ns() + 300_000_000)
            deadline = time.monotonic() + 60.0
            while cross.ended < len(flows) and time.monotonic() < deadline:
                cross.look()
                time.sleep(0.01)
        finally:
            cross.close()
        return cross.goodput_mbps

    undisturbed(goodput_mbps, lambda found: found == pytest.approx(40.0, rel=0.4))  # whole blocks of 128 KB
    assert [each.name for each in tmp_path.iterdir()] == ["cross.log"]
