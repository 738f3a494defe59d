"""DCTCP's mark threshold: above what paced senders emit at once, below the queue's end."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.routing import FabricPolicy, desired_state
from controlplane.topology import dumbbell, leaf_spine
from ebpf.struct_ops import available_congestion_controls
from entrain.experiment import load_experiment
from entrain.paper import EXPERIMENTS, PAGE
from entrain.trials.slot_rates import is_slot_rates
from mininet_topos.ecn import round_trip_ms, threshold_packets, thresholds
from mininet_topos.links import FRAME_BYTES, TURN_MS, burst_bytes
from tests.attempts import undisturbed

ROOT = Path(__file__).parents[2]


@given(rate_mbps=st.floats(1, 400_000), trip_ms=st.floats(0, 100))
def test_the_threshold_is_dctcps_guideline_and_the_shapers_burst(rate_mbps: float, trip_ms: float) -> None:
    pipe_bytes = rate_mbps * 1e6 / 8 * trip_ms / 1e3
    assert threshold_packets(rate_mbps, trip_ms, "htb") * FRAME_BYTES > pipe_bytes / 7 + burst_bytes(
        rate_mbps
    )


def test_a_link_that_is_not_shaped_has_a_lower_threshold() -> None:
    assert threshold_packets(100, 1, "none") < threshold_packets(100, 1, "tbf")


def test_the_round_trip_counts_each_link_of_the_longest_path() -> None:
    assert round_trip_ms(dumbbell(1)) == 3 * TURN_MS
    assert round_trip_ms(leaf_spine(2, 2, 1)) == 4 * TURN_MS
    assert round_trip_ms(leaf_spine(2, 2, 1, delay_ms=5)) == 4 * (TURN_MS + 10)


@pytest.mark.parametrize(
    "path",
    sorted(path for path in EXPERIMENTS.glob("*.toml") if path != PAGE and "dctcp" in path.read_text()),
    ids=lambda path: path.stem,
)
def test_in_no_experiment_a_shaper_alone_makes_dctcp_slow_down(path: Path) -> None:
    """At every host's port a burst fits below the threshold, and the threshold below the queue's end."""
    if is_slot_rates(path):
        return
    experiment = load_experiment(path)
    if experiment.network.shaping == "none":
        return  # BMv2's own queue, and its own rate
    assert experiment.network.ecn_threshold_packets is None
    threshold = thresholds(experiment.topology, experiment.network.shaping)
    desired_state(experiment.topology, FabricPolicy(ecn_threshold_packets=threshold))
    for host in experiment.topology.hosts:
        port = experiment.topology.switch_by_name[host.leaf].port(host.leaf_port)
        assert burst_bytes(port.rate_mbps) < threshold(port) * FRAME_BYTES < port.queue_packets * FRAME_BYTES


ALONE = """
[experiment]
name = "alone"
congestion_control = "bpf_dctcp"
sample_ms = 20

[network]
slow_start_after_idle = false

[topology]
kind = "dumbbell"
hosts_per_side = 1
host_rate_mbps = 200
bottleneck_rate_mbps = 200
queue_packets = 100

[[job]]
name = "one"
collective = "ring"
bytes = 3_000_000
compute_ms = 50
iterations = 6
hosts = ["h1", "h2"]
"""


@pytest.mark.root
def test_a_flow_that_is_alone_is_not_marked(tmp_path: Path) -> None:
    """All links have the rate of its host, so it meets no congestion; below the shapers' burst nearly every
    segment would be marked."""
    if "bpf_dctcp" in available_congestion_controls():
        pytest.skip("another process of this machine holds the congestion controls")
    file, segments = tmp_path / "alone.toml", 6 * 3_000_000 / 1448
    file.write_text(ALONE)

    def marked() -> dict[str, int]:
        out = Path(tempfile.mkdtemp(dir=tmp_path)) / "out"
        done = subprocess.run(
            [sys.executable, "-m", "entrain.cli", "run", str(file), "--out", str(out)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return {line["host"]: int(line["marked"]) for line in csv.DictReader((out / "windows.csv").open())}

    # a shaper that has no processor for a while lets packets wait
    found = undisturbed(marked, lambda marked: max(marked.values()) < 0.01 * segments)
    assert set(found) == {"h1", "h2"}
