"""The interface between a coflow policy and its network.

A policy gets a `View` of the coflows that can send now and writes a rate for each of their flows. It has no
clock and keeps no state about the network. A simulator and a live controller can therefore use the same
object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from schedulers.compiled import Floats, Ints, Routes


class Network(NamedTuple):
    """A `View`'s arrays for compiled code, and `residual` (L,): what is left of each link, bytes/s."""

    first: Ints
    last: Ints
    links: Routes
    remaining: Floats
    rate: Floats
    capacity: Floats
    residual: Floats


@dataclass(slots=True)
class View:
    """The coflows that can send. Flows of coflow c are the rows first[c] to last[c] - 1 of the flow arrays.

    Per flow (F,): `size` and `remaining` bytes, `rate` bytes/s (the policy writes it), `links` (F, H) its
    route. Per coflow (C,): `order` in which they became valid (smaller first), `ident` the caller's number,
    `bottleneck` the effective completion time alone in the network (Γ of Parrot's O3, s), `sent` bytes, `job`
    number (smaller for a job that came first), and of the job `job_sent` bytes and `job_completed` coflows.
    `capacity` (L,) bytes/s per link.
    """

    capacity: Floats
    links: Routes
    size: Floats
    remaining: Floats
    rate: Floats
    first: Ints
    last: Ints
    order: Ints
    ident: Ints
    bottleneck: Floats
    sent: Floats
    job: Ints
    job_sent: Floats
    job_completed: Ints

    def __len__(self) -> int:
        return len(self.first)

    def network(self, residual: Floats) -> Network:
        """Return the arrays that compiled code needs; `residual` (L,) is the bandwidth to allocate,
        bytes/s."""
        return Network(self.first, self.last, self.links, self.remaining, self.rate, self.capacity, residual)

    def active_flows(self, coflows: Ints | None = None) -> Ints:
        """Return the rows of the flows of `coflows` (default: all) that have bytes left."""
        chosen = range(len(self)) if coflows is None else coflows
        if not len(chosen):
            return np.empty(0, np.int64)
        rows = np.concatenate([np.arange(self.first[c], self.last[c]) for c in chosen])
        active: Ints = rows[self.remaining[rows] > 0.0]
        return active


class CoflowPolicy(Protocol):
    """A policy that decides rates. Users select it by `name`."""

    name: str

    def allocate(self, view: View) -> None:
        """Write `view.rate` of every flow of every coflow in `view`."""

    def review_after(self, view: View) -> float:
        """Return after how many seconds at these rates the policy would decide differently (infinity:
        never)."""
