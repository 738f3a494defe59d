"""Background traffic from iperf3 (flow-scheduling paper, VI-A).

Start time, destination and duration of each flow are drawn before the run. They derive from the seed.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.topology import Topology
from entrain.experiment import CrossTable, Experiment
from machine.errors import MissingTool
from wire.flow import Flow

if TYPE_CHECKING:  # results are read and drawn without Mininet
    from mininet_topos.network import Network

FIRST_PORT = 40_000
"""Flow i uses this port + i at both ends."""
AHEAD_S = 0.5
"""A flow's server starts this long before the flow."""
CONTROL = "cubic"
"""Congestion control of cross traffic, whatever the jobs use: the default of Linux."""
NAME = "cross traffic"
"""Name under which cross traffic appears among the jobs."""


@dataclass(frozen=True)
class CrossFlow:
    """One flow of cross traffic; times are in seconds after the jobs' start."""

    number: int
    source: str
    destination: str
    start_s: float
    duration_s: float
    rate_mbps: float | None

    @property
    def port(self) -> int:
        """The port at both ends. Flows that are far apart in time may share one."""
        return FIRST_PORT + self.number % (65536 - FIRST_PORT)

    def on(self, topology: Topology) -> Flow:
        """Return the flow as the link monitor identifies it."""
        source, destination = (topology.host_by_name[each] for each in (self.source, self.destination))
        return Flow(str(source.ip), self.port, str(destination.ip), self.port)


def draw(experiment: Experiment, seed: int) -> list[CrossFlow]:
    """Return all flows of a run with `seed` until the run's timeout, in the order of their start times."""
    found = []
    for number, table in enumerate(experiment.cross):
        for source in table.hosts or [host.name for host in experiment.topology.hosts]:
            chance = random.Random(f"{seed}/cross {number}/{source}")
            found += _of_host(experiment, table, source, chance)
    found.sort(key=lambda each: (each[0], each[1]))
    return [
        CrossFlow(number, source, destination, start_s, duration_s, rate)
        for number, (start_s, source, destination, duration_s, rate) in enumerate(found)
    ]


def _of_host(
    experiment: Experiment, table: CrossTable, source: str, chance: random.Random
) -> list[tuple[float, str, str, float, float | None]]:
    others = [host.name for host in experiment.topology.hosts if host.name != source]
    reachable = [each for each in table.to or others if each != source]
    least, most = table.lasts_ms
    flows: list[tuple[float, str, str, float, float | None]] = []
    start_s = table.start_ms / 1e3
    while start_s < experiment.timeout_s and (table.flows is None or len(flows) < table.flows):
        flows.append(
            (start_s, source, chance.choice(reachable), chance.uniform(least, most) / 1e3, table.rate_mbps)
        )
        start_s += table.every_ms / 1e3
    return flows


class Cross:
    """Starts the flows of a run when they are due. Call `look` often."""

    def __init__(self, network: Network, flows: Sequence[CrossFlow], log: Path) -> None:
        self._network = network
        self._waiting = list(reversed(flows))
        self._serving: list[CrossFlow] = []
        self._reporting: dict[subprocess.Popen[bytes], tuple[CrossFlow, Path]] = {}
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        self.started: list[CrossFlow] = []
        self.ended = 0
        """Flows whose servers have reported what they received."""
        self._received = 0.0  # bytes of these
        self._lasted_s = 0.0
        self._origin = 0.0

    @property
    def goodput_mbps(self) -> float | None:
        """Mean rate at which the flows that have `ended` were received; None: none has."""
        return self._received * 8e-6 / self._lasted_s if self._lasted_s else None

    def start(self, origin_ns: int) -> None:
        """Set the time at which the jobs start, on CLOCK_MONOTONIC."""
        self._origin = origin_ns / 1e9

    def look(self) -> None:
        """Start the flows that are due, and reap those that have ended."""
        if not self._origin:
            return
        now = time.monotonic() - self._origin
        for flow in [each for each in self._serving if each.start_s <= now]:
            self._serving.remove(flow)
            self._run(flow.source, self._client(flow), self._log)
            self.started.append(flow)
        while self._waiting and self._waiting[-1].start_s - AHEAD_S <= now:
            flow = self._waiting.pop()
            limit = str(AHEAD_S + flow.duration_s + 10)
            command = ["timeout", limit, "iperf3", "--server", "--one-off", "--json", "-p", str(flow.port)]
            report = self._log.with_name(f"{self._log.stem}-{flow.number}.json")
            self._reporting[self._run(flow.destination, command, report)] = flow, report
            self._serving.append(flow)
        ended = [each for each in self._processes if each.poll() is not None]
        self._network.end(ended)
        self._processes = [each for each in self._processes if each not in ended]
        for each in ended:
            if each in self._reporting:
                self._count(*self._reporting.pop(each))

    def close(self) -> None:
        """Stop all flows."""
        self._network.end(self._processes)
        self._processes.clear()
        for _, report in self._reporting.values():
            report.unlink(missing_ok=True)
        self._reporting.clear()

    def _run(self, host: str, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        process = self._network.popen(host, command, log)
        self._processes.append(process)
        return process

    def _count(self, flow: CrossFlow, report: Path) -> None:
        """Add what was received of a flow, and remove the report; a server without a client has none.

        The report's own duration means nothing where the client was interrupted.
        """
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            self._received += float(
                json.loads(report.read_text(encoding="utf-8"))["end"]["sum_received"]["bytes"]
            )
            self._lasted_s += flow.duration_s
            self.ended += 1
        report.unlink(missing_ok=True)

    def _client(self, flow: CrossFlow) -> list[str]:
        """Return the client's command. `timeout` ends it, because iperf3 accepts whole seconds only."""
        destination = str(self._network.topology.host_by_name[flow.destination].ip)
        command = ["timeout", "-s", "INT", f"{flow.duration_s:.3f}", "iperf3", "--client", destination]
        command += ["-p", str(flow.port), "--cport", str(flow.port), "-t", "3600", "-i", "0"]
        command += ["--congestion", CONTROL]
        if flow.rate_mbps is not None:
            # iperf3 sends blocks of 128 KB, so its default timer of 1 ms would only cost CPU time.
            command += ["--bitrate", f"{flow.rate_mbps:g}M", "--pacing-timer", "5000"]
        return command


@contextlib.contextmanager
def crossing(network: Network, experiment: Experiment, seed: int, log: Path) -> Iterator[Cross | None]:
    """Yield a run's cross traffic, or None if it has none, and stop it at the end. Raises MissingTool."""
    if not experiment.cross:
        yield None
        return
    if shutil.which("iperf3") is None:
        raise MissingTool("iperf3 is missing, and cross traffic needs it: apt-get install iperf3")
    cross = Cross(network, draw(experiment, seed), log)
    try:
        yield cross
    finally:
        cross.close()
