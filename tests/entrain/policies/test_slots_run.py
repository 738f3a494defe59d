"""Policy `slots` in an experiment: agents schedule what the jobs publish, and the results say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.entrain.running import results

pytestmark = pytest.mark.root


EXPERIMENT = """
[experiment]
name = "slots"
policy = "slots"

[network]
slow_start_after_idle = false

[slots]
slot_ms = 30
loads = "{loads}"

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 50
bottleneck_rate_mbps = 50

[[job]]
name = "one"
collective = "ring"
bytes = 500_000
compute_ms = 50
iterations = 4
hosts = ["h1", "h3"]

[[job]]
name = "two"
collective = "ring"
bytes = 500_000
compute_ms = 50
iterations = 4
hosts = ["h2", "h4"]
"""


@pytest.mark.parametrize("loads", ["inband", "emulated"])
def test_agents_schedule_the_jobs_of_an_experiment(tmp_path: Path, loads: str) -> None:
    file, out = tmp_path / "slots.toml", tmp_path / "out"
    file.write_text(EXPERIMENT.format(loads=loads))
    (run,) = results(file, "--out", out)["runs"]
    assert (run["policy"], run["congestion_control"]) == ("slots", "slot_cubic")
    assert {host["host"] for host in run["scheduling"]} == {"h1", "h2", "h3", "h4"}
    for host in run["scheduling"]:
        assert host["counts"]["decisions"] > 0
        assert host["negotiation_ms"]["p50"] > 0
        assert host["link_s"]["wanted"] > 0
        assert host["late_ms"]["p50"] >= 0
    assert (out / "delays.csv").exists()
    assert (out / "overhead.png").stat().st_size > 10_000
