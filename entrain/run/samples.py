"""Sample a run over time: the jobs' throughput per link, and their flows' congestion windows.

A meter (`hostbpf.rates.meter`) at each link between switches counts payload bytes per flow and bin.
Windows, and MLTCP's F, are read from the senders' sockets.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostbpf.clock import SlotClock
from hostbpf.flows import FlowReader, FlowState, reading_flows
from hostbpf.rates.meter import Meter, metered
from wire.flow import Flow

if TYPE_CHECKING:  # results are read without Mininet
    from mininet_topos.network import FabricPort


@dataclass(frozen=True)
class Throughput:
    """A job's throughput on a link: `mbps[i]` is its payload in Mbit/s in bin i, counted from the start."""

    link: str
    job: str
    bin_ms: float
    mbps: tuple[float, ...]


@dataclass(frozen=True)
class Window:
    """The state of one sender at one time of the run."""

    time_s: float
    job: str
    host: str
    cwnd: int
    """Congestion window in segments."""
    gain: float | None
    """MLTCP's F, or None without MLTCP."""
    retransmitted: int
    """Segments retransmitted so far."""
    marked: int
    """Segments acknowledged with an ECN mark so far."""


class Sampler:
    """Samples a run: call `look` regularly, and `throughput` and `windows` at the end."""

    def __init__(
        self, clock: SlotClock, meters: Mapping[str, Meter], reader: FlowReader, hosts: Mapping[str, str]
    ) -> None:
        self._clock, self._meters, self._reader, self._hosts = clock, meters, reader, hosts
        self._seen: list[tuple[int, str, FlowState]] = []

    def look(self) -> None:
        """Record the windows of all flows."""
        for host, netns in self._hosts.items():
            now = time.monotonic_ns()
            self._seen += [(now, host, flow) for flow in self._reader.read(netns)]

    def throughput(self, owners: Mapping[Flow, str], begin_ns: int, end_ns: int) -> tuple[Throughput, ...]:
        """Return throughput by link and job between two times (CLOCK_MONOTONIC); `owners`: job by flow."""
        first = self._clock.slot(begin_ns)
        number = self._clock.slot(end_ns) - first + 1
        to_mbps = 8e3 / self._clock.slot_ns
        found = []
        for link, meter in self._meters.items():
            jobs: dict[str, list[float]] = defaultdict(lambda: [0.0] * number)
            for (flow, slot), sent in meter.read().items():
                job = owners.get(Flow(*flow))
                if job is not None and 0 <= slot - first < number:
                    jobs[job][slot - first] += sent.payload_bytes * to_mbps
            found += [
                Throughput(link, job, self._clock.slot_ns / 1e6, tuple(jobs[job])) for job in sorted(jobs)
            ]
        return tuple(found)

    def windows(self, owners: Mapping[Flow, str], begin_ns: int) -> tuple[Window, ...]:
        """Return the windows of the flows in `owners`, in order of time since `begin_ns`."""
        return tuple(
            Window(
                (when - begin_ns) / 1e9,
                owners[flow],
                host,
                state.cwnd,
                state.gain,
                state.retransmitted,
                state.marked,
            )
            for when, host, state in self._seen
            if (flow := Flow(state.source, state.source_port, state.destination, state.destination_port))
            in owners
        )


@contextlib.contextmanager
def sampling(bin_ms: float, ports: Sequence[FabricPort], hosts: Mapping[str, str]) -> Iterator[Sampler]:
    """Count the traffic that leaves through `ports` in bins of `bin_ms`.

    `hosts` maps the hosts' names to the paths of their network namespaces. Raises EbpfError if the meter
    cannot be attached.
    """
    clock = SlotClock.shared(bin_ms)
    with contextlib.ExitStack() as stack:
        meters = {port.link: stack.enter_context(metered(clock, port.ifindex)) for port in ports}
        yield Sampler(clock, meters, stack.enter_context(reading_flows()), hosts)
