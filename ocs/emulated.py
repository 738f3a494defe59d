"""An emulated optical circuit switch: a patch panel of interfaces, with the darkness of a real one.

Each port is an interface, the far end of a switch's port. eBPF passes what arrives at one port on to another.
While a circuit is being made, and wherever there is none, packets are lost and counted, also those that were
in flight or in the sender's queue. The kernel's clock ends the darkness, so it lasts as long as it should
however busy this process is.

Ports fail as well: `Panel.fail` lets the light of one go out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ebpf import Codec, Object, TypedMap, compile_cached
from ocs.crossbar import SWITCHING_MS, Change, Circuit, Reading, join
from ocs.driver import Refused

SOURCE = Path(__file__).parent / "bpf" / "panel.bpf.c"


class Traffic(NamedTuple):
    """What has arrived at a port: frames and bytes that passed on, and that were lost in the dark."""

    passed: int
    passed_bytes: int
    lost: int
    lost_bytes: int


class _Path(NamedTuple):
    """Where light goes that comes in at a port, from when on, and whether one of both ports has failed."""

    lit_ns: int
    ifindex: int
    failed: int


_KEY = Codec("=I", int)
_PATH = Codec("=QII", _Path)
_TRAFFIC = Codec("=QQQQ", Traffic)


class Panel:
    """The switch, and its driver. `interfaces` has each port's ifindex, in the present network namespace.

    `circuits` are lit at once. The programs stay attached until the interfaces are removed, so circuits
    outlive this object. Raises EbpfError if a program cannot be loaded or attached.
    """

    def __init__(
        self,
        interfaces: Mapping[int, int],
        circuits: Iterable[Circuit] = (),
        *,
        switching_ms: float = SWITCHING_MS,
    ) -> None:
        self._ifindex = dict(interfaces)
        self._port = {ifindex: port for port, ifindex in interfaces.items()}
        self._switching_ns = round(switching_ms * 1e6)
        self._failed: set[int] = set()
        self._object = Object.open(compile_cached(SOURCE))
        try:
            self._object.load()
            self._object.check_record("path", _PATH)
            self._object.check_record("traffic", _TRAFFIC)
            self._paths: TypedMap[int, _Path] = TypedMap(self._object.maps["paths"], _KEY, _PATH)
            self._counters: TypedMap[int, Traffic] = TypedMap(self._object.maps["counters"], _KEY, _TRAFFIC)
            for circuit in circuits:
                self._join(circuit, 0)
            for ifindex in self._port:
                self._counters[ifindex] = Traffic(0, 0, 0, 0)
                self._object.programs["cross"].attach_tc(ifindex, "ingress", replace=True)
        except BaseException:
            self._object.close()
            raise

    async def read(self) -> Reading:
        """Return the circuits, dark or not, and the ports that have failed."""
        return Reading(self._circuits(), frozenset(self._failed))

    async def apply(self, change: Change) -> None:
        """Cut off what is in the way, join ports, and return when their darkness is over.

        Raises Refused for a port that does not exist or has failed; what was in the way is cut off then.
        """
        there = self._circuits()
        for circuit in there - change.add:
            if change.ports & set(circuit.ports):
                self._part(circuit)
        lit_ns = time.monotonic_ns() + self._switching_ns
        for circuit in sorted(change.add - there):
            for port in circuit.ports:
                if port not in self._ifindex or port in self._failed:
                    what = "has failed" if port in self._failed else "does not exist"
                    raise Refused(f"circuit {circuit}: port {port} {what}", circuit)
            self._join(circuit, lit_ns)
        while (left_ns := lit_ns - time.monotonic_ns()) > 0 and change.add - there:
            await asyncio.sleep(left_ns / 1e9)

    async def close(self) -> None:
        """Do nothing: the panel is no connection. `release` lets go of it."""

    def release(self) -> None:
        """Let go of programs and maps. They stay while the interfaces do, and so do the circuits."""
        self._object.close()

    def traffic(self) -> dict[int, Traffic]:
        """Return what has arrived at each port, in frames as they would be on the wire."""
        return {port: self._counters[ifindex] for port, ifindex in self._ifindex.items()}

    def fail(self, port: int) -> None:
        """Let a port fail: its light goes out."""
        self._failed.add(port)
        self._mark(port)

    def repair(self, port: int) -> None:
        """Let a failed port work again."""
        self._failed.discard(port)
        self._mark(port)

    def _circuits(self) -> frozenset[Circuit]:
        ports = {self._port[key]: self._port[path.ifindex] for key, path in self._paths.items()}
        return frozenset(join(port, other) for port, other in ports.items() if ports.get(other) == port)

    def _join(self, circuit: Circuit, lit_ns: int) -> None:
        for port, other in (circuit.ports, circuit.ports[::-1]):
            self._paths[self._ifindex[port]] = _Path(lit_ns, self._ifindex[other], 0)

    def _part(self, circuit: Circuit) -> None:
        for port in circuit.ports:
            del self._paths[self._ifindex[port]]

    def _mark(self, port: int) -> None:
        """Let the kernel know whether the circuit over a port has a failed one."""
        for circuit in self._circuits():
            if port in circuit.ports:
                failed = int(bool(self._failed & set(circuit.ports)))
                for end in circuit.ports:
                    path = self._paths[self._ifindex[end]]
                    self._paths[self._ifindex[end]] = path._replace(failed=failed)
