"""Transport whose flows share links on their own, as under ideal congestion control.

Flows on the same route have the same rate, so they form a class with a common service curve. A flow ends when
the curve has risen by its size. When flows start or end, only the classes whose rate may change are
recomputed: first the classes on the changed links, then those affected in turn. This stops when every class
again has a full link on which no class is faster. Max-min fairness is the only solution of this bottleneck
condition. An indexed heap holds the next end of each class. An event therefore costs the classes that it
touches and a logarithm, whatever else is in the network.
"""

from __future__ import annotations

import heapq
import math
from typing import Literal, NamedTuple

import numpy as np

from machine.errors import BadInput
from schedulers.compiled import Floats, Ints, Routes, compiled
from simulation.engine import SAME, Finished, SimulationError, checking
from simulation.jobs import Coflow, links_of
from simulation.topology import Topology
from simulation.usage import Usage

Sharing = Literal["max-min", "equal"]
EPS = 1e-9


class Classes(NamedTuple):
    """Classes of flows on the same route, (C,) each; times in s, sizes in bytes.

    Current state: a class has `flows` flows at `rate` each. `served` is its service curve at time `since`;
    its next flow ends when the curve reaches `target`, at time `key`. `heap` holds the classes by `key`,
    `position` their places in it. `bottleneck` is a full link on which no class is faster. `following` and
    `previous` (C * H) chain the classes of each link: node c * H + h stands for hop h of class c. While rates
    are computed: `region` holds the affected classes, `mark` the event for which a class was added, and
    `before` its rate until then. Link usage is recorded up to `recorded`.
    """

    links: Routes
    following: Ints
    previous: Ints
    flows: Floats
    rate: Floats
    before: Floats
    served: Floats
    since: Floats
    target: Floats
    key: Floats
    recorded: Floats
    bottleneck: Ints
    mark: Ints
    position: Ints
    heap: Ints
    region: Ints


def _classes(rows: int, hops: int) -> Classes:
    """Return room for `rows` classes with routes of up to `hops` links."""
    reals, integers = (np.zeros((n, rows)) for n in (8, 5))
    chains = (np.full(rows * hops, -1), np.full(rows * hops, -1))
    return Classes(np.full((rows, hops), -1, np.int32), *chains, *reals, *integers.astype(np.int64))


class Links(NamedTuple):
    """Links, (L,) each; rates in bytes/s.

    Current state: the number of `flows` on a link, how much of its `capacity` is `used`, and in `head` the
    first node of its chain of classes. While rates are computed: `free` is the capacity left for the classes
    that still grow and `pending` the number of their flows; `level` is the rate at which the link filled up.
    `touched` holds the affected links, `seen` the round for which a link was added.
    """

    capacity: Floats
    flows: Floats
    used: Floats
    free: Floats
    level: Floats
    pending: Floats
    head: Ints
    touched: Ints
    seen: Ints


@compiled
def _place(heap: Ints, position: Ints, i: int, item: int) -> None:
    heap[i] = item
    position[item] = i


@compiled
def _sift(heap: Ints, position: Ints, key: Floats, size: int, item: int) -> None:
    """Move `item` of the indexed heap to the position that its key requires."""
    i = position[item]
    while i > 0 and key[item] < key[heap[(i - 1) // 2]]:
        _place(heap, position, i, heap[(i - 1) // 2])
        i = (i - 1) // 2
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and key[heap[child + 1]] < key[heap[child]]:
            child += 1
        if key[heap[child]] >= key[item]:
            break
        _place(heap, position, i, heap[child])
        i = child
    _place(heap, position, i, item)


@compiled
def _attach(c: int, links: Routes, head: Ints, following: Ints, previous: Ints) -> None:
    """Put class `c` on the list of each of its links; node c * H + h stands for hop h."""
    hops = links.shape[1]
    for h in range(hops):
        link = links[c, h]
        if link < 0:
            break
        node = c * hops + h
        following[node] = head[link]
        previous[node] = -1
        if head[link] >= 0:
            previous[head[link]] = node
        head[link] = node


@compiled
def _detach(c: int, links: Routes, head: Ints, following: Ints, previous: Ints) -> None:
    hops = links.shape[1]
    for h in range(hops):
        link = links[c, h]
        if link < 0:
            break
        node = c * hops + h
        if previous[node] >= 0:
            following[previous[node]] = following[node]
        else:
            head[link] = following[node]
        if following[node] >= 0:
            previous[following[node]] = previous[node]


@compiled
def _join(which: Ints, now: float, served: Floats, classes: Classes, links: Links) -> None:
    """Add a flow to each of the classes `which` (F,), where one may be named several times. `served` (F,)
    gets the service curve of each at `now`."""
    for i in range(len(which)):
        c = which[i]
        if classes.flows[c] < 0.5:
            _attach(c, classes.links, links.head, classes.following, classes.previous)
            classes.served[c] = 0.0
            classes.since[c] = now
            classes.rate[c] = 0.0
        served[i] = classes.served[c] + classes.rate[c] * (now - classes.since[c])
        classes.flows[c] += 1.0
        for link in classes.links[c]:
            if link < 0:
                break
            links.flows[link] += 1.0
            links.used[link] += classes.rate[c]


@compiled
def _leave(c: int, flows: int, target: float, size: int, classes: Classes, links: Links) -> None:
    """Take `flows` out of class `c`, whose next flow ends at `target` (infinite: it has none), and move it in
    the heap of `size` classes."""
    classes.flows[c] -= flows
    for link in classes.links[c]:
        if link < 0:
            break
        links.flows[link] -= flows
        links.used[link] -= flows * classes.rate[c]
    if target < np.inf:
        classes.target[c] = target
        classes.key[c] = classes.since[c] + (target - classes.served[c]) / classes.rate[c]
    else:
        _detach(c, classes.links, links.head, classes.following, classes.previous)
        classes.rate[c] = 0.0
        classes.key[c] = np.inf
    _sift(classes.heap, classes.position, classes.key, size, c)


@compiled
def _include(c: int, n: int, stamp: int, classes: Classes) -> int:
    """Add class `c` to the region of `n` classes unless it is in it; return the new number of classes."""
    if classes.mark[c] == stamp:
        return n
    classes.mark[c] = stamp
    classes.before[c] = classes.rate[c]
    classes.region[n] = c
    return n + 1


@compiled
def _gather(changed: Ints, stamp: int, classes: Classes, links: Links) -> int:
    """Make the classes on the `changed` links the region; return their number."""
    hops = classes.links.shape[1]
    n = 0
    for link in changed:
        node = links.head[link]
        while node >= 0:
            n = _include(node // hops, n, stamp, classes)
            node = classes.following[node]
    return n


@compiled
def _fill(n: int, stamp: int, round_: int, classes: Classes, links: Links) -> int:
    """Fill progressively the capacity that other classes leave to the region's `n` classes; return the number
    of links touched."""
    hops = classes.links.shape[1]
    free, pending, touched = links.free, links.pending, links.touched
    t = 0
    for c in classes.region[:n]:
        classes.bottleneck[c] = -1
        for link in classes.links[c]:
            if link < 0:
                break
            if links.seen[link] != round_:
                links.seen[link] = round_
                touched[t] = link
                t += 1
                free[link] = links.capacity[link] - links.used[link]
                pending[link] = 0.0
                links.level[link] = np.inf
            free[link] += classes.flows[c] * classes.before[c]
            pending[link] += classes.flows[c]
    heap = [(max(free[touched[i]], 0.0) / pending[touched[i]], touched[i]) for i in range(t)]
    heapq.heapify(heap)
    while len(heap) > 0:
        height, link = heapq.heappop(heap)
        if pending[link] < 0.5:
            continue
        now = max(free[link], 0.0) / pending[link]
        if now > height:
            heapq.heappush(heap, (now, link))
            continue
        links.level[link] = height
        node = links.head[link]
        while node >= 0:
            c = node // hops
            if classes.mark[c] == stamp and classes.bottleneck[c] < 0:
                classes.bottleneck[c] = link
                classes.rate[c] = height
                for other in classes.links[c]:
                    if other < 0:
                        break
                    free[other] -= classes.flows[c] * height
                    pending[other] -= classes.flows[c]
            node = classes.following[node]
    return t


@compiled
def _max_min(n: int, stamp: int, classes: Classes, links: Links) -> int:
    """Restore max-min fairness around the region's `n` classes; return how many classes were recomputed."""
    hops = classes.links.shape[1]
    rate, following = classes.rate, classes.following
    rounds = 0
    while True:
        rounds += 1
        t = _fill(n, stamp, stamp * 4096 + rounds, classes, links)
        grown = n
        for link in links.touched[:t]:
            fastest = 0.0
            node = links.head[link]
            while node >= 0:
                if classes.mark[node // hops] == stamp:
                    fastest = max(fastest, rate[node // hops])
                node = following[node]
            slack = links.free[link] > EPS * links.capacity[link]
            node = links.head[link]
            while node >= 0:
                c = node // hops
                if rate[c] > links.level[link] * (1.0 + EPS) or (
                    classes.bottleneck[c] == link and (slack or fastest > rate[c] * (1.0 + EPS))
                ):
                    grown = _include(c, grown, stamp, classes)
                node = following[node]
        if grown == n:
            break
        n = grown
    for link in links.touched[:t]:
        links.used[link] = links.capacity[link] - links.free[link]
    return n


@compiled
def _equal(n: int, classes: Classes, links: Links) -> None:
    """Give each flow of the region's `n` classes an equal share of its most contended link."""
    for c in classes.region[:n]:
        classes.rate[c] = np.inf
        for link in classes.links[c]:
            if link < 0:
                break
            classes.rate[c] = min(classes.rate[c], links.capacity[link] / links.flows[link])


@compiled
def _reschedule(n: int, now: float, size: int, classes: Classes) -> None:
    """Advance the service curves of the region's `n` classes to `now` at their old rates, and update their
    next ends in the heap of `size` classes."""
    served, rate = classes.served, classes.rate
    for c in classes.region[:n]:
        served[c] += classes.before[c] * (now - classes.since[c])
        classes.since[c] = now
        left = max(classes.target[c] - served[c], 0.0)
        classes.key[c] = now + left / rate[c] if rate[c] > 0.0 else np.inf
        _sift(classes.heap, classes.position, classes.key, size, c)


@compiled
def _repair(
    changed: Ints, max_min: bool, now: float, stamp: int, size: int, classes: Classes, links: Links
) -> int:
    """Recompute the rates and ends of the classes that the `changed` links affect; return the number of these
    classes."""
    n = _gather(changed, stamp, classes, links)
    if not max_min:
        _equal(n, classes, links)
    elif n:
        n = _max_min(n, stamp, classes, links)
    for link in changed:
        if links.head[link] < 0:
            links.used[link] = 0.0
    _reschedule(n, now, size, classes)
    return n


class SharedTransport:
    """Share links among flows without a scheduler. `sharing` selects max-min fairness or equal shares of each
    flow's most contended link.

    Flows that would end within `resolution` (s) of each other end together, which saves events in dense
    networks. `check` asserts at each event that capacities hold and that each class has a bottleneck. `usage`
    records link usage.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        sharing: Sharing = "max-min",
        resolution: float = 0.0,
        check: bool | None = None,
        usage: Usage | None = None,
    ) -> None:
        if sharing not in ("max-min", "equal"):
            raise BadInput(f"sharing {sharing!r} is unknown; use max-min or equal")
        self.topology = topology
        self.sharing = sharing
        self.resolution = resolution
        self.check = checking(check)
        self.usage = usage
        self.classes_touched = 0
        n_links = len(topology.capacity)
        reals, integers = np.zeros((5, n_links)), np.zeros((2, n_links), np.int64)
        self._links = Links._make([topology.capacity, *reals, np.full(n_links, -1), *integers])
        self._class_of: dict[bytes, int] = {}
        self._classes = _classes(64, 2)
        self._n = 0
        self._stamp = 0
        self._ends: list[list[tuple[float, int, int]]] = []  # per class: service at its end, coflow, flow
        self._left: dict[int, int] = {}
        self._times: dict[int, Floats] = {}
        self._changed: set[int] = set()
        self._dirty: set[int] = set()

    def start(self, handle: int, job: int, coflow: Coflow, now: float) -> None:
        """See Transport."""
        count = len(coflow.size)
        which = self._classes_of(self._routes(handle, coflow), now)
        self._left[handle] = count
        self._times[handle] = np.full(count, np.nan)
        if self.usage is not None:
            self._record(np.unique(which), now)
        served = np.zeros(count)
        _join(which, now, served, self._classes, self._links)
        for flow, (c, end) in enumerate(zip(which.tolist(), (served + coflow.size).tolist(), strict=True)):
            heapq.heappush(self._ends[c], (end, handle, flow))
        self._touch(which)

    def next_event(self) -> float:
        """See Transport."""
        return float(self._classes.key[self._classes.heap[0]]) if self._n else math.inf

    def advance(self, now: float) -> list[Finished]:
        """See Transport."""
        finished: list[Finished] = []
        limit = now + max(SAME * abs(now), self.resolution)
        classes, left = self._classes, []
        while self._n:
            c = int(classes.heap[0])
            if not classes.key[c] <= limit:
                break
            # The curve at the class's own end, not at `now`: with a resolution the end may be slightly later.
            elapsed = max(classes.key[c], now) - classes.since[c]
            reached = max(classes.served[c] + classes.rate[c] * elapsed, self._ends[c][0][0])
            ended = 0
            while self._ends[c] and self._ends[c][0][0] <= reached:
                _, handle, flow = heapq.heappop(self._ends[c])
                ended += 1
                self._times[handle][flow] = now
                self._left[handle] -= 1
                if not self._left[handle]:
                    del self._left[handle]
                    finished.append(Finished(handle, now, 0.0, self._times.pop(handle)))
            if self.usage is not None:
                self._record(np.array([c]), now)
            _leave(
                c, ended, self._ends[c][0][0] if self._ends[c] else math.inf, self._n, classes, self._links
            )
            left.append(c)
        if left:
            self._touch(np.array(left))
        return finished

    def decide(self, now: float) -> None:
        """See Transport."""
        if not self._changed:
            return
        classes = self._classes
        self._stamp += 1
        changed = np.array(sorted(self._changed))
        self._changed.clear()
        for c in self._dirty:
            if self._ends[c]:
                classes.target[c] = self._ends[c][0][0]
        self._dirty.clear()
        n = _repair(changed, self.sharing == "max-min", now, self._stamp, self._n, classes, self._links)
        if self.usage is not None:
            self._record(classes.region[:n], now, classes.before)
        self.classes_touched += n
        if self.check:
            self._assert_shares()

    def job_done(self, job: int) -> None:
        """See Transport."""

    def rates(self) -> dict[tuple[int, ...], float]:
        """Return the rate of a single flow for each route in use, bytes/s."""
        return {tuple(map(int, self._route(c))): float(self._classes.rate[c]) for c in self._active()}

    def _routes(self, handle: int, coflow: Coflow) -> Routes:
        """The links of each flow of a coflow that starts now, (F, hops)."""
        return links_of(coflow, self.topology)

    def _attach(self, c: int) -> None:
        classes = self._classes
        _attach(c, classes.links, self._links.head, classes.following, classes.previous)

    def _active(self) -> list[int]:
        return [c for c in range(self._n) if self._ends[c]]

    def _route(self, c: int) -> Routes:
        links = self._classes.links[c]
        route: Routes = links[links >= 0]
        return route

    def _record(self, which: Ints, now: float, rate: Floats | None = None) -> None:
        """Record the link usage of the classes `which` since it was last recorded, at `rate` (default: their
        own)."""
        assert self.usage is not None
        classes = self._classes
        rate = classes.rate if rate is None else rate
        self.usage.add_classes(which, len(which), classes.links, classes.flows, rate, classes.recorded, now)

    def _touch(self, which: Ints) -> None:
        """Note that flows of the classes `which` have come or gone."""
        self._dirty.update(which.tolist())
        links = self._classes.links[which]
        self._changed.update(links[links >= 0].tolist())

    def _classes_of(self, routes: Routes, now: float) -> Ints:
        """The class of each route, (F,)."""
        raw, width = routes.tobytes(), routes.shape[1] * routes.itemsize
        which = np.zeros(len(routes), np.int64)
        for flow in range(len(routes)):
            key = raw[flow * width : (flow + 1) * width]
            c = self._class_of.get(key)
            if c is None:
                c = self._class_of[key] = self._add_class(routes[flow], now)
            which[flow] = c
        return which

    def _add_class(self, route: Routes, now: float) -> int:
        c = self._n
        rows, hops = self._classes.links.shape
        if c == rows or len(route) > hops:
            self._grow(2 * rows if c == rows else rows, max(hops, len(route)))
        classes = self._classes
        classes.links[c, : len(route)] = route
        classes.since[c] = now
        classes.key[c] = math.inf
        classes.position[c] = classes.heap[c] = c
        classes.bottleneck[c] = -1
        self._n += 1
        self._ends.append([])
        return c

    def _grow(self, rows: int, hops: int) -> None:
        old, new = self._classes, _classes(rows, hops)
        new.links[: len(old.links), : old.links.shape[1]] = old.links
        for name in set(Classes._fields) - {"links", "following", "previous"}:
            getattr(new, name)[: len(old.links)] = getattr(old, name)
        self._classes = new
        self._links.head[:] = -1
        for c in self._active():
            self._attach(c)

    def _assert_shares(self) -> None:
        classes, capacity = self._classes, self.topology.capacity
        load, fastest = np.zeros(len(capacity)), np.zeros(len(capacity))
        for c in self._active():
            rate, route = classes.rate[c], self._route(c)
            if len(self._ends[c]) != classes.flows[c] or not rate > 0.0:
                raise SimulationError(
                    f"conservation: class {c} counts {classes.flows[c]} flows at {rate} bytes/s"
                )
            load[route] += classes.flows[c] * rate
            fastest[route] = np.maximum(fastest[route], rate)
        if (load > capacity * (1 + 1e-6)).any():
            raise SimulationError(f"link {int(np.argmax(load / capacity))} carries more than its capacity")
        if self.sharing == "max-min":
            full = load >= capacity * (1 - 1e-6)
            for c in self._active():
                route = self._route(c)
                if not (full[route] & (classes.rate[c] >= fastest[route] * (1 - 1e-6))).any():
                    raise SimulationError(f"class {c} has no bottleneck: the shares are not max-min fair")
