"""Desired state: every host is reached on a shortest path, source routing is f(i), VRFs are isolated."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import finsy as fy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane import constants as p4
from controlplane.constants import DropReason
from controlplane.generate import CONSTANTS, HEADERS, P4INFO, PROTOS, constants
from controlplane.network import DARK
from controlplane.routing import FabricPolicy, desired_state, fixed_path, switch_hops
from controlplane.topology import Topology, dumbbell, leaf_spine, parse_topology
from machine.errors import BadInput
from machine.protoc import grpc_modules
from ocs.crossbar import join
from ocs.settings import OcsTable
from tests.controlplane.model import Model
from wire.slot_header import HEADROOM_OFFSET

# No clock decides whether a test passes.
UNTIMED = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


SHAPES = st.builds(leaf_spine, st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 2))
RING = parse_topology(
    {
        "switch": [{"name": f"s{i}"} for i in range(4)],
        "host": [{"name": f"h{i}"} for i in range(4)],
        "link": [{"a": f"s{i}", "b": f"s{(i + 1) % 4}"} for i in range(4)]
        + [{"a": f"h{i}", "b": f"s{i}"} for i in range(4)],
    },
    "ring",
)


@UNTIMED
@given(st.one_of(SHAPES, st.builds(dumbbell, st.integers(1, 4)), st.just(RING)), st.data())
def test_every_host_reaches_every_other_on_a_shortest_path(topology: Topology, data: st.DataObject) -> None:
    routing = data.draw(st.sampled_from(["ecmp", "source"]))
    model = Model.of(topology, FabricPolicy(routing))
    source, destination = (data.draw(st.sampled_from(topology.hosts)) for _ in "ab")
    path = model.path(source, destination, data.draw(st.integers(0, 10)))
    assert path is not None
    if topology.is_leaf_spine:
        assert len(path) == (1 if source.leaf == destination.leaf else 3)


@UNTIMED
@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_source_routing_never_shares_a_link_in_a_leafwise_permutation(
    leaves: int, spines: int, pairs: int, shift: int
) -> None:
    """Each host of leaf l sends to the host of the same index on leaf l + shift (vClos, lemma 5.1)."""
    topology = leaf_spine(leaves, spines, spines * pairs, pairs)
    model = Model.of(topology, FabricPolicy("source"))
    used: set[tuple[str, int]] = set()
    per_leaf = spines * pairs
    for index, source in enumerate(topology.hosts):
        destination = topology.hosts[(index + shift * per_leaf) % len(topology.hosts)]
        if destination.leaf == source.leaf:
            continue
        path = model.path(source, destination)
        assert path is not None
        assert not used & set(path)
        used |= set(path)


@UNTIMED
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.data())
def test_packets_go_where_circuits_lead_and_no_other_way(
    leaves: int, spines: int, pairs: int, data: st.DataObject
) -> None:
    """Any uplinks joined to any spine ports: a host is reached if a spine joins both leaves."""
    dark = leaf_spine(leaves, spines, 2, pairs, ocs=OcsTable()).lit(())
    uplinks = leaves * spines * pairs
    far = data.draw(st.permutations(range(uplinks + 1, 2 * uplinks + 1)))
    circuits = [join(near, port) for near, port in enumerate(far, 1) if data.draw(st.booleans())]
    topology = dark.lit(circuits)
    model = Model.of(topology, FabricPolicy(data.draw(st.sampled_from(["ecmp", "source"]))))
    source, destination = (data.draw(st.sampled_from(topology.hosts)) for _ in "ab")
    path = model.path(source, destination, data.draw(st.integers(0, 10)))
    hops = switch_hops(topology, destination.leaf).get(source.leaf)
    assert (path is not None) == (hops in (0, 2))
    for switch, port in path or ():
        assert topology.switch_by_name[switch].port(port).peer != DARK


def test_source_routing_maps_host_port_i_to_uplink_h_plus_i() -> None:
    topology = leaf_spine(4, 4, 4)
    model = Model.of(topology, FabricPolicy("source"))
    for host in topology.hosts:
        away = next(other for other in topology.hosts if other.leaf != host.leaf)
        path = model.path(host, away)
        assert path is not None
        assert path[0] == (host.leaf, 4 + host.leaf_port)


def test_ecmp_uses_every_uplink() -> None:
    topology = leaf_spine(2, 4, 1)
    model = Model.of(topology, FabricPolicy("ecmp"))
    h1, h2 = topology.hosts
    assert {(model.path(h1, h2, choice) or [])[0] for choice in range(4)} == {
        ("leaf1", n) for n in (2, 3, 4, 5)
    }


@pytest.mark.parametrize("routing", ["ecmp", "source"])
def test_vrfs_are_isolated_from_each_other(routing: Any) -> None:
    topology = leaf_spine(2, 2, 2)
    vrfs = {"h1": 7, "h3": 7}
    model = Model.of(topology, FabricPolicy(routing, vrfs=vrfs))
    for source in topology.hosts:
        for destination in topology.hosts:
            same = vrfs.get(source.name) == vrfs.get(destination.name)
            path, dropped = model.walk(source, destination)
            assert (path == [], dropped) == ((False, None) if same else (True, DropReason.OTHER_VRF))


def test_a_host_in_no_vrf_reaches_nobody() -> None:
    topology = leaf_spine(2, 2, 2)
    model = Model.of(topology, FabricPolicy(vrfs={"h1": 7, "h3": 7}, other_vrf=None))
    for source in topology.hosts:
        for destination in topology.hosts:
            _, dropped = model.walk(source, destination)
            if source.name not in ("h1", "h3"):
                assert dropped == DropReason.NO_VRF
            else:
                assert dropped == (None if destination.name in ("h1", "h3") else DropReason.OTHER_VRF)


def test_a_host_sends_under_its_own_address_only() -> None:
    topology = leaf_spine(2, 2, 2)
    model = Model.of(topology, FabricPolicy())
    addresses = [int(ipaddress.IPv4Address(host.ip)) for host in topology.hosts]
    for host, own in zip(topology.hosts, addresses, strict=True):
        for claimed in addresses:
            seen = model.forward(host.leaf, host.leaf_port, claimed, addresses[0])
            assert (seen == DropReason.FORGED_SOURCE) == (claimed != own)


@pytest.mark.parametrize("topology", [leaf_spine(2, 2, 2, links_per_pair=2), dumbbell(2)])
def test_a_fixed_path_is_the_one_that_the_tables_make(topology: Topology) -> None:
    model = Model.of(topology, FabricPolicy("source"))
    for source in topology.hosts:
        for destination in topology.hosts:
            if source is not destination:
                expected = model.path(source, destination)
                assert list(fixed_path(topology, "source", source, destination)) == expected


def test_a_path_that_a_hash_chooses_is_refused() -> None:
    topology = leaf_spine(2, 2, 2)
    h1, h2, h3 = (topology.host_by_name[name] for name in ("h1", "h2", "h3"))
    assert fixed_path(topology, "ecmp", h1, h2) == (("leaf1", 2),)
    with pytest.raises(BadInput, match=r"from h1 to h3 .* hash of leaf1; use source routing"):
        fixed_path(topology, "ecmp", h1, h3)


def test_leaves_know_every_host_and_every_port_has_its_link() -> None:
    topology = leaf_spine(2, 2, 2, uplink_rate_mbps=400, queue_packets=8)
    model = Model.of(topology, FabricPolicy())
    assert len(model.table("leaf1", p4.TABLE_HOST)) == 4
    assert not model.table("spine1", p4.TABLE_HOST)
    links = {entry["egress_port"]: entry.action.args for entry in model.table("leaf1", p4.TABLE_LINK)}
    assert links[1] == {"capacity": HEADROOM_OFFSET + 1000, "ecn_threshold": 7}
    assert links[3]["capacity"] == HEADROOM_OFFSET + 400
    by_port = Model.of(topology, FabricPolicy(ecn_threshold_packets=lambda port: int(port.rate_mbps) // 100))
    thresholds = {
        e["egress_port"]: e.action.args["ecn_threshold"] for e in by_port.table("leaf1", p4.TABLE_LINK)
    }
    assert thresholds == {1: 7, 2: 7, 3: 4, 4: 4}  # a queue of 8 never holds 8 when a packet comes in
    unit = Model.of(topology, FabricPolicy(rate_unit_mbps=10)).table("leaf1", p4.TABLE_LINK)
    assert {entry.action.args["capacity"] for entry in unit} == {
        HEADROOM_OFFSET + 100,
        HEADROOM_OFFSET + 40,
    }


def test_wrong_vrfs_are_named() -> None:
    with pytest.raises(BadInput, match="no host 'h99'"):
        desired_state(dumbbell(1), FabricPolicy(vrfs={"h99": 2}))
    with pytest.raises(BadInput, match="h1 is in VRF 0; use 1 to"):
        desired_state(dumbbell(1), FabricPolicy(vrfs={"h1": 0}))


def test_what_does_not_fit_a_table_is_refused_before_anything_is_written() -> None:
    assert p4.TABLE_HOST_SIZE < 33 * 128
    with pytest.raises(BadInput, match=r"leaf1: 4224 entries do not fit FabricIngress.host of 4096"):
        desired_state(leaf_spine(33, 1, 128))


def test_constants_are_those_of_the_program() -> None:
    fresh = constants(fy.P4Schema(P4INFO).p4info, HEADERS.read_text())
    assert CONSTANTS.read_text() == fresh, "run python -m controlplane.generate"


def test_each_entry_of_the_drop_counter_has_a_reason() -> None:
    assert sorted(p4.DropReason) == list(range(p4.COUNTER_DROPS_SIZE))


@pytest.mark.parametrize("proto", PROTOS, ids=lambda proto: str(proto.name))
def test_generated_modules_are_those_of_their_definition(proto: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is a development dependency")
    for path, text in grpc_modules(proto).items():
        assert text == path.read_text(), "run python -m controlplane.generate"
