"""Flows' times and links' utilisation: nothing is lost on the way from the transports to the files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from entrain.commands.simulate import command
from machine.errors import BadInput
from schedulers.coflow.rivals import FairSharing, Varys
from simulation.collectives import parameter_server, ring, training_job
from simulation.engine import Outcome, Simulation, Transport
from simulation.experiments.registry import points
from simulation.jobs import Coflow, Compute, Job, chain, coflow
from simulation.scheduled import ScheduledTransport
from simulation.sharing import SharedTransport
from simulation.slotted import SIMULATED, SlottedTransport
from simulation.topology import GBIT, Topology, switch, tree
from simulation.usage import Usage

SLOTS = replace(SIMULATED, slot_s=0.2)
DATA = Path(__file__).parent / "data"
TREE = tree((3, 2, 2), (10.0, 20.0, 30.0))
TRANSPORTS: dict[str, Callable[[Usage], Transport]] = {
    "scheduled": lambda u: ScheduledTransport(TREE, Varys(), check=True, flow_times=True, usage=u),
    "interval": lambda u: ScheduledTransport(TREE, Varys(), interval=0.5, flow_times=True, usage=u),
    "max-min": lambda u: SharedTransport(TREE, check=True, usage=u),
    "equal": lambda u: SharedTransport(TREE, sharing="equal", check=True, usage=u),
    "slots": lambda u: SlottedTransport(TREE, "slots", SLOTS, check=True, flow_times=True, usage=u),
    "slotted-fair": lambda u: SlottedTransport(TREE, "fair", SLOTS, flow_times=True, usage=u),
    "cross": lambda u: SlottedTransport(TREE, "slots", SLOTS, cross=0.3, flow_times=True, usage=u),
}


def collectives() -> list[Job]:
    flows = [parameter_server([0, 1, 7], [3, 4], 60.0), ring([1, 3, 11, 0], 80.0)]
    return [training_job(f"{i}", 0.3 * i, 0.5, [c], 3) for i, c in enumerate(flows * 2)]


def crossing(topology: Topology, jobs: list[Job]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Bytes of `jobs` whose route crosses each link."""
    total = np.zeros(len(topology.capacity))
    for job in jobs:
        for task in job.tasks:
            if isinstance(task.work, Coflow):
                work = task.work
                routes = topology.routes(work.src, work.dst, np.arange(len(work.src)))
                for route, size in zip(routes, work.size, strict=True):
                    total[route[route >= 0]] += job.iterations * size
    return total


def run(name: str, width: float = 0.7) -> tuple[Outcome, Usage, list[Job]]:
    jobs, usage = collectives(), Usage(len(TREE.capacity), width)
    return Simulation(jobs, TRANSPORTS[name](usage)).run(), usage, jobs


@pytest.mark.parametrize("name", TRANSPORTS)
def test_utilisation_adds_up_to_each_links_bytes(name: str) -> None:
    outcome, usage, jobs = run(name)
    share = usage.utilisation(TREE.capacity, max(job.finish for job in outcome.jobs))
    assert (share * TREE.capacity * 0.7).sum(axis=0) == pytest.approx(crossing(TREE, jobs), rel=1e-6)
    assert share.min() >= 0.0
    assert share.max() <= 1.0 + 1e-6


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_coflow_ends_with_its_last_flow_and_no_flow_beats_its_line(name: str) -> None:
    outcome, _, _ = run(name)
    for record in outcome.coflows:
        assert record.flow_times is not None
        fct = record.flow_times - record.arrival
        assert fct.max() == pytest.approx(record.cct)
        assert (record.work.size / fct <= 10.0 * (1 + 1e-6)).all()


def test_both_ways_of_fair_sharing_use_links_alike() -> None:
    """Classes accounted for as they change, and flows accounted for at each decision."""
    shared, flows = (Usage(len(TREE.capacity), 0.3) for _ in range(2))
    for transport in (
        SharedTransport(TREE, usage=shared),
        ScheduledTransport(TREE, FairSharing(), usage=flows),
    ):
        outcome = Simulation(collectives(), transport).run()
    end = max(job.finish for job in outcome.jobs)
    assert shared.utilisation(TREE.capacity, end) == pytest.approx(
        flows.utilisation(TREE.capacity, end), abs=1e-6
    )


def test_idle_time_at_the_end_is_reported_as_such() -> None:
    usage = Usage(2, 1.0)
    jobs = [chain("a", 0.0, [coflow([(0, 0, 1.5)]), Compute(100.0)])]
    Simulation(jobs, SharedTransport(switch(1, 1.0), usage=usage)).run()
    share = usage.utilisation(np.ones(2), 101.5)
    assert share.shape == (102, 2)
    assert share[:3, 0] == pytest.approx([1.0, 0.5, 0.0])


def test_bins_too_narrow_to_keep_are_refused() -> None:
    jobs = [chain("a", 0.0, [coflow([(0, 0, 100.0)])])]
    with pytest.raises(BadInput, match="give --usage at least"):
        Simulation(jobs, SharedTransport(switch(1, 1.0), usage=Usage(2, 1e-6))).run()


def test_a_coflow_waits_for_its_slot() -> None:
    """Valid at 0.05 s, it first sends in the slot that begins at 0.2 s."""
    jobs = [chain("a", 0.05, [coflow([(0, 1, 3.0)])])]
    outcome = Simulation(jobs, SlottedTransport(switch(2, 10.0), "fair", SLOTS)).run()
    assert outcome.jobs[0].waiting == pytest.approx(0.15)
    assert outcome.jobs[0].finish == pytest.approx(0.5)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_flows_and_usage(tmp_path: Path) -> None:
    arguments = ["coflow-fb2010", "--trace", str(DATA / "coflows.txt"), "--policy", "varys,fair"]
    arguments += ["--out", str(tmp_path), "--flows", "--usage", "0.01", "--workers", "1", "--json"]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    flows, usage = rows(tmp_path / "flows.csv"), rows(tmp_path / "usage.csv")
    assert list(flows[0])[:6] == ["coflow", "src", "dst", "bytes", "arrival_s", "fct_s"]
    assert list(usage[0])[:4] == ["time_s", "link", "utilisation", "capacity_gbit_s"]
    counts = {p["policy"]: p["flows"] for p in json.loads(done.stdout)["points"]}
    coflows = rows(tmp_path / "coflows.csv")
    for policy in ("varys", "fair"):
        mine = [f for f in flows if f["policy"] == policy]
        assert len(mine) == counts[policy] > 0
        for one in (c for c in coflows if c["policy"] == policy):
            its = [f for f in mine if f["coflow"] == one["coflow"]]
            assert sum(float(f["bytes"]) for f in its) == pytest.approx(float(one["bytes"]))
            assert max(float(f["fct_s"]) for f in its) == pytest.approx(float(one["cct_s"]))
            assert {f["arrival_s"] for f in its} == {one["arrival_s"]}
        carried = sum(
            float(u["utilisation"]) * float(u["capacity_gbit_s"]) * GBIT * 0.01
            for u in usage
            if u["policy"] == policy
        )
        # Each byte leaves one port and enters another.
        assert carried == pytest.approx(2 * sum(float(f["bytes"]) for f in mine), rel=1e-6)
    assert (tmp_path / "usage.png").stat().st_size > 1000


def test_parquet_holds_what_csv_holds(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arguments = ["parrot-jct", "--trace", str(DATA / "jobs.csv"), "--policy", "parrot", "--limit", "2"]
    arguments += ["--out", str(tmp_path), "--flows", "--usage", "1", "--workers", "1", "--json"]
    assert CliRunner().invoke(command, arguments, catch_exceptions=False).exit_code == 0
    for name in ("flows", "usage"):
        table = parquet.read_table(tmp_path / f"{name}.parquet").to_pylist()
        text = rows(tmp_path / f"{name}.csv")
        assert [{k: str(v) for k, v in row.items()} for row in table] == text


def test_slots_report_flows_waiting_and_usage(tmp_path: Path) -> None:
    arguments = ["slots-jct", "--policy", "slots,mcs,ccml", "--limit", "3", "--out", str(tmp_path)]
    arguments += ["--flows", "--usage", "5", "--workers", "1", "--json"]
    assert CliRunner().invoke(command, arguments, catch_exceptions=False).exit_code == 0
    cct = {(c["policy"], c["domain"], c["coflow"]): float(c["cct_s"]) for c in rows(tmp_path / "coflows.csv")}
    for flow in rows(tmp_path / "flows.csv"):
        whole = cct[flow["policy"], flow["domain"], flow["coflow"]]
        assert 0.0 < float(flow["fct_s"]) <= whole * (1 + 1e-9)
    for job in rows(tmp_path / "jobs.csv"):
        assert 0.0 <= float(job["waiting_s"]) <= float(job["jct_s"])
    assert {u["policy"] for u in rows(tmp_path / "usage.csv")} == {"slots", "mcs", "ccml"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["parrot-jct", "--flows"], "give --out DIR"),
        (["parrot-jct", "--usage", "1"], "give --out DIR"),
        (["parrot-jct", "--usage", "0", "--out", "."], "--usage is 0"),
        (["parrot-jct", "--usage", "nan", "--out", "."], "--usage is nan"),
        (["mltcp-two-jobs", "--flows", "--out", "."], "leave out --flows and --usage"),
        (["slots-latency", "--usage", "1", "--out", "."], "leave out --flows and --usage"),
    ],
)
def test_senseless_requests_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_points_stay_the_same_without_the_options() -> None:
    """Results that are kept are found by the point's content."""
    plain = points("parrot-jct", DATA / "jobs.csv", "parrot", None, 0)[1]
    asked = points("parrot-jct", DATA / "jobs.csv", "parrot", None, 0, flow_times=True, usage_s=1.0)[1]
    assert [{**p, "flow_times": True, "usage_s": 1.0} for p in plain] == asked
    assert not {"flow_times", "usage_s"} & set(plain[0])
