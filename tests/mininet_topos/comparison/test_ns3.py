"""ns-3 runs a scenario as it is described: shares, losses and queues that arithmetic gives, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from machine import cache
from machine.errors import BadInput, EntrainError, MissingTool
from mininet_topos.comparison import ns3
from mininet_topos.comparison.scenarios import Flow, Measured, Scenario, line
from mininet_topos.links import FRAME_BYTES, queue_bytes

RATE_MBPS, QUEUE_PACKETS = 50.0, 64
PAYLOAD, DATAGRAM = 1448, 1472  # bytes in a full frame, of TCP and of UDP


def _lacks_ns3() -> str:
    try:
        ns3.require()
    except MissingTool as error:
        return str(error)
    return ""


needs_ns3 = pytest.mark.skipif(bool(_lacks_ns3()), reason=_lacks_ns3() or "ns-3 is there")


def scenario(*flows: Flow) -> Scenario:
    """Two hosts at each of two switches; the measured queue is that of s1 towards s2."""
    return Scenario("test", line([RATE_MBPS], [2, 2], QUEUE_PACKETS), flows, ("s1", 3))


def measured(*flows: Flow, seconds: float = 5.0) -> Measured:
    return ns3.run(scenario(*flows), seconds=seconds, warm_up_s=1.0, seed=1)


@needs_ns3
def test_a_datagram_flow_at_twice_the_bottleneck_loses_half() -> None:
    (flow,) = measured(Flow("h1", "h3", "udp", 2 * RATE_MBPS * DATAGRAM / FRAME_BYTES)).flows
    assert flow.lost == pytest.approx(0.5, abs=0.02)
    assert flow.goodput_mbps == pytest.approx(RATE_MBPS * DATAGRAM / FRAME_BYTES, rel=0.01)


@needs_ns3
def test_nothing_waits_long_at_half_the_rate() -> None:
    result = measured(Flow("h1", "h3", "udp", RATE_MBPS / 2))
    assert result.flows[0].lost == 0
    assert result.queue_bytes < FRAME_BYTES / 10
    assert result.round_trip_ms < 1


@needs_ns3
@pytest.mark.parametrize("control", ["reno", "cubic"])
def test_a_tcp_flow_fills_the_bottleneck_and_its_queue_up_to_the_limit(control: str) -> None:
    result = measured(Flow("h1", "h3", control))
    assert 0.9 <= result.flows[0].goodput_mbps / (RATE_MBPS * PAYLOAD / FRAME_BYTES) <= 1.001
    limit = queue_bytes(scenario().topology.links[-1])
    assert 0.3 * limit < result.queue_bytes < result.queue_bytes_p99 <= limit
    ahead_ms = result.queue_bytes * 8 / RATE_MBPS / 1e3
    assert ahead_ms < result.round_trip_ms < ahead_ms + 2  # a probe waits in that queue


@needs_ns3
def test_two_flows_share_a_bottleneck() -> None:
    rates = [
        flow.goodput_mbps
        for flow in measured(Flow("h1", "h3", "cubic"), Flow("h2", "h4", "cubic"), seconds=21.0).flows
    ]
    assert sum(rates) ** 2 / (2 * sum(rate**2 for rate in rates)) > 0.9


@needs_ns3
def test_payloads_start_together_and_end_the_run() -> None:
    payload = 2_000_000
    flows = [Flow(source, sink, "reno", None, payload) for source, sink in (("h1", "h3"), ("h2", "h4"))]
    took = [flow.seconds for flow in measured(*flows, seconds=1000.0).flows]
    soonest = 2 * payload * 8 / (RATE_MBPS * 1e6 * PAYLOAD / FRAME_BYTES)
    last = max(each or 0 for each in took)
    assert None not in took
    assert soonest <= last < 1.5 * soonest


@needs_ns3
@pytest.mark.parametrize("control", ["reno", "udp"])
def test_only_the_seed_decides_what_flows_get(control: str) -> None:
    given = scenario(*(Flow(f"h{i}", f"h{i + 2}", control, RATE_MBPS) for i in (1, 2)))
    one, same, other = (ns3.run(given, seconds=2.0, warm_up_s=0.5, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one.flows != other.flows


@needs_ns3
def test_the_message_of_a_program_that_fails_reaches_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ns3, "describe", lambda *_, **__: "nonsense\n")
    with pytest.raises(EntrainError, match=r"scenario test: ns-3 failed: .*nonsense"):
        measured(Flow("h1", "h3", "reno"))


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (Flow("h1", "h3", "dctcp"), r'test: flow h1-h3: .* "dctcp" here; take one of reno, cubic, bbr, udp'),
        (Flow("h1", "h9", "reno"), "no host h9"),
        (Flow("h1", "h3", "udp"), "udp needs rate_mbps"),
    ],
)
def test_a_flow_that_it_cannot_run_is_named(flow: Flow, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        measured(flow)


def test_a_queue_that_is_not_there_is_named() -> None:
    given = replace(scenario(Flow("h1", "h3", "reno")), queue=("s1", 9))
    with pytest.raises(BadInput, match="switch s1, port 9"):
        ns3.run(given, seconds=2.0, warm_up_s=1.0, seed=1)


def test_what_is_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ns3, "PREFIX", tmp_path)
    monkeypatch.setattr(ns3, "_compiler", lambda: "g++")
    with pytest.raises(MissingTool, match=r"headers .*apt-get install libns3-dev g\+\+"):
        ns3.require()
    header = tmp_path / "include/ns3/core-module.h"
    header.parent.mkdir(parents=True)
    header.touch()
    with pytest.raises(MissingTool, match=r"libns3-core\.so .*apt-get install libns3-dev g\+\+"):
        ns3.require()


def test_libraries_are_found_under_any_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ns3, "PREFIX", tmp_path)
    monkeypatch.setattr(ns3, "_compiler", lambda: "g++")
    files = [tmp_path / f"lib/any-linux-gnu/libns3.45-{module}.so" for module in ns3.MODULES]
    for path in (tmp_path / "include/ns3/core-module.h", *files):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    ns3.require()


def test_without_a_compiler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingTool, match=r"C\+\+ compiler.*apt-get install libns3-dev g\+\+"):
        ns3.require()


@needs_ns3
def test_the_program_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = ns3.compiled()
    monkeypatch.setattr(ns3.subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert ns3.compiled() == program
    assert program.parent == cache.directory()
