"""Where a host's scheduler learns what others plan on a flow's path (flow-scheduling paper, IV-A).

Three sources: `InBand` asks the switches by carriers, `hostbpf.emulated.client.Emulated` asks processes that
stand for switches which are not programmable (V), and `HostOnly` asks nobody (VI-H). A path begins with the
host's own outgoing link, which no switch knows, so every source keeps a table of that one link. All count
plans in whole rate units, as carriers do, so the same plans give the same answers.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hostbpf.carriers.carriers import Feedback
from machine.errors import EntrainError
from schedulers.compiled import Floats
from schedulers.slots.table import LoadTable, in_window
from wire.flow import Flow
from wire.slot_header import HEADROOM_OFFSET, LANES, MAX_U32, RATE_UNIT_MBPS, SlotHeader

RATE_UNIT = RATE_UNIT_MBPS * 125_000
"""The unit in which plans are announced, in bytes/s."""
Wait = Callable[[float], None]
"""Has feedback delivered as it comes; returns when some was there, or after so many seconds."""
PATIENCE_S = 0.002
"""How long the flows of one host wait for the answer to another's probe."""


class PathLoads(NamedTuple):
    """What others plan on the path of a flow: the flow's own part is left out. Rates are in bytes/s."""

    flow: Flow
    slot: int
    """The first of the K slots."""
    load: Floats
    """(K,): sum over the links of the path."""
    headroom: Floats
    """(K,): least capacity minus load over the links, at least 0."""
    own: Floats
    """(K,): the same of the first link, the host's."""
    received: int = 0
    """Bytes of the flow that its receiver has; 0: unknown."""
    onward: int = 0
    """Bytes that the receiver has itself sent onward; 0: unknown."""
    delay_s: float = 0.0
    """From asking to the answer: the negotiation delay (VI-G)."""


class LoadSource(Protocol):
    """What the scheduler of one host asks, in one thread."""

    def ask(self, flows: Sequence[Flow], slot: int) -> None:
        """Ask about `flows` for the K slots from `slot` on; what was asked before is no longer waited for.

        Flows are asked about in this order.
        """

    def answers(self, timeout_s: float) -> Iterator[PathLoads]:
        """Answers as they come, until all flows have one, or until `timeout_s` after the last was asked.
        After so long, no flow is asked about any more.

        Decide and `tell` before taking the next one: it counts what was told so far, so that the flows of
        a host do not all plan on the same headroom. A later call gives what comes late.
        """

    def tell(self, flow: Flow, slot: int, rates: Floats) -> None:
        """Note that `rates` (K,) from `slot` on are the schedule of `flow` now: answers count it from now on.

        The host's agent alone announces schedules on the network, and takes them back (`Host`).
        """

    def forget(self, flow: Flow) -> None:
        """Note that `flow` has ended, and plans nothing."""

    def problems(self) -> dict[str, str]:
        """What keeps answers away, by the flow or switch that it concerns; empty when all is well."""

    def awaits(self, flow: Flow) -> bool:
        """Whether feedback about `flow` is of use now; may be called from any thread."""

    def deliver(self, feedback: Feedback) -> None:
        """Take feedback of carriers, which says how far receivers are; may be called from any thread."""


class Prober(Protocol):
    """The part of `hostbpf.carriers.carriers.Carriers` that asks."""

    def probe(self, flow: Flow) -> None:
        """Send a carrier for `flow` now."""


def in_units(rates: Floats) -> Floats:
    """Rates in bytes/s as they are announced: whole rate units, rounded down."""
    units: Floats = np.floor(np.rint(rates) / RATE_UNIT)
    return units


class OwnLink:
    """What the flows of one host plan on its outgoing link, of `capacity` bytes/s."""

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._table = LoadTable(np.array([capacity]), LANES)

    def begin(self, slot: int) -> None:
        """Move the window to begin at `slot`; back only after the clock was set back, with no plans left."""
        if slot < self._table.slot:
            self._table = LoadTable(np.array([self._capacity]), LANES)
        self._table.advance(slot)

    def tell(self, flow: Flow, slot: int, rates: Floats) -> None:
        """Take the schedule of `flow` from `slot` on."""
        self._table.update(flow, _THE_LINK, in_units(rates) * RATE_UNIT, slot)

    def forget(self, flow: Flow) -> None:
        """Drop what `flow` plans."""
        self._table.remove(flow)

    def before(self, rest: PathLoads) -> PathLoads:
        """The loads of the whole path, of which `rest` are those behind this link."""
        load, headroom = self._table.ask(rest.flow, _THE_LINK)
        if rest.slot != self._table.slot:
            load = in_window(load, self._table.slot, rest.slot, LANES)
            headroom = np.maximum(self._capacity - load, 0.0)
        return rest._replace(
            load=rest.load + load, headroom=np.minimum(rest.headroom, headroom), own=headroom
        )


_THE_LINK = np.array([0])
_BOUNDLESS = np.full(LANES, np.inf)


def unloaded(flow: Flow, slot: int) -> PathLoads:
    """The loads of a path without links."""
    return PathLoads(flow, slot, np.zeros(LANES), _BOUNDLESS, _BOUNDLESS)


class Receivers:
    """How far the receivers of this host's flows are, where it is not the switches that carriers ask.

    A flow's own packets lead carriers anyway. Where the network drops them, the progress stays unknown.
    """

    def __init__(self) -> None:
        self._progress: dict[Flow, tuple[int, int]] = {}

    def awaits(self, flow: Flow) -> bool:
        """Whether the progress of `flow` is of use."""
        return flow in self._progress

    def deliver(self, feedback: Feedback) -> None:
        """Take feedback; may be called from any thread."""
        if self.awaits(feedback.flow):
            self._progress[feedback.flow] = feedback.header.bytes_received, feedback.header.bytes_onward

    def expect(self, flows: Sequence[Flow]) -> None:
        """Take the progress of `flows` from now on."""
        for flow in flows:
            self._progress.setdefault(flow, (0, 0))

    def added(self, loads: PathLoads) -> PathLoads:
        """`loads` with the progress of the flow's receiver."""
        received, onward = self._progress.get(loads.flow, (0, 0))
        return loads._replace(received=received, onward=onward)

    def forget(self, flow: Flow) -> None:
        """Drop what is known of `flow`."""
        self._progress.pop(flow, None)


class HostOnly:
    """Tables in the host alone: a flow's path counts as its host's outgoing link (VI-H)."""

    def __init__(self, capacity: float) -> None:
        self._link = OwnLink(capacity)
        self._receivers = Receivers()
        self.awaits, self.deliver = self._receivers.awaits, self._receivers.deliver
        self._asked: deque[Flow] = deque()
        self._slot = 0

    def ask(self, flows: Sequence[Flow], slot: int) -> None:
        """See LoadSource."""
        self._link.begin(slot)
        self._receivers.expect(flows)
        self._slot = slot
        self._asked = deque(flows)

    def answers(self, timeout_s: float) -> Iterator[PathLoads]:
        """See LoadSource; all answers are there at once."""
        while self._asked:
            loads = unloaded(self._asked.popleft(), self._slot)
            yield self._receivers.added(self._link.before(loads))

    def tell(self, flow: Flow, slot: int, rates: Floats) -> None:
        """See LoadSource."""
        self._link.tell(flow, slot, rates)

    def forget(self, flow: Flow) -> None:
        """See LoadSource."""
        self._link.forget(flow)
        self._receivers.forget(flow)

    def problems(self) -> dict[str, str]:
        """See LoadSource; nobody is asked who could fail."""
        return {}


class InBand:
    """Load tables of P4 switches, asked by carriers on the flow's own path.

    One flow is probed after the other, each when the plan of the one before is announced: which links two
    flows share is known to nobody but the switches. Who asks waits for feedback itself: another thread that
    handed it over would cost more than the decision. `wait` calls `deliver`.
    """

    def __init__(self, carriers: Prober, capacity: float, wait: Wait, patience_s: float = PATIENCE_S) -> None:
        """`capacity` (bytes/s) is that of the host's link; after `patience_s` the next flow is probed."""
        self._carriers = carriers
        self._wait = wait
        self._patience_s = patience_s
        self._link = OwnLink(capacity)
        self._slot = 0
        self._waiting: deque[Flow] = deque()  # not probed yet
        self._probed: dict[Flow, float] = {}  # when
        self._last_probe = 0.0
        self._arrived: deque[tuple[float, Feedback]] = deque()
        self._problems: dict[str, str] = {}

    def awaits(self, flow: Flow) -> bool:
        """See LoadSource."""
        return flow in self._probed

    def deliver(self, feedback: Feedback) -> None:
        """Take feedback; may be called from any thread."""
        if self.awaits(feedback.flow):
            self._arrived.append((time.monotonic(), feedback))

    def ask(self, flows: Sequence[Flow], slot: int) -> None:
        """See LoadSource."""
        self._link.begin(slot)
        self._slot = slot
        self._probed.clear()
        self._arrived.clear()
        self._wait(0.0)  # feedback to carriers before, which nobody awaits any more
        self._waiting = deque(flows)
        self._probe_next()

    def answers(self, timeout_s: float) -> Iterator[PathLoads]:
        """See LoadSource."""
        began = time.monotonic()
        while self._waiting or self._probed:
            if not self._arrived:
                now = time.monotonic()
                until = self._last_probe + (self._patience_s if self._waiting else timeout_s)
                if now < until:
                    self._wait(until - now)
                elif not self._waiting:
                    return
                elif now < began + timeout_s:
                    self._probe_next()
                else:
                    self._waiting.clear()
                continue
            at, feedback = self._arrived.popleft()
            asked = self._probed.get(feedback.flow)
            if asked is None or feedback.header.base_slot < self._slot:
                continue
            del self._probed[feedback.flow]
            yield self._link.before(others(feedback, at - asked))
            self._probe_next()

    def _probe_next(self) -> None:
        if self._waiting:
            flow = self._waiting.popleft()
            self._last_probe = self._probed[flow] = time.monotonic()
            try:
                self._carriers.probe(flow)
                self._problems.pop(str(flow), None)
            except EntrainError as error:
                self._problems[str(flow)] = str(error)

    def problems(self) -> dict[str, str]:
        """See LoadSource."""
        return dict(self._problems)

    def tell(self, flow: Flow, slot: int, rates: Floats) -> None:
        """See LoadSource; the switches know the schedule from the agent's carrier."""
        self._link.tell(flow, slot, rates)

    def forget(self, flow: Flow) -> None:
        """See LoadSource."""
        self._link.forget(flow)
        self._waiting = deque(each for each in self._waiting if each != flow)
        self._probed.pop(flow, None)
        self._problems.pop(str(flow), None)


def others(feedback: Feedback, delay_s: float = 0.0) -> PathLoads:
    """What feedback says without the flow's own part, behind the host's link; it took `delay_s` to come.

    Each switch on the path has counted the flow's part once, so the path load falls by hops times the part.
    What is left on every link rises by the part, so the least does.
    """
    header: SlotHeader = feedback.header
    hops, first = header.hops, header.base_slot % LANES
    load, headroom = [], []
    for (_, gathered, room), part in zip(
        header.lanes[first:] + header.lanes[:first],
        feedback.announced[first:] + feedback.announced[:first],
        strict=True,
    ):
        set_by_switch = room != MAX_U32
        load.append(max(gathered - hops * part, 0) if set_by_switch else 0)
        headroom.append(max(room - HEADROOM_OFFSET + part, 0) if set_by_switch else math.inf)
    return PathLoads(
        feedback.flow,
        header.base_slot,
        np.array(load) * float(RATE_UNIT),
        np.array(headroom) * float(RATE_UNIT),
        _BOUNDLESS,
        header.bytes_received,
        header.bytes_onward,
        delay_s,
    )
