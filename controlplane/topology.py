"""Topologies: nodes, links, addresses and ports.

A TOML file describes a topology, by parameters (`leaf_spine`, `dumbbell`) or explicitly. Names, addresses and
port numbers that it omits follow from the order alone, so a file gives the same network everywhere.

    [topology]
    kind = "leaf-spine"
    leaves = 4
    spines = 4
    hosts_per_leaf = 4

or

    [[switch]]
    name = "s1"
    [[host]]
    name = "h1"
    [[link]]
    a = "s1"
    b = "h1"
    rate_mbps = 1000
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from controlplane.mtu import too_long
from controlplane.network import (
    DEFAULT_MTU,
    MAX_DEV_PORT,
    MAX_PORT,
    Host,
    Link,
    Ocs,
    Plug,
    Port,
    Role,
    Switch,
    Target,
    Topology,
    build,
)
from machine.errors import BadInput
from machine.explain import suggestion
from machine.toml import Strict, check, matching, read_toml
from ocs.settings import OcsTable

__all__ = [
    "Host",
    "Link",
    "Plug",
    "Port",
    "Role",
    "Switch",
    "Target",
    "Topology",
    "build",
    "dumbbell",
    "leaf_spine",
    "load_topology",
    "parse_topology",
]

FIRST_GRPC_PORT = 9559
"""P4Runtime's port, assigned by IANA. The i-th switch listens on the i-th port from it."""

TABLES = ("topology", "switch", "host", "link", "ocs")
"""The tables of a TOML file that describe a topology. An experiment's file has others, too."""


Name = Annotated[
    str,
    matching(
        r"[A-Za-z][A-Za-z0-9_.-]*",
        "must begin with a letter and go on with letters, digits, _, . and -",
    ),
]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]
PortNumber = Annotated[int, Field(ge=1, le=MAX_DEV_PORT)]
TcpPort = Annotated[int, Field(ge=1, le=65535)]
Delay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Loss = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]

Mtu = Annotated[int, Field(ge=576, le=9216)]
"""In bytes: from what every IPv4 host takes, to what switches for jumbo frames take."""

_HOST_RATE, _UPLINK_RATE, _QUEUE = 1000.0, 1000.0, 256


class TopologyTable(Strict):
    """The `[topology]` table."""

    kind: Literal["leaf-spine", "dumbbell", "explicit"] = "explicit"
    name: Name | None = None
    target: Target = "softswitch"
    grpc_port: TcpPort = FIRST_GRPC_PORT
    certificates: Annotated[Path, Field(strict=False)] | None = None
    slot_ms: Annotated[float, Field(ge=1, le=10_000, allow_inf_nan=False, strict=False)] | None = None
    leaves: Positive | None = None
    spines: Positive | None = None
    hosts_per_leaf: Positive | None = None
    links_per_pair: Positive | None = None
    hosts_per_side: Positive | None = None
    host_rate_mbps: Rate | None = None
    uplink_rate_mbps: Rate | None = None
    bottleneck_rate_mbps: Rate | None = None
    queue_packets: Positive | None = None
    delay_ms: Delay | None = None
    loss: Loss | None = None
    jitter_ms: Delay | None = None
    mtu: Mtu = DEFAULT_MTU
    """Of all links that do not have their own."""


class SwitchTable(Strict):
    """A `[[switch]]` table."""

    name: Name
    role: Role = "switch"
    device_id: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    grpc_host: str = "127.0.0.1"
    grpc_port: TcpPort | None = None
    target: Target | None = None


class HostTable(Strict):
    """A `[[host]]` table. `ip` includes the prefix length, as in `10.1.1.2/8`. The default `mtu` is that of
    the host's link."""

    name: Name
    ip: str | None = None
    mac: str | None = None
    mtu: Mtu | None = None


class LinkTable(Strict):
    """A `[[link]]` table between nodes `a` and `b`. A host has no port number.

    `ocs_ports` are the ports of the optical circuit switch into which both ends are plugged. The link is then
    a circuit, and exists at first.
    """

    a: str
    b: str
    a_port: PortNumber | None = None
    b_port: PortNumber | None = None
    ocs_ports: Annotated[tuple[Positive, Positive], Field(strict=False)] | None = None
    rate_mbps: Rate = _HOST_RATE
    queue_packets: Positive = _QUEUE
    delay_ms: Delay | None = None
    loss: Loss | None = None
    jitter_ms: Delay | None = None
    mtu: Mtu | None = None


class TopologyFile(Strict):
    """A whole topology file."""

    topology: TopologyTable = TopologyTable()
    switch: tuple[SwitchTable, ...] = Field(default=(), strict=False)
    host: tuple[HostTable, ...] = Field(default=(), strict=False)
    link: tuple[LinkTable, ...] = Field(default=(), strict=False)
    ocs: OcsTable | None = None


_PARAMETERS: dict[str, set[str]] = {
    "leaf-spine": {
        "leaves",
        "spines",
        "hosts_per_leaf",
        "links_per_pair",
        "host_rate_mbps",
        "uplink_rate_mbps",
    },
    "dumbbell": {"hosts_per_side", "host_rate_mbps", "bottleneck_rate_mbps"},
}
_SHARED_PARAMETERS = {"queue_packets", "delay_ms", "loss", "jitter_ms"}
_REQUIRED = {"leaf-spine": ("leaves", "spines", "hosts_per_leaf"), "dumbbell": ("hosts_per_side",)}


def load_topology(path: Path | str) -> Topology:
    """Return the topology in the TOML file `path`. Raises BadInput, naming file, key and remedy.

    Its `[cluster]` table says how jobs use the network: `entrain.live_cluster` checks it. Its `[controller]`
    table says who may use the controller's API: `controlplane.roles` checks it.
    """
    path = Path(path)
    tables = {key: value for key, value in read_toml(path).items() if key not in ("cluster", "controller")}
    return parse_topology(tables, str(path), default_name=path.stem)


def parse_topology(tables: Mapping[str, Any], source: str, *, default_name: str = "topology") -> Topology:
    """Return the topology of parsed TOML tables (`TABLES`). Errors call the file `source`."""
    file = check(TopologyFile, tables, source)
    table = file.topology
    name = table.name or default_name
    given = {
        key: value
        for key in set().union(*_PARAMETERS.values()) | _SHARED_PARAMETERS
        if (value := getattr(table, key)) is not None
    }
    explicit = file.switch or file.host or file.link
    try:
        _check_jitter("[topology]", table)
        for number, entry in enumerate(file.link, 1):
            _check_jitter(f"[[link]] {number}", entry)
        if table.kind == "explicit":
            if given:
                raise ValueError(
                    f"[topology], {min(given)}: is a parameter of a generated topology; "
                    f'add kind = "leaf-spine" or kind = "dumbbell"'
                )
            if not file.switch:
                raise ValueError("no [[switch]]: list switches, hosts and links, or give [topology] a kind")
            return _finished(_explicit(file, name), table, source)
        if explicit:
            raise ValueError(
                f'[topology], kind = "{table.kind}": makes its own switches, hosts and links; '
                f"remove [[switch]], [[host]] and [[link]], or the kind"
            )
        if foreign := sorted(set(given) - _PARAMETERS[table.kind] - _SHARED_PARAMETERS):
            known = ", ".join(sorted(_PARAMETERS[table.kind] | _SHARED_PARAMETERS))
            raise ValueError(f'[topology], {foreign[0]}: not for kind = "{table.kind}"; known are {known}')
        if missing := [key for key in _REQUIRED[table.kind] if key not in given]:
            raise ValueError(
                f'[topology], {missing[0]}: this key is missing (kind = "{table.kind}" needs it)'
            )
        named: dict[str, Any] = {
            "name": name,
            "target": table.target,
            "grpc_port": table.grpc_port,
            "mtu": table.mtu,
        }
        if table.kind == "leaf-spine":
            return _finished(leaf_spine(**given, **named, ocs=file.ocs), table, source)
        if file.ocs is not None:
            raise ValueError('[ocs]: needs kind = "leaf-spine", or [[link]] tables with ocs_ports')
        return _finished(dumbbell(**given, **named), table, source)
    except ValueError as error:
        raise BadInput("\n".join(f"{source}: {line}" for line in str(error).splitlines())) from None


def _check_jitter(where: str, table: TopologyTable | LinkTable) -> None:
    if table.jitter_ms and table.jitter_ms > (table.delay_ms or 0):
        most = table.delay_ms or 0
        raise ValueError(f"{where}, jitter_ms: must be at most delay_ms ({most:g}), not {table.jitter_ms:g}")


def _finished(topology: Topology, table: TopologyTable, source: str) -> Topology:
    """Add what all kinds have alike. The directory of certificates is relative to the file.

    Raises ValueError, with a line for each MTU that is too large for a link.
    """
    if problems := list(too_long(topology)):
        raise ValueError("\n".join(problems))
    topology = replace(topology, slot_ms=table.slot_ms)
    if table.certificates is None:
        return topology
    directory = Path(source).parent / table.certificates
    return replace(
        topology,
        switches=tuple(replace(switch, certificates=directory) for switch in topology.switches),
    )


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    links_per_pair: int = 1,
    host_rate_mbps: float = _HOST_RATE,
    uplink_rate_mbps: float = _UPLINK_RATE,
    queue_packets: int = _QUEUE,
    delay_ms: float | None = None,
    loss: float | None = None,
    jitter_ms: float | None = None,
    *,
    name: str = "leaf-spine",
    target: Target = "softswitch",
    grpc_port: int = FIRST_GRPC_PORT,
    mtu: int = DEFAULT_MTU,
    ocs: OcsTable | None = None,
) -> Topology:
    """Return a folded Clos of two tiers. Raises ValueError if it does not fit the switches.

    On a leaf, ports 1..h lead to hosts, and ports from h+1 are uplinks, `links_per_pair` for each spine in
    order. On a spine, the ports lead to the leaves in the same way. Host H of leaf L is 10.L.H.2/8.

    With `ocs`, uplinks and spine ports are plugged into it: the uplinks of the first leaf from port 1, those
    of the other leaves, then the ports of the spines. The links are circuits, and exist at first.
    """
    uplinks = spines * links_per_pair
    if hosts_per_leaf + uplinks > MAX_PORT:
        raise ValueError(
            f"[topology], hosts_per_leaf: a leaf needs {hosts_per_leaf} + {uplinks} ports, "
            f"a switch has {MAX_PORT}; use fewer hosts_per_leaf, spines or links_per_pair"
        )
    if leaves * links_per_pair > MAX_PORT:
        raise ValueError(
            f"[topology], leaves: a spine needs {leaves * links_per_pair} ports, "
            f"a switch has {MAX_PORT}; use fewer leaves or links_per_pair"
        )
    leaf_names = [f"leaf{number}" for number in range(1, leaves + 1)]
    spine_names = [f"spine{number}" for number in range(1, spines + 1)]
    names = leaf_names + spine_names
    further = (delay_ms, loss, jitter_ms, mtu)
    switches = [
        Switch(node, "leaf" if node in leaf_names else "spine", index + 1, grpc_port + index, target)
        for index, node in enumerate(names)
    ]
    hosts, links = [], []
    for leaf in range(leaves):
        for slot in range(hosts_per_leaf):
            host = f"h{leaf * hosts_per_leaf + slot + 1}"
            ip, mac = _address(leaf + 1, slot + 1)
            hosts.append(Host(host, ip, 8, mac, leaf_names[leaf], slot + 1, mtu))
            links.append(Link(leaf_names[leaf], slot + 1, host, 0, host_rate_mbps, queue_packets, *further))
    for leaf in range(leaves):
        for spine in range(spines):
            for parallel in range(links_per_pair):
                leaf_port = hosts_per_leaf + spine * links_per_pair + parallel + 1
                spine_port = leaf * links_per_pair + parallel + 1
                ends = (leaf_names[leaf], leaf_port, spine_names[spine], spine_port)
                links.append(Link(*ends, uplink_rate_mbps, queue_packets, *further))
    if ocs is None:
        return build(name, switches, hosts, links)
    between = links[len(hosts) :]
    upper = sorted(between, key=lambda link: (names.index(link.b), link.b_port))
    down = {(link.b, link.b_port): number for number, link in enumerate(upper, len(between) + 1)}
    ports = [(number, down[link.b, link.b_port]) for number, link in enumerate(between, 1)]
    return build(name, switches, hosts, links, _plugged(ocs, zip(between, ports, strict=True)))


def _plugged(ocs: OcsTable, links: Iterable[tuple[Link, tuple[int, int]]]) -> Ocs:
    """What is plugged in if these links run over the ports beside them."""
    plugs = []
    for link, ports in links:
        ends = ((link.a, link.a_port), (link.b, link.b_port))
        for (switch, port), ocs_port in zip(ends, ports, strict=True):
            plugs.append(
                Plug(
                    switch,
                    port,
                    ocs_port,
                    link.rate_mbps,
                    link.queue_packets,
                    link.delay_ms,
                    link.loss,
                    link.jitter_ms,
                    link.mtu,
                )
            )
    plugs.sort(key=lambda plug: plug.ocs_port)
    return Ocs(ocs, tuple(plugs))


def dumbbell(
    hosts_per_side: int,
    host_rate_mbps: float = _HOST_RATE,
    bottleneck_rate_mbps: float = _UPLINK_RATE,
    queue_packets: int = _QUEUE,
    delay_ms: float | None = None,
    loss: float | None = None,
    jitter_ms: float | None = None,
    *,
    name: str = "dumbbell",
    target: Target = "softswitch",
    grpc_port: int = FIRST_GRPC_PORT,
    mtu: int = DEFAULT_MTU,
) -> Topology:
    """Return two switches and a link between them, with hosts h1..hn left and hn+1..h2n right.

    On each switch, ports 1..n lead to hosts, and port n+1 is the bottleneck. `delay_ms`, `jitter_ms` and
    `loss` apply to the bottleneck. Raises ValueError if a switch has too few ports.
    """
    if hosts_per_side + 1 > MAX_PORT:
        raise ValueError(f"[topology], hosts_per_side: must be below {MAX_PORT}, the ports of a switch")
    names = ("left", "right")
    switches = [
        Switch(node, "switch", index + 1, grpc_port + index, target) for index, node in enumerate(names)
    ]
    hosts, links = [], []
    for side, node in enumerate(names):
        for slot in range(hosts_per_side):
            host = f"h{side * hosts_per_side + slot + 1}"
            ip, mac = _address(side + 1, slot + 1)
            hosts.append(Host(host, ip, 8, mac, node, slot + 1, mtu))
            links.append(Link(node, slot + 1, host, 0, host_rate_mbps, queue_packets, mtu=mtu))
    ends = ("left", hosts_per_side + 1, "right", hosts_per_side + 1)
    links.append(Link(*ends, bottleneck_rate_mbps, queue_packets, delay_ms, loss, jitter_ms, mtu))
    return build(name, switches, hosts, links)


def _address(leaf: int, host: int) -> tuple[str, str]:
    """Return IP 10.L.H.2 and MAC 02:00:0a:L:H:02 for host H of leaf L."""
    if leaf > 255 or host > 255:
        raise ValueError(f"ip: no automatic address for host {host} of switch {leaf}; give ip and mac")
    return f"10.{leaf}.{host}.2", f"02:00:0a:{leaf:02x}:{host:02x}:02"


def _explicit(file: TopologyFile, name: str) -> Topology:
    table = file.topology
    switches = [
        Switch(
            entry.name,
            entry.role,
            entry.device_id or index + 1,
            entry.grpc_port or table.grpc_port + index,
            entry.target or table.target,
            grpc_host=entry.grpc_host,
        )
        for index, entry in enumerate(file.switch)
    ]
    switch_index = {switch.name: index for index, switch in enumerate(switches)}
    links = _number_links(file, {switch.name: switch for switch in switches})
    attachments: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    host_names = {entry.name for entry in file.host}
    for link in links:
        for end, peer, peer_port in ((link.a, link.b, link.b_port), (link.b, link.a, link.a_port)):
            if end in host_names:
                attachments[end].append((peer, peer_port, link.mtu))
    hosts, order = [], Counter[str]()
    for number, entry in enumerate(file.host, 1):
        where = f"[[host]] {number}"
        if len(attachments[entry.name]) != 1:
            raise ValueError(
                f"{where}, name: {entry.name} has {len(attachments[entry.name])} links; a host has one NIC: "
                f"give it exactly one [[link]]"
            )
        leaf, leaf_port, mtu = attachments[entry.name][0]
        if leaf not in switch_index:
            raise ValueError(f"{where}, name: {entry.name} is linked to host {leaf}; link it to a switch")
        order[leaf] += 1
        automatic_ip, automatic_mac = _address(switch_index[leaf] + 1, order[leaf])
        ip, prefix_len = _parse_ip(entry.ip, where) if entry.ip else (automatic_ip, 8)
        mac = _parse_mac(entry.mac, where) if entry.mac else automatic_mac
        hosts.append(Host(entry.name, ip, prefix_len, mac, leaf, leaf_port, entry.mtu or mtu))
    return build(name, switches, hosts, links, _explicit_ocs(file, links, switch_index))


def _explicit_ocs(file: TopologyFile, links: list[Link], switches: Collection[str]) -> Ocs | None:
    over = []
    for number, (entry, link) in enumerate(zip(file.link, links, strict=True), 1):
        if entry.ocs_ports is None:
            continue
        if file.ocs is None:
            raise ValueError(f"[[link]] {number}, ocs_ports: there is no [ocs]; add it, or remove the key")
        if not {link.a, link.b} <= set(switches):
            raise ValueError(f"[[link]] {number}, ocs_ports: hosts cannot be plugged into it; remove the key")
        over.append((link, entry.ocs_ports))
    if file.ocs is None:
        return None
    if not over:
        raise ValueError("[ocs]: nothing is plugged in; give [[link]] tables ocs_ports, or remove it")
    return _plugged(file.ocs, over)


def _number_links(file: TopologyFile, switches: Mapping[str, Switch]) -> list[Link]:
    """Return the links with port numbers. Links without one get the lowest free number, in order."""
    known = {*switches, *(entry.name for entry in file.host)}
    taken: dict[str, set[int]] = defaultdict(set)
    for number, entry in enumerate(file.link, 1):
        for key, node, port in (("a", entry.a, entry.a_port), ("b", entry.b, entry.b_port)):
            if node not in known:
                near = suggestion(node, known)
                raise ValueError(f"[[link]] {number}, {key}: there is no switch or host {node!r}; {near}")
            if port is not None and node not in switches:
                raise ValueError(f"[[link]] {number}, {key}_port: {node} is a host; it has no port number")
            if port is not None and port > switches[node].max_port:
                raise ValueError(
                    f"[[link]] {number}, {key}_port: must be at most {switches[node].max_port} "
                    f"on a switch of target {switches[node].target}, not {port}"
                )
            if port is not None:
                taken[node].add(port)
        if entry.a == entry.b:
            raise ValueError(f"[[link]] {number}, b: joins {entry.a} to itself")

    def assign(node: str, given: int | None, where: str) -> int:
        if node not in switches:
            return 0
        if given is not None:
            return given
        free = next((port for port in range(1, MAX_PORT + 1) if port not in taken[node]), None)
        if free is None:
            raise ValueError(f"{where}: {node} has more than {MAX_PORT} ports")
        taken[node].add(free)
        return free

    return [
        Link(
            entry.a,
            assign(entry.a, entry.a_port, f"[[link]] {number}, a"),
            entry.b,
            assign(entry.b, entry.b_port, f"[[link]] {number}, b"),
            entry.rate_mbps,
            entry.queue_packets,
            entry.delay_ms,
            entry.loss,
            entry.jitter_ms,
            entry.mtu or file.topology.mtu,
        )
        for number, entry in enumerate(file.link, 1)
    ]


def _parse_ip(text: str, where: str) -> tuple[str, int]:
    try:
        address = ipaddress.IPv4Interface(text)
    except ValueError:
        raise ValueError(f"{where}, ip: {text!r} is not an IPv4 address; write it as 10.1.1.2/8") from None
    if "/" not in text:
        raise ValueError(f"{where}, ip: {text!r} lacks its prefix length; write {text}/8")
    return str(address.ip), address.network.prefixlen


def _parse_mac(text: str, where: str) -> str:
    if not re.fullmatch(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", text):
        raise ValueError(f"{where}, mac: {text!r} is not an address; write it as 02:00:00:00:00:01")
    if int(text[:2], 16) & 1:
        raise ValueError(f"{where}, mac: {text} is a multicast address; its first byte must be even")
    return text.lower()
