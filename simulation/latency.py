"""Decision times of a host's slot scheduler, measured on the object that also runs live."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from schedulers.slots.host import FLOW, Parameters, SlotScheduler
from schedulers.slots.roles import Role
from simulation.results import Decision


def decision_latencies(flows: int = 8, horizon: int = 10, *, rounds: int = 5000, seed: int = 0) -> Decision:
    """Return the times of one round of decisions for all `flows` of a host, with all percentiles.

    Feedback is random, every kind of dependency occurs, and all of `horizon` is planned.

    Times are CPU times of the thread, so other programs on the machine do not distort them. The first rounds,
    which compile, are left out.
    """
    rng = np.random.default_rng(seed)
    line = 1.25e9
    scheduler = SlotScheduler(Parameters(horizon=horizon, reserved=horizon, payload=1.0))
    others = rng.uniform(0.0, line, (flows, horizon))
    table = np.zeros(flows, FLOW)
    rows, planned = np.arange(flows), np.zeros((flows, horizon))
    table["siblings"] = rows
    table["role"] = rows % len(Role)
    table["link"] = table["bound"] = line
    table["sent"] = rng.uniform(0.0, 2e8, flows)
    table["total"] = table["ready"] = 5e8
    table["ahead"] = table["behind"] = rng.uniform(0.0, 4e8, flows)
    table["chunk"] = 5e7
    load, room = others * 2.0, line - others
    seconds = []
    for n in range(rounds + 20):
        begin = time.thread_time()
        one = scheduler.round(table, rows, planned)
        for flow in one.order:
            one.decide(flow, load[flow], room[flow], room[flow])
        if n >= 20:
            seconds.append(time.thread_time() - begin)
    quantiles = np.percentile(np.array(seconds) * 1e6, range(101))
    return replace(Decision.of(seconds), percentiles_us=tuple(round(float(q), 3) for q in quantiles))
