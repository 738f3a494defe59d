"""What happens while a run lasts, in time: the jobs' throughput on links, the windows of their flows.

Throughput is counted in the network, by a meter (`hostbpf.rates.meter`) at every link between switches, in
payload bytes per flow and bin. Windows, and MLTCP's F, are read from the senders' sockets at each look.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hostbpf.clock import SlotClock
from hostbpf.flows import FlowReader, FlowState, reading_flows
from hostbpf.rates.meter import Meter, metered
from mininet_topos.network import FabricPort
from wire.flow import Flow


@dataclass(frozen=True)
class Throughput:
    """A job on a link: `mbps[i]` is its payload in Mbit/s from i to i + 1 bins after the run's beginning."""

    link: str
    job: str
    bin_ms: float
    mbps: tuple[float, ...]


@dataclass(frozen=True)
class Window:
    """A sender at a moment of the run: its congestion window (segments), MLTCP's F (None: it has none), and
    how many segments were sent again, and acknowledged as marked (ECN), so far."""

    time_s: float
    job: str
    host: str
    cwnd: int
    gain: float | None
    retransmitted: int
    marked: int


class Sampler:
    """Records a run: `look` from time to time, `throughput` and `windows` when it has ended."""

    def __init__(
        self, clock: SlotClock, meters: Mapping[str, Meter], reader: FlowReader, hosts: Mapping[str, str]
    ) -> None:
        self._clock, self._meters, self._reader, self._hosts = clock, meters, reader, hosts
        self._seen: list[tuple[int, str, FlowState]] = []

    def look(self) -> None:
        """Note the windows of all flows."""
        for host, netns in self._hosts.items():
            now = time.monotonic_ns()
            self._seen += [(now, host, flow) for flow in self._reader.read(netns)]

    def throughput(self, owners: Mapping[Flow, str], begin_ns: int, end_ns: int) -> tuple[Throughput, ...]:
        """By link and job, from `begin_ns` to `end_ns` (CLOCK_MONOTONIC); `owners` has the flows' jobs."""
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
        """Of the jobs' flows, in order of time."""
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
    """Within, what leaves through `ports` is counted in bins of `bin_ms`; `hosts` are their namespaces' paths
    by name. Raises EbpfError where the meter cannot be attached (it needs Linux 6.6)."""
    clock = SlotClock.shared(bin_ms)
    with contextlib.ExitStack() as stack:
        meters = {port.link: stack.enter_context(metered(clock, port.ifindex)) for port in ports}
        yield Sampler(clock, meters, stack.enter_context(reading_flows()), hosts)
