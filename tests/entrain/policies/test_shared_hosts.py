"""Several jobs on the same hosts: MLTCP knows each of them by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attempts import undisturbed
from tests.entrain.running import results

pytestmark = pytest.mark.root


EXPERIMENT = """
[experiment]
name = "shared-hosts"
policy = ["none", "mltcp"]
congestion_control = ["reno"]

[topology]
kind = "dumbbell"
hosts_per_side = 1
host_rate_mbps = 100
bottleneck_rate_mbps = 100

[[job]]
name = "small"
collective = "ring"
bytes = 100_000
compute_ms = 150
iterations = 12
hosts = ["h1", "h2"]

[[job]]
name = "large"
collective = "ring"
bytes = 300_000
compute_ms = 100
iterations = 12
hosts = ["h1", "h2"]
"""


def test_mltcp_learns_each_job_of_a_host_by_itself(tmp_path: Path) -> None:
    """As one job, the two would have one total, the sum or a mixture of their bytes."""
    file = tmp_path / "shared-hosts.toml"
    file.write_text(EXPERIMENT)

    def learned() -> dict[tuple[str, str], int]:
        plain, mltcp = results(file)["runs"]
        assert plain["learned"] == []
        return {(each["job"], each["host"]): each["total_bytes"] for each in mltcp["learned"]}

    sizes = {"small": 100_000, "large": 300_000}
    wanted = {(job, host): pytest.approx(sizes[job], rel=0.02) for job in sizes for host in ("h1", "h2")}
    undisturbed(learned, lambda found: found == wanted)
