"""What Prometheus gets, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.client import RunningNetwork
from entrain.watch.metrics import exposition
from entrain.watch.source import Source
from tests.entrain.watch.network import JOB, Controller

Watched = tuple[RunningNetwork, Controller]
pytestmark = pytest.mark.sockets


DASHBOARD = Path(__file__).resolve().parents[3] / "docs/grafana-dashboard.json"


def scrape(network: RunningNetwork) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return samples by name and labels."""
    source = Source(network, 100).snapshots()
    next(source)
    body, kind = exposition(next(source))
    assert kind.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_one_scrape_has_switches_links_agents_jobs_and_the_controller(watched: Watched) -> None:
    found = scrape(watched[0])

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value("entrain_switch_dropped_packets_total", switch="leaf1", reason="no_route") == 3
    assert value("entrain_switch_table_entries", switch="spine2", table="route") == 4
    assert value("entrain_port_sent_bytes_total", switch="leaf1", port="3", peer="spine1") > 0
    link = {"link": "leaf1->spine1", "source": "leaf1", "target": "spine1"}
    assert value("entrain_link_measured_mbps", **link) == pytest.approx(40, rel=0.02)
    assert value("entrain_link_planned_mbps", **link) == pytest.approx(60)
    assert value("entrain_link_slot_planned_mbps", **link, later="2") == 60
    queue = {"link": "leaf2->spine1", "source": "leaf2", "target": "spine1"}
    assert value("entrain_link_queue_bytes", **queue) == 6000
    assert value("entrain_link_queue_dropped_packets_total", **queue) == 12
    relay = {"link": "leaf1-spine1", "source": "leaf1", "target": "spine1"}
    assert value("entrain_link_queue_dropped_packets_total", **relay) == 2
    assert value("entrain_agent_up", host="h1") == 1
    assert value("entrain_agent_up", host="h2") == 0
    assert value("entrain_job_over_ideal", job=JOB) == pytest.approx(1.25)
    assert value("entrain_controller_reads_switches") == 1


def test_the_dashboard_is_one_and_asks_for_what_is_exported(watched: Watched) -> None:
    """Keys are those of Grafana's dashboard schema."""
    exported = {name for name, _ in scrape(watched[0])}
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["schemaVersion"] >= 36 and dashboard["uid"] and dashboard["title"]
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 8
    taken: set[tuple[int, int]] = set()
    asked: set[str] = set()
    for panel in panels:
        assert panel["type"] in {"timeseries", "stat", "heatmap", "table", "bargauge"} and panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24 and not cells & taken, "panels fit the grid and do not overlap"
        taken |= cells
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert target["refId"] and target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            asked |= set(re.findall(r"\bentrain_\w+", target["expr"]))
    assert asked and asked <= exported, f"not exported: {sorted(asked - exported)}"
    links = {name for name in exported if name.startswith("entrain_link_")}
    assert links <= asked, f"no panel shows {sorted(links - asked)}"
