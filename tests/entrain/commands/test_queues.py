"""What commands tell of queues, on a real network with a slow link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.api_pb2 import GetNetworkRequest
from controlplane.client import call, choose
from machine.patience import patience

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[3]
NAME = f"cq{os.getpid() % 10000}"
TOPOLOGY = """
[topology]
kind = "dumbbell"
hosts_per_side = 1
host_rate_mbps = 100
bottleneck_rate_mbps = 1
queue_packets = 1000
"""
SEND = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    while True:
        sender.sendto(bytes(1000), ("10.2.1.2", 9))
"""


LONG = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(bytes(1600), ("10.2.1.2", 9))
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "entrain.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def entrain(*arguments: str) -> str:
    """Run a command; return its output."""
    process = start(*arguments)
    out, _ = process.communicate(timeout=patience(120))
    assert process.returncode == 0, out
    return out


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("up") / f"{NAME}.toml"
    path.write_text(TOPOLOGY)
    entrain("up", str(path))
    try:
        yield NAME
    finally:
        entrain("down", "--network", NAME)


def test_a_full_queue_is_told_where_it_is(network: str) -> None:
    here = ("--network", network)
    assert "no queue has been full" in entrain("drops", *here)

    def dropped() -> dict[str, int]:
        found = json.loads(entrain("drops", *here, "--json"))["queues"]
        assert {queue["place"] for queue in found} == {"switch", "interface"}
        links: dict[str, int] = {}
        for queue in found:
            links[queue["link"]] = links.get(queue["link"], 0) + queue["dropped_packets"]
        return links

    with start("exec", *here, "h1", sys.executable, "-c", SEND) as sending:
        while not dropped()["left->right"]:
            assert sending.poll() is None
        ports = json.loads(entrain("loads", *here, "--json"))["ports"]
        assert "queue" in entrain("loads", *here)
        readings = entrain("watch", *here, "--json", "--once").splitlines()
        sending.terminate()
    (link,) = [link for link in json.loads(readings[-1])["links"] if link["name"] == "left->right"]
    assert link["backlog_bytes"] > 0 and link["dropped_packets"] > 0
    queues = {(port["switch"], port["port"]): port["queue"] for port in ports}
    assert queues["left", 2]["backlog_bytes"] > 0 and queues["left", 2]["dropped"] > 0
    assert queues["right", 2] == {"backlog_bytes": 0, "dropped": 0}
    links = dropped()
    behind = [links[link] for link in ("right->h2", "h2->right", "right->left", "left->h1")]
    assert not any(behind), "the slow link drops, and those after it carry no more than it lets through"
    (row,) = [line.split() for line in entrain("drops", *here).splitlines() if "right" in line]
    assert row[:-1] == ["left", "2", "right", "queue", "full"]
    assert links["left->right"] <= int(row[-1]) <= dropped()["left->right"]


def test_what_exceeds_the_mtu_of_a_link_is_told_with_the_remedy(network: str) -> None:
    """The first link takes longer frames than the next, as a user may have set it."""
    here = ("--network", network)

    def longer() -> list[dict[str, object]]:
        return list(json.loads(entrain("drops", *here, "--json"))["too_long"])

    assert longer() == []
    with call(choose(network)) as stub:
        namespace = stub.GetNetwork(GetNetworkRequest()).namespace
    subprocess.run(["ip", "-n", namespace, "link", "set", "left-eth1", "mtu", "9000"], check=True)
    entrain("exec", *here, "h1", "ip", "link", "set", "h1-eth0", "mtu", "9000")
    entrain("exec", *here, "h1", sys.executable, "-c", LONG)
    while not (rows := longer()):
        pass
    assert rows == [{"switch": "left", "port": 2, "link": "left->right", "mtu": 1500, "packets": 1}]
    shown = " ".join(entrain("drops", *here).split())
    assert "left 2 right longer than mtu 1500 1" in shown
    assert "left->right: switches do not fragment; raise mtu = 1500 of this link" in shown
    readings = entrain("watch", *here, "--json", "--once").splitlines()
    (left,) = [switch for switch in json.loads(readings[-1])["switches"] if switch["name"] == "left"]
    assert left["drops"]["TOO_LONG"] == 1
