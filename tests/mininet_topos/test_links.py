"""What shaped links are made of, and that they run at the rate that was asked for."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.topology import Link, Topology, dumbbell, leaf_spine
from machine.errors import MissingTool
from machine.patience import patience
from machine.record import Record
from mininet_topos import links
from mininet_topos.isolation import private_namespace
from mininet_topos.links import (
    burst_bytes,
    check_impairments,
    check_qdiscs,
    gso_max_bytes,
    lengthened,
    queue_bytes,
    tc_commands,
)
from tests.attempts import undisturbed
from wire.slot_header import ETHERTYPE

SO_SNDBUFFORCE = 32
RATES = [1.0, 10.0, 100.0, 1000.0, 10000.0]


def link(
    rate: float = 100.0, queue: int = 64, delay_ms: float | None = None, loss: float | None = None
) -> Link:
    return Link("s1", 1, "s2", 1, rate, queue, delay_ms, loss)


@pytest.mark.parametrize("rate", RATES)
def test_one_packet_holds_its_link_for_a_millisecond_at_most_unless_it_is_two_frames(rate: float) -> None:
    assert gso_max_bytes(rate) <= max(rate * 1e6 / 8 / 1000, 2 * links.FRAME_BYTES)
    assert 2 * links.FRAME_BYTES <= gso_max_bytes(rate) <= 65536


@pytest.mark.parametrize("rate", RATES)
def test_no_packet_exceeds_the_bucket_or_the_queue(rate: float) -> None:
    assert burst_bytes(rate) >= gso_max_bytes(rate)
    assert queue_bytes(link(rate, queue=1)) >= gso_max_bytes(rate)


@pytest.mark.parametrize("shaping", ["htb", "tbf", "none"])
@pytest.mark.parametrize("rate", RATES)
def test_a_queue_is_named_if_and_only_if_it_is_not_as_long_as_stated(
    rate: float, shaping: links.Shaping
) -> None:
    for packets in (1, 2, 9, 43, 44, 256):
        told = list(lengthened([link(rate, packets)], shaping))
        limit = f"limit {packets * links.FRAME_BYTES}"
        assert bool(told) == (
            shaping != "none" and limit not in "\n".join(tc_commands("e", link(rate, packets), shaping))
        )
        for line in told:
            assert f"link s1-s2: queue_packets = {packets} " in line and str(gso_max_bytes(rate)) in line


def test_links_that_are_alike_share_a_line() -> None:
    (line,) = lengthened([link(100, 1), link(100, 1), link(100, 1)], "htb")
    assert line.startswith("link s1-s2 and 2 more: ")
    assert len(list(lengthened([link(100, 1), link(100, 2), link(10, 1)], "htb"))) == 3


@pytest.mark.parametrize(
    ("shaping", "lacking", "option"),
    [
        ("htb", "htb", "qdisc htb, .*CONFIG_NET_SCH_HTB"),
        ("htb", "u32", "classifier u32, .*CONFIG_NET_CLS_U32"),
        ("htb", "bfifo", "qdisc bfifo, .*CONFIG_NET_SCH_FIFO"),
        ("tbf", "tbf", "qdisc tbf, .*CONFIG_NET_SCH_TBF"),
    ],
)
def test_what_a_kernel_lacks_for_shaping_is_named_with_its_option(
    monkeypatch: pytest.MonkeyPatch, shaping: links.Shaping, lacking: str, option: str
) -> None:
    monkeypatch.setattr(links, "_tried", lambda *lines: not any(lacking in line for line in lines))
    with pytest.raises(MissingTool, match=f'shaping = "{shaping}" needs the {option}'):
        check_qdiscs(shaping)
    check_qdiscs("none")


def test_a_machine_without_tc_is_told_so_and_not_that_its_kernel_lacks_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingTool, match=r"needs tc, .*apt-get install iproute2"):
        check_qdiscs("htb")


@pytest.mark.root
@pytest.mark.parametrize("shaping", ["htb", "tbf"])
def test_a_kernel_that_shapes_a_link_passes_the_check(pair: tuple[str, str], shaping: links.Shaping) -> None:
    for line in tc_commands(pair[0], link(), shaping):
        subprocess.run(["tc", *line.split()], check=True)
    check_qdiscs(shaping)


def test_the_queue_limit_is_the_stated_one_in_bytes() -> None:
    assert "bfifo limit 96896" in "\n".join(tc_commands("s1-eth1", link(queue=64), "htb"))
    assert "limit 96896" in "\n".join(tc_commands("s1-eth1", link(queue=64), "tbf"))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("mtu", [576, 1500, 9000])
def test_what_counts_full_size_packets_follows_the_links_mtu(rate: float, mtu: int) -> None:
    long = replace(link(rate, queue=8192), mtu=mtu)
    assert f"bfifo limit {8192 * (mtu + 14)}" in "\n".join(tc_commands("s1-eth1", long, "htb"))
    assert 2 * (mtu + 14) <= gso_max_bytes(rate, mtu) <= burst_bytes(rate, mtu)
    assert queue_bytes(replace(long, queue_packets=1)) >= gso_max_bytes(rate, mtu)


@pytest.mark.parametrize("shaping", ["htb", "tbf"])
def test_delay_and_loss_become_netem_with_room_for_what_is_delayed(shaping: links.Shaping) -> None:
    lines = tc_commands("s1-eth1", link(delay_ms=10, loss=0.01), shaping)
    found = [line for line in lines if "netem" in line]
    assert found
    for netem in found:
        assert "delay 10ms loss 1%" in netem
        in_flight = 100e6 * 10e-3 / 8 / links.FRAME_BYTES
        assert f"limit {64 + int(in_flight)} " in netem


def test_delay_reaches_every_class_so_carriers_too() -> None:
    lines = tc_commands("s1-eth1", link(delay_ms=10), "htb")
    classes = {line.split("classid ")[1].split()[0] for line in lines if " prio " in line}
    delayed = {line.split("parent ")[1].split()[0] for line in lines if " netem " in line}
    assert delayed == classes and len(classes) == 2


def test_unshaped_links_have_no_qdisc() -> None:
    assert tc_commands("s1-eth1", link(), "none") == []


@pytest.mark.parametrize("shaping", ["htb", "tbf", "none"])
def test_without_netem_a_relay_delays_a_link_under_any_shaping(
    monkeypatch: pytest.MonkeyPatch, shaping: links.Shaping
) -> None:
    monkeypatch.setattr(links, "has_netem", lambda: False)
    topology = dumbbell(1, delay_ms=3, jitter_ms=1)
    [relayed] = [each for each in topology.links if links.is_relayed(topology, each)]
    assert (relayed.a, relayed.b) == ("left", "right")
    check_impairments(topology, shaping)
    lines = tc_commands("left-eth2", links.without_relay(topology, relayed), shaping)
    assert not any("netem" in line for line in lines)


def test_delay_without_netem_and_compiler_is_an_error_with_both_remedies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "has_netem", lambda: False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(MissingTool, match=r"CONFIG_NET_SCH_NETEM.*C compiler"):
        check_impairments(dumbbell(1, delay_ms=1), "htb")


def test_loss_without_netem_is_an_error_that_names_link_key_and_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "has_netem", lambda: False)
    with pytest.raises(MissingTool, match=r"link leaf1-h1: loss .* netem"):
        check_impairments(leaf_spine(1, 1, 1, loss=0.1), "htb")
    check_impairments(dumbbell(1), "htb")


def test_delay_without_shaping_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "has_netem", lambda: True)
    with pytest.raises(MissingTool, match="shaping"):
        check_impairments(dumbbell(1, delay_ms=1), "none")
    check_impairments(dumbbell(1, delay_ms=1), "tbf")


@pytest.mark.root
def test_looking_for_netem_leaves_nothing_on_the_loopback() -> None:
    def qdiscs() -> str:
        return subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True).stdout

    before = qdiscs()
    links._tried.cache_clear()
    links.has_netem()
    assert qdiscs() == before


def sent_bytes(interface: str) -> int:
    """What has left an interface of the present namespace, behind its qdisc."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[8])
    raise AssertionError(f"there is no {interface}")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two ends of a veth pair in one private namespace."""
    with ExitStack() as stack:
        record = stack.enter_context(Record("test-links", records=tmp_path))
        stack.enter_context(private_namespace(record))
        for command in (
            "link add s1-eth1 type veth peer name s2-eth1",
            "link set s1-eth1 up",
            "link set s2-eth1 up",
        ):
            subprocess.run(["ip", *command.split()], check=True)
        yield "s1-eth1", "s2-eth1"


@pytest.mark.root
@pytest.mark.parametrize("shaping", ["htb", "tbf"])
@pytest.mark.parametrize("rate", [10.0, 100.0])
def test_the_rate_is_within_two_percent(pair: tuple[str, str], shaping: str, rate: float) -> None:
    """Keeps the queue full with raw frames: so long a queue that it lasts while the sender has no processor.
    An idle machine is within 0.2 %; a busy one may try again."""
    interface, _ = pair
    for line in tc_commands(interface, link(rate, queue=8192), shaping):  # type: ignore[arg-type]
        subprocess.run(["tc", *line.split()], check=True)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 26)
        sender.bind((interface, 0))
        frame = b"\xff" * 6 + bytes(6) + b"\x88\xb6" + bytes(1500)
        for _ in range(10):
            measured = _rate_mbps(sender, frame, interface)
            assert measured < rate * 1.02
            if measured > rate * 0.98:
                return
    pytest.fail(f"asked for {rate} Mbit/s, measured {measured:.2f}")


def _rate_mbps(sender: socket.socket, frame: bytes, interface: str) -> float:
    """Rate over half a second of a backlogged queue, after the bucket is empty. Not too high even if this
    process has no processor between a look at the clock and one at the counter."""

    def flood(seconds: float) -> tuple[float, int, float]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(OSError):  # the queue is full: ENOBUFS
                sender.send(frame)
        return time.monotonic(), sent_bytes(interface), time.monotonic()

    began, before, _ = flood(0.1)
    _, after, ended = flood(0.5)
    return (after - before) * 8 / (ended - began) / 1e6


def test_topology_helpers_give_every_link_a_rate() -> None:
    topology: Topology = leaf_spine(2, 2, 2, host_rate_mbps=100, uplink_rate_mbps=50)
    assert {each.rate_mbps for each in topology.links} == {100, 50}


@pytest.mark.root
def test_carriers_do_not_wait_behind_data(pair: tuple[str, str]) -> None:
    """The queue is full when the carrier comes; TBF keeps the order."""
    undisturbed(lambda: place_of_a_carrier(pair, "htb"), lambda place: place < FRAMES // 2)
    assert place_of_a_carrier(pair, "tbf") == FRAMES


FRAMES = 60


def place_of_a_carrier(pair: tuple[str, str], shaping: links.Shaping) -> int:
    """How many of FRAMES data frames, sent before it at once on a slow link, have arrived before it."""
    lines = tc_commands(pair[0], link(10.0, queue=2 * FRAMES), shaping)
    subprocess.run(["tc", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    header = bytes(12)
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as arriving,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as leaving,
    ):
        arriving.bind((pair[1], 0))
        leaving.bind((pair[0], 0))
        arriving.settimeout(patience(60))
        for _ in range(FRAMES):
            leaving.send(header + struct.pack("!H", 0x88B6) + bytes(1000))
        leaving.send(header + struct.pack("!H", ETHERTYPE) + bytes(50))
        before = 0
        while (kind := arriving.recv(2048)[12:14]) != struct.pack("!H", ETHERTYPE):
            before += kind == struct.pack("!H", 0x88B6)
    subprocess.run(["tc", "qdisc", "del", "dev", pair[0], "root"], check=True)
    return before
