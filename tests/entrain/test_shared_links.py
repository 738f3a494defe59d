"""Links that jobs share, as computed; tests/entrain/run/test_run.py compares them with measured ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.routing import FabricPolicy, Routing, flow_hash, flow_path
from controlplane.topology import Topology, dumbbell, leaf_spine
from entrain.experiment import FileRouting
from entrain.shared_links import shared_links
from machine.errors import BadInput
from tests.controlplane.model import Model
from tests.p4.packets import crc16
from wire.flow import Flow

SHAPES = st.one_of(
    st.builds(leaf_spine, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    st.builds(dumbbell, st.integers(1, 3)),
)


@st.composite
def flows(draw: st.DrawFn, topology: Topology) -> Flow:
    source, destination = draw(st.lists(st.sampled_from(topology.hosts), min_size=2, max_size=2, unique=True))
    return Flow(source.ip, draw(st.integers(1024, 65535)), destination.ip, draw(st.integers(1024, 65535)))


@given(SHAPES.filter(lambda topology: len(topology.hosts) > 1), st.data())
def test_a_flow_goes_where_the_switches_tables_send_it(topology: Topology, data: st.DataObject) -> None:
    routing: Routing = data.draw(st.sampled_from(("ecmp", "source")))
    flow = data.draw(flows(topology))
    hosts = {host.ip: host for host in topology.hosts}
    model = Model.of(topology, FabricPolicy(routing))
    expected = model.path(hosts[flow.source], hosts[flow.destination], flow_hash(flow))
    assert flow_path(topology, routing, flow) == tuple(expected or ())


def test_the_hash_is_that_of_the_switch_program() -> None:
    ends = bytes([10, 1, 1, 2, 10, 2, 1, 2, 6]) + (20000).to_bytes(2, "big") + (7000).to_bytes(2, "big")
    assert flow_hash(Flow("10.1.1.2", 20000, "10.2.1.2", 7000)) == crc16(ends)


@pytest.mark.parametrize(
    ("routing", "links"),
    [
        ("source", ["h1->leaf1", "leaf1->spine1", "leaf2->h2", "spine1->leaf2"]),
        ("vclos", ["h1->leaf1", "leaf2->h2"]),
    ],
)
def test_links_have_their_rates_and_jobs_by_direction(routing: FileRouting, links: list[str]) -> None:
    topology = leaf_spine(2, 1, 1, host_rate_mbps=80, uplink_rate_mbps=40)
    there, back = (Flow(f"10.{a}.1.2", 1, f"10.{b}.1.2", 2) for a, b in ((1, 2), (2, 1)))
    found = shared_links(topology, routing, {"a": [there, back], "b": [there], "c": []})
    assert {link.name: link.jobs for link in found if "b" in link.jobs} == dict.fromkeys(links, ("a", "b"))
    assert {link.jobs for link in found} == {("a", "b"), ("a",)}
    assert all(link.capacity == (5e6 if "spine" in link.name else 10e6) for link in found)


def test_a_flow_of_no_host_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no host has address 10\.9\.9\.9"):
        shared_links(leaf_spine(2, 1, 1), "ecmp", {"a": [Flow("10.1.1.2", 1, "10.9.9.9", 2)]})
