"""A management network, whose links can be cut: the controller's namespace has one to each switch.

A link is silent or loses packets by eBPF at its ends, and takes time by a relay (`mininet_topos.relays`), so
that it needs no netem.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from controlplane.network import Link, Topology
from machine.errors import EntrainError
from machine.record import Record, Resource
from mininet_topos import relays
from mininet_topos.loss import lossy

OTHER = "ocs"
"""The one link that leads to no switch."""


def address(number: int, end: int) -> str:
    """Return the address of an end (1: the controller's, 2: the other) of link `number`."""
    return f"10.254.{number}.{end}"


OTHER_HOST = address(0, 2)


def managed(topology: Topology, certificates: Path) -> Topology:
    """Return the topology with the switches' addresses in the management network."""
    switches = tuple(
        replace(switch, grpc_host=address(number, 2), certificates=certificates)
        for number, switch in enumerate(topology.switches, 1)
    )
    return replace(topology, switches=switches)


class Management:
    """The management network of the switches in the present namespace. `relayed` names the link with a relay.

    `namespace` is the controller's. Raises EntrainError, and MissingTool without a compiler for the relay.
    """

    def __init__(self, topology: Topology, relayed: str, record: Record, directory: Path, name: str) -> None:
        self.namespace = name
        self._relayed = relayed
        self._record = record
        self._directory = directory
        record.own(Resource("netns", name))
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        for number, node in enumerate([OTHER, *(switch.name for switch in topology.switches)]):
            here, there = _ends(node)
            if node == relayed:
                inner = relays.inner_ends(here)
                _ip("link", "add", here, "type", "veth", "peer", "name", inner[0])
                _ip("link", "add", inner[1], "type", "veth", "peer", "name", there, "netns", name)
                for end in inner:
                    _ip("link", "set", end, "up")
            else:
                _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            for end, inside, which in ((here, (), 2), (there, ("-n", name), 1)):
                _ip(*inside, "address", "add", f"{address(number, which)}/30", "dev", end)
                _ip(*inside, "link", "set", end, "up")
        self._relay = self._start_relay(0.0)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Within, the relayed link is down at the switch."""
        here, _ = _ends(self._relayed)
        _ip("link", "set", here, "down")
        try:
            yield
        finally:
            _ip("link", "set", here, "up")

    @contextlib.contextmanager
    def losing(self, to_switch: float, from_switch: float) -> Iterator[None]:
        """Within, the relayed link loses packets with these probabilities (0 to 1), by direction."""
        here, there = _ends(self._relayed)
        with (
            lossy([_index(here)], from_switch),
            lossy([_index(there, self.namespace)], to_switch, netns=self.namespace),
        ):
            yield

    @contextlib.contextmanager
    def late(self, delay_s: float) -> Iterator[None]:
        """Within, the relayed link takes so long in each direction."""
        self._relay.child.end()
        self._relay = self._start_relay(delay_s)
        try:
            yield
        finally:
            self._relay.child.end()
            self._relay = self._start_relay(0.0)

    def _start_relay(self, delay_s: float) -> relays.Relay:
        link = Link("controller", 0, self._relayed, 0, 1000.0, 1000, delay_ms=1000 * delay_s)
        inner = relays.inner_ends(_ends(self._relayed)[0])
        relay = relays.start(self._record, link, inner, self._directory)
        relay.child.wait_ready(relays.READY_TIMEOUT_S)
        return relay


def _ends(node: str) -> tuple[str, str]:
    """Return the interfaces of a link: the node's, and the controller's."""
    return f"m-{node}", f"c-{node}"


def _index(interface: str, namespace: str = "") -> int:
    inside = ["-n", namespace] if namespace else []
    return int(_ip(*inside, "-o", "link", "show", "dev", interface).partition(":")[0])


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EntrainError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
