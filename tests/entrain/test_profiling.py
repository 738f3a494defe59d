"""Profiles from what hosts counted: synthetic counts of every kind, and a job that runs."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.topology import dumbbell, leaf_spine
from entrain.profiling import Measured, links_of, measured
from hostbpf.counting import Counts, FlowCount
from hostbpf.rpc.counts import counts_message, counts_of
from machine.toml import check
from schedulers.cassini.affinity import Link
from schedulers.cassini.profile import Phase, Profile
from tests.attempts import undisturbed
from wire.flow import Flow
from workloads.profiles import ProfilesFile, profiles_text

ROOT = Path(__file__).parents[2]
BIN_NS = 2_000_000
TOPOLOGY = dumbbell(2, host_rate_mbps=100, bottleneck_rate_mbps=50)
CAPACITY = 50e6 / 8
H1, H2, H3, H4 = (host.ip for host in TOPOLOGY.hosts)
FIRST = 10**10
"""A bin in the range of today's."""


def counted(
    periods: list[float],
    up: tuple[float, float],
    rate: float,
    *,
    mark: int = 1,
    job: str = "",
    begins: bool = True,
    late: float = 0.0,
) -> FlowCount:
    """A flow that sends at `rate` (bytes/s) between the fractions `up` of each iteration, from FIRST on."""
    edges = np.cumsum([0.0, *periods])
    count = FlowCount(mark, job)
    for number, (begin, end) in enumerate(itertools.pairwise(edges), 1):
        if begins:
            count.begins[number] = round((FIRST * BIN_NS / 1e9 + begin + late) * 1e9)
        start, stop = (begin + part * (end - begin) for part in up)
        for number_of in range(int(start / BIN_NS * 1e9), int(stop / BIN_NS * 1e9)):
            count.sent[FIRST + number_of] = round(rate * BIN_NS / 1e9)
    return count


def counts(flows: dict[Flow, FlowCount], seconds: float) -> Counts:
    return Counts(BIN_NS, FIRST, FIRST + round(seconds / BIN_NS * 1e9), flows)


def one(count: FlowCount, seconds: float) -> Measured:
    flow = Flow(H1, 20000, H3, 7000)
    return measured(TOPOLOGY, "source", counts({flow: count}, seconds), {1: "one"})["one"]


@settings(max_examples=30)
@given(
    st.floats(0.06, 0.5),
    st.floats(0.1, 0.5),
    st.floats(0.2, 0.4),
    st.floats(0.2, 1.0),
    st.booleans(),
)
def test_a_periodic_job_has_the_profile_that_it_was_made_with(
    period: float, start: float, length: float, part: float, begins: bool
) -> None:
    """With or without its progress; the phase is relative to the iteration only with it."""
    rate = part * CAPACITY
    count = counted([period] * 10, (start, start + length), rate, begins=begins)
    found = one(count, 10 * period)
    assert found.profile is not None
    assert found.estimate.period == pytest.approx(period, abs=BIN_NS / 1e9)
    sent = sum(count.sent.values()) / 10
    assert found.profile.bytes == pytest.approx(sent, rel=0.05, abs=rate * BIN_NS / 1e9)
    assert found.profile.peak == pytest.approx(rate, rel=0.1)
    if begins:
        assert found.profile.ups[0, 0] == pytest.approx(start * period, abs=period / 36 + 2 * BIN_NS / 1e9)


def test_a_drifting_job_and_one_without_a_period_are_called_so() -> None:
    drifting = [0.2 * 1.04**number for number in range(10)]
    assert one(counted(drifting, (0.3, 0.7), CAPACITY), sum(drifting)).estimate.verdict == "drifts"
    random = np.random.default_rng(1).uniform(0.05, 0.4, 12).tolist()
    found = one(counted(random, (0.3, 0.7), CAPACITY), sum(random))
    assert found.estimate.verdict == "not periodic"
    assert found.profile is None
    assert one(counted([0.2] * 3, (0.3, 0.7), CAPACITY), 0.6).estimate.verdict == "too short"


def test_hosts_are_combined_to_one_profile_per_direction_of_a_link() -> None:
    """Two hosts of a leaf send over one uplink, and one of them receives."""
    topology = leaf_spine(2, 1, 2, host_rate_mbps=100, uplink_rate_mbps=180)
    ips = [host.ip for host in topology.hosts]
    rate = 10e6
    flows = {
        Flow(ips[0], 20000, ips[2], 7000): counted([0.2] * 8, (0.2, 0.5), rate, late=0.01),
        Flow(ips[1], 20001, ips[3], 7000): counted([0.2] * 8, (0.2, 0.5), rate),
        Flow(ips[2], 20002, ips[0], 7000): counted([0.2] * 8, (0.6, 0.8), rate),
        Flow(ips[3], 20003, ips[1], 9000): counted([0.2] * 8, (0.1, 0.9), rate, mark=0),
    }
    (found,) = measured(topology, "ecmp", counts(flows, 1.6), {1: "one"}).values()
    assert found.busiest == "leaf1->spine1"
    assert {len(each.begins) for each in found.links.values()} == {7}  # the first one is at the edge
    peaks = {link: each.profile.peak for link, each in found.links.items() if each.profile}
    assert peaks == pytest.approx(
        dict.fromkeys(["h1->leaf1", "h2->leaf1", "h3->leaf2", "leaf1->h1", "leaf2->h3", "leaf2->h4"], rate)
        | dict.fromkeys(["leaf2->spine1", "spine1->leaf1"], rate)
        | dict.fromkeys(["leaf1->spine1", "spine1->leaf2"], 2 * rate),
        rel=0.05,
    )
    # Iterations begin when the first process says so, not the one that is 10 ms late.
    up = found.links["h1->leaf1"].profile
    assert up is not None
    assert up.ups[0, 0] == pytest.approx(0.2 * 0.2, abs=0.006)


def test_what_waits_in_a_queue_loads_the_link_later_and_never_above_its_rate() -> None:
    found = one(counted([0.2] * 8, (0.2, 0.4), 2 * CAPACITY), 1.6)
    assert found.links["h1->left"].profile is not None
    assert found.links["h1->left"].profile.peak == pytest.approx(2 * CAPACITY, rel=0.01)
    bottleneck = found.links["left->right"].profile
    assert bottleneck is not None
    assert bottleneck.peak <= CAPACITY * (1 + 1e-9)
    assert bottleneck.bytes == pytest.approx(2 * CAPACITY * 0.04, rel=0.01)


def test_jobs_are_known_by_mark_or_else_by_what_their_process_says() -> None:
    flows = {
        Flow(H1, 20000, H3, 7000): counted([0.1] * 8, (0.5, 0.9), 1e6, mark=5, job="said"),
        Flow(H2, 20001, H4, 7000): counted([0.1] * 8, (0.5, 0.9), 1e6, mark=6, job="other"),
        Flow(H2, 20002, H3, 7000): counted([0.1] * 8, (0.5, 0.9), 1e6, mark=7),
    }
    found = measured(TOPOLOGY, "source", counts(flows, 0.8), {5: "marked"})
    assert found.keys() == {"marked", "other"}
    (shared,) = (link for link in links_of(TOPOLOGY, "source", found.values()) if len(link.jobs) > 1)
    assert shared == Link("left->right", CAPACITY, ("marked", "other"))


def test_counts_are_the_same_after_the_wire() -> None:
    flows = {Flow(H1, 20000, H3, 7000): counted([0.1] * 3, (0.5, 0.9), 1e6, job="one")}
    assert counts_of(counts_message(counts(flows, 0.3))) == counts(flows, 0.3)


PROFILES = st.lists(
    st.builds(Phase, st.floats(1e-3, 1.0), st.just(0.0) | st.floats(1e6, 1e9)), min_size=1, max_size=20
).filter(lambda phases: any(phase.rate for phase in phases))


@given(PROFILES)
def test_a_written_file_is_read_as_it_was(phases: list[Phase]) -> None:
    """Phases that follow one another at different rates included: rounding makes no two overlap."""
    profile = Profile(tuple(phases))
    link = Link("leaf1->spine1:3", 1e9, ("job-1",))
    text = profiles_text({"job-1": profile}, [link])
    file = check(ProfilesFile, tomllib.loads(text), "the file")
    assert np.allclose(file.profiles["job-1"].ups, profile.ups)
    assert file.profiles["job-1"].period == pytest.approx(profile.period)
    assert [(each.name, each.jobs) for each in file.links] == [(link.name, link.jobs)]
    assert file.links[0].capacity == pytest.approx(link.capacity)


EXPERIMENT = """
[experiment]
name = "profiled"
congestion_control = ["reno"]

[network]
offloads = false
slow_start_after_idle = false

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 100
bottleneck_rate_mbps = 50
queue_packets = 700 # an iteration of the larger job: nothing is lost

[[job]]
name = "ring"
collective = "ring"
bytes = 1_000_000
compute_ms = 200
iterations = 100
hosts = ["h1", "h3"]

[[job]]
name = "exchange"
collective = "all-to-all"
bytes = 800_000
compute_ms = 100
iterations = 100
hosts = ["h2", "h4"]
"""


DEFINED = {"ring": (200, 1_000_000), "exchange": (100, 400_000)}
"""By job, how long a rank computes, ms, and what it sends, in bytes. Of two ranks, a ring sends half of the
bytes twice, and an all-to-all what is for the other once."""


def as_defined(job: dict[str, Any]) -> bool:
    """Whether a measured job has the period and the bytes of its definition within a tenth, the bandwidth,
    which TCP's start lowers, within a quarter, and sends when it has computed."""
    compute_ms, size = DEFINED[job["name"]]
    if job["verdict"] != "periodic":
        return False
    phases = [(each["start_ms"], each["end_ms"], each["gbps"]) for each in job["phases"]]
    sent = sum((end - start) * gbps for start, end, gbps in phases)
    # One rank may still send the rest of an iteration when another has begun the next.
    late = sum(max(end - max(start, 0.9 * compute_ms), 0.0) * gbps for start, end, gbps in phases)
    return bool(
        job["period_ms"] == pytest.approx(compute_ms + size / CAPACITY * 1e3, rel=0.1)
        and sent / 8e3 * 1e9 == pytest.approx(size, rel=0.1)
        and max(gbps for *_, gbps in phases) * 1e9 / 8 == pytest.approx(CAPACITY, rel=0.25)
        and late > 0.8 * sent
    )


@pytest.mark.root
def test_a_running_jobs_profile_is_that_of_its_definition(tmp_path: Path) -> None:
    """Alone, a rank computes, then sends its bytes as fast as the slowest link takes them."""
    file, out = tmp_path / "profiled.toml", tmp_path / "profiles.toml"
    file.write_text(EXPERIMENT)
    command = [sys.executable, "-m", "entrain.cli"]

    def profiled() -> list[dict[str, Any]]:
        out.unlink(missing_ok=True)
        done = subprocess.run(
            [*command, "profile", str(file), "--json", "--out", str(out), "--iterations", "8"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
        assert [job["name"] for job in found] == list(DEFINED)
        return found

    undisturbed(profiled, lambda jobs: all(map(as_defined, jobs)))
    scored = subprocess.run(
        [*command, "simulate", "cassini-score", "--profiles", str(out), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    links = {link["name"]: link for link in json.loads(scored.stdout)["links"]}
    assert links.keys() == {"left->right", "right->left"}
    assert all(set(link["jobs"]) == {"exchange", "ring"} for link in links.values())
    assert all(link["capacity_gbps"] == pytest.approx(0.05) for link in links.values())
