"""Coflow policies in an experiment: a coordinator sets rates, and jobs train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.entrain.running import results

pytestmark = pytest.mark.root


EXPERIMENT = """
[experiment]
name = "pair"
policy = ["lccf"]

[network]
slow_start_after_idle = false

[lccf]
interval_ms = 60

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 50
bottleneck_rate_mbps = 100

[[job]]
name = "many"
collective = "parameter-server"
servers = 1
bytes = 400_000
compute_ms = 20
iterations = 6
hosts = ["h1", "h3", "h4"]

[[job]]
name = "few"
collective = "parameter-server"
servers = 1
bytes = 1_600_000
compute_ms = 20
iterations = 2
hosts = ["h2", "h3", "h4"]
"""


def test_a_coordinator_sets_the_rates_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text(EXPERIMENT)
    (run,) = results(file)["runs"]
    assert (run["policy"], run["congestion_control"]) == ("lccf", "slot_cubic")
    told = run["policy_report"]
    assert told["interval_ms"] == 60
    assert told["updates"] >= told["decisions"] > 0
    assert told["update_ms"]["p50"] > told["decision_ms"]["p50"] > 0
    assert told["unanswered"] == 0
