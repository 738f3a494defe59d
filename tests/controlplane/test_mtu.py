"""MTUs of topologies: who gets which, and that frames too long for a link are refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.mtu import too_long
from controlplane.topology import Topology, build, dumbbell, leaf_spine, load_topology, parse_topology
from machine.errors import BadInput

UNTIMED = settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
JUMBO = 9000


def narrowed(topology: Topology, name: str, mtu: int) -> Topology:
    """The same topology with another MTU of one link."""
    links = [replace(link, mtu=mtu) if f"{link.a}-{link.b}" == name else link for link in topology.links]
    return build(topology.name, topology.switches, topology.hosts, links)


def explicit(hosts: dict[str, dict[str, Any]], links: dict[str, dict[str, Any]], **topology: Any) -> Topology:
    """A triangle of switches, whose link s1-s3 has a detour over s2; h1 is on s1, and h3 on s3."""
    ends = ("s1-s2", "s2-s3", "s1-s3", "s1-h1", "s3-h3")
    assert links.keys() <= set(ends)
    return parse_topology(
        {
            "topology": topology,
            "switch": [{"name": name} for name in ("s1", "s2", "s3")],
            "host": [{"name": name, **hosts.get(name, {})} for name in ("h1", "h3")],
            "link": [
                {"a": end.partition("-")[0], "b": end.partition("-")[2], **links.get(end, {})} for end in ends
            ],
        },
        "net.toml",
    )


@UNTIMED
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from([576, 1500, JUMBO]))
def test_one_mtu_for_all_is_refused_nowhere(leaves: int, spines: int, hosts: int, mtu: int) -> None:
    for topology in (leaf_spine(leaves, spines, hosts, mtu=mtu), dumbbell(hosts, mtu=mtu)):
        assert {each.mtu for each in (*topology.links, *topology.hosts)} == {mtu} == {topology.mtu}
        assert {port.mtu for switch in topology.switches for port in switch.ports} == {mtu}
        assert not list(too_long(topology))


@UNTIMED
@given(st.integers(2, 3), st.integers(1, 3), st.integers(1, 3), st.data())
def test_a_narrower_link_is_refused_by_name_whichever_it_is(
    leaves: int, spines: int, hosts: int, data: st.DataObject
) -> None:
    whole = leaf_spine(leaves, spines, hosts, mtu=JUMBO)
    link = data.draw(st.sampled_from(whole.links))
    name = f"{link.a}-{link.b}"
    told = list(too_long(narrowed(whole, name, 1500)))
    assert any(f"mtu 9000 exceeds 1500 of link {name}: " in line for line in told)


def test_hosts_with_the_same_fault_share_a_line() -> None:
    (line,) = too_long(narrowed(leaf_spine(2, 1, 2, mtu=JUMBO), "leaf1-spine1", 1500))
    assert line.startswith("host h1 and 3 more: mtu 9000 exceeds 1500 of link leaf1-spine1: ")


def test_a_link_on_no_shortest_path_may_be_narrow() -> None:
    explicit({}, {"s1-s2": {"mtu": 1500}}, mtu=JUMBO)
    with pytest.raises(
        BadInput, match=r"net.toml: host h1 and 1 more: mtu 9000 exceeds 1500 of link s1-s3: "
    ):
        explicit({}, {"s1-s3": {"mtu": 1500}}, mtu=JUMBO)


def test_keys_of_links_and_hosts_override_the_topologys() -> None:
    made = explicit({"h1": {"mtu": 4000}, "h3": {"mtu": 4000}}, {"s1-h1": {"mtu": 5000}}, mtu=JUMBO)
    assert {host.name: host.mtu for host in made.hosts} == {"h1": 4000, "h3": 4000}
    assert {f"{link.a}-{link.b}": link.mtu for link in made.links} == {
        **dict.fromkeys(("s1-s2", "s2-s3", "s1-s3", "s3-h3"), JUMBO),
        "s1-h1": 5000,
    }
    assert explicit({}, {}).mtu == 1500


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        ({"h1": {"mtu": JUMBO}}, "host h1: mtu 9000 exceeds 1500 of link s1-h1: "),
        ({"h1": {"mtu": 1400}}, "host h3: mtu 1500 exceeds 1400 of link s1-h1: "),
    ],
)
def test_a_host_sends_no_more_than_its_link_and_the_other_hosts_take(
    hosts: dict[str, dict[str, Any]], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        explicit(hosts, {})


@pytest.mark.parametrize("mtu", [0, 575, 9217, 1500.5, "1500"])
def test_what_is_no_mtu_is_refused_with_file_and_key(mtu: object, tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    value = f'"{mtu}"' if isinstance(mtu, str) else mtu
    path.write_text(f'[topology]\nkind = "dumbbell"\nhosts_per_side = 1\nmtu = {value}\n')
    with pytest.raises(BadInput, match=r"net.toml: \[topology\], mtu"):
        load_topology(path)


def test_a_circuit_is_as_narrow_as_the_narrower_plug() -> None:
    tables = {
        "topology": {"kind": "leaf-spine", "leaves": 2, "spines": 1, "hosts_per_leaf": 1, "mtu": JUMBO},
        "ocs": {"driver": "emulated"},
    }
    topology = parse_topology(tables, "net.toml")
    assert topology.ocs is not None and {plug.mtu for plug in topology.ocs.plugs} == {JUMBO}
    first, *others = topology.ocs.plugs
    narrow = replace(topology.ocs, plugs=(replace(first, mtu=1500), *others))
    changed = replace(topology, ocs=narrow)
    assert min(link.mtu for link in changed.lit(topology.circuits).links) == 1500
    assert [line for line in too_long(changed) if f"of link {first.switch}-ocs{first.ocs_port}: " in line]
