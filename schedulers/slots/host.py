"""The slot scheduler's decisions (flow-scheduling paper, IV): no thread, no clock, no I/O.

Two drivers run it: a host's agent with real feedback (`hostbpf.scheduling.thread`), and the simulator with
simulated feedback (`simulation.slotted`). Whoever drives it takes a `Round` of decisions, gets feedback on
one flow after the other in `Round.order`, and announces each schedule before it asks about the next flow.
"""

from __future__ import annotations

import functools
import math
import zlib
from dataclasses import dataclass

import numpy as np

from schedulers.compiled import Floats, Ints
from schedulers.slots import table
from schedulers.slots.kernels import FLOOR as FLOOR
from schedulers.slots.kernels import FLOW as FLOW
from schedulers.slots.kernels import HORIZON, RULES, Flows, Rules, begin_round, decide, observe, order

SLOT_S = 0.06
"""Length of a slot, seconds."""
RESERVED = 2
"""Slots that a flow plans: the present one, and the next one up to its next decision. What it took of later
slots would be missing for flows that come before it in the order by then."""
WINDOW = 4
"""Decisions over which the largest rate that a path carried bounds the next ones (IV-B, IV-C)."""
CROWDED_S = 1.92
"""Time without room for half of the link, less that with room, after which a flow doubts that what others
have announced comes, seconds: with short slots other jobs' bursts last as long."""
BEYOND = 8
"""As how many slots one counts in which there is no room later either, where agents do not plan yet."""
CARRIED = 0.75
"""Part of the link that a path carries only if others do not send: beside them TCP gives a flow half."""
STARVED_S = 3.84
"""Seconds without a slot with room for half of the link after which a flow takes its part of that half."""
PAYLOAD = 0.95
"""Part of a link's rate that is planned: headers, acknowledgements and carriers need the rest (a full
segment's payload is 0.956 of its frame)."""
CLASSES = 16
"""Size classes of the order of decisions: powers of √2 from one slot of the link's bytes to 180 slots."""
STAGED = 0.5
"""How much what is left to and from parameter servers counts in the order of decisions. Such a job's flows
wait for one another, so that jobs behind it fill its gaps. A ring's flows leave none."""
REDRAW = 32
"""Slots after which the order within a size class is drawn anew, so that no job is last for ever."""
BEGIN, SPREAD = 0.5, 0.8
"""Parts of a slot between which the jobs' turns come. The later they are, the fewer jobs begin to send after
others have planned the next slot. The last one has announced before that."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of the slot scheduler; the defaults are those of the agent.

    Raises ValueError for values that make no sense.
    """

    slot_s: float = SLOT_S
    """Length of a slot, seconds."""
    horizon: int = HORIZON
    """Slots that schedules and feedback cover (K)."""
    reserved: int = RESERVED
    """Slots that a flow may plan once its job's turn has come; `horizon`: Algorithm 1 as in the paper."""
    partial: int = RESERVED
    """Slots that a flow plans of those `reserved` if they cannot hold all that it has to send."""
    price: float = 1.0
    """Weight of the dual price λ in Algorithm 1."""
    payload: float = PAYLOAD
    """Part of a link's rate that is planned."""
    window: int = WINDOW
    """Decisions over which the bound B looks back."""
    classes: int = CLASSES
    """Size classes of the order of decisions; 1: the order is drawn."""
    staged: float = STAGED
    """How much what is left to and from parameter servers counts in the order of decisions."""
    redraw: int = REDRAW
    """Slots after which the order within a size class is drawn anew."""
    begin: float = BEGIN
    """Part of a slot that is over when the first turn comes. Whoever begins to send before it has not missed
    the decisions about the next slot."""
    spread: float = SPREAD
    """Part of a slot within which the jobs' turns come, the first `begin` excepted."""
    hasten: bool = True
    """Whether a flow takes all the room of its last slot instead of spreading its end over the slot. It pays
    where others can decide again within a slot, and so take what is left when the flow is done."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slot_s) and self.slot_s > 0.0):
            raise ValueError(f"a slot of {self.slot_s} s: must be positive")
        counts = {name: getattr(self, name) for name in ("horizon", "partial", "window", "classes", "redraw")}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name} is {count}: must be at least 1")
        if not 1 <= self.reserved <= self.horizon:
            raise ValueError(f"reserved is {self.reserved}: must be from 1 to the horizon, {self.horizon}")
        if not self.price >= 0.0:
            raise ValueError(f"price is {self.price}: must be at least 0")
        if not (math.isfinite(self.staged) and self.staged > 0.0):
            raise ValueError(f"staged is {self.staged}: must be positive")
        if not 0.0 < self.payload <= 1.0 or not 0.0 <= self.spread <= 1.0:
            raise ValueError(
                f"payload {self.payload} and spread {self.spread}: must be parts of 1, payload positive"
            )
        if not 0.0 <= self.begin <= self.spread:
            raise ValueError(f"begin is {self.begin}: must be from 0 to spread, {self.spread}")


def rules_of(parameters: Parameters) -> Rules:
    """Return the parameters that the kernels use, as they read them."""
    rules = np.zeros(1, RULES)
    for name in RULES.names or ():
        rules[name] = getattr(parameters, name)
    return rules


class SlotScheduler:
    """The slot scheduler of one host, or of all hosts of a simulated network."""

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.parameters = Parameters() if parameters is None else parameters
        self.rules = rules_of(self.parameters)

    def draw(self, job: str, slot: int) -> float:
        """Return the position (0 to 1) of `job` within its size class, the same on all hosts."""
        return _draw(job, slot // self.parameters.redraw)

    def ranks(self, left: Floats, link: Floats, draw: Floats, role: Ints) -> Floats:
        """Return the positions (n,) in the order of decisions, 0 to 1: who has less left decides first.

        The paper leaves the order open. Whoever decides first takes the least loaded slots. `left` is what
        the flow's job has yet to send from its host in this iteration (bytes), `link` the rate of the host's
        link (bytes/s), `role` the flow's role.
        """
        ranks: Floats = np.empty(len(left))
        order(left, link, draw, role, self.rules, ranks)
        return ranks

    def places(self, ranks: Floats) -> Floats:
        """Return when in a slot (0 to 1) the turns of flows with these ranks come."""
        its = self.parameters
        return its.begin + ranks * (its.spread - its.begin)

    def round(self, flows: Flows, due: Ints, planned: Floats, passed: float = 1.0) -> Round:
        """Begin a round of decisions for the rows `due` of `flows`.

        `planned` (n, at least `reserved`) is what each row has planned from the present slot on; `passed` is
        the part of the present slot that is over: later turns have not come.
        """
        reserved = np.ascontiguousarray(planned[:, : self.parameters.reserved])
        return Round(self, flows, due, reserved, passed)

    def unobserved(self, link: float) -> Floats:
        """Return the observations (window,) of a flow that has sent nothing yet."""
        return np.full(self.parameters.window, self.parameters.payload * link)

    def observed(
        self, seen: Floats, link: Floats, planned: Floats, achieved: Floats, others: Floats
    ) -> Floats:
        """Return `seen` (n, window) with one more observation; the maximum of a row is the bound B.

        `planned` and `achieved` (n,) are mean rates since the last one, `others` what others had planned on
        the path's tightest link. A flow that got what it asked for says nothing about the path's limit, so
        that counts as the line rate, as do slots before the first.
        """
        after: Floats = np.empty(seen.shape)
        observe(seen, link, planned, achieved, others, self.rules, after)
        return after


@functools.lru_cache(1024)
def _draw(job: str, number: int) -> float:
    return zlib.crc32(f"{job} {number}".encode()) / 2**32


@dataclass
class Doubt:
    """Whether what others have announced on a flow's path comes: it need not (docs/security.md).

    In the paper a flow without headroom waits. So whoever announces the rate of a link and sends nothing
    would stop every flow on it. Here a flow tries its part of all of the link for a slot, once there was
    no room for `CROWDED_S` longer than there was room. If its path carries that, others do not send what they
    have announced, and the flow goes on like this. If not, it waits for as long again. After `STARVED_S`
    without a slot with room it takes its part of half of the link in between.
    """

    slots: int = 0
    """Slots in which the path had no room, less those in which it had."""
    row: int = 0
    """Those without room in a row."""
    full: int = -1
    """The last slot without room."""
    roomy: int = -1
    """The last slot with room."""
    tries: bool = False
    """Whether the flow has taken all of the link though there was no room."""

    def observe(self, allowed: float, achieved: float) -> None:
        """Note how much (bytes) of what its schedule allowed a flow that had data has sent."""
        if self.tries and achieved < CARRIED * allowed:
            self.slots = 0

    def share(self, slot: int, headroom: Floats, link: float, parameters: Parameters, flows: int) -> float:
        """Return the rate, bytes/s, that the flow takes whether or not there is room; 0 while it waits.

        Nobody is to make room for that, so it is not to be announced.

        `headroom` (K,) is that of its path from `slot` on, without its own part. `link` is the rate of its
        host's link, on which there are so many `flows`.
        """
        line = parameters.payload * link
        enough = FLOOR * line / flows + link - line
        crowded, starved = round(CROWDED_S / parameters.slot_s), round(STARVED_S / parameters.slot_s)
        near = parameters.reserved
        later = headroom[near : 2 * near].tolist()
        if headroom[0] >= enough:
            if self.roomy != slot:
                self.slots = max(self.slots - 1, 0)
            self.roomy, self.row = slot, 0
        elif slot not in (self.full, self.roomy):
            more = BEYOND if later and max(later) < enough else 1
            self.full = slot
            self.slots = min(self.slots + more, crowded + BEYOND)
            self.row += more
        self.tries = self.slots > crowded
        if self.tries:
            return line / flows
        return FLOOR * line / flows if self.row > starved else 0.0


class Round:
    """One round of decisions: each flow decides once, and sees what those before it have announced.

    `order` are the rows that are due in the order in which they decide: see `kernels.begin_round`.
    """

    def __init__(
        self, scheduler: SlotScheduler, flows: Flows, due: Ints, planned: Floats, passed: float
    ) -> None:
        """See `SlotScheduler.round`."""
        self.parameters = scheduler.parameters
        self._scheduler = scheduler
        self.rules = scheduler.rules
        self.flows = flows
        self.planned = planned
        self.order: Ints = np.empty(len(due), np.int64)
        self.waiting: Floats = np.zeros((len(flows), 2 + planned.shape[1]))
        begin_round(due, flows, planned, self.order, self.waiting)
        self._passed = passed
        self._scratch = np.empty((3, self.parameters.reserved))
        self._rank = np.empty(self.parameters.reserved, np.int64)

    def has_turn(self, flow: int) -> bool:
        """Return whether the turn of row `flow` has come."""
        return self._turns[flow]

    @functools.cached_property
    def _turns(self) -> list[bool]:
        turns: list[bool] = (self._scheduler.places(self.flows["rank"]) <= self._passed).tolist()
        return turns

    def decide(
        self, flow: int, path_load: Floats, headroom: Floats, own: Floats, part: float = 1.0
    ) -> Floats:
        """Return the schedule (K,) of row `flow`, bytes/s, and write its `others`.

        `path_load` and `headroom` (K,) are of the whole path, `own` (K,) is the headroom of its first link,
        the host's; all without the flow's own part. `part` (over 0, at most 1) is what is left of the present
        slot, and the first rate holds for that time.

        The flow's room is the headroom less what headers need. Siblings, flows of one process with one role,
        share their host's link in proportion to what they have left, so that they end together: a server sums
        up what all have sent it. What the undecided ones have planned is shared anew. A flow whose job's turn
        has not come plans the present slot only.
        """
        its = self.parameters
        shapes = {path_load.shape, headroom.shape, own.shape}
        if shapes != {(its.horizon,)}:
            raise ValueError(f"feedback must have {its.horizon} slots, not {shapes}")
        schedule = np.empty(its.horizon)
        decide(
            self.flows,
            flow,
            path_load,
            headroom,
            own,
            its.reserved if self.has_turn(flow) else 1,
            part,
            self.planned,
            self.waiting,
            self.rules,
            schedule,
            self._scratch,
            self._rank,
        )
        return schedule


SCHEDULERS: dict[str, type[SlotScheduler]] = {"smallest-first": SlotScheduler}
"""Slot schedulers by name. All decide by the same kernels; another class may have another order of decisions
(`ranks`, `draw`, `places`), and another view of what paths carried (`observed`)."""

SMALLEST_FIRST = "smallest-first"
"""The slot scheduler of agents that are not told another."""

GROUP = "entrain.slot_schedulers"
"""Entry points at which other distributions register subclasses of `SlotScheduler`."""


def warm_up() -> None:
    """Load the compiled code, or compile it, so that no slot has to wait for that; load tables', too."""
    table.warm_up()
    flows = np.ones(1, FLOW)
    flows["siblings"] = flows["sent"] = 0
    scheduler, one = SlotScheduler(), np.ones(1)
    scheduler.ranks(one, one, one, np.array([0]))
    scheduler.observed(scheduler.unobserved(1.0)[None, :], one, one, one, one)
    first = scheduler.round(flows, np.array([0]), np.zeros((1, HORIZON)))
    first.decide(0, np.zeros(HORIZON), np.ones(HORIZON), np.ones(HORIZON))
