"""The emulation beside Linux routers, and the rule by which figures differ."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from controlplane.network import Topology
from controlplane.routing import next_hops
from entrain.cli import cli
from mininet_topos.comparison import compare as comparison
from mininet_topos.comparison import scenarios
from mininet_topos.comparison.compare import GOALS, Row, compare, figures, measure
from mininet_topos.comparison.scenarios import SCENARIOS, SHORT, Carried, Measured, line


@pytest.mark.root
def test_a_queue_in_a_switch_does_not_hold_its_sender_back() -> None:
    """A sender of almost twice the bottleneck's rate loses what does not fit, as behind a router."""
    overload = next(each for each in SHORT if each.name.endswith("udp at 1.8"))
    lost = {
        kind: measure(overload, kind, seconds=2.0, warm_up_s=1.0).flows[0].lost
        for kind in ("softswitch", "router")
    }
    assert lost["router"] > 0.3
    assert lost["softswitch"] == pytest.approx(lost["router"], rel=0.3)


def measured(goodputs: tuple[float, ...], queue_bytes: float = 50e3) -> Measured:
    return Measured(tuple(Carried(each, 0.01) for each in goodputs), 10.0, 15.0, queue_bytes, 90e3)


def test_figures_have_the_fields_units() -> None:
    found = figures(measured((30.0, 10.0)))
    assert found["goodput Mbit/s"] == 40.0
    assert found["Jain"] == pytest.approx(40**2 / (2 * (30**2 + 10**2)))
    assert found["lost %"] == pytest.approx(1.0)
    assert found["queue KB"] == 50.0


@pytest.mark.parametrize(
    ("ours", "theirs", "differs"),
    [
        ((50.0,), (52.0,), False),  # within 10 %
        ((50.0,), (60.0,), True),
        ((45.0, 50.0, 58.0), (60.0, 60.0, 61.0), False),  # the rounds differ as much among themselves
        ((49.0, 50.0, 51.0), (60.0, 60.0, 61.0), True),
        ((0.0,), (1.4,), False),  # less than a frame
    ],
)
def test_what_the_spread_covers_is_no_difference(
    ours: tuple[float, ...], theirs: tuple[float, ...], differs: bool
) -> None:
    row = Row("some", "queue KB", {"softswitch": ours, "router": theirs})
    assert row.differs("softswitch", "router") is differs


def test_targets_take_turns_and_every_figure_is_a_row() -> None:
    turns: list[tuple[str, int]] = []

    def target(name: str) -> object:
        return lambda scenario, number: (turns.append((name, number)), measured((20.0, 20.0)))[1]

    rows = list(compare(SHORT[:1], {"softswitch": target("softswitch"), "router": target("router")}, 2))  # type: ignore[dict-item]
    assert turns == [("softswitch", 0), ("router", 0), ("softswitch", 1), ("router", 1)]
    assert {row.figure for row in rows} == GOALS.keys() - {"completion ms"}


def test_the_measured_queue_is_before_each_scenarios_slowest_link() -> None:
    for scenario in SCENARIOS:
        switch, number = scenario.queue
        port = next(each for each in scenario.topology.switch_by_name[switch].ports if each.number == number)
        assert port.rate_mbps == min(link.rate_mbps for link in scenario.topology.links), scenario.name
        sink = scenario.topology.host_by_name[scenario.flows[0].sink]
        assert number in next_hops(scenario.topology, scenario.topology.switch_by_name[switch], sink)


def test_a_line_has_its_hosts_in_order() -> None:
    topology: Topology = line([50, 40], [1, 2, 1], 16)
    assert [host.leaf for host in topology.hosts] == ["s1", "s2", "s2", "s3"]
    assert [link.rate_mbps for link in topology.links] == [100, 100, 100, 100, 50, 40]


def emulated(queue_bytes: float, goodput_mbps: float) -> Measured:
    return Measured((Carried(goodput_mbps, 0.45),), 15.0, 20.0, queue_bytes, 96e3)


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (emulated(93e3, 47.8), emulated(92e3, 47.8), None),
        (emulated(60e3, 47.8), emulated(92e3, 47.8), "queue KB 60, with routers 92"),
        (emulated(92e3, 30.0), emulated(92e3, 30.0), "30 of 47.82 Mbit/s arrive"),  # neither carries it
    ],
)
def test_doctor_says_which_emulated_links_to_trust(
    monkeypatch: pytest.MonkeyPatch, ours: Measured, theirs: Measured, words: str | None
) -> None:
    monkeypatch.setattr(
        comparison, "measure", lambda scenario, kind, **_: ours if kind == "softswitch" else theirs
    )
    monkeypatch.setattr(scenarios, "SHORT", SHORT[:1])
    done = CliRunner().invoke(cli, ["doctor", "--emulation", "--json"])
    assert done.exit_code == (words is not None)
    assert json.loads(done.stdout) == {
        "ok": words is None,
        "emulation": {SHORT[0].name: [words] if words else []},
    }
