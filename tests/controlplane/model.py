"""The switch program's tables as far as forwarding goes, filled with a desired state: where packets go."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

import finsy as fy

from controlplane import constants as p4
from controlplane.constants import DropReason
from controlplane.entries import Entities, Entity
from controlplane.network import Host, Topology
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy, desired_state

SCHEMA = Pipeline.load().schema

Match = tuple[frozenset[tuple[str, Any]], int]
"""What an entry matches, and its priority."""

Wire = Callable[[str, int], tuple[str, int] | None]
"""The node and port that a switch's port leads to; None: it is dark."""


_written: dict[str, Any] = {}


def _as_written(entity: Entity) -> Any:
    """The entity through protobuf and back: only what can be written counts."""
    text = repr(entity)
    if text not in _written:
        _written[text] = type(entity).decode(entity.encode(SCHEMA), SCHEMA)
    return _written[text]


class Model:
    """Walks packets through `state`, over the links of `topology` or as `wire` says."""

    def __init__(self, topology: Topology, state: Mapping[str, Entities], wire: Wire | None = None) -> None:
        self.topology = topology
        self.wire = wire or self._link
        self.tables: dict[tuple[str, str], dict[Match, fy.P4TableEntry]] = {}
        self.groups: dict[tuple[str, int], list[int]] = {}
        for name, entities in state.items():
            for entity in entities:
                decoded = _as_written(entity)
                if isinstance(decoded, fy.P4TableEntry):
                    key = frozenset((decoded.match or {}).items()), decoded.priority
                    self.tables.setdefault((name, decoded.table_id), {})[key] = decoded
                elif isinstance(decoded, fy.P4ActionProfileGroup):
                    members = [member.member_id for member in decoded.members or ()]
                    self.groups[name, decoded.group_id] = members

    @classmethod
    def of(cls, topology: Topology, policy: FabricPolicy) -> Model:
        """The model of a fabric's desired state."""
        return cls(topology, desired_state(topology, policy))

    def _link(self, switch: str, number: int) -> tuple[str, int]:
        port = self.topology.switch_by_name[switch].port(number)
        return port.peer, port.peer_port

    def table(self, switch: str, name: str) -> list[fy.P4TableEntry]:
        """The entries of a table."""
        return list(self._of(switch, name).values())

    def _of(self, switch: str, name: str) -> Mapping[Match, fy.P4TableEntry]:
        return self.tables.get((switch, SCHEMA.tables[name].alias), {})

    def _hit(self, switch: str, table: str, **match: object) -> Any:
        return self._of(switch, table).get((frozenset(match.items()), 0))

    def forward(
        self, switch: str, ingress: int, source: int, destination: int, choice: int = 0
    ) -> int | DropReason:
        """The egress port of one packet, or why it is dropped; `choice` stands for the hash."""
        entry = self._hit(switch, p4.TABLE_VRF, ingress_port=ingress)
        if entry is None:
            return DropReason.NO_VRF
        if entry.action.args.get("address", source) != source:
            return DropReason.FORGED_SOURCE
        vrf = entry.action.args["vrf"]
        route = self._hit(switch, p4.TABLE_ROUTE, vrf=vrf, dst=(destination, 32))
        if route is None:
            known = self._hit(switch, p4.TABLE_HOST, address=destination)
            return DropReason.NO_ROUTE if known is None else DropReason.OTHER_VRF
        if "port" in route.action.args:
            return int(route.action.args["port"])
        for key in sorted(self._of(switch, p4.TABLE_SOURCE_ROUTE), key=lambda key: -key[1]):
            match = dict(key[0])
            value, mask = match.get("dst", (0, 0))
            if match["ingress_port"] == ingress and destination & mask == value:
                return int(self._of(switch, p4.TABLE_SOURCE_ROUTE)[key].action.args["port"])  # type: ignore[union-attr]
        members = self.groups.get((switch, route.action.args["group"]))
        return members[choice % len(members)] if members else DropReason.NO_UPLINK

    def walk(
        self, source: Host, destination: Host, choice: int = 0
    ) -> tuple[list[tuple[str, int]], DropReason | None]:
        """The (switch, egress port) pairs of a packet, and why it is dropped at the end if it is."""
        switch, ingress, path = source.leaf, source.leaf_port, list[tuple[str, int]]()
        ends = [int(ipaddress.IPv4Address(host.ip)) for host in (source, destination)]
        while len(path) < 10:
            egress = self.forward(switch, ingress, *ends, choice)
            if isinstance(egress, DropReason):
                return path, egress
            path.append((switch, egress))
            peer = self.wire(switch, egress)
            assert peer is not None, f"{switch} sends into dark port {egress}"
            if peer[0] in self.topology.host_by_name:
                assert peer[0] == destination.name
                return path, None
            switch, ingress = peer
        return path, DropReason.TTL

    def path(self, source: Host, destination: Host, choice: int = 0) -> list[tuple[str, int]] | None:
        """The (switch, egress port) pairs on the way, or None where a switch drops."""
        path, dropped = self.walk(source, destination, choice)
        return path if dropped is None else None
