"""Topologies: what is generated is deterministic and consistent, what is wrong is named with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.network import DARK
from controlplane.topology import (
    HostTable,
    LinkTable,
    SwitchTable,
    Topology,
    TopologyTable,
    dumbbell,
    leaf_spine,
    load_topology,
    parse_topology,
)
from machine.errors import BadInput
from ocs.crossbar import Circuit, join
from ocs.settings import OcsTable

SIZES = st.integers(1, 6)
# No clock decides whether a test passes.
UNTIMED = settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)


def assert_ports_mirror_links(topology: Topology) -> None:
    """Every switch port is one end of exactly one link, and its peer says the same."""
    ends = set()
    for link in topology.links:
        ends |= {(link.a, link.a_port, link.b, link.b_port), (link.b, link.b_port, link.a, link.a_port)}
    ports = {
        (switch.name, port.number, port.peer, port.peer_port)
        for switch in topology.switches
        for port in switch.ports
    }
    hosts = {(host.name, 0, host.leaf, host.leaf_port) for host in topology.hosts}
    assert ports | hosts == ends
    assert len(ends) == 2 * len(topology.links)


@UNTIMED
@given(SIZES, SIZES, SIZES, st.integers(1, 3))
def test_leaf_spine_is_complete_and_consistent(leaves: int, spines: int, hosts: int, pairs: int) -> None:
    topology = leaf_spine(leaves, spines, hosts, pairs)
    assert_ports_mirror_links(topology)
    assert topology.is_leaf_spine
    assert len(topology.hosts) == leaves * hosts
    assert len(topology.links) == leaves * hosts + leaves * spines * pairs
    for leaf in topology.switches_of("leaf"):
        assert [port.number for port in leaf.ports] == list(range(1, hosts + spines * pairs + 1))
        assert [host.leaf_port for host in topology.hosts_of(leaf.name)] == list(range(1, hosts + 1))
        assert topology.fabric_ports_of(leaf.name) == leaf.ports[hosts:]


def test_leaf_spine_numbers_as_documented() -> None:
    topology = leaf_spine(leaves=4, spines=4, hosts_per_leaf=4)
    leaf2 = topology.switch_by_name["leaf2"]
    assert leaf2.port(5).peer == "spine1"
    assert leaf2.port(5).peer_port == 2
    assert topology.switch_by_name["spine3"].port(2).peer == "leaf2"
    h6 = topology.host_by_name["h6"]
    assert (h6.ip, h6.mac, h6.leaf, h6.leaf_port) == ("10.2.2.2", "02:00:0a:02:02:02", "leaf2", 2)


def test_dumbbell_has_one_bottleneck() -> None:
    topology = dumbbell(3, bottleneck_rate_mbps=100, delay_ms=1)
    assert_ports_mirror_links(topology)
    assert [(link.a, link.b) for link in topology.links if link.delay_ms] == [("left", "right")]
    assert not topology.is_leaf_spine


EXPLICIT = """
[[switch]]
name = "s1"
[[switch]]
name = "s2"
grpc_port = 12345
[[host]]
name = "a"
[[host]]
name = "b"
ip = "10.9.9.9/8"
mac = "02:AA:00:00:00:01"
[[link]]
a = "s1"
b = "a"
[[link]]
a = "b"
b = "s2"
[[link]]
a = "s1"
a_port = 1
b = "s2"
rate_mbps = 100
"""


def test_explicit_file_gets_the_lowest_free_ports(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(EXPLICIT)
    topology = load_topology(path)
    assert topology.name == "two"
    assert_ports_mirror_links(topology)
    assert topology.host_by_name["a"].leaf_port == 2  # port 1 was asked for by the third link
    assert topology.host_by_name["b"].mac == "02:aa:00:00:00:01"
    assert topology.switch_by_name["s2"].grpc_address == "127.0.0.1:12345"
    assert load_topology(path) == topology


TWO = '[[switch]]\nname = "s1"\n[[switch]]\nname = "s2"\n[[link]]\na = "s1"\nb = "s2"\n'
HOSTS = (
    '[[host]]\nname = "a"\n{a}\n[[host]]\nname = "b"\n{b}\n[[link]]\na="s1"\nb="a"\n[[link]]\na="s1"\nb="b"\n'
)


@pytest.mark.parametrize(
    "generated",
    [
        "",
        'kind = "dumbbell"\nhosts_per_side = 1\n',
        'kind = "leaf-spine"\nleaves = 1\nspines = 1\nhosts_per_leaf = 1\n',
    ],
)
def test_certificates_are_relative_to_the_file(generated: str, tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.write_text('[topology]\ncertificates = "certs"\n' + (generated or TWO))
    assert {switch.certificates for switch in load_topology(file).switches} == {tmp_path / "certs"}


BAD = {
    "unknown key": (
        '[topology]\nkind = "leaf-spine"\nspine = 4',
        ["[topology], spine", "did you mean spines"],
    ),
    "wrong unit": (
        '[topology]\nkind = "leaf-spine"\nuplink_rate_gbps = 1',
        ["[topology], uplink_rate_gbps", "rates are in Mbit/s: use uplink_rate_mbps"],
    ),
    "unit left out": (TWO + "rate = 5", ["[[link]] 1, rate", "use rate_mbps"]),
    "zero rate": (TWO + "rate_mbps = 0", ["[[link]] 1, rate_mbps", "above 0", "is 0"]),
    "negative rate": (TWO + "rate_mbps = -1.5", ["[[link]] 1, rate_mbps", "above 0"]),
    "infinite rate": (TWO + "rate_mbps = inf", ["[[link]] 1, rate_mbps", "finite"]),
    "rate as text": (TWO + 'rate_mbps = "10"', ["[[link]] 1, rate_mbps", 'a number, is "10"']),
    "loss of all": (TWO + "loss = 1.0", ["[[link]] 1, loss", "below 1"]),
    "missing parameter": (
        '[topology]\nkind = "leaf-spine"\nleaves = 2\nspines = 2',
        ["hosts_per_leaf", "missing"],
    ),
    "foreign parameter": (
        '[topology]\nkind = "dumbbell"\nhosts_per_side = 2\nleaves = 2',
        ["leaves", "dumbbell"],
    ),
    "parameter without kind": ("[topology]\nleaves = 2", ["leaves", 'kind = "leaf-spine"']),
    "kind and switches": (
        '[topology]\nkind = "dumbbell"\nhosts_per_side = 1\n' + TWO,
        ["kind", "[[switch]]"],
    ),
    "unknown kind": ('[topology]\nkind = "fat-tree"', ["[topology], kind", "leaf-spine", 'is "fat-tree"']),
    "nothing": ("", ["no [[switch]]"]),
    "table as value": ("switch = 3", ["switch", "[[switch]]"]),
    "duplicate name": (TWO.replace('"s2"', '"s1"'), ["joins s1 to itself"]),
    "duplicate host name": (TWO + HOSTS.format(a="", b="").replace('"b"', '"a"'), ["a has 2 links"]),
    "switch and host of one name": (TWO + '[[host]]\nname="s1"\n', ["s1"]),
    "duplicate address": (
        TWO + HOSTS.format(a='ip = "10.0.0.1/8"', b='ip = "10.0.0.1/8"'),
        ["ip: 10.0.0.1 is used 2 times", "its own address"],
    ),
    "duplicate MAC": (
        TWO + HOSTS.format(a='mac = "02:00:00:00:00:01"', b='mac = "02:00:00:00:00:01"'),
        ["mac: 02:00:00:00:00:01 is used 2 times"],
    ),
    "bad address": (TWO + HOSTS.format(a='ip = "10.0.0.300/8"', b=""), ["[[host]] 1, ip", "10.1.1.2/8"]),
    "no prefix": (TWO + HOSTS.format(a='ip = "10.0.0.3"', b=""), ["[[host]] 1, ip", "10.0.0.3/8"]),
    "two networks": (
        TWO + HOSTS.format(a='ip = "192.168.0.3/24"', b=""),
        ["different networks", "one prefix"],
    ),
    "bad MAC": (TWO + HOSTS.format(a='mac = "02:00"', b=""), ["[[host]] 1, mac", "02:00:00:00:00:01"]),
    "multicast MAC": (TWO + HOSTS.format(a='mac = "01:00:00:00:00:01"', b=""), ["multicast"]),
    "port collision": (
        TWO + 'a_port = 1\n[[host]]\nname="h"\n[[link]]\na="s1"\na_port=1\nb="h"',
        ["port 1 of s1: used by 2 links (to s2, h)"],
    ),
    "port beyond the program": (TWO + "a_port = 255", ["[[link]] 1, a_port", "at most 254"]),
    "too many ports": (
        '[topology]\nkind = "leaf-spine"\nleaves = 2\nspines = 250\nhosts_per_leaf = 8',
        ["hosts_per_leaf", "8 + 250 ports", "254"],
    ),
    "gRPC port collision": (
        TWO.replace('name = "s2"', 'name = "s2"\ngrpc_port = 9559'),
        ["grpc_port: 127.0.0.1:9559 is used 2 times"],
    ),
    "unconnected switch": (TWO + '[[switch]]\nname="s3"', ["switch s3", "[[link]]"]),
    "two parts": (
        TWO + '[[switch]]\nname="s3"\n[[switch]]\nname="s4"\n[[link]]\na="s3"\nb="s4"',
        ["switch s3: has no path to s1"],
    ),
    "unlinked host": (TWO + '[[host]]\nname="h"', ["[[host]] 1", "h has 0 links"]),
    "link to nowhere": (TWO + '[[link]]\na="s1"\nb="s7"', ["[[link]] 2, b", "'s7'"]),
    "port of a host": (TWO + '[[host]]\nname="h"\n[[link]]\na="s1"\nb="h"\nb_port=3', ["[[link]] 2, b_port"]),
    "long name": (TWO.replace('"s1"', '"a-rather-long-name"'), ["too long", "at most 10"]),
    "not TOML": ("[topology\n", ["not valid TOML", "line 1"]),
}


@pytest.mark.parametrize(("text", "expected"), BAD.values(), ids=BAD.keys())
def test_bad_input_names_file_key_and_remedy(text: str, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        load_topology(path)
    message = str(error.value)
    assert all(line.startswith(f"{path}: ") for line in message.splitlines())
    for part in expected:
        assert part in message


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(BadInput) as error:
        parse_topology({"topology": {"kind": "leaf-spine", "leafs": 2, "spines": 0}}, "x.toml")
    assert len(str(error.value).splitlines()) == 2


def test_missing_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        load_topology(tmp_path / "none.toml")


def test_uplinks_and_spine_ports_are_plugged_in_by_leaf_and_by_spine() -> None:
    topology = leaf_spine(2, 3, 1, ocs=OcsTable())
    assert topology.ocs is not None
    assert [(plug.switch, plug.port) for plug in topology.ocs.plugs] == [
        *(("leaf1", port) for port in (2, 3, 4)),
        *(("leaf2", port) for port in (2, 3, 4)),
        *((f"spine{spine}", port) for spine in (1, 2, 3) for port in (1, 2)),
    ]
    assert topology.circuits == {join(*ends) for ends in ((1, 7), (2, 9), (3, 11), (4, 8), (5, 10), (6, 12))}


@UNTIMED
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.data())
def test_links_are_what_circuits_make_of_them(
    leaves: int, spines: int, parallel: int, data: st.DataObject
) -> None:
    topology = leaf_spine(leaves, spines, 1, parallel, ocs=OcsTable())
    assert topology.ocs is not None
    order = data.draw(st.permutations(sorted(topology.ocs.plug_by_port)))
    pairs = zip(order[::2], order[1::2], strict=True)
    chosen = {join(*pair) for pair in pairs if data.draw(st.booleans())}
    lit = topology.lit(chosen)
    assert lit.circuits == chosen
    for circuit in chosen:
        one, other = (topology.ocs.plug_by_port[port] for port in circuit.ports)
        port = lit.switch_by_name[one.switch].port(one.port)
        assert (port.peer, port.peer_port) == (other.switch, other.port)
        back = lit.switch_by_name[other.switch].port(other.port)
        assert (back.peer, back.peer_port) == (one.switch, one.port)
    dark = {
        topology.ocs.port_of[switch.name, port.number]
        for switch in lit.switches
        for port in switch.ports
        if port.peer == DARK
    }
    assert dark == set(order) - {port for circuit in chosen for port in circuit.ports}
    assert lit.lit(topology.circuits) == topology


def test_circuits_of_ports_without_plugs_make_no_link() -> None:
    topology = leaf_spine(2, 1, 1, ocs=OcsTable())
    assert topology.lit([Circuit(1, 3), Circuit(7, 8)]).circuits == {Circuit(1, 3)}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"topology": {"kind": "dumbbell", "hosts_per_side": 1}, "ocs": {}}, r"\[ocs\]: needs kind"),
        (
            {
                "topology": {"kind": "leaf-spine", "leaves": 2, "spines": 1, "hosts_per_leaf": 1},
                "ocs": {"loss_db": {"5": 1.0}},
            },
            r"\[ocs\], loss_db, 5: ports 1 to 4 are plugged in",
        ),
        ({"switch": [{"name": "s1"}], "ocs": {}}, "nothing is plugged in"),
        (
            {
                "switch": [{"name": "s1"}, {"name": "s2"}],
                "link": [{"a": "s1", "b": "s2", "ocs_ports": [1, 2]}],
            },
            r"\[\[link\]\] 1, ocs_ports: there is no \[ocs\]",
        ),
        (
            {
                "switch": [{"name": "s1"}, {"name": "s2"}],
                "link": [{"a": "s1", "b": "s2", "ocs_ports": [1, 1]}],
                "ocs": {},
            },
            "ocs_ports: 1 is used 2 times",
        ),
    ],
)
def test_wrong_plugs_are_named(tables: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_topology(tables, "x.toml")


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(),
    st.sampled_from([[], {}, "", "s1", "h1", "leaf-spine", "dumbbell", "10.0.0.1/8", "10.0.0.1/33", "02:00"]),
)
TABLES = (TopologyTable, SwitchTable, HostTable, LinkTable, OcsTable)
KEYS = st.sampled_from(sorted({name for table in TABLES for name in table.model_fields}))
TABLE = st.dictionaries(KEYS, VALUES, max_size=5)
FILE = st.fixed_dictionaries(
    {},
    optional={
        "topology": TABLE,
        "switch": st.lists(TABLE, max_size=3),
        "host": st.lists(TABLE, max_size=3),
        "link": st.lists(TABLE, max_size=3),
        "ocs": TABLE,
    },
)


@UNTIMED
@given(FILE)
def test_whatever_a_file_says_it_is_a_topology_or_bad_input(tables: dict[str, object]) -> None:
    try:
        topology = parse_topology(tables, "any.toml")
    except BadInput as error:
        assert str(error).startswith("any.toml: ")
    else:
        assert_ports_mirror_links(topology)
