"""Policy `slots` in a run: an agent that schedules on every host, and what they say when the run is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from controlplane.routing import Routing
from entrain.experiment import SlotsTable
from hostbpf import agent_pb2 as pb
from hostbpf.agent import Scheduling
from hostbpf.agent_pb2_grpc import HostStub
from machine.record import Record
from mininet_topos.agents import agents
from mininet_topos.emulated_switches import emulated_switches
from mininet_topos.network import Network
from schedulers.slots import warm_up

TIMEOUT_S = 5.0
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class HostReport:
    """What the agent of one host did in a run.

    counts: decisions, slots without an answer, refused progress and the like; carriers: packets with a slot
    header; events: the latest, in words. Delays are in ms, one for each decision (the latest some thousand).
    """

    host: str
    counts: Mapping[str, int]
    carriers: Mapping[str, int]
    events: tuple[str, ...]
    negotiation_ms: tuple[float, ...]
    decision_ms: tuple[float, ...]
    cpu_s: float

    def document(self) -> dict[str, Any]:
        """As in results.json."""
        return {
            "host": self.host,
            "counts": dict(self.counts),
            "carriers": dict(self.carriers),
            "events": list(self.events),
            "negotiation_ms": _percentiles(self.negotiation_ms),
            "decision_ms": _percentiles(self.decision_ms),
            "cpu_s": self.cpu_s,
        }


def _percentiles(values: tuple[float, ...]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.percentile(values, PERCENTILES)
    return {f"p{p}": float(value) for p, value in zip(PERCENTILES, found, strict=True)}


class Schedulers:
    """The agents of a run, by host; empty where the policy needs none."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses

    def report(self) -> tuple[HostReport, ...]:
        """What each agent did so far."""
        return tuple(_ask(host, address) for host, address in self._addresses.items())


def _ask(host: str, address: str) -> HostReport:
    with grpc.insecure_channel(address) as channel:
        try:
            status = HostStub(channel).GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            reason = error.details() if isinstance(error, grpc.Call) else error
            return HostReport(host, {}, {}, (f"the agent does not answer: {reason}",), (), (), 0.0)
    scheduling = status.scheduling
    spent = psutil.Process(status.process_id).cpu_times()
    return HostReport(
        host,
        dict(scheduling.counts),
        dict(status.carriers),
        tuple(scheduling.events),
        tuple(scheduling.negotiation_ms),
        tuple(scheduling.decision_ms),
        spent.user + spent.system,
    )


@contextlib.contextmanager
def schedulers(
    network: Network, record: Record, directory: Path, table: SlotsTable, routing: Routing
) -> Iterator[Schedulers]:
    """Within, the hosts' agents schedule what jobs publish in `progress` below `directory`."""
    progress = progress_directory(directory)
    progress.mkdir()
    warm_up()  # once, and not in all agents at the same time
    scheduling = Scheduling(table.loads, progress=progress)
    with contextlib.ExitStack() as stack:
        paths: Mapping[str, Path] = {}
        if table.loads == "emulated":
            emulated = emulated_switches(network.topology, routing, record, directory, slot_ms=table.slot_ms)
            paths = stack.enter_context(emulated)
        asking = agents(network, record, directory, slot_ms=table.slot_ms, scheduling=scheduling, paths=paths)
        yield Schedulers(stack.enter_context(asking))


def progress_directory(directory: Path) -> Path:
    """Where the jobs of a run with this directory publish their progress."""
    return directory / "progress"
