"""The optical circuit switch of a cluster: its circuits, between ports as a cluster numbers them."""

from __future__ import annotations

from collections.abc import Collection

from controlplane.admission import Failures
from controlplane.cluster import switch_port
from controlplane.network import Topology
from ocs.crossbar import Circuit as Joined
from ocs.crossbar import join
from ocs.manager import CircuitManager
from schedulers.placement.cluster import Circuit, Cluster, Port


class Optics:
    """What `Admission` needs of the optical circuit switch of a topology, by its manager.

    Raises ValueError if a port of the cluster is not plugged in.
    """

    def __init__(self, manager: CircuitManager, topology: Topology, cluster: Cluster) -> None:
        assert topology.ocs is not None, "the topology has an optical circuit switch"
        ports = [Port("leaf", n, p) for n in range(cluster.leaves) for p in range(cluster.uplinks)]
        ports += [Port("spine", m, q) for m in range(cluster.spines) for q in range(cluster.spine_ports)]
        self._manager = manager
        self._number: dict[Port, int] = {}
        for port in ports:
            name, number = switch_port(topology, port)
            if (name, number) not in topology.ocs.port_of:
                raise ValueError(f"ocs_ports: port {number} of {name} is not plugged into the [ocs]")
            self._number[port] = topology.ocs.port_of[name, number]
        self._port = {number: port for port, number in self._number.items()}

    async def change(self, owner: str, wanted: Collection[Circuit]) -> None:
        """Make these circuits, and let `owner` have them and no others. Raises what the manager raises."""
        await self._manager.change(owner, [join(self._number[a], self._number[b]) for a, b in wanted])

    async def release(self, owner: str) -> None:
        """Let nobody have the owner's circuits."""
        await self._manager.release(owner)

    async def owners(self) -> Collection[str]:
        """Return who has circuits."""
        return list(self._manager.held)

    async def joined(self) -> Collection[Circuit]:
        """Return the circuits between the cluster's ports, without those of two spines, which no job uses."""
        reading = await self._manager.read()
        return [
            self._circuit(each)
            for each in reading.circuits
            if {*each.ports} <= self._port.keys()
            and any(self._port[port].kind == "leaf" for port in each.ports)
        ]

    @property
    def silence(self) -> str:
        """Why the switch did not answer when it was last asked; empty if it did."""
        return self._manager.silence

    def failures(self) -> Failures:
        """Return the ports that no new circuit gets: all of them while the switch does not answer."""
        if self.silence:
            return Failures({}, dict.fromkeys(self._number, self.silence))
        failed = self._manager.failed.items()
        return Failures({}, {self._port[n]: f"OCS port {n}: {why}" for n, why in failed if n in self._port})

    def _circuit(self, joined: Joined) -> Circuit:
        a, b = sorted(self._port[port] for port in joined.ports)  # a leaf's first
        return Circuit(a, b)
