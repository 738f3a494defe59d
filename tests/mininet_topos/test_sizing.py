"""Queues, mark thresholds and timeouts: what the rule gives, and what experiments state."""

from __future__ import annotations

import csv
import math
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.routing import FabricPolicy, desired_state
from controlplane.topology import dumbbell, leaf_spine, load_topology
from ebpf.struct_ops import available_congestion_controls
from entrain.experiment import NetworkTable, load_experiment
from entrain.trials.slot_rates import is_slot_rates
from mininet_topos.links import FRAME_BYTES, TURN_MS, burst_bytes, gso_max_bytes
from mininet_topos.sizing import (
    PACKETS_PER_FRAME,
    queue_packets,
    round_trip_ms,
    rto_min_ms,
    threshold_packets,
    thresholds,
)
from tests.attempts import undisturbed

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
LINUX_QUEUE = 1000
"""Packets before an interface, by default; what waits before a host's own link is in its sender's account."""
TOLERANCE = 1.25


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
    assert round_trip_ms(dumbbell(1, delay_ms=5)) == 3 * TURN_MS + 10, "only the link between switches has it"


@given(rate_mbps=st.floats(1, 400_000), trip_ms=st.floats(0, 100))
def test_a_queue_holds_what_is_on_the_way_and_two_offloaded_packets(rate_mbps: float, trip_ms: float) -> None:
    length = queue_packets(rate_mbps, trip_ms) * FRAME_BYTES
    assert length >= 2 * gso_max_bytes(rate_mbps)
    assert length >= rate_mbps * 1e3 / 8 * trip_ms
    assert queue_packets(rate_mbps, trip_ms + 1) >= queue_packets(rate_mbps, trip_ms)
    assert (
        PACKETS_PER_FRAME * length >= threshold_packets(rate_mbps, trip_ms, "htb") * FRAME_BYTES - FRAME_BYTES
    )


@given(rate_mbps=st.floats(1, 400_000), trip_ms=st.floats(0, 100), queue=st.integers(1, 10_000))
def test_a_timeout_outlasts_the_round_trip_of_a_full_queue(
    rate_mbps: float, trip_ms: float, queue: int
) -> None:
    full_ms = queue * FRAME_BYTES * 8 / (rate_mbps * 1e3)
    assert rto_min_ms(rate_mbps, queue, trip_ms) >= trip_ms + full_ms


def stated_and_given(path: Path) -> Iterator[tuple[str, float, float]]:
    """Yield what each value of a file is called, the value, and what the rule gives."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    if "experiment" in tables:
        experiment = load_experiment(path)
        topology, network = experiment.topology, experiment.network
    else:
        topology, network = load_topology(path), NetworkTable()
    trip, rates = round_trip_ms(topology), dict[int, float]()
    for link in topology.links:
        of_host = {link.a, link.b} & topology.host_by_name.keys()
        if not (of_host and link.queue_packets == LINUX_QUEUE):
            rates[link.queue_packets] = min(link.rate_mbps, rates.get(link.queue_packets, math.inf))
    if re.search(r"^queue_packets", path.read_text(encoding="utf-8"), re.MULTILINE):
        for packets, rate_mbps in rates.items():
            yield "", packets, queue_packets(rate_mbps, trip)
    if network.host_queue_packets is not None:
        yield "for hosts ", network.host_queue_packets, LINUX_QUEUE
    slowest = min(rates.values())
    if network.rto_min_ms is not None:
        yield "ms", network.rto_min_ms, max(rto_min_ms(rate, queue, trip) for queue, rate in rates.items())
    if network.ecn_threshold_packets is not None:
        yield "K = ", network.ecn_threshold_packets, threshold_packets(slowest, trip, network.shaping)


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for path in EXPERIMENTS.glob("*.toml")
        if not is_slot_rates(path)
        and {"experiment", "topology"} & tomllib.loads(path.read_text(encoding="utf-8")).keys()
    ),
    ids=lambda path: path.stem,
)
def test_experiments_follow_the_rule_or_say_why_not(path: Path) -> None:
    """`-rP` lists what each file states, and what the rule gives."""
    expected = set()
    for what, stated, given_ in stated_and_given(path):
        number = f"{given_} ms" if what == "ms" else f"{what}{given_}"
        print(f"{path.stem}: {stated:g}, the rule gives {number}")
        if not given_ / TOLERANCE <= stated <= given_ * TOLERANCE:
            expected.add(number)
    said = set(re.findall(r"# .*the rule gives ((?:K = )?\d+(?: ms)?)", path.read_text(encoding="utf-8")))
    assert said == expected, "a comment has the value of the rule, and why the file has another one"


@pytest.mark.parametrize(
    "path",
    sorted(path for path in EXPERIMENTS.glob("*.toml") if "dctcp" in path.read_text(encoding="utf-8")),
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
