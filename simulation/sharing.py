"""Transport whose flows share links by themselves, as perfect congestion control would have it.

Flows of one route have one rate, so they form a class with a common service curve; a flow ends when the curve
has risen by its size. When flows come or go, only the classes whose rate may change are worked out anew: the
classes on the changed links, and then those that this upsets, until every class again has a full link on
which nobody is faster (the bottleneck condition, which has max-min fairness as its only solution). An indexed
heap holds the next end of each class, so an event costs the classes it touches and a logarithm, whatever else
is in the network.
"""

from __future__ import annotations

import heapq
import math
from typing import Literal

import numpy as np

from machine.errors import BadInput
from schedulers.compiled import Floats, Ints, Routes, compiled
from simulation.engine import SAME, Finished, SimulationError
from simulation.jobs import Coflow
from simulation.topology import Topology
from simulation.usage import Usage

Sharing = Literal["max-min", "equal"]
EPS = 1e-9


@compiled
def _place(heap: Ints, position: Ints, i: int, item: int) -> None:
    heap[i] = item
    position[item] = i


@compiled
def _sift(heap: Ints, position: Ints, key: Floats, size: int, item: int) -> None:
    """Move `item` of the indexed heap to where its key belongs."""
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
def _fill(
    region: Ints,
    n: int,
    links: Routes,
    count: Floats,
    before: Floats,
    rate: Floats,
    bottleneck: Ints,
    head: Ints,
    following: Ints,
    mark: Ints,
    stamp: int,
    capacity: Floats,
    used: Floats,
    free: Floats,
    level: Floats,
    pending: Floats,
    touched: Ints,
    seen: Ints,
    round_: int,
) -> int:
    """Progressive filling of the classes region[:n] in what the others leave; return the number of links
    touched."""
    hops = links.shape[1]
    t = 0
    for i in range(n):
        c = region[i]
        bottleneck[c] = -1
        for link in links[c]:
            if link < 0:
                break
            if seen[link] != round_:
                seen[link] = round_
                touched[t] = link
                t += 1
                free[link] = capacity[link] - used[link]
                pending[link] = 0.0
                level[link] = np.inf
            free[link] += count[c] * before[c]
            pending[link] += count[c]
    heap = [(max(free[touched[i]], 0.0) / pending[touched[i]], touched[i]) for i in range(t)]
    heapq.heapify(heap)
    # grown[l] is not needed: free[l] counts from level 0 what classes that still grow may use.
    while len(heap) > 0:
        height, link = heapq.heappop(heap)
        if pending[link] < 0.5:
            continue
        now = max(free[link], 0.0) / pending[link]
        if now > height:
            heapq.heappush(heap, (now, link))
            continue
        level[link] = height
        node = head[link]
        while node >= 0:
            c = node // hops
            if mark[c] == stamp and bottleneck[c] < 0:
                bottleneck[c] = link
                rate[c] = height
                for other in links[c]:
                    if other < 0:
                        break
                    free[other] -= count[c] * height
                    pending[other] -= count[c]
            node = following[node]
    return t


@compiled
def _max_min(
    region: Ints,
    n: int,
    links: Routes,
    count: Floats,
    before: Floats,
    rate: Floats,
    bottleneck: Ints,
    head: Ints,
    following: Ints,
    mark: Ints,
    stamp: int,
    capacity: Floats,
    used: Floats,
    free: Floats,
    level: Floats,
    pending: Floats,
    touched: Ints,
    seen: Ints,
) -> int:
    """Restore max-min fairness around the classes region[:n]; return how many classes were worked out."""
    hops = links.shape[1]
    rounds = 0
    while True:
        rounds += 1
        round_ = stamp * 4096 + rounds
        t = _fill(
            region,
            n,
            links,
            count,
            before,
            rate,
            bottleneck,
            head,
            following,
            mark,
            stamp,
            capacity,
            used,
            free,
            level,
            pending,
            touched,
            seen,
            round_,
        )
        grown = n
        for i in range(t):
            link = touched[i]
            fastest = 0.0
            node = head[link]
            while node >= 0:
                c = node // hops
                if mark[c] == stamp:
                    fastest = max(fastest, rate[c])
                node = following[node]
            slack = free[link] > EPS * capacity[link]
            node = head[link]
            while node >= 0:
                c = node // hops
                if mark[c] != stamp and (
                    rate[c] > level[link] * (1.0 + EPS)
                    or (bottleneck[c] == link and (slack or fastest > rate[c] * (1.0 + EPS)))
                ):
                    mark[c] = stamp
                    before[c] = rate[c]
                    region[grown] = c
                    grown += 1
                node = following[node]
        if grown == n:
            break
        n = grown
    for i in range(t):
        link = touched[i]
        used[link] = capacity[link] - free[link]
    return n


@compiled
def _equal(region: Ints, n: int, links: Routes, rate: Floats, capacity: Floats, on_link: Floats) -> None:
    for i in range(n):
        c = region[i]
        rate[c] = np.inf
        for link in links[c]:
            if link < 0:
                break
            rate[c] = min(rate[c], capacity[link] / on_link[link])


@compiled
def _gather(
    changed: Ints,
    links: Routes,
    head: Ints,
    following: Ints,
    mark: Ints,
    stamp: int,
    rate: Floats,
    before: Floats,
    region: Ints,
) -> int:
    hops = links.shape[1]
    n = 0
    for link in changed:
        node = head[link]
        while node >= 0:
            c = node // hops
            if mark[c] != stamp:
                mark[c] = stamp
                before[c] = rate[c]
                region[n] = c
                n += 1
            node = following[node]
    return n


@compiled
def _reschedule(
    region: Ints,
    n: int,
    now: float,
    before: Floats,
    rate: Floats,
    served: Floats,
    since: Floats,
    target: Floats,
    key: Floats,
    heap: Ints,
    position: Ints,
    size: int,
) -> None:
    """Bring the service curves of region[:n] to `now` at their old rates and move their next ends in the
    heap."""
    for i in range(n):
        c = region[i]
        served[c] += before[c] * (now - since[c])
        since[c] = now
        key[c] = now + max(target[c] - served[c], 0.0) / rate[c] if rate[c] > 0.0 else np.inf
        _sift(heap, position, key, size, c)


class SharedTransport:
    """Flows share links max-min fairly, or equally on their worst link (`sharing`), with no scheduler at all.

    `resolution` (s) ends together what would end within it, which saves events in dense networks. `check`
    asserts capacity and that each class has a bottleneck, at each event. `usage` records links.
    """

    _PER_CLASS = ("count", "rate", "before", "served", "since", "target", "key", "recorded")
    _PER_CLASS_INT = ("bottleneck", "mark", "position", "heap", "region")

    def __init__(
        self,
        topology: Topology,
        *,
        sharing: Sharing = "max-min",
        resolution: float = 0.0,
        check: bool = False,
        usage: Usage | None = None,
    ) -> None:
        if sharing not in ("max-min", "equal"):
            raise BadInput(f"sharing {sharing!r} is unknown; use max-min or equal")
        self.topology = topology
        self.sharing = sharing
        self.resolution = resolution
        self.check = check
        self.usage = usage
        self.classes_touched = 0
        n_links = len(topology.capacity)
        self._class_of: dict[bytes, int] = {}
        self._links: Routes = np.full((64, 2), -1, np.int32)
        self._f: dict[str, Floats] = {name: np.zeros(64) for name in self._PER_CLASS}
        self._i: dict[str, Ints] = {name: np.zeros(64, np.int64) for name in self._PER_CLASS_INT}
        self._nodes = [np.full(128, -1), np.full(128, -1)]
        self._n = 0
        self._head = np.full(n_links, -1)
        self._on_link = np.zeros(n_links)
        self._used, self._free, self._level, self._pending = (np.zeros(n_links) for _ in range(4))
        self._touched, self._seen = np.zeros(n_links, np.int64), np.zeros(n_links, np.int64)
        self._stamp = 0
        self._ends: list[list[tuple[float, int, int]]] = []  # per class: service at the end, coflow, flow
        self._left: dict[int, int] = {}
        self._times: dict[int, Floats] = {}
        self._changed: set[int] = set()
        self._dirty: set[int] = set()

    def start(self, handle: int, job: int, coflow: Coflow, now: float) -> None:
        """See Transport."""
        routes = self.topology.routes(coflow.src, coflow.dst, np.arange(len(coflow.src)))
        self._left[handle] = len(coflow.size)
        self._times[handle] = np.full(len(coflow.size), np.nan)
        for flow, (route, size) in enumerate(zip(routes, coflow.size, strict=True)):
            key = route.tobytes()
            c = self._class_of.get(key)
            if c is None:
                c = self._class_of[key] = self._add_class(route, now)
            f = self._f
            if not self._ends[c]:
                _attach(c, self._links, self._head, *self._nodes)
                f["served"][c], f["since"][c], f["rate"][c] = 0.0, now, 0.0
            served = f["served"][c] + f["rate"][c] * (now - f["since"][c])
            heapq.heappush(self._ends[c], (served + float(size), handle, flow))
            self._alter(c, 1.0, now)

    def next_event(self) -> float:
        """See Transport."""
        return float(self._f["key"][self._i["heap"][0]]) if self._n else math.inf

    def advance(self, now: float) -> list[Finished]:
        """See Transport."""
        finished: list[Finished] = []
        limit = now + max(SAME * abs(now), self.resolution)
        f = self._f
        while self._n:
            c = int(self._i["heap"][0])
            if not f["key"][c] <= limit:
                break
            # The curve at the class's own end, not at `now`: with a resolution it may lie a little ahead.
            reached = f["served"][c] + f["rate"][c] * (max(f["key"][c], now) - f["since"][c])
            end = self._ends[c][0][0]
            while self._ends[c] and self._ends[c][0][0] <= max(reached, end):
                _, handle, flow = heapq.heappop(self._ends[c])
                self._alter(c, -1.0, now)
                self._times[handle][flow] = now
                self._left[handle] -= 1
                if not self._left[handle]:
                    del self._left[handle]
                    finished.append(Finished(handle, now, 0.0, self._times.pop(handle)))
            if self._ends[c]:
                f["target"][c] = self._ends[c][0][0]
                f["key"][c] = f["since"][c] + (f["target"][c] - f["served"][c]) / f["rate"][c]
            else:
                _detach(c, self._links, self._head, *self._nodes)
                f["rate"][c] = 0.0
                f["key"][c] = math.inf
            _sift(self._i["heap"], self._i["position"], f["key"], self._n, c)
        return finished

    def decide(self, now: float) -> None:
        """See Transport."""
        if not self._changed:
            return
        f, i = self._f, self._i
        self._stamp += 1
        changed = np.array(sorted(self._changed))
        self._changed.clear()
        for c in self._dirty:
            if self._ends[c]:
                f["target"][c] = self._ends[c][0][0]
        self._dirty.clear()
        n = _gather(
            changed,
            self._links,
            self._head,
            self._nodes[0],
            i["mark"],
            self._stamp,
            f["rate"],
            f["before"],
            i["region"],
        )
        if self.sharing == "equal":
            _equal(i["region"], n, self._links, f["rate"], self.topology.capacity, self._on_link)
        elif n:
            n = _max_min(
                i["region"],
                n,
                self._links,
                f["count"],
                f["before"],
                f["rate"],
                i["bottleneck"],
                self._head,
                self._nodes[0],
                i["mark"],
                self._stamp,
                self.topology.capacity,
                self._used,
                self._free,
                self._level,
                self._pending,
                self._touched,
                self._seen,
            )
        for link in changed:
            if self._head[link] < 0:
                self._used[link] = 0.0
        self._record(i["region"], n, f["before"], now)
        _reschedule(
            i["region"],
            n,
            now,
            f["before"],
            f["rate"],
            f["served"],
            f["since"],
            f["target"],
            f["key"],
            i["heap"],
            i["position"],
            self._n,
        )
        self.classes_touched += n
        if self.check:
            self._assert_shares()

    def job_done(self, job: int) -> None:
        """See Transport."""

    def rates(self) -> dict[tuple[int, ...], float]:
        """Return the rate of a flow per route in use, bytes/s."""
        return {
            tuple(int(link) for link in self._links[c] if link >= 0): float(self._f["rate"][c])
            for c in range(self._n)
            if self._ends[c]
        }

    def _record(self, classes: Ints, n: int, rate: Floats, now: float) -> None:
        """Account for what `classes[:n]` have sent at `rate` since they were last accounted for."""
        if self.usage is not None:
            f = self._f
            self.usage.add_classes(classes, n, self._links, f["count"], rate, f["recorded"], now)

    def _alter(self, c: int, flows: float, now: float) -> None:
        f = self._f
        if self.usage is not None:
            self._record(np.array([c]), 1, f["rate"], now)
        f["count"][c] += flows
        self._dirty.add(c)
        for link in self._links[c]:
            if link < 0:
                break
            self._changed.add(int(link))
            self._on_link[link] += flows
            self._used[link] += flows * f["rate"][c]

    def _add_class(self, route: Routes, now: float) -> int:
        c = self._n
        rows, hops = self._links.shape
        if c == rows or len(route) > hops:
            self._grow(max(hops, len(route)), 2 * rows if c == rows else rows)
        self._links[c, : len(route)] = route
        self._f["since"][c] = now
        self._f["key"][c] = math.inf
        self._i["position"][c] = self._i["heap"][c] = c
        self._i["bottleneck"][c] = -1
        self._n += 1
        self._ends.append([])
        return c

    def _grow(self, hops: int, rows: int) -> None:
        old_rows, old_hops = self._links.shape
        links = np.full((rows, hops), -1, np.int32)
        links[:old_rows, :old_hops] = self._links
        self._links = links
        for columns in (self._f, self._i):
            for name, column in columns.items():
                columns[name] = np.concatenate([column, np.zeros(rows - old_rows, column.dtype)])
        active = [c for c in range(self._n) if self._ends[c]]
        self._nodes = [np.full(rows * hops, -1), np.full(rows * hops, -1)]
        self._head[:] = -1
        for c in active:
            _attach(c, self._links, self._head, *self._nodes)

    def _assert_shares(self) -> None:
        f, capacity = self._f, self.topology.capacity
        load, fastest = np.zeros(len(capacity)), np.zeros(len(capacity))
        active = [c for c in range(self._n) if self._ends[c]]
        for c in active:
            if len(self._ends[c]) != f["count"][c] or not f["rate"][c] > 0.0:
                raise SimulationError(
                    f"conservation: class {c} counts {f['count'][c]} flows at {f['rate'][c]} bytes/s"
                )
            route = self._links[c][self._links[c] >= 0]
            load[route] += f["count"][c] * f["rate"][c]
            fastest[route] = np.maximum(fastest[route], f["rate"][c])
        if (load > capacity * (1 + 1e-6)).any():
            raise SimulationError(f"link {int(np.argmax(load / capacity))} carries more than its capacity")
        if self.sharing == "max-min":
            full = load >= capacity * (1 - 1e-6)
            for c in active:
                route = self._links[c][self._links[c] >= 0]
                if not (full[route] & (f["rate"][c] >= fastest[route] * (1 - 1e-6))).any():
                    raise SimulationError(f"class {c} has no bottleneck: the shares are not max-min fair")
