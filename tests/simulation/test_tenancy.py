"""Jobs that share a cluster: alone they take what they say, together what the links leave them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machine.errors import BadInput
from schedulers.placement.cluster import Cluster
from schedulers.placement.strategies import STRATEGIES
from simulation.engine import JobRecord, Simulation
from simulation.experiments.registry import EXPERIMENTS, points
from simulation.jobs import Coflow
from simulation.sharing import Sharing
from simulation.tenancy import BalancedTransport, ClusterNetwork, Tenancy, Tenant, phases, transport
from simulation.tenants import SIZES, read_requests, sized, tenants
from workloads.collectives import steps

PATTERNS = ("ring", "hierarchical-ring", "halving-doubling", "all-to-all", "pipeline")
SMALL = Cluster(leaves=4, spines=4, servers_per_leaf=2, gpus_per_server=2, ocs=True)
"""16 GPUs."""


def run(
    jobs: list[Tenant], strategy: str, cluster: Cluster, sharing: Sharing = "max-min", rounds: int = 3
) -> list[JobRecord]:
    chosen = STRATEGIES[strategy]
    network = ClusterNetwork(chosen.cluster(cluster))
    tenancy = Tenancy(jobs, chosen, network, rounds=rounds)
    moved = transport(chosen, network, sharing, jobs)
    return Simulation(tenancy.jobs(), moved, admission=tenancy).run().jobs


def times(records: list[JobRecord]) -> list[float]:
    return [record.finish - record.start for record in records]


@st.composite
def jobs(draw: st.DrawFn) -> list[Tenant]:
    """Jobs that fit into `SMALL` one by one."""
    return [
        Tenant(
            f"j{number}",
            draw(st.sampled_from([1, 2, 4, 6, 8, 12, 16])),
            draw(st.floats(0, 50)),
            draw(st.floats(1, 20)),
            round(draw(st.floats(0, 1)), 6),
            draw(st.sampled_from(PATTERNS)),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


@pytest.mark.parametrize("strategy", ["best", "vclos", "ocs-vclos"])
@given(given_jobs=jobs())
@settings(max_examples=40)
def test_a_job_with_links_of_its_own_takes_as_long_as_it_says(
    strategy: str, given_jobs: list[Tenant]
) -> None:
    for job, took in zip(given_jobs, times(run(given_jobs, strategy, SMALL)), strict=True):
        assert took == pytest.approx(job.duration_s)


@pytest.mark.parametrize("strategy", ["ecmp", "balanced-ecmp", "recmp", "source", "least-loaded", "crux"])
@pytest.mark.parametrize("sharing", ["max-min", "equal"])
@given(given_jobs=jobs())
@settings(max_examples=15)
def test_sharing_links_never_makes_a_job_faster(
    strategy: str, sharing: Sharing, given_jobs: list[Tenant]
) -> None:
    for job, took in zip(given_jobs, times(run(given_jobs, strategy, SMALL, sharing)), strict=True):
        assert took >= job.duration_s * (1 - 1e-9)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_by_source_routing_a_job_that_is_alone_takes_as_long_as_it_says(pattern: str) -> None:
    """Also where a round runs only some of the steps."""
    cluster = Cluster(leaves=8, spines=8, servers_per_leaf=4, gpus_per_server=2)
    (took,) = times(run([Tenant("j", 64, 0.0, 10.0, 0.7, pattern)], "source", cluster))
    assert took == pytest.approx(10.0)


TWO = [Tenant("a", 3, 0.0, 10.0, 0.5), Tenant("b", 3, 0.0, 10.0, 0.5)]
"""On leaves of two GPUs, each of them has a GPU on the middle leaf."""


@pytest.mark.parametrize("sharing", ["max-min", "equal"])
def test_two_jobs_on_one_uplink_have_half_of_it_each(sharing: Sharing) -> None:
    cluster = Cluster(leaves=3, spines=1, servers_per_leaf=2, gpus_per_server=1)
    assert times(run(TWO, "ecmp", cluster, sharing)) == pytest.approx([15.0, 15.0])
    assert times(run(TWO, "best", cluster, sharing)) == pytest.approx([10.0, 10.0])


def test_a_plan_avoids_the_link_on_which_source_routing_lets_jobs_meet() -> None:
    cluster = Cluster(leaves=3, spines=2, servers_per_leaf=2, gpus_per_server=1)
    assert times(run(TWO, "source", cluster)) == pytest.approx([15.0, 15.0])
    assert times(run(TWO, "least-loaded", cluster)) == pytest.approx([10.0, 10.0])
    later = [Tenant(f"{t.ident}{n}", t.gpus, 20.0 * n, 10.0, 0.5) for n in range(5) for t in TWO]
    assert times(run(later, "least-loaded", cluster)) == pytest.approx([10.0] * 10)


def test_priority_lets_the_job_that_holds_up_more_computation_run_as_if_alone() -> None:
    """On one uplink; the first job computes for half of its time, the second for a fifth."""
    cluster = Cluster(leaves=3, spines=1, servers_per_leaf=2, gpus_per_server=1)
    busy, waits = Tenant("a", 3, 0.0, 10.0, 0.5), Tenant("b", 3, 0.0, 10.0, 0.8)
    for pair in ([busy, waits], [waits, busy]):
        records = {
            tenant.ident: record for tenant, record in zip(pair, run(pair, "crux", cluster), strict=True)
        }
        assert records["a"].finish == pytest.approx(10.0)
        assert records["b"].finish > 11.0


@pytest.mark.parametrize("strategy", ["ecmp", "source"])
@given(job=jobs().map(lambda drawn: drawn[0]))
@settings(max_examples=25)
def test_the_share_of_a_link_changes_nothing_for_a_job_whose_flows_meet_only_each_other(
    strategy: str, job: Tenant
) -> None:
    """A step ends with the flows of its most used link, which have equal shares either way."""
    (fair,), (equal,) = (times(run([job], strategy, SMALL, sharing)) for sharing in ("max-min", "equal"))
    assert fair == pytest.approx(equal)


def test_balanced_flows_spread_over_the_uplinks_with_the_fewest() -> None:
    network = ClusterNetwork(Cluster(leaves=2, spines=4, servers_per_leaf=4, gpus_per_server=1))
    moved = BalancedTransport(network)
    for handle, senders in enumerate(([0, 1], [2, 3], [0, 1, 2])):
        src = np.array(senders)
        moved.start(handle, 0, Coflow(src, src + 4, np.ones(len(src))), 0.0)
        moved.decide(0.0)
        flows = moved._links.flows[network.up : network.up + 4]
        assert flows.max() - flows.min() <= 1
    assert flows.sum() == 7


def test_jobs_wait_for_gpus_in_the_order_of_the_queue() -> None:
    whole = [Tenant(f"j{n}", 16, float(n), 10.0) for n in range(3)]
    records = run(whole, "vclos", SMALL)
    assert [record.start for record in records] == [0.0, 10.0, 20.0]
    assert [record.jct for record in records] == [10.0, 19.0, 28.0]


def test_without_locality_a_job_need_not_wait_but_sends_over_slower_links() -> None:
    """One GPU of each server is free from 1 s on; the network has a tenth of a server's rate."""
    cluster = Cluster(leaves=2, spines=4, servers_per_leaf=2, gpus_per_server=2, ocs=True)
    taken = [Tenant(f"t{n}", 1, 0.0, (100.0, 1.0)[n % 2]) for n in range(8)]
    near, spread = (
        run([*taken, Tenant("j", 2, 2.0, 10.0, 0.5)], strategy, cluster)[-1]
        for strategy in ("ocs-vclos", "ocs-relaxed")
    )
    assert (near.start, near.finish) == (100.0, pytest.approx(110.0))
    assert (spread.start, spread.finish) == (2.0, pytest.approx(2.0 + 5.0 + 50.0))


def test_a_job_that_never_fits_is_named() -> None:
    with pytest.raises(BadInput, match="job big: vclos has no place for 17 GPUs"):
        run([Tenant("big", 17, 0.0, 1.0)], "vclos", SMALL)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ranks", [2, 6, 16])
def test_phases_have_the_bytes_of_the_collective(pattern: str, ranks: int) -> None:
    sent = sum(phase.part * len(phase.src) for phase in phases(pattern, ranks))
    assert sent == pytest.approx(sum(flow.fraction for step in steps(pattern, ranks) for flow in step))


def test_workloads_repeat_and_have_their_load() -> None:
    for name in SIZES:
        one, two = (tenants(sized(name, 4000, None, 3), 60.0, 100.0, seed=3) for _ in range(2))
        assert one == two
        assert np.mean([t.duration_s for t in one]) == pytest.approx(100.0)
        assert one[-1].arrival_s / len(one) == pytest.approx(60.0, rel=0.1)
    gpus = sized("helios", 20_000, None, 0).gpus
    assert (gpus == 8).mean() == pytest.approx(1132 / 1574, abs=0.01)
    assert set(gpus[gpus > 8] % 8) == {0}


def test_public_request_files_are_read(tmp_path: Path) -> None:
    listed, lines = tmp_path / "request_sequence", tmp_path / "elastic_trace"
    listed.write_text("[(0, 520, 8), (3, 1834.5, 16)]\n")
    lines.write_text("0.0 8 520.0\n3.0 16 1834.5\n")
    for path in (listed, lines):
        found = read_requests(path)
        assert found.gpus.tolist() == [8, 16]
        assert found.durations.tolist() == [520.0, 1834.5]
        assert found.arrivals is not None
        assert found.arrivals.tolist() == [0.0, 3.0]
    assert sized("helios", 5, listed, 0).gpus.tolist() == [8, 16, 8, 16, 8]


def test_a_traces_jobs_run_as_they_are_unless_they_are_to_be_scaled(tmp_path: Path) -> None:
    trace = tmp_path / "requests"
    trace.write_text("1012 8 50\n1000 8 100\n1010 16 2000\n")

    def jobs(scaled: bool, limit: int | None = None) -> tuple[Any, list[Any]]:
        experiment, [point] = points("vclos-512", trace, "best", limit, 0, scaled=scaled)
        assert experiment.title == "requests: strategies on 512 GPUs"
        found = experiment.run(point).jobs
        return point, [(job.arrival_s, round(job.jct_s), job.lower_bound_s) for job in found]

    point, found = jobs(scaled=False)
    assert found == [(0.0, 100, 100.0), (10.0, 2000, 2000.0), (12.0, 50, 50.0)]
    assert point["sizes"] == "trace"
    assert not {"gap_s", "duration_s", "tenants"} & point.keys()
    assert jobs(scaled=False, limit=2)[1] == found[:2]
    point, found = jobs(scaled=True, limit=6)
    assert len(found) == 6
    assert np.mean([alone for *_, alone in found]) == pytest.approx(point["duration_s"])
    assert point["sizes"] == "trace, scaled"
    with pytest.raises(BadInput, match=r"vclos-load varies the time between arrivals.*--scale-trace"):
        points("vclos-load", trace, None, None, 0)
    with pytest.raises(BadInput, match="leave it out"):
        points("coflow-fb2010", trace, None, None, 0, scaled=True)
    trace.write_text("0 600 50\n")
    with pytest.raises(BadInput, match="a job has 600 GPUs, and the cluster 512"):
        jobs(scaled=False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[(0, 520)]", "line 1, column 2: has 2 fields; give arrival, duration, GPUs"),
        ("[(0, 520, 8", "is no list of"),
        ("0 8 520\n0 x 520\n", "line 2, column GPUs: 'x' is not a whole number"),
        ("0 8 0\n", "column duration: 0 is too small"),
        ("\n", "has no jobs"),
    ],
)
def test_wrong_request_files_are_explained(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "requests"
    path.write_text(text)
    with pytest.raises(BadInput, match=told.replace("(", r"\(")):
        read_requests(path)


def figures(name: str, **given: Any) -> list[dict[str, Any]]:
    experiment, todo = points(name, None, given.get("policy"), given.get("limit"), seed=1)
    return [{**point, **vars(experiment.run(point).figures)} for point in todo]


@pytest.mark.parametrize("name", sorted(n for n in EXPERIMENTS if n.startswith("vclos-")))
def test_every_experiment_runs(name: str) -> None:
    first = figures(name, limit=12, policy="ocs-vclos" if name != "vclos-hash" else None)[0]
    if name != "vclos-hash":
        assert first["max_slowdown"] == pytest.approx(1.0)
        assert math.isfinite(first["mean_jct_s"])


def test_hash_collisions_are_those_of_random_uplinks() -> None:
    found = {(each["gpus"], each["policy"]): each for each in figures("vclos-hash", limit=20)}
    assert all(sum(each["flows"]) == pytest.approx(1.0) for each in found.values())
    large = found[2048, "ecmp"]
    # A flow is alone on its uplink and its downlink, each of which 31 others may take.
    assert large["flows"][0] == pytest.approx((1 - 1 / 32) ** 62, abs=0.02)
    assert found[2048, "source"]["mean_flows"] < large["mean_flows"]
