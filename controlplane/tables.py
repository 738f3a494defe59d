"""The tables of a cluster: those of the fabric, and those of each job that has the network.

What is encoded once is kept, so that a job that comes or goes costs its own entries only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain

from controlplane.entities import State, merged
from controlplane.entries import Entities, check_sizes
from controlplane.fabric import Applied, Fabric
from controlplane.routing import FabricPolicy, desired_state
from controlplane.tenants import Tenant, check_tenants, cluster_policy, tenant_entries


@dataclass(frozen=True)
class _Layer:
    """A part of the desired state, by switch, and its encoded form."""

    entries: Mapping[str, Entities]
    states: Mapping[str, State]


class Tables:
    """Writes the tables of a cluster's switches, over `fabric`."""

    def __init__(self, fabric: Fabric, policy: FabricPolicy) -> None:
        self._fabric = fabric
        self._routing = policy.routing
        self._own = self._layer(desired_state(fabric.topology, cluster_policy(policy)))
        self._layers: dict[Tenant, _Layer] = {}

    async def apply(self, tenants: Collection[Tenant], concerned: Collection[Tenant]) -> list[Applied]:
        """Give every switch the tables with which exactly these jobs have networks.

        All switches are written at once. If one fails, restores all and raises its error. Raises Unreachable
        if one is away that has, or is to have, entries of a job that this concerns; others get theirs when
        they are back. Raises BadInput as `cluster_state`, before anything is written.
        """
        check_tenants(tenants)
        layers = {tenant: self._layer_of(tenant) for tenant in tenants}
        for switch in self._own.entries:
            parts = (layer.entries.get(switch, ()) for layer in (self._own, *layers.values()))
            check_sizes(switch, chain.from_iterable(parts))
        states = merged(self._own.states, *(layer.states for layer in layers.values()))
        needed = {
            switch
            for tenant in concerned
            for switch, own in (layers.get(tenant) or self._layer_of(tenant)).entries.items()
            if own
        }
        applied = await self._fabric.advance(states, needed, routing=self._routing)
        self._layers = layers
        return applied

    def _layer_of(self, tenant: Tenant) -> _Layer:
        return self._layers.get(tenant) or self._layer(tenant_entries(self._fabric.topology, tenant))

    def _layer(self, entries: Mapping[str, Entities]) -> _Layer:
        return _Layer(entries, self._fabric.encoded(entries))
