"""A network as values: switches, hosts and links, checked for consistency."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from machine.tls import OPERATORS, Identity, identity_of
from ocs.crossbar import Circuit, Crossbar, join
from ocs.settings import OcsTable

Role = Literal["leaf", "spine", "switch"]
Target = Literal["softswitch", "bmv2", "tofino", "tofino2"]

TOFINOS: Final = ("tofino", "tofino2")
"""The targets that are chips: Tofino 1 and Tofino 2."""

MAX_PORT = 254
"""The largest port number of softswitch and BMv2, where 255 is the CPU port, and of generated topologies."""

MAX_DEV_PORT = 511
"""The largest port number of a Tofino: pipe in the upper 2 bits, port of the pipe in the lower 7."""

MAX_INTERFACE_NAME = 15
"""Length limit of interface names such as `leaf1-eth12` (IFNAMSIZ - 1)."""

DEFAULT_MTU = 1500
"""The MTU of links and hosts, as of all Ethernet: the longest IP packet, in bytes."""

ETHERNET_BYTES = 14
"""What a frame has beside its IP packet. Shapers do not count preamble and checksum."""

DARK = ""
"""The peer of a port that is plugged into the optical circuit switch, and that no circuit joins."""


@dataclass(frozen=True)
class Port:
    """One port of a switch: its number, and the node and port at the other end of its link (or `DARK`, 0)."""

    number: int
    peer: str
    peer_port: int
    rate_mbps: float
    queue_packets: int
    mtu: int = DEFAULT_MTU


@dataclass(frozen=True)
class Switch:
    """A P4 switch. Its `role` is `leaf` (with hosts), `spine`, or `switch` for anything else."""

    name: str
    role: Role
    device_id: int
    grpc_port: int
    target: Target
    ports: tuple[Port, ...] = ()
    grpc_host: str = "127.0.0.1"
    certificates: Path | None = None
    """The directory of certificates (`entrain certs`) with which it and its controllers speak TLS."""

    @property
    def max_port(self) -> int:
        """The largest port number that its target has."""
        return MAX_DEV_PORT if self.target in TOFINOS else MAX_PORT

    @property
    def grpc_address(self) -> str:
        """`HOST:PORT` of its P4Runtime server."""
        return f"{self.grpc_host}:{self.grpc_port}"

    @property
    def operator(self) -> Identity | None:
        """What its controllers show; None: it does not speak TLS."""
        return identity_of(self.certificates, OPERATORS) if self.certificates is not None else None

    def interface(self, port: int) -> str:
        """Name of the network interface of `port`."""
        return f"{self.name}-eth{port}"

    def port(self, number: int) -> Port:
        """Return the port with that number. Raises KeyError."""
        for port in self.ports:
            if port.number == number:
                return port
        raise KeyError(number)

    def link(self, number: int) -> str:
        """Name of the link's direction that leaves by `number`: `leaf1->spine2`, with the port where several
        links lead to that peer. Raises KeyError."""
        peer = self.port(number).peer
        parallel = sum(port.peer == peer for port in self.ports) > 1
        return f"{self.name}->{peer}" + (f":{number}" if parallel else "")


@dataclass(frozen=True)
class Host:
    """A host with one NIC (its port 0, interface `NAME-eth0`) on port `leaf_port` of switch `leaf`."""

    name: str
    ip: str
    prefix_len: int
    mac: str
    leaf: str
    leaf_port: int
    mtu: int = DEFAULT_MTU
    """The longest IP packet that it sends and takes, in bytes: at most the MTU of its link."""

    @property
    def interface(self) -> str:
        """Name of its network interface."""
        return f"{self.name}-eth0"

    @property
    def link(self) -> str:
        """Name of the direction of its link that leaves the host."""
        return f"{self.name}->{self.leaf}"


@dataclass(frozen=True)
class Link:
    """A duplex link. Rate and queue apply to each direction. `loss` is a fraction, `delay_ms` is one-way, and
    varies by up to `jitter_ms` more or less. `mtu` is the longest IP packet in bytes, at both ends."""

    a: str
    a_port: int
    b: str
    b_port: int
    rate_mbps: float
    queue_packets: int
    delay_ms: float | None = None
    loss: float | None = None
    jitter_ms: float | None = None
    mtu: int = DEFAULT_MTU

    @property
    def frame_bytes(self) -> int:
        """Length of a full-size frame."""
        return self.mtu + ETHERNET_BYTES


@dataclass(frozen=True)
class Plug:
    """A port of a switch that is plugged into port `ocs_port` of the optical circuit switch."""

    switch: str
    port: int
    ocs_port: int
    rate_mbps: float
    queue_packets: int
    delay_ms: float | None = None
    loss: float | None = None
    jitter_ms: float | None = None
    mtu: int = DEFAULT_MTU

    @property
    def frame_bytes(self) -> int:
        """Length of a full-size frame."""
        return self.mtu + ETHERNET_BYTES


@dataclass(frozen=True)
class Ocs:
    """The optical circuit switch of a network, and what is plugged into it."""

    settings: OcsTable
    plugs: tuple[Plug, ...]

    @cached_property
    def plug_by_port(self) -> Mapping[int, Plug]:
        """The plugs by port of the optical circuit switch."""
        return {plug.ocs_port: plug for plug in self.plugs}

    @cached_property
    def port_of(self) -> Mapping[tuple[str, int], int]:
        """The ports of the optical circuit switch by switch and port."""
        return {(plug.switch, plug.port): plug.ocs_port for plug in self.plugs}

    @cached_property
    def crossbar(self) -> Crossbar:
        """What the optical circuit switch can do. Raises ValueError if the settings do not fit the plugs."""
        return self.settings.crossbar(self.ports)

    @property
    def ports(self) -> int:
        """The highest port of the optical circuit switch into which something is plugged."""
        return max(self.plug_by_port)


@dataclass(frozen=True)
class Topology:
    """Switches, hosts and links. Names, addresses and ports are unique.

    Without an optical circuit switch (`ocs`), the network is connected. With one, `links` are what the
    present circuits make of it, and ports in the dark have no link.
    """

    name: str
    switches: tuple[Switch, ...]
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    ocs: Ocs | None = None
    slot_ms: float | None = None
    """How long the slots of carriers last; None: switches do not check which slots these are about."""

    @cached_property
    def switch_by_name(self) -> Mapping[str, Switch]:
        """The switches by name."""
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def host_by_name(self) -> Mapping[str, Host]:
        """The hosts by name."""
        return {host.name: host for host in self.hosts}

    @cached_property
    def host_rates_mbps(self) -> Mapping[str, float]:
        """The rate of each host's link, by the host's name."""
        ends = {end: link.rate_mbps for link in self.links for end in (link.a, link.b)}
        return {host.name: ends[host.name] for host in self.hosts}

    @property
    def mtu(self) -> int:
        """The MTU of its hosts, the least if they differ."""
        return min((host.mtu for host in self.hosts), default=DEFAULT_MTU)

    @property
    def circuits(self) -> frozenset[Circuit]:
        """The circuits that make links of this topology."""
        ports = self.ocs.port_of if self.ocs is not None else {}
        ends = (((link.a, link.a_port), (link.b, link.b_port)) for link in self.links)
        return frozenset(join(ports[a], ports[b]) for a, b in ends if a in ports)

    def lit(self, circuits: Iterable[Circuit]) -> Topology:
        """Return the network that these circuits make, with the same switches, hosts and other links.

        Circuits of ports that none of its switches is plugged into make no link of it.
        """
        if self.ocs is None:
            return self
        plugs = self.ocs.plug_by_port
        fixed = (link for link in self.links if (link.a, link.a_port) not in self.ocs.port_of)
        made = (
            _between(plugs[circuit.a], plugs[circuit.b])
            for circuit in sorted(circuits)
            if circuit.a in plugs and circuit.b in plugs
        )
        return build(self.name, self.switches, self.hosts, (*fixed, *made), self.ocs)

    @property
    def is_leaf_spine(self) -> bool:
        """Whether all switches are leaves or spines, and links join only leaves to spines or hosts."""
        roles = {switch.name: switch.role for switch in self.switches}
        return all(role != "switch" for role in roles.values()) and all(
            {roles.get(link.a), roles.get(link.b)} in ({"leaf", "spine"}, {"leaf", None})
            for link in self.links
        )

    def switches_of(self, role: Role) -> tuple[Switch, ...]:
        """Return the switches of that role, in order."""
        return tuple(switch for switch in self.switches if switch.role == role)

    def fabric_ports_of(self, switch: str) -> tuple[Port, ...]:
        """Return the ports of that switch that lead to no host, in the dark or not, by number."""
        return tuple(port for port in self.switch_by_name[switch].ports if port.peer not in self.host_by_name)

    def hosts_of(self, switch: str) -> tuple[Host, ...]:
        """Return the hosts on that switch, by port."""
        return tuple(
            sorted((host for host in self.hosts if host.leaf == switch), key=lambda host: host.leaf_port)
        )

    def with_target(self, target: Target) -> Topology:
        """Return the same topology with every switch of `target`."""
        return replace(self, switches=tuple(replace(switch, target=target) for switch in self.switches))


def _between(one: Plug, other: Plug) -> Link:
    """The link that a circuit of two plugs makes: as slow, long, lossy and narrow as the worse one."""
    delays = [plug.delay_ms for plug in (one, other) if plug.delay_ms is not None]
    losses = [plug.loss for plug in (one, other) if plug.loss is not None]
    jitters = [plug.jitter_ms for plug in (one, other) if plug.jitter_ms is not None]
    return Link(
        one.switch,
        one.port,
        other.switch,
        other.port,
        min(one.rate_mbps, other.rate_mbps),
        min(one.queue_packets, other.queue_packets),
        max(delays, default=None),
        max(losses, default=None),
        max(jitters, default=None),
        min(one.mtu, other.mtu),
    )


def build(
    name: str,
    switches: Iterable[Switch],
    hosts: Iterable[Host],
    links: Iterable[Link],
    ocs: Ocs | None = None,
) -> Topology:
    """Return a checked topology, with the switches' ports from `links` and from what is plugged into `ocs`.

    Raises ValueError, with one line per problem.
    """
    switches, hosts, links = tuple(switches), tuple(hosts), tuple(links)
    ports: dict[str, list[Port]] = defaultdict(list)
    for link in links:
        alike = (link.rate_mbps, link.queue_packets, link.mtu)
        ports[link.a].append(Port(link.a_port, link.b, link.b_port, *alike))
        ports[link.b].append(Port(link.b_port, link.a, link.a_port, *alike))
    for plug in ocs.plugs if ocs is not None else ():
        if not any(port.number == plug.port for port in ports[plug.switch]):
            ports[plug.switch].append(Port(plug.port, DARK, 0, plug.rate_mbps, plug.queue_packets, plug.mtu))
    switches = tuple(
        replace(switch, ports=tuple(sorted(ports[switch.name], key=lambda port: port.number)))
        for switch in switches
    )
    topology = Topology(name, switches, hosts, links, ocs)
    if problems := list(_problems(topology)):
        raise ValueError("\n".join(problems))
    return topology


def _problems(topology: Topology) -> Iterable[str]:
    unique = {
        "name": [node.name for node in topology.switches] + [host.name for host in topology.hosts],
        "device_id": [str(switch.device_id) for switch in topology.switches],
        "grpc_port": [switch.grpc_address for switch in topology.switches],
        "ip": [host.ip for host in topology.hosts],
        "mac": [host.mac for host in topology.hosts],
    }
    if topology.ocs is not None:
        unique["ocs_ports"] = [str(plug.ocs_port) for plug in topology.ocs.plugs]
    remedies = {
        "ocs_ports": "plug each switch port into a port of its own",
        "name": "give each switch and host its own name",
        "device_id": "give each switch its own device_id, or leave it out",
        "grpc_port": "two switches cannot listen on one address; leave grpc_port out, or change one",
        "ip": "give each host its own address, or leave ip out",
        "mac": "give each host its own address, or leave mac out",
    }
    for key, values in unique.items():
        for value, count in Counter(values).items():
            if count > 1:
                yield f"{key}: {value} is used {count} times; {remedies[key]}"
    for switch in topology.switches:
        if not 1 <= switch.grpc_port <= 65535:
            yield f"grpc_port: {switch.name} would listen on {switch.grpc_port}; choose a lower grpc_port"
        if not switch.ports:
            yield f"switch {switch.name}: no link; connect it with a [[link]], or remove it"
        for number, count in Counter(port.number for port in switch.ports).items():
            if count > 1:
                peers = ", ".join(port.peer for port in switch.ports if port.number == number)
                yield f"port {number} of {switch.name}: used by {count} links (to {peers}); change one"
        for port in switch.ports:
            if len(switch.interface(port.number)) > MAX_INTERFACE_NAME:
                yield _too_long(switch.name, len(f"-eth{port.number}"))
                break
    for host in topology.hosts:
        if len(host.interface) > MAX_INTERFACE_NAME:
            yield _too_long(host.name, len("-eth0"))
    networks = {ipaddress.IPv4Interface(f"{host.ip}/{host.prefix_len}").network for host in topology.hosts}
    if len(networks) > 1:
        listed = ", ".join(sorted(map(str, networks)))
        yield f"ip: hosts are in different networks ({listed}); there is no gateway: give all one prefix"
    if topology.ocs is not None:
        try:
            _ = topology.ocs.crossbar
        except ValueError as error:
            yield str(error)
    else:  # with one, light decides, and it changes
        yield from _unreachable(topology)


def _too_long(name: str, suffix: int) -> str:
    longest = MAX_INTERFACE_NAME - suffix
    return f"name: {name} is too long for an interface name; use at most {longest} characters"


def _unreachable(topology: Topology) -> Iterable[str]:
    neighbours: dict[str, set[str]] = defaultdict(set)
    for link in topology.links:
        neighbours[link.a].add(link.b)
        neighbours[link.b].add(link.a)
    connected = [switch.name for switch in topology.switches if switch.ports]
    reached: set[str] = set()
    frontier = connected[:1]
    while frontier:
        node = frontier.pop()
        if node not in reached:
            reached.add(node)
            frontier += neighbours[node]
    for name in connected:
        if name not in reached:
            yield f"switch {name}: has no path to {connected[0]}; connect the two parts with a [[link]]"
