"""Desired state: every host is reached on a shortest path, source routing is f(i), VRFs are isolated."""

from __future__ import annotations

import ipaddress
from typing import Any

import finsy as fy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane import constants as p4
from controlplane.generate import API, CONSTANTS, HEADERS, P4INFO, constants
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy, desired_state, fixed_path
from controlplane.topology import Host, Topology, dumbbell, leaf_spine, parse_topology
from machine.errors import BadInput
from machine.protoc import grpc_modules
from wire.slot_header import HEADROOM_OFFSET

# No clock decides whether a test passes.
UNTIMED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SCHEMA = Pipeline.load().schema


class Model:
    """The program's tables as far as forwarding goes, filled with a desired state."""

    def __init__(self, topology: Topology, policy: FabricPolicy) -> None:
        self.topology = topology
        self.tables: dict[str, list[fy.P4TableEntry]] = {}
        self.groups: dict[tuple[str, int], list[int]] = {}
        for name, entities in desired_state(topology, policy).items():
            # Through protobuf and back: only what can be written counts.
            decoded: list[Any] = [type(e).decode(e.encode(SCHEMA), SCHEMA) for e in entities]
            self.tables[name] = [entry for entry in decoded if isinstance(entry, fy.P4TableEntry)]
            for group in decoded:
                if isinstance(group, fy.P4ActionProfileGroup):
                    self.groups[name, group.group_id] = [m.member_id for m in group.members or ()]

    def table(self, switch: str, name: str) -> list[fy.P4TableEntry]:
        alias = SCHEMA.tables[name].alias
        return [entry for entry in self.tables[switch] if entry.table_id == alias]

    def forward(self, switch: str, ingress: int, destination: Host, choice: int) -> int | None:
        """The egress port of one packet, or None where it is dropped; `choice` stands for the hash."""
        vrf = next(
            e.action.args["vrf"] for e in self.table(switch, p4.TABLE_VRF) if e["ingress_port"] == ingress
        )
        address = int(ipaddress.IPv4Address(destination.ip))
        route = next(
            (
                e
                for e in self.table(switch, p4.TABLE_ROUTE)
                if e["vrf"] == vrf and int(e["dst"][0]) == address
            ),
            None,
        )
        if route is None:
            return None
        if "port" in route.action.args:
            return int(route.action.args["port"])
        for entry in sorted(self.table(switch, p4.TABLE_SOURCE_ROUTE), key=lambda e: -e.priority):
            value, mask = (entry.match or {}).get("dst", (0, 0))
            if entry["ingress_port"] == ingress and address & int(mask) == int(value):
                return int(entry.action.args["port"])
        members = self.groups[switch, route.action.args["group"]]
        return members[choice % len(members)]

    def path(self, source: Host, destination: Host, choice: int = 0) -> list[tuple[str, int]] | None:
        """The (switch, egress port) pairs on the way, or None where a switch drops."""
        switch, ingress, path = source.leaf, source.leaf_port, list[tuple[str, int]]()
        while len(path) < 10:
            egress = self.forward(switch, ingress, destination, choice)
            if egress is None:
                return None
            path.append((switch, egress))
            port = self.topology.switch_by_name[switch].port(egress)
            if port.peer in self.topology.host_by_name:
                return path if port.peer == destination.name else None
            switch, ingress = port.peer, port.peer_port
        return None


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
    model = Model(topology, FabricPolicy(routing))
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
    model = Model(topology, FabricPolicy("source"))
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


def test_source_routing_maps_host_port_i_to_uplink_h_plus_i() -> None:
    topology = leaf_spine(4, 4, 4)
    model = Model(topology, FabricPolicy("source"))
    for host in topology.hosts:
        away = next(other for other in topology.hosts if other.leaf != host.leaf)
        path = model.path(host, away)
        assert path is not None
        assert path[0] == (host.leaf, 4 + host.leaf_port)


def test_ecmp_uses_every_uplink() -> None:
    topology = leaf_spine(2, 4, 1)
    model = Model(topology, FabricPolicy("ecmp"))
    h1, h2 = topology.hosts
    assert {(model.path(h1, h2, choice) or [])[0] for choice in range(4)} == {
        ("leaf1", n) for n in (2, 3, 4, 5)
    }


@pytest.mark.parametrize("routing", ["ecmp", "source"])
def test_vrfs_are_isolated_from_each_other(routing: Any) -> None:
    topology = leaf_spine(2, 2, 2)
    vrfs = {"h1": 7, "h3": 7}
    model = Model(topology, FabricPolicy(routing, vrfs=vrfs))
    for source in topology.hosts:
        for destination in topology.hosts:
            same = vrfs.get(source.name) == vrfs.get(destination.name)
            assert (model.path(source, destination) is not None) == same


@pytest.mark.parametrize("topology", [leaf_spine(2, 2, 2, links_per_pair=2), dumbbell(2)])
def test_a_fixed_path_is_the_one_that_the_tables_make(topology: Topology) -> None:
    model = Model(topology, FabricPolicy("source"))
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


def test_leaves_answer_arp_for_every_host_and_every_port_has_its_link() -> None:
    topology = leaf_spine(2, 2, 2, uplink_rate_mbps=400, queue_packets=8)
    model = Model(topology, FabricPolicy())
    assert len(model.table("leaf1", p4.TABLE_ARP_REPLY)) == 4
    assert not model.table("spine1", p4.TABLE_ARP_REPLY)
    links = {entry["egress_port"]: entry.action.args for entry in model.table("leaf1", p4.TABLE_LINK)}
    assert links[1] == {"capacity": HEADROOM_OFFSET + 1000, "ecn_threshold": 7}
    assert links[3]["capacity"] == HEADROOM_OFFSET + 400
    by_port = Model(topology, FabricPolicy(ecn_threshold_packets=lambda port: int(port.rate_mbps) // 100))
    thresholds = {
        e["egress_port"]: e.action.args["ecn_threshold"] for e in by_port.table("leaf1", p4.TABLE_LINK)
    }
    assert thresholds == {1: 7, 2: 7, 3: 4, 4: 4}  # a queue of 8 never holds 8 when a packet comes in
    unit = Model(topology, FabricPolicy(rate_unit_mbps=10)).table("leaf1", p4.TABLE_LINK)
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
    assert p4.TABLE_ARP_REPLY_SIZE < 33 * 128
    with pytest.raises(BadInput, match=r"leaf1: 4224 entries do not fit FabricIngress.arp_reply of 4096"):
        desired_state(leaf_spine(33, 1, 128))


def test_constants_are_those_of_the_program() -> None:
    fresh = constants(fy.P4Schema(P4INFO).p4info, HEADERS.read_text())
    assert CONSTANTS.read_text() == fresh, "run python -m controlplane.generate"


def test_each_entry_of_the_drop_counter_has_a_reason() -> None:
    assert sorted(p4.DropReason) == list(range(p4.COUNTER_DROPS_SIZE))


def test_the_apis_modules_are_those_of_its_definition() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is a development dependency")
    for path, text in grpc_modules(API).items():
        assert text == path.read_text(), "run python -m controlplane.generate"
