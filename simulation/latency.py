"""How long the slot scheduler of a host takes to decide: the object that runs live, timed."""

from __future__ import annotations

import time

import numpy as np

from schedulers.slots import Dependency, Role, SlotScheduler
from simulation.scheduled import percentiles


def decision_latencies(
    flows: int = 8, horizon: int = 10, *, rounds: int = 5000, seed: int = 0
) -> dict[str, float]:
    """Return statistics (µs) of deciding for all `flows` of a host once, with random feedback and every kind
    of dependency.

    CPU time of the thread is counted, so that other programs on the machine do not. The first rounds, which
    compile, are left out.
    """
    rng = np.random.default_rng(seed)
    line = 1.25e9
    scheduler = SlotScheduler(line, horizon=horizon)
    roles = (Role.FREE, Role.AGGREGATION, Role.BROADCAST, Role.RING)
    inputs = []
    for i in range(flows):
        planned = rng.uniform(0.0, line, horizon)
        progress = float(rng.uniform(0.0, 4e8))
        dependency = Dependency(roles[i % 4], ahead=progress, behind=progress, chunk=5e7)
        inputs.append((planned * 2.0, line - planned, float(rng.uniform(0.0, 2e8)), 5e8, dependency))
    seconds = []
    for n in range(rounds + 20):
        begin = time.thread_time()
        for flow, (load, room, sent, total, dependency) in enumerate(inputs):
            scheduler.decide(flow, load, room, sent, total, dependency)
        if n >= 20:
            seconds.append(time.thread_time() - begin)
    return percentiles(seconds)
