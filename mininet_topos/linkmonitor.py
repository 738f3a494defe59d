"""Measures which flows are on each fabric link, and when, independently of the switches.

An eBPF program at tc egress of every fabric interface records each flow's bursts
(`bpf/link_monitor.bpf.c`). It costs about 0.2 µs per packet, or per offloaded packet, and does not change
packets. All times are one machine's CLOCK_MONOTONIC, so different links have no clock skew.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ebpf import Codec, Object, RingBuffer, compile_cached
from wire.flow import Flow

if TYPE_CHECKING:
    from mininet_topos.network import FabricPort

SOURCE = Path(__file__).parent / "bpf" / "link_monitor.bpf.c"
GAP_MS = 5.0
"""A flow that is silent for longer has left the link. It exceeds the delay of any emulated queue."""


class _Flow(NamedTuple):
    """`struct flow`, with addresses and ports in network byte order."""

    ifindex: int
    source: bytes
    destination: bytes
    source_port: bytes
    destination_port: bytes
    protocol: int
    dscp: int


class _Activity(NamedTuple):
    """`struct activity`."""

    first_ns: int
    last_ns: int
    bytes: int
    packets: int


_FLOW = Codec("=I4s4s2s2sBBxx", _Flow)
_ACTIVITY = Codec("=QQQQ", _Activity)


@dataclass(frozen=True)
class Burst:
    """A burst of `flow`, with DSCP `dscp`, over the link of `ifindex` from `first_ns` to `last_ns`.

    Times are when packets with new payload entered the link's queue. `bytes` counts payload, and `packets`
    counts as on the wire; both count what is sent again, too.
    """

    ifindex: int
    flow: Flow
    dscp: int
    first_ns: int
    last_ns: int
    bytes: int
    packets: int


class LinkMonitor:
    """Monitors `ports`, as a context manager. Call `poll` during traffic, and `collect` afterwards.

    Raises EbpfError or MissingTool if the program cannot be compiled, loaded or attached.
    """

    def __init__(self, ports: Iterable[FabricPort], *, gap_ms: float = GAP_MS) -> None:
        self.ports = tuple(ports)
        self._gap_ns = round(gap_ms * 1e6)
        self._bursts: list[Burst] = []
        self._attached = contextlib.ExitStack()

    def __enter__(self) -> LinkMonitor:
        self._object = Object.open(compile_cached(SOURCE))
        try:
            self._object.set_rodata("gap_ns", self._gap_ns.to_bytes(8, "little"))
            self._object.load()
            self._object.check_record("flow", _FLOW)
            self._object.check_record("activity", _ACTIVITY)
            self._ring = RingBuffer(
                self._object.maps["bursts"],
                lambda burst: self._note(burst[: _FLOW.size], burst[-_ACTIVITY.size :]),
            )
            self.program = self._object.programs["monitor"]
            for port in self.ports:
                self._attached.enter_context(self.program.attach_interface(port.ifindex, "egress"))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ring.close()
        self._close()

    def _close(self) -> None:
        self._attached.close()
        self._object.close()

    def poll(self) -> None:
        """Read the recorded bursts. Call it several times a second: the buffer holds some 60,000 bursts."""
        self._ring.consume()

    def collect(self) -> list[Burst]:
        """Everything since the last call, in order of time; call it when traffic has ended."""
        self._ring.consume()
        flows = self._object.maps["flows"]
        for key, value in flows.lookup_batch():
            self._note(key, value[-_ACTIVITY.size :])  # after the lock
            del flows[key]
        bursts, self._bursts = sorted(self._bursts, key=lambda burst: burst.first_ns), []
        return bursts

    @property
    def lost(self) -> int:
        """How many bursts found no room. Unless it is 0, counts are too low."""
        return self._read("lost")

    @property
    def repeated(self) -> int:
        """Payload that senders sent again, in bytes, on all links together, since the monitor started."""
        return self._read("repeated")

    def _read(self, name: str) -> int:
        variable = self._object.variable(name)
        (value,) = self._object.maps[variable.section].values()
        return int.from_bytes(value[variable.offset : variable.offset + variable.size], "little")

    def _note(self, flow_bytes: bytes, activity: bytes) -> None:
        raw = _FLOW.unpack(flow_bytes)
        seen = _ACTIVITY.unpack(activity)
        flow = Flow(
            socket.inet_ntoa(raw.source),
            int.from_bytes(raw.source_port, "big"),
            socket.inet_ntoa(raw.destination),
            int.from_bytes(raw.destination_port, "big"),
            raw.protocol,
        )
        if seen.packets:
            self._bursts.append(Burst(raw.ifindex, flow, raw.dscp, *seen))
