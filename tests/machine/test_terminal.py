"""Tables for people: on 80 columns, no address, number or remedy is cut."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console, RenderableType

from controlplane.api_pb2 import TooLong
from controlplane.constants import DropReason
from controlplane.queues import Queue
from entrain.commands.deploy import deploy_table
from entrain.commands.doctor import show
from entrain.commands.drops import drops_table
from entrain.commands.flows import flows_table, learned_table
from entrain.commands.loads import loads_table
from entrain.commands.simulate import summary_table
from entrain.doctor import Finding, State
from hostbpf.flows import FlowState
from hostbpf.mltcp import JobKey, JobState
from machine.terminal import Remaining
from simulation import output
from simulation.experiments.registry import EXPERIMENTS, points
from simulation.results import Completion, Decision, Figures, Iterations, Latency, Result, TrainingTimes
from workloads.__main__ import summary_table as jobs_table
from workloads.collectives import COLLECTIVES
from workloads.records import Summary


def rendered(shown: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().splitlines()


def flow(**changes: object) -> FlowState:
    """With the longest addresses and numbers that can be."""
    fields = {
        "netns": 1 << 63,
        "source": "255.255.255.255",
        "source_port": 65535,
        "destination": "254.254.254.254",
        "destination_port": 65534,
        "control": "x" * 15,
        "job": (1 << 32) - 1,
        "cwnd": 1_234_567,
        "ssthresh": 1 << 31,
        "srtt_ms": 12_345.678,
        "mss": 1448,
        "bytes_sent": 123_456_789_012,
        "bytes_acked": 1 << 40,
        "retransmitted": (1 << 32) - 2,
        "marked": (1 << 32) - 3,
        "delivery_mbps": 99_999.9,
        "pacing_mbps": None,
        "gain": 1.75,
    }
    return FlowState(**{**fields, **changes})  # type: ignore[arg-type]


def test_flows_fit_80_columns_whole() -> None:
    text = rendered(flows_table([flow(), flow(gain=None, job=3, control="cubic")]))
    assert max(map(len, text)) <= 80
    words = set(re.split(r"\s+", " ".join(text)))
    assert {
        *("255.255.255.255:65535", "254.254.254.254:65534", "x" * 15, "4294967295", "1234567", "12345.678"),
        *("99999.9", "123456.789", "4294967294", "4294967293", "1.75", "-", "cubic"),
    } <= words


def test_what_was_learned_fits_80_columns_whole() -> None:
    state = JobState(*(123_456_789 for _ in JobState._fields))
    text = rendered(learned_table({JobKey((1 << 32) - 1, 1): ("255.255.255.255", state)}))
    assert max(map(len, text)) <= 80
    assert {"4294967295", "255.255.255.255", "123.457", "123.5", "123456789"} <= set(" ".join(text).split())


@pytest.mark.parametrize(("refused", "held"), [({"LOAD": 9}, 0), ({}, 9_999_900)])
def test_loads_fit_80_columns_whole(refused: dict[str, int], held: int) -> None:
    slots = [SimpleNamespace(slot=1000 + ahead, load_mbps=12_345.678) for ahead in range(32)]
    port = SimpleNamespace(
        switch="s" * 15,
        port=511,
        peer="p" * 15,
        link="s->p",
        capacity_mbps=100_000,
        slots=slots,
        refused=refused,
    )
    queue = Queue("s" * 15, 511, "s->p", "interface", 0, backlog_bytes=held)
    reading = SimpleNamespace(ports=[port], problem="", lacking="", queues=[queue.message()])
    text = rendered(loads_table(reading, 1000, every=False, used={("s" * 15, 511): (99_999.94, None)}))
    assert max(map(len, text)) <= 80
    assert {
        "s" * 15,
        "511",
        "p" * 15,
        "100000",
        "99999.9",
        *(["9999.9"] if held else []),
        *(f"{ahead:+d}:12345.7" for ahead in range(32)),
    } <= set(" ".join(text).split())


def test_drops_fit_80_columns_whole_and_those_that_are_none_are_left_out() -> None:
    packets = {reason.name: (1 << 64) - 1 for reason in DropReason} | {"TTL": 0}
    full = Queue("s" * 15, 511, f"{'s' * 15}->{'p' * 15}", "interface", (1 << 64) - 2)
    queues = [full.message(), replace(full, link="s->q", dropped_packets=0).message()]
    long = TooLong(switch="s" * 15, port=511, link=f"s->{'l' * 15}", mtu=65535, packets=(1 << 64) - 3)
    switch = SimpleNamespace(name="s" * 15, packets=packets)
    found = SimpleNamespace(switches=[switch], queues=queues, too_long=[long])
    text = rendered(drops_table(found))
    assert max(map(len, text)) <= 80
    assert f"longer than mtu 65535 {(1 << 64) - 3}" in " ".join(" ".join(text).split())
    words = set(" ".join(text).split())
    assert {"s" * 15, "FORGED_SOURCE", str((1 << 64) - 1), "511", "p" * 15, str((1 << 64) - 2)} <= words
    assert not {"TTL", "q"} & words


def test_what_was_deployed_fits_80_columns_whole() -> None:
    counts = {"inserted": 1_234_567, "modified": 2_345_678, "deleted": 3_456_789}
    switch = {"name": "s" * 15, "pipeline_set": False, "seconds": 12_345.67, **counts}
    text = rendered(deploy_table({"network": "n" * 15, "seconds": 1.5, "switches": [switch]}))
    assert max(map(len, text)) <= 80
    assert {"s" * 15, "unchanged", "1234567", "2345678", "3456789", "12345.67"} <= set(" ".join(text).split())


def test_jobs_fit_80_columns_whole() -> None:
    longest = max(COLLECTIVES, key=len)
    counts = {"jct_s": 123_456.789, "bytes": 123_456_789_012, "cpu_s": 12_345.67}
    job = Summary("j" * 30, longest, 4000, 999, (98_765.4,) * 999, (), **counts, error=None)
    failed = Summary("k", "ring", 2, 3, (), (), None, 0, 0.0, "it was killed")
    text = rendered(jobs_table([job, failed]))
    assert max(map(len, text)) <= 80
    assert {
        *("j" * 30, longest, "4000", "999", "98765.4", "123456.789", "123456.8", "12345.67"),
        *("k", "ring", "-", "0.00"),
    } <= set(" ".join(text).split())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_simulated_points_fit_80_columns_whole(name: str) -> None:
    """Each experiment's parameters with the longest figures that it shows."""
    experiment, todo = points(name, None, None, None, 0)
    long = 1_234_567.8
    decision = Decision(*(123_456.0,) * 4, count=9)
    figures: Figures = Completion(*(long,) * 8, 9, decision if name.startswith("slots") else None)
    shown = 5
    if name.startswith("mltcp"):
        figures, shown = Iterations(9, *(long,) * 5), 5
    if name == "slots-latency":
        figures, shown = Latency(decision), 0
    if name in ("cassini-themis", "cassini-pollux"):
        ratio = 123.4
        figures = TrainingTimes(*(long,) * 3, ratio, ratio, long, (), long, long, 9, 0.9, 9.0, 0.1, ())
        shown = 1
    text = rendered(summary_table(output.summarise(experiment, todo, [Result(figures) for _ in todo])))
    assert max(map(len, text)) <= 80
    words = " ".join(text).split()
    assert words.count("1234568") == len(todo) * shown
    assert {str(point["policy"]) for point in todo if "policy" in point} <= set(words)


def finding(name: str, state: State, required: bool) -> Finding:
    found = state == "found"
    remedy = "" if found else f"apt-get install {name}"
    return Finding(
        name, state, "/usr/local/bin/" + name if found else "", f"what {name} is for", required, remedy
    )


HERE, GONE, EXTRA = (
    finding("here", "found", True),
    finding("gone", "missing", True),
    finding("extra", "missing", False),
)
LONG = finding("n" * 50, "missing", True)


def doctor(*findings: Finding, width: int = 80) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        show(findings, console)
    return captured.get().splitlines()


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ((HERE, GONE, EXTRA), "not ready: 1 thing is missing"),
        ((HERE, GONE, LONG), "not ready: 2 things are missing"),
        ((HERE, EXTRA), "ready: everything required was found; 1 optional thing is missing"),
        ((HERE,), "ready: everything required was found"),
        ((finding("root", "not tried", True),), "not ready: 1 thing is missing"),
    ],
)
def test_doctor_begins_with_the_verdict(findings: tuple[Finding, ...], verdict: str) -> None:
    assert doctor(*findings)[0] == verdict


def test_doctor_tells_what_is_missing_before_what_is_there() -> None:
    text = "\n".join(doctor(HERE, EXTRA, GONE))
    places = [
        text.index(word) for word in ("apt-get install gone", "apt-get install extra", "/usr/local/bin/here")
    ]
    assert places == sorted(places)
    assert "for what gone is for" in text


@pytest.mark.parametrize("width", [40, 80])
def test_doctor_cuts_nothing(width: int) -> None:
    text = doctor(HERE, GONE, LONG, width=width)
    assert max(map(len, text)) <= width
    assert "…" not in "".join(text)
    assert "".join(text).count("n") >= 150  # the name, and in remedy and purpose
    for word in ("apt-get", "install", "gone", "/usr/local/bin/here"):
        assert word in " ".join(text).split()


def test_the_remaining_time_counts_from_the_first_progress() -> None:
    """Bringing the network up took ten times as long as a tenth of the work, and says nothing about it."""
    now = 0.0
    remaining = Remaining(lambda: now)
    assert remaining.seconds(0.0) is None
    now = 100.0
    assert remaining.seconds(0.1) is None
    now = 110.0
    assert remaining.seconds(0.2) == pytest.approx(80.0)
    assert remaining.seconds(0.0) == pytest.approx(80.0)  # another preparation
