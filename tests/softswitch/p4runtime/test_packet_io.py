"""Controller headers to metadata and back, and the CPU port's interface."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from finsy.proto import p4r
from hypothesis import given
from hypothesis import strategies as st

from softswitch.p4runtime.p4info import Field, Header
from softswitch.p4runtime.packet_io import CpuPort, to_message, to_packet
from softswitch.p4runtime.status import Refused

ETH_P_ALL = 3
FRAME = bytes.fromhex("0200000000010200000000028888") + bytes(range(50))


def header(*widths: int) -> Header:
    return Header(tuple(Field(i, f"f{i}", width) for i, width in enumerate(widths, 1)))


@st.composite
def headers_with_values(draw: st.DrawFn) -> tuple[Header, list[int]]:
    widths = draw(st.lists(st.integers(1, 70), max_size=6))
    return header(*widths), [draw(st.integers(0, (1 << width) - 1)) for width in widths]


@given(headers_with_values(), st.binary(max_size=64))
def test_metadata_survive_the_wire(case: tuple[Header, list[int]], payload: bytes) -> None:
    head, values = case
    out = p4r.PacketOut(payload=payload)
    for field, value in zip(head.fields, values, strict=True):
        out.metadata.add(metadata_id=field.id, value=value.to_bytes((field.width + 7) // 8, "big"))
    packet = to_packet(head, out)
    assert len(packet) == head.size + len(payload)
    back = to_message(head, packet)
    assert back.payload == payload
    assert [int.from_bytes(m.value, "big") for m in back.metadata] == values


def test_fields_are_packed_in_order_without_gaps() -> None:
    out = p4r.PacketOut(payload=b"x")
    out.metadata.add(metadata_id=2, value=b"\x05")
    out.metadata.add(metadata_id=1, value=b"\x01\x00")
    assert to_packet(header(9, 7), out) == bytes([0b10000000, 0b00000101]) + b"x"


def test_padding_may_be_left_out_and_nothing_else() -> None:
    head = Header((Field(1, "port", 9), Field(2, "_pad", 7, padding=True)))
    out = p4r.PacketOut(payload=b"x")
    with pytest.raises(Refused, match="'port' is missing"):
        to_packet(head, out)
    out.metadata.add(metadata_id=1, value=b"\x01")
    assert to_packet(head, out) == b"\x00\x80x"


def test_without_controller_headers_packets_are_their_payload() -> None:
    assert to_packet(None, p4r.PacketOut(payload=b"abc")) == b"abc"
    assert to_message(None, b"abc").payload == b"abc"
    with pytest.raises(Refused, match="no metadata has id 1"):
        to_packet(None, p4r.PacketOut(metadata=[{"metadata_id": 1, "value": b"1"}]))


def test_a_packet_shorter_than_its_header_is_none() -> None:
    assert to_message(header(9, 7), b"x") is None
    assert to_message(header(9, 7), b"xy").payload == b""


@pytest.fixture
def cpu() -> Iterator[CpuPort]:
    with closing(CpuPort()) as port:
        yield port


def readable(fd: int, timeout_s: float) -> bool:
    return bool(select.select([fd], [], [], timeout_s)[0])


@pytest.mark.root
def test_packets_pass_the_cpu_port_both_ways(cpu: CpuPort) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as tap:
        tap.bind((cpu.interface, ETH_P_ALL))
        tap.settimeout(60)
        cpu.send(FRAME)
        assert tap.recv(2048) == FRAME
        tap.send(FRAME[::-1])
        assert readable(cpu.fileno(), 60)
        assert list(cpu.receive()) == [FRAME[::-1]]
        large = FRAME[:14] + bytes(60_000)
        tap.send(large)
        assert readable(cpu.fileno(), 60)
        assert list(cpu.receive()) == [large]


@pytest.mark.root
def test_the_kernel_is_silent_on_the_cpu_port(cpu: CpuPort) -> None:
    """No router solicitation, no ARP, no neighbour discovery: what comes is what the program sent."""
    assert Path(f"/proc/sys/net/ipv6/conf/{cpu.interface}/disable_ipv6").read_text() == "1\n"
    assert not readable(cpu.fileno(), 1.5)


@pytest.mark.root
def test_a_packet_without_a_whole_ethernet_header_is_refused(cpu: CpuPort) -> None:
    with pytest.raises(OSError) as error:
        cpu.send(b"short")
    assert error.value.errno == errno.EINVAL


@pytest.mark.root
def test_the_cpu_port_ends_with_its_process() -> None:
    """Also when the process had no chance to remove it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        name = CpuPort().interface
        os.write(writing, name.encode())
        os.kill(os.getpid(), 9)
    name = os.read(reading, 16).decode()
    os.waitpid(pid, 0)
    with pytest.raises(OSError, match=r"No such device|no interface"):
        socket.if_nametoindex(name)
