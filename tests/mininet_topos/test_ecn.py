"""DCTCP's mark threshold: above what paced senders emit at once, below the queue's end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.routing import FabricPolicy, desired_state
from controlplane.topology import dumbbell, leaf_spine
from entrain.experiment import load_experiment
from entrain.slot_rates import is_slot_rates
from mininet_topos.ecn import round_trip_ms, threshold_packets, thresholds
from mininet_topos.links import FRAME_BYTES, TURN_MS, burst_bytes

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


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
    sorted(path for path in EXPERIMENTS.glob("*.toml") if "dctcp" in path.read_text()),
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
