"""Run scenarios on several targets in turn, and say where softswitch differs from the others."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from machine.errors import EntrainError
from machine.patience import patience
from mininet_topos.comparison.measure import SEGMENT_BYTES, Kind
from mininet_topos.comparison.scenarios import Carried, Measured, Scenario
from mininet_topos.links import FRAME_BYTES

Figures = Mapping[str, float]

AROUND_S = patience(60.0)
"""How long making and removing a network may take."""


@dataclass(frozen=True)
class Goal:
    """How far a figure may be from another target's: by a share of it, or by `least` in its own unit."""

    share: float
    least: float


GOALS: Mapping[str, Goal] = {
    "goodput Mbit/s": Goal(0.03, 0.0),
    "Jain": Goal(0.03, 0.0),
    "lost %": Goal(0.2, 0.2),
    "round trip ms": Goal(0.1, 0.2),
    "round trip ms p99": Goal(0.1, 0.5),
    "queue KB": Goal(0.1, 1.5),
    "queue KB p99": Goal(0.1, 3.0),
    "completion ms": Goal(0.1, 1.0),
}
"""The figures by name, and how close targets should be. For queues, the least is one or two frames."""


@dataclass(frozen=True)
class Row:
    """One figure of one scenario: by target, the value of each round."""

    scenario: str
    figure: str
    values: Mapping[str, tuple[float, ...]]

    def median(self, target: str) -> float:
        """Return the median of a target's rounds."""
        return statistics.median(self.values[target])

    def differs(self, target: str, other: str) -> bool:
        """Return whether both medians are further apart than the goal and the spread of the rounds."""
        goal = GOALS[self.figure]
        reference = self.median(other)
        spread = max(max(self.values[each]) - min(self.values[each]) for each in (target, other))
        return abs(self.median(target) - reference) > max(goal.share * abs(reference), goal.least, spread)


def figures(measured: Measured) -> Figures:
    """Return what is compared of one measurement."""
    goodputs = [flow.goodput_mbps for flow in measured.flows]
    found = {
        "goodput Mbit/s": sum(goodputs),
        "lost %": 100 * statistics.fmean(flow.lost for flow in measured.flows),
        "round trip ms": measured.round_trip_ms,
        "round trip ms p99": measured.round_trip_ms_p99,
        "queue KB": measured.queue_bytes / 1e3,
        "queue KB p99": measured.queue_bytes_p99 / 1e3,
    }
    times = [flow.seconds for flow in measured.flows if flow.seconds is not None]
    if times:
        return {"completion ms": 1e3 * statistics.fmean(times)}
    if len(goodputs) > 1:
        found["Jain"] = sum(goodputs) ** 2 / (len(goodputs) * sum(each**2 for each in goodputs))
    return found


def measure(scenario: Scenario, kind: Kind, *, seconds: float, warm_up_s: float) -> Measured:
    """Measure once, in a process of its own. Raises EntrainError."""
    command = [sys.executable, "-m", "mininet_topos.comparison", scenario.name, kind, str(seconds)]
    limit_s = seconds + warm_up_s + AROUND_S
    done = subprocess.run(
        [*command, str(warm_up_s)], capture_output=True, text=True, timeout=limit_s, check=False
    )
    if done.returncode:
        raise EntrainError(f"{scenario.name}, {kind}: {done.stderr.strip()}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Measured(**{**found, "flows": tuple(Carried(**flow) for flow in found["flows"])})


def shortfalls(scenario: Scenario, *, seconds: float = 4.0, warm_up_s: float = 1.0) -> list[str]:
    """Return what is wrong with one scenario on this machine, in words; nothing if it is to be trusted.

    Beside the same links with Linux routers, and where a sender overloads a link, beside the link's rate.
    Raises EntrainError.
    """

    def live(kind: Kind) -> Measurement:
        return lambda scenario, _: measure(scenario, kind, seconds=seconds, warm_up_s=warm_up_s)

    wrong = []
    for row in compare([scenario], {"softswitch": live("softswitch"), "router": live("router")}, 1):
        ours = row.median("softswitch")
        if row.differs("softswitch", "router"):
            wrong.append(f"{row.figure} {ours:.3g}, with routers {row.median('router'):.3g}")
        full = payload_mbps(min(link.rate_mbps for link in scenario.topology.links))
        if row.figure == "goodput Mbit/s" and ours < (1 - GOALS[row.figure].share) * full:
            wrong.append(f"{ours:.4g} of {full:.4g} Mbit/s arrive")
    return wrong


def payload_mbps(rate_mbps: float) -> float:
    """Return what a link carries of the payload of full-size packets, of UDP or TCP."""
    return rate_mbps * SEGMENT_BYTES / FRAME_BYTES


Measurement = Callable[[Scenario, int], Measured]
"""Measures a scenario on one target, in the round of that number."""


def compare(scenarios: Sequence[Scenario], targets: Mapping[str, Measurement], rounds: int) -> Iterator[Row]:
    """Yield the figures of each scenario as soon as it is done; targets take turns in each round."""
    for scenario in scenarios:
        found: dict[str, list[Figures]] = {target: [] for target in targets}
        for number in range(rounds):
            for target, measurement in targets.items():
                found[target].append(figures(measurement(scenario, number)))
        for figure in GOALS:
            if all(figure in each for values in found.values() for each in values):
                yield Row(
                    scenario.name,
                    figure,
                    {target: tuple(each[figure] for each in values) for target, values in found.items()},
                )
