"""The TCP flows of network namespaces, as the kernel has them, with MLTCP's state where they use it."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ebpf import Codec, Link, Object, Program, compile_cached, in_netns
from hostbpf import SOURCES
from hostbpf.mltcp import VARIANTS

SOURCE = SOURCES / "flows.bpf.c"


@dataclass(frozen=True)
class FlowState:
    """One established IPv4 TCP connection, seen from this end.

    `cwnd` and `ssthresh` are in segments of `mss` bytes; so are `retransmitted`, and `marked`: what was
    acknowledged as having met congestion (ECN); `job` is the socket mark; `gain` is MLTCP's F at
    the last acknowledgement (None: not an MLTCP flow, or F is 1 because its job has no total yet); `netns`
    is the cookie.
    """

    netns: int
    source: str
    source_port: int
    destination: str
    destination_port: int
    control: str
    job: int
    cwnd: int
    ssthresh: int
    srtt_ms: float
    mss: int
    bytes_sent: int
    bytes_acked: int
    retransmitted: int
    marked: int
    delivery_mbps: float
    pacing_mbps: float | None
    gain: float | None


def namespaces() -> list[str]:
    """Paths of all network namespaces of this machine that a process or a name holds, one path for each."""
    found: dict[int, str] = {}
    candidates = [*Path("/run/netns").glob("*"), *Path("/proc").glob("[0-9]*/ns/net")]
    for path in candidates:
        try:
            found.setdefault(path.stat().st_ino, str(path))
        except OSError:  # the process ended, or the name is not mounted
            continue
    return list(found.values())


class FlowReader:
    """Reads the established connections of network namespaces, again and again; see `reading_flows`."""

    def __init__(self, program: Program, link: Link) -> None:
        self._program, self._link = program, link

    def read(self, netns: str | None) -> list[FlowState]:
        """Those of a namespace (a name or path; None: the present one), now."""
        data = in_netns(netns, lambda: self._program.read_iterator(self._link))
        return [_state(_RECORD.unpack(data[at:])) for at in range(0, len(data), _RECORD.size)]


@contextlib.contextmanager
def reading_flows() -> Iterator[FlowReader]:
    """Within, flows can be read; the program stays loaded."""
    with Object.open(compile_cached(SOURCE)) as obj:
        obj.load()
        obj.check_record("flow_state", _RECORD)
        program = obj.programs["list_flows"]
        with program.attach() as link:
            yield FlowReader(program, link)


def read_flows(netns: list[str | None]) -> Iterator[FlowState]:
    """The established connections of each namespace, once."""
    with reading_flows() as reader:
        for each in netns:
            yield from reader.read(each)


def _address(raw: int) -> str:
    return str(ipaddress.IPv4Address(socket.htonl(raw)))


class _Record(NamedTuple):
    """`struct flow_state`; addresses and ports are network-order bytes read on this machine."""

    netns: int
    source: int
    destination: int
    source_port: int
    destination_port: int
    mark: int
    cwnd: int
    ssthresh: int
    srtt_us: int
    mss: int
    retransmitted: int
    delivered: int
    interval_us: int
    marked: int
    bytes_sent: int
    bytes_acked: int
    pacing_rate: int
    gain_numerator: int
    gain_denominator: int
    control: bytes


_RECORD = Codec("=QIIHH9I5Q16s", _Record)


def _state(raw: _Record) -> FlowState:
    name = raw.control.rstrip(b"\0").decode(errors="replace")
    unpaced = raw.pacing_rate in ((1 << 32) - 1, (1 << 64) - 1)
    return FlowState(
        netns=raw.netns,
        source=_address(raw.source),
        source_port=socket.htons(raw.source_port),
        destination=_address(raw.destination),
        destination_port=socket.htons(raw.destination_port),
        control=name,
        job=raw.mark,
        cwnd=raw.cwnd,
        ssthresh=raw.ssthresh,
        srtt_ms=raw.srtt_us / 1000,
        mss=raw.mss,
        bytes_sent=raw.bytes_sent,
        bytes_acked=raw.bytes_acked,
        retransmitted=raw.retransmitted,
        marked=raw.marked,
        delivery_mbps=raw.delivered * raw.mss * 8 / raw.interval_us if raw.interval_us else 0.0,
        pacing_mbps=None if unpaced else raw.pacing_rate * 8 / 1e6,
        gain=raw.gain_numerator / raw.gain_denominator if name in VARIANTS and raw.gain_denominator else None,
    )
