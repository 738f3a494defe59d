"""Cross traffic: flows that are no training, from iperf3 (flow-scheduling paper, VI-A).

When each flow starts, where it goes and how long it lasts is drawn from the seed before the run.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.topology import Topology
from entrain.experiment import CrossTable, Experiment
from machine.errors import MissingTool
from mininet_topos.network import Network
from wire.flow import Flow

FIRST_PORT = 40_000
"""Cross flow i has this port + i at both ends."""
AHEAD_S = 0.5
"""How long before its flow a server starts."""
CONTROL = "cubic"
"""Its TCP, whatever the jobs use: Linux' default."""
NAME = "cross traffic"
"""The job that its flows count as."""


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
        """At both ends; flows that follow one another by far may have the same."""
        return FIRST_PORT + self.number % (65536 - FIRST_PORT)

    def on(self, topology: Topology) -> Flow:
        """As links see it."""
        source, destination = (topology.host_by_name[each] for each in (self.source, self.destination))
        return Flow(str(source.ip), self.port, str(destination.ip), self.port)


def draw(experiment: Experiment, seed: int) -> list[CrossFlow]:
    """All flows of a run with `seed`, in the order of their starts, as far as the run may last."""
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
    """The flows of a run, started when they are due; call `look` often."""

    def __init__(self, network: Network, flows: Sequence[CrossFlow], log: Path) -> None:
        self._network = network
        self._waiting = list(reversed(flows))
        self._serving: list[CrossFlow] = []
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        self.started: list[CrossFlow] = []
        self._origin = 0.0

    def start(self, origin_ns: int) -> None:
        """The jobs start at `origin_ns` (CLOCK_MONOTONIC)."""
        self._origin = origin_ns / 1e9

    def look(self) -> None:
        """Start what is due, and clear away what has ended."""
        if not self._origin:
            return
        now = time.monotonic() - self._origin
        for flow in [each for each in self._serving if each.start_s <= now]:
            self._serving.remove(flow)
            self._run(flow.source, self._client(flow))
            self.started.append(flow)
        while self._waiting and self._waiting[-1].start_s - AHEAD_S <= now:
            flow = self._waiting.pop()
            limit = str(AHEAD_S + flow.duration_s + 10)
            self._run(
                flow.destination, ["timeout", limit, "iperf3", "--server", "--one-off", "-p", str(flow.port)]
            )
            self._serving.append(flow)
        ended = [each for each in self._processes if each.poll() is not None]
        self._network.end(ended)
        self._processes = [each for each in self._processes if each not in ended]

    def close(self) -> None:
        """End all flows."""
        self._network.end(self._processes)
        self._processes.clear()

    def _run(self, host: str, command: list[str]) -> None:
        self._processes.append(self._network.popen(host, command, self._log))

    def _client(self, flow: CrossFlow) -> list[str]:
        """iperf3 knows whole seconds only, so somebody else ends it."""
        destination = str(self._network.topology.host_by_name[flow.destination].ip)
        command = ["timeout", "-s", "INT", f"{flow.duration_s:.3f}", "iperf3", "--client", destination]
        command += ["-p", str(flow.port), "--cport", str(flow.port), "-t", "3600", "-i", "0"]
        command += ["--congestion", CONTROL]
        if flow.rate_mbps is not None:
            # It sends blocks of 128 KB; to look a thousand times a second whether one is due costs more.
            command += ["--bitrate", f"{flow.rate_mbps:g}M", "--pacing-timer", "5000"]
        return command


@contextlib.contextmanager
def crossing(network: Network, experiment: Experiment, seed: int, log: Path) -> Iterator[Cross | None]:
    """The cross traffic of a run, which ends here; None where there is none. Raises MissingTool."""
    if not experiment.cross:
        yield None
        return
    if shutil.which("iperf3") is None:
        raise MissingTool("iperf3: missing, and cross traffic comes from it; apt-get install iperf3")
    cross = Cross(network, draw(experiment, seed), log)
    try:
        yield cross
    finally:
        cross.close()
