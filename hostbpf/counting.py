"""What each flow of a host sends over time, and when its job's iterations begin."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hostbpf.clock import SlotClock
from hostbpf.flows import FlowReader, reading_flows
from hostbpf.rates.meter import Meter, metered
from hostbpf.scheduling.monitor import Direction, Monitor, Phase
from machine.errors import BadInput
from wire.flow import Flow

BIN_MS_LEAST, BIN_MS_MOST = 0.5, 1000.0
BIN_MS = 2.0
"""Default width of a bin. A flow has the link's rate within, or nothing, for most of its bins."""


@dataclass
class FlowCount:
    """What a flow has sent: payload bytes by bin, in which it sent any.

    `mark` is its socket's, `job` what its process calls the job; 0 and "" if unknown. `begins` says by number
    when iterations began, in ns after the epoch of slots.
    """

    mark: int = 0
    job: str = ""
    sent: dict[int, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)


@dataclass
class Counts:
    """What flows have sent in bins `first` to `end` - 1. Bin k begins k * `bin_ns` after slots' epoch."""

    bin_ns: int
    first: int
    end: int
    flows: dict[Flow, FlowCount]


class FlowCounter:
    """Counts a host's flows. Call `look` more often than iterations begin to send, which makes their
    beginnings exact, and `take` a few times a second."""

    def __init__(
        self, clock: SlotClock, meter: Meter, progress: Monitor, sockets: FlowReader, netns: str | None
    ) -> None:
        self._clock, self._meter, self._progress = clock, meter, progress
        self._sockets, self._netns = sockets, netns
        self._next = clock.slot() + 1
        self._jobs: dict[Flow, str] = {}
        self._iterations: dict[Flow, int] = {}
        self._begins: dict[Flow, dict[int, int]] = defaultdict(dict)

    def look(self) -> None:
        """Note which iterations have begun."""
        now = time.monotonic_ns()
        for each in self._progress.read():
            if each.direction is not Direction.SENT:
                continue
            self._jobs[each.flow] = each.job
            # The one in which a flow is first seen may have begun long before.
            if each.iteration > self._iterations.setdefault(each.flow, each.iteration):
                self._iterations[each.flow] = each.iteration
                # An iteration computes first, so nothing else has been published since its beginning.
                began = each.updated_ns if each.phase is Phase.COMPUTING else now
                self._begins[each.flow][each.iteration] = began - self._clock.epoch_ns

    def take(self) -> Counts:
        """Return what was sent in the bins that have ended since the last call."""
        first, self._next = self._next, max(self._next, self._clock.slot() - 1)
        marks = {
            Flow(each.source, each.source_port, each.destination, each.destination_port): each.job
            for each in self._sockets.read(self._netns)
        }
        begins, self._begins = self._begins, defaultdict(dict)
        flows: dict[Flow, FlowCount] = {
            flow: FlowCount(marks.get(flow, 0), self._jobs.get(flow, ""), {}, found)
            for flow, found in begins.items()
        }
        for (flow, bin_), sent in self._meter.take(self._next).items():
            if bin_ >= first:
                count = flows.setdefault(flow, FlowCount(marks.get(flow, 0), self._jobs.get(flow, "")))
                count.sent[bin_] = sent.payload_bytes
        return Counts(self._clock.slot_ns, first, self._next, flows)


@contextlib.contextmanager
def counting(
    ifindex: int, bin_ms: float, *, netns: str | None = None, progress: Path | None = None
) -> Iterator[FlowCounter]:
    """Within, what leaves interface `ifindex` of `netns` is counted.

    `progress` is where training processes publish (None: what the environment says). Raises BadInput for a
    width that cannot be, EbpfError if the meter cannot be attached.
    """
    if not BIN_MS_LEAST <= bin_ms <= BIN_MS_MOST:
        raise BadInput(f"bin_ms {bin_ms}: must be from {BIN_MS_LEAST} to {BIN_MS_MOST}")
    clock = SlotClock.shared(bin_ms)
    with (
        metered(clock, ifindex, netns=netns) as meter,
        Monitor(progress, netns) as monitor,
        reading_flows() as sockets,
    ):
        yield FlowCounter(clock, meter, monitor, sockets, netns)
