"""Loss made in eBPF: as much as was asked for, and none when it ends."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable

import pytest

from ebpf import in_netns
from mininet_topos.loss import lossy
from tests.hostbpf.conftest import B, Connection, Pair

pytestmark = pytest.mark.root

PACKETS = 4000


def datagrams(pair: Pair) -> None:
    with in_netns(pair.a, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
        for _ in range(PACKETS):
            sender.sendto(b"x", (B, 9))


@pytest.mark.parametrize("probability", [0.0, 0.01, 0.3, 1.0])
def test_share_of_lost_packets(pair: Pair, probability: float) -> None:
    pair.run(pair.a, "ping", "-c1", B)  # so that both know the other's address
    with lossy([pair.index_a], probability, netns=pair.a) as loss:
        datagrams(pair)
        count = loss.count()
    total = count.passed + count.lost
    assert total >= PACKETS
    deviation = math.sqrt(probability * (1 - probability) / total)
    assert abs(count.lost / total - probability) <= 5 * deviation


def test_tcp_survives_and_loss_ends(pair: Pair, connect: Callable[..., Connection]) -> None:
    pair.run(pair.a, "ip", "link", "set", "eth0", "gso_max_segs", "1")  # tc sees offloaded packets whole
    connection = connect("cubic")
    with lossy([pair.index_a], 0.01, netns=pair.a) as loss:
        connection.transfer(1_000_000)
        assert loss.count().lost > 0
    connection.transfer(1_000_000)
