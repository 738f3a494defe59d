"""Policy `slots` in a run: an agent that schedules on every host, and what they say when the run is over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
from schedulers.slots.host import warm_up

TIMEOUT_S = 5.0
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class HostReport:
    """What the agent of one host did in a run.

    counts: decisions, slots without an answer, refused progress and the like; carriers: packets with a slot
    header; events: the latest, in words. Delays are in ms, one for each decision (the latest some thousand).
    Within `seconds` the agent took `cpu_s` of processor time, and `carrier_bytes` of carriers and feedback
    left the host by its link of `link_mbps`.
    """

    host: str
    events: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    carriers: Mapping[str, int] = field(default_factory=dict)
    negotiation_ms: tuple[float, ...] = ()
    decision_ms: tuple[float, ...] = ()
    seconds: float = 0.0
    cpu_s: float = 0.0
    carrier_bytes: int = 0
    link_mbps: float = 0.0
    skew_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By how much the slots of another host (address) begin before this one's: at least, at most."""

    @property
    def cpu_share(self) -> float | None:
        """Of one processor; None: the agent has not answered."""
        return self.cpu_s / self.seconds if self.seconds else None

    @property
    def carrier_mbps(self) -> float | None:
        """Mean rate of carriers and feedback; None: the agent has not answered."""
        return self.carrier_bytes * 8 / self.seconds / 1e6 if self.seconds else None

    @property
    def carrier_share(self) -> float | None:
        """Their part of the host's link, in the direction from the host."""
        return None if self.carrier_mbps is None else self.carrier_mbps / self.link_mbps

    def document(self) -> dict[str, Any]:
        """As in results.json."""
        return {
            "host": self.host,
            "counts": dict(self.counts),
            "carriers": dict(self.carriers),
            "events": list(self.events),
            "negotiation_ms": _percentiles(self.negotiation_ms),
            "decision_ms": _percentiles(self.decision_ms),
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
            "cpu_share": self.cpu_share,
            "carrier_bytes": self.carrier_bytes,
            "carrier_mbps": self.carrier_mbps,
            "carrier_share": self.carrier_share,
            "skew_ms": {peer: list(bounds) for peer, bounds in self.skew_ms.items()},
        }


def _percentiles(values: tuple[float, ...]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.percentile(values, PERCENTILES)
    return {f"p{p}": float(value) for p, value in zip(PERCENTILES, found, strict=True)}


class _Seen(NamedTuple):
    """What an agent says, with its processor time until then, s, and the time, s."""

    status: Any
    cpu_s: float
    at_s: float


class Schedulers:
    """The agents of a run, by host, and the rates of the hosts' links; empty where the policy needs none."""

    def __init__(self, addresses: Mapping[str, str], link_mbps: Mapping[str, float]) -> None:
        self._addresses = addresses
        self._link_mbps = link_mbps
        self._before = {host: _look(address) for host, address in addresses.items()}

    def report(self) -> tuple[HostReport, ...]:
        """What each agent has done since this was made."""
        return tuple(
            _report(host, self._link_mbps[host], self._before[host], _look(address))
            for host, address in self._addresses.items()
        )


def _look(address: str) -> _Seen | str:
    """The agent at `address` now, or why it cannot be seen."""
    with grpc.insecure_channel(address) as channel:
        try:
            status = HostStub(channel).GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT_S)
            spent = psutil.Process(status.process_id).cpu_times()
        except grpc.RpcError as error:
            return str(error.details() if isinstance(error, grpc.Call) else error)
        except psutil.NoSuchProcess as error:
            return str(error)
    return _Seen(status, spent.user + spent.system, time.monotonic())


def _report(host: str, link_mbps: float, before: _Seen | str, after: _Seen | str) -> HostReport:
    if isinstance(before, str) or isinstance(after, str):
        reason = before if isinstance(before, str) else after
        return HostReport(host, (f"the agent does not answer: {reason}",))
    status = after.status
    return HostReport(
        host,
        tuple(status.scheduling.events),
        dict(status.scheduling.counts),
        dict(status.carriers),
        tuple(status.scheduling.negotiation_ms),
        tuple(status.scheduling.decision_ms),
        after.at_s - before.at_s,
        after.cpu_s - before.cpu_s,
        status.carrier_bytes - before.status.carrier_bytes,
        link_mbps,
        {peer: (skew.low_ms, skew.high_ms) for peer, skew in status.skews.items()},
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
            emulated = emulated_switches(network, routing, record, directory, slot_ms=table.slot_ms)
            paths = stack.enter_context(emulated)
        asking = agents(network, record, directory, slot_ms=table.slot_ms, scheduling=scheduling, paths=paths)
        topology = network.topology
        rates = {end: link.rate_mbps for link in topology.links for end in (link.a, link.b)}
        yield Schedulers(stack.enter_context(asking), rates)


def progress_directory(directory: Path) -> Path:
    """Where the jobs of a run with this directory publish their progress."""
    return directory / "progress"
