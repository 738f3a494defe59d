"""The cost of watching, in short: both kinds of run are made, and the watched ones are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.short import figures

EXPERIMENT = """
[experiment]
name = "watch-cost"

[topology]
kind = "dumbbell"
hosts_per_side = 1
host_rate_mbps = 50
bottleneck_rate_mbps = 50

[[job]]
name = "one"
collective = "ring"
bytes = 100_000
compute_ms = 60
iterations = 40
hosts = ["h1", "h2"]
"""


@pytest.mark.root
@pytest.mark.slow
def test_runs_alone_are_compared_with_watched_ones(tmp_path: Path) -> None:
    path = tmp_path / "watch-cost.toml"
    path.write_text(EXPERIMENT)
    found = figures(
        "benchmarks", "watch", "--seeds", "1", "--experiment", str(path), "--out", str(tmp_path / "out")
    )
    assert [each["measure"] for each in found["changes"]] == ["mean completion (s)", "iteration (ms)"]
    assert found["readings"] > 1 and found["watch_cpu_s"] > 0
    assert set(found["processor_busy"]) == {"alone", "watched"}
