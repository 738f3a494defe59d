"""Ports: their arguments, what is done to their interfaces, and interfaces that come and go."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from machine.errors import BadInput, EntrainError
from machine.patience import patience
from softswitch.kernel.ports import Ports, parse_port, parse_rate
from tests.softswitch.fake_datapath import FakeDatapath
from tests.softswitch.harness import PROGRAM


@pytest.mark.parametrize("text", ["1", "@eth0", "1@", "x@eth0", "-1@eth0", "511@eth0", "1@sixteen-letters--"])
def test_a_wrong_port_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="-i "):
        parse_port(text)


def test_ports_and_rates() -> None:
    assert parse_port("3@s1-eth3") == (3, "s1-eth3")
    assert parse_rate("3@100") == (3, (100.0, None))
    assert parse_rate("3@2.5:64") == (3, (2.5, 64))


@pytest.mark.parametrize("text", ["3", "3@", "3@0", "3@-1", "3@1:0", "3@1:x", "x@1", "3@1:", "3:1"])
def test_a_wrong_rate_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="PORT@MBPS"):
        parse_rate(text)


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@pytest.fixture
def pair() -> Iterator[tuple[str, str]]:
    """A veth pair of this test's own; the first end is the switch's."""
    names = f"ssp{os.getpid()}", f"ssq{os.getpid()}"
    ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
    ip("link", "set", names[1], "up")
    try:
        yield names
    finally:
        subprocess.run(["ip", "link", "del", names[0]], capture_output=True, check=False)


def next_change(ports: Ports, changes: list[int]) -> int:
    """Wait until a port has changed."""
    while not changes:
        assert select.select([ports.fileno()], [], [], 10)[0], "no change was told"
        ports.poll()
    return changes.pop(0)


@pytest.mark.root
def test_interfaces_are_made_ready_and_given_back(pair: tuple[str, str]) -> None:
    ipv6 = Path(f"/proc/sys/net/ipv6/conf/{pair[0]}/disable_ipv6")
    before = ipv6.read_text()
    with closing(Ports({1: pair[0]})):
        assert ipv6.read_text() == "1\n"
        state = subprocess.run(
            ["ip", "-d", "link", "show", pair[0]], capture_output=True, text=True, check=True
        )
        assert "promiscuity 1" in state.stdout
        assert ",UP" in state.stdout
    assert ipv6.read_text() == before
    state = subprocess.run(["ip", "-d", "link", "show", pair[0]], capture_output=True, text=True, check=True)
    assert "promiscuity 0" in state.stdout


@pytest.mark.root
def test_wrong_interfaces_are_named(pair: tuple[str, str]) -> None:
    with pytest.raises(BadInput, match="there is no interface nowhere"):
        Ports({1: pair[0], 2: "nowhere"})
    with pytest.raises(BadInput, match=f"interface {pair[0]} is assigned to more than one port"):
        Ports({1: pair[0], 2: pair[0]})
    with pytest.raises(BadInput, match="there is no port 9"):
        Ports({1: pair[0]}, {9: (1.0, None)})


@pytest.mark.root
def test_a_port_follows_its_carrier(pair: tuple[str, str]) -> None:
    changes: list[int] = []
    with closing(Ports({1: pair[0]}, changed=changes.append)) as ports:
        ports.poll()
        changes.clear()
        assert ports.is_up(1)
        ip("link", "set", pair[1], "down")
        assert next_change(ports, changes) == 1
        assert not ports.is_up(1)
        ip("link", "set", pair[1], "up")
        assert next_change(ports, changes) == 1
        assert ports.is_up(1)
        assert ports.is_up(255)  # not a port with an interface


@pytest.mark.root
def test_an_interface_may_go_and_come_back(pair: tuple[str, str]) -> None:
    changes: list[int] = []
    datapath = FakeDatapath(PROGRAM)
    with closing(Ports({1: pair[0]}, changed=changes.append)) as ports:
        ports.attach(datapath)
        first = datapath.ports[1]
        ports.poll()
        changes.clear()
        ip("link", "del", pair[0])
        next_change(ports, changes)
        assert datapath.ports == {}
        assert not ports.is_up(1)
        ip("link", "add", pair[0], "type", "veth", "peer", "name", pair[1])
        ip("link", "set", pair[1], "up")
        next_change(ports, changes)
        assert ports.is_up(1)
        assert datapath.ports.keys() == {1}
        assert datapath.ports[1] != first


def wait_until(ports: Ports, reached: Callable[[], bool]) -> None:
    """Read what changes until it is as expected."""
    while not reached():
        assert select.select([ports.fileno()], [], [], patience(10))[0], "no change was told"
        ports.poll()


@pytest.mark.root
def test_a_port_knows_whether_packets_may_wait_at_its_interface(pair: tuple[str, str]) -> None:
    before, after = FakeDatapath(PROGRAM), FakeDatapath(PROGRAM)
    with closing(Ports({1: pair[0]})) as ports:
        ports.attach(before)
        assert before.queued[1]  # until it is known
        wait_until(ports, lambda: not before.queued[1])
        subprocess.run(["tc", "qdisc", "add", "dev", pair[0], "root", "bfifo", "limit", "9000"], check=True)
        wait_until(ports, lambda: before.queued[1])
        ports.attach(after)
        assert after.queued[1]
        subprocess.run(["tc", "qdisc", "del", "dev", pair[0], "root"], check=True)
        wait_until(ports, lambda: not after.queued[1])


@pytest.mark.root
def test_a_port_knows_the_mtu_of_its_link(pair: tuple[str, str]) -> None:
    before, after = FakeDatapath(PROGRAM), FakeDatapath(PROGRAM)
    with closing(Ports({1: pair[0]})) as ports:
        ports.attach(before)
        wait_until(ports, lambda: before.mtus == {1: 1500})
        subprocess.run(["ip", "link", "set", pair[0], "mtu", "9000"], check=True)
        wait_until(ports, lambda: before.mtus == {1: 9000})
        ports.attach(after)
        assert after.mtus == {1: 9000}


@pytest.mark.root
def test_the_next_program_gets_the_ports(pair: tuple[str, str]) -> None:
    first, second = FakeDatapath(PROGRAM), FakeDatapath(PROGRAM)
    with closing(Ports({1: pair[0]}, {1: (100.0, 64)})) as ports:
        ports.attach(first)
        ports.attach(second)
        assert first.ports == {}
        assert second.ports.keys() == {1}


@pytest.mark.root
def test_a_program_that_cannot_be_attached_leaves_the_ports_to_the_old_one(pair: tuple[str, str]) -> None:
    first, second = FakeDatapath(PROGRAM), FakeDatapath(PROGRAM)
    second.failing = "the kernel says no"
    with closing(Ports({1: pair[0]})) as ports:
        ports.attach(first)
        with pytest.raises(EntrainError, match="the kernel says no"):
            ports.attach(second)
        assert first.ports.keys() == {1}
        ip("link", "del", pair[0])
        ports.attach(second)  # nothing to attach to is no failure
        assert second.ports == {}
