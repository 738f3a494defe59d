"""Queues of an emulated network, as the kernel and relays tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.topology import dumbbell
from machine.record import Record
from mininet_topos.links import Shaping, has_netem, queue_bytes
from mininet_topos.network import Network

pytestmark = pytest.mark.root

BURST = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    for _ in range(500):
        sender.sendto(bytes(1000), (sys.argv[1], 9))
"""


@pytest.mark.parametrize("shaping", ["htb", "tbf"])
def test_each_direction_of_a_link_has_a_queue_with_its_limit_and_drops(
    tmp_path: Path, shaping: Shaping
) -> None:
    """The slow links are those of hosts; the one between switches has a delay."""
    topology = dumbbell(1, 1.0, 100.0, 10, delay_ms=1.0)
    directions = {
        f"{a}->{b}": link for link in topology.links for a, b in ((link.a, link.b), (link.b, link.a))
    }
    with (
        Record("queues") as record,
        Network(topology, record, tmp_path, shaping=shaping) as network,
    ):
        before = network.queues()
        found = {queue.link: queue for queue in before if queue.place == "interface"}
        assert found.keys() == directions.keys()
        for name, link in directions.items():
            assert found[name].limit_bytes == (0 if link.delay_ms and has_netem() else queue_bytes(link))
        relays = {queue.link for queue in before if queue.place == "relay"}
        assert relays == {
            f"{link.a}-{link.b}" for link in topology.links if link.delay_ms and not has_netem()
        }
        assert not found[topology.hosts[0].link].dropped_packets
        host, other = topology.hosts
        network.run("h1", ["ip", "neigh", "replace", other.ip, "lladdr", other.mac, "dev", host.interface])
        network.run("h1", ["python3", "-c", BURST, other.ip])
        full = {(queue.link, queue.place): queue for queue in network.queues()}[host.link, "interface"]
        assert (full.node, full.port) == ("h1", 0)
        assert 0 < full.dropped_packets < 500
