"""How long the slot scheduler of a host takes to decide: the object that runs live, timed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from schedulers.slots import Dependency, Role, SlotScheduler
from simulation.scheduled import percentiles


def decision_latencies(
    flows: int = 8, horizon: int = 10, *, rounds: int = 5000, seed: int = 0
) -> dict[str, Any]:
    """Return statistics (µs) of deciding for all `flows` of a host once, with random feedback and every kind
    of dependency; `percentiles_us` holds the percentiles 0 to 100.

    CPU time of the thread is counted, so that other programs on the machine do not. The first rounds, which
    compile, are left out.
    """
    rng = np.random.default_rng(seed)
    line = 1.25e9
    scheduler = SlotScheduler(line, horizon=horizon)
    roles = (Role.FREE, Role.AGGREGATION, Role.BROADCAST, Role.RING)
    planned = rng.uniform(0.0, line, (flows, horizon))
    sent = [float(x) for x in rng.uniform(0.0, 2e8, flows)]
    ahead = [float(x) for x in rng.uniform(0.0, 4e8, flows)]
    dependencies = [Dependency(roles[i % 4], ahead=a, behind=a, chunk=5e7) for i, a in enumerate(ahead)]
    load, room, total, keys = planned * 2.0, line - planned, [5e8] * flows, list(range(flows))
    seconds = []
    for n in range(rounds + 20):
        begin = time.thread_time()
        scheduler.decide_all(keys, load, room, sent, total, dependencies)
        if n >= 20:
            seconds.append(time.thread_time() - begin)
    quantiles = np.percentile(np.array(seconds) * 1e6, range(101))
    return {**percentiles(seconds), "percentiles_us": [round(float(q), 3) for q in quantiles]}
