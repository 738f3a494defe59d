"""Decisions of the slot scheduler about single flows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from schedulers.compiled import Floats
from schedulers.slots.host import FLOW, Parameters, SlotScheduler
from schedulers.slots.kernels import Flows
from schedulers.slots.roles import Role


def whole_horizon(slot_s: float, horizon: int) -> SlotScheduler:
    """A scheduler that plans all slots, as the paper does, on links that carry nothing but payload."""
    whole = Parameters(slot_s, horizon=horizon, reserved=horizon, payload=1.0, hasten=False)
    return SlotScheduler(replace(whole, begin=0.0, spread=0.0))


def table(link: float, *flows: dict[str, float]) -> Flows:
    """Rows of `FLOW` for flows on one host, each its own sibling, all ready and bounded by their link."""
    rows = np.zeros(len(flows), FLOW)
    rows["link"] = rows["bound"] = link
    rows["siblings"] = np.arange(len(flows))
    rows["behind"] = math.inf
    for row, flow in zip(rows, flows, strict=True):
        row["ready"] = flow["total"]
        for name, value in flow.items():
            row[name] = value
    return rows


def decide_one(
    scheduler: SlotScheduler,
    link: float,
    path_load: Floats,
    headroom: Floats,
    sent: float,
    total: float,
    *,
    role: Role = Role.FREE,
    **flow: float,
) -> Floats:
    """The schedule of a flow that decides alone, in its job's turn, with nothing planned before."""
    rows = table(link, {"sent": sent, "total": total, "role": role, **flow})
    planned = np.zeros((1, scheduler.parameters.reserved))
    return scheduler.round(rows, np.array([0]), planned).decide(0, path_load, headroom, headroom)
