"""The emulated switch: light goes where circuits lead, and nowhere while it is dark."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine.record import Record, Resource
from ocs.crossbar import Change, Crossbar, PortFailed
from ocs.driver import Refused
from ocs.emulated import Panel
from ocs.manager import CircuitManager
from tests.ocs.switch import circuits

pytestmark = pytest.mark.root

PORTS = 4
ETHERTYPE = 0x88B6  # for local experiments; nothing else on the machine sends it
LONG_MS = 600_000.0
_serial = itertools.count(os.getpid() % 10000 * 10)


class Bench:
    """Four cables into a panel; sockets at their near ends."""

    def __init__(self, record: Record) -> None:
        number = next(_serial)
        self.near = {port: f"n{number}-{port}" for port in range(1, PORTS + 1)}
        self.far = {port: f"f{number}-{port}" for port in range(1, PORTS + 1)}
        for port in self.near:
            record.own(Resource("link", self.near[port]))
            self._ip("link", "add", self.near[port], "type", "veth", "peer", "name", self.far[port])
            for name in (self.near[port], self.far[port]):
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
                self._ip("link", "set", name, "up")
        self.ifindex = {port: socket.if_nametoindex(name) for port, name in self.far.items()}
        self.sockets: dict[int, socket.socket] = {}
        for port, name in self.near.items():
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
            end.bind((name, ETHERTYPE))
            end.settimeout(60)
            self.sockets[port] = end

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    def send(self, port: int, count: int, mark: int = 0) -> None:
        frame = b"\xff" * 6 + b"\x02\x00\x00\x00\x00\x01" + ETHERTYPE.to_bytes(2) + bytes([mark]) * 50
        for _ in range(count):
            self.sockets[port].send(frame)

    def receive(self, port: int, count: int) -> set[int]:
        """Return the marks of the next frames from others."""
        marks: set[int] = set()
        while count:
            data, address = self.sockets[port].recvfrom(2000)
            if address[2] != socket.PACKET_OUTGOING:
                marks.add(data[14])
                count -= 1
        return marks


def wait_for(panel: Panel, port: int, arrived: int) -> tuple[int, int]:
    """Return how many frames of `arrived` passed and were lost at a port, as soon as all are counted."""
    deadline = time.monotonic() + 60
    while True:
        traffic = panel.traffic()[port]
        if traffic.passed + traffic.lost >= arrived or time.monotonic() > deadline:
            return traffic.passed, traffic.lost


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Record("test-panel", records=tmp_path / "records") as record:
        made = Bench(record)
        yield made
        for end in made.sockets.values():
            end.close()


def test_a_circuit_passes_both_ways_and_nothing_else_does(bench: Bench) -> None:
    panel = Panel(bench.ifindex, circuits("1-3"))
    bench.send(1, 5, mark=1)
    bench.send(3, 7, mark=3)
    bench.send(2, 4, mark=2)
    assert bench.receive(3, 5) == {1}
    assert bench.receive(1, 7) == {3}
    assert wait_for(panel, 1, 5) == (5, 0)
    assert wait_for(panel, 3, 7) == (7, 0)
    assert wait_for(panel, 2, 4) == (0, 4)
    assert panel.traffic()[1].passed_bytes == 5 * 64
    assert asyncio.run(panel.read()).circuits == circuits("1-3")
    panel.release()


def test_both_ports_of_a_change_are_dark_and_others_lose_nothing(bench: Bench) -> None:
    async def run() -> None:
        panel = Panel(bench.ifindex, circuits("1-3"), switching_ms=LONG_MS)
        making = asyncio.create_task(panel.apply(Change(add=circuits("2-4"))))
        await asyncio.sleep(0)
        for port, count in ((1, 20), (2, 3), (4, 6)):
            bench.send(port, count, mark=port)
        assert wait_for(panel, 2, 3) == (0, 3)
        assert wait_for(panel, 4, 6) == (0, 6)
        assert wait_for(panel, 1, 20) == (20, 0)
        assert not making.done()
        making.cancel()
        panel.release()

    asyncio.run(run())


def test_it_is_light_when_the_change_is_done(bench: Bench) -> None:
    async def run() -> None:
        panel = Panel(bench.ifindex, circuits("1-3"), switching_ms=20)
        await panel.apply(Change(circuits("1-3"), circuits("1-4")))
        bench.send(1, 5, mark=1)
        bench.send(3, 2, mark=3)
        assert bench.receive(4, 5) == {1}
        assert wait_for(panel, 1, 5) == (5, 0)
        assert wait_for(panel, 3, 2) == (0, 2)
        panel.release()

    asyncio.run(run())


def test_a_failed_port_is_dark_refuses_circuits_and_can_be_repaired(bench: Bench) -> None:
    async def run() -> None:
        panel = Panel(bench.ifindex, circuits("1-3"), switching_ms=0)
        manager = CircuitManager(Crossbar(PORTS), panel)
        panel.fail(3)
        bench.send(1, 5)
        assert wait_for(panel, 1, 5) == (0, 5)
        assert (await manager.read()).circuits == frozenset()
        with pytest.raises(PortFailed, match="port 3"):
            await manager.change("bert", circuits("1-3"))
        with pytest.raises(Refused, match="port 3 has failed"):
            await panel.apply(Change(add=circuits("2-3")))
        panel.repair(3)
        await manager.change("bert", circuits("1-3"))
        bench.send(1, 5, mark=9)
        assert bench.receive(3, 5) == {9}
        panel.release()

    asyncio.run(run())


def test_circuits_outlive_the_process_that_made_them(bench: Bench) -> None:
    panel = Panel(bench.ifindex, circuits("1-3"))
    panel.release()
    bench.send(1, 5, mark=1)
    assert bench.receive(3, 5) == {1}
