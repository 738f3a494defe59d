"""Attaching to interfaces in other namespaces, and what happens when these go away."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebpf import EbpfError, Object, in_netns
from machine.record import Record, Resource

pytestmark = pytest.mark.root

NETNS = f"tebpf{os.getpid()}"
OWN_NETNS = Path("/proc/thread-self/ns/net")


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@pytest.fixture
def netns(tmp_path: Path) -> Iterator[str]:
    with Record("test-ebpf", records=tmp_path / "records") as record:
        record.own(Resource("netns", NETNS))
        ip("netns", "add", NETNS)
        ip("-n", NETNS, "link", "set", "lo", "up")
        yield NETNS


@pytest.fixture
def drop(compiled: Callable[[str], Path]) -> Iterator[Object]:
    with Object.open(compiled("basic")) as loaded:
        loaded.load()
        yield loaded


def udp_arrives(netns: str) -> bool:
    """Whether a datagram over the namespace's loopback reaches its receiver."""

    def call() -> bool:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind(("127.0.0.1", 0))
            sender.sendto(b"x", receiver.getsockname())
            try:  # loopback delivers within sendto
                return receiver.recv(1, socket.MSG_DONTWAIT) == b"x"
            except BlockingIOError:
                return False

    return in_netns(netns, call)


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_program_acts_in_another_namespace_until_detached(netns: str, drop: Object, direction: str) -> None:
    program = drop.programs["drop"]
    assert udp_arrives(netns)
    attachment = program.attach_tc(1, direction, netns=netns)  # type: ignore[arg-type]
    assert not udp_arrives(netns)
    attachment.detach()
    attachment.detach()
    assert udp_arrives(netns)


def test_clsact_that_exists_is_normal_and_a_taken_place_is_not(netns: str, drop: Object) -> None:
    first = drop.programs["count"].attach_tc(1, "ingress", netns=netns)
    second = drop.programs["drop"].attach_tc(1, "ingress", netns=netns, priority=2)
    assert not udp_arrives(netns)
    with pytest.raises(EbpfError) as caught:
        drop.programs["count"].attach_tc(1, "ingress", netns=netns, priority=2)
    assert caught.value.errno == errno.EEXIST
    drop.programs["count"].attach_tc(1, "ingress", netns=netns, priority=2, replace=True)
    assert udp_arrives(netns)
    second.detach()
    first.detach()


def test_interface_or_namespace_that_went_away_is_not_an_error_on_detach(netns: str, drop: Object) -> None:
    ip("-n", netns, "link", "add", "tveth", "type", "veth", "peer", "name", "tpeer")
    index = in_netns(netns, lambda: socket.if_nametoindex("tveth"))
    attachment = drop.programs["drop"].attach_tc(index, "egress", netns=netns)
    ip("-n", netns, "link", "del", "tveth")
    attachment.detach()
    other = drop.programs["drop"].attach_tc(1, "egress", netns=netns)
    ip("netns", "del", netns)
    other.detach()


def test_absent_interface_and_namespace_are_named(netns: str, drop: Object) -> None:
    with pytest.raises(EbpfError, match="interface 4242 in " + netns):
        drop.programs["drop"].attach_tc(4242, "ingress", netns=netns)
    with pytest.raises(EbpfError, match="network namespace nowhere"):
        drop.programs["drop"].attach_tc(1, "ingress", netns="nowhere")


def test_tcx_link_ends_with_its_descriptor(netns: str, drop: Object) -> None:
    with drop.programs["drop"].attach_interface(1, "ingress", netns=netns):
        assert not udp_arrives(netns)
    assert udp_arrives(netns)


def test_the_callers_namespace_does_not_change(netns: str) -> None:
    before = OWN_NETNS.readlink()
    inside = in_netns(netns, lambda: OWN_NETNS.readlink())
    assert inside != before == OWN_NETNS.readlink()
