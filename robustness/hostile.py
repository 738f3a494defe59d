"""What a hostile host can do to others' jobs by carriers that it forges.

Three hosts on each side of a link that carries two of them at full rate. Two jobs train from one side to the
other under policy `slots`. The third host of the left side runs no job: its root bypasses the host's own
programs and sends carriers, to the other idle host or to a host of job `two`. Attacks of each kind alternate
with calm, all within one run of the jobs:

- `fill`: four carriers a second to the idle host that announce all that fits in ten slots;
- `aim`: the same to the host of the job;
- `plans`: a carrier a slot to that host that announces what fits in two slots, as agents do, and nothing of
  every 32nd, so that flows find room there;
- `epochs`: a carrier every two epochs to the host of the job, about the slots of the next one;
- `lower`: four carriers a second to that host that take back what others have announced;
- `source`: `fill` from another host's address;
- `version`: `fill` with the slot header of another version;
- `flood`: `aim` with 10,000 carriers a second.

Reported by kind: each job's median iteration time over that in calm, what the load tables have counted at
most on a link that only the hostile host announces on, and how many packets its leaf has refused from its
port and dropped in all, by reason. Times are wall-clock times, and a flood takes processor time from the jobs
on a machine with few processors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scapy.layers.inet import IP, UDP

from controlplane.api_pb2 import ListDropsRequest, WatchLoadsRequest
from controlplane.client import RUNS, RunningNetwork, call
from entrain.commands.run import owned_place
from entrain.experiment import parse_experiment
from entrain.run import runner
from hostbpf.clock import SlotClock
from machine import origin
from machine.errors import EntrainError
from machine.packages import run_module
from wire.slot_header import ETHERTYPE, LANES, MAX_U32, VERSION, announcement, slot_near
from workloads.records import read_records

RATE_MBPS = 100.0
SLOT_MS = 60.0
NAME = f"hostile{os.getpid()}"
HOSTILE, IDLE, VICTIM = "h3", "h6", "h5"
PAUSE_S = 1.0
"""After an attack, until what it has announced is past."""
WARM_UP = 3
"""Iterations of each job before the first phase."""
LOOK_MS = 250
"""How often the load tables are read. A slot stays in them for ten slots."""
HOSTS = 3
BYTES, COMPUTE_MS = 1_250_000, 80.0
ALONE_MS = COMPUTE_MS + 8e-3 * BYTES / RATE_MBPS
SHARES = {"one": 1 / HOSTS, "two": 1 / 2}
"""The hostile host's fair share of the busiest link that it shares with each job. Job `two` has a host that
is attacked, and meets nobody else on the link to it."""
GOALS = {
    job: 1.05 + (ALONE_MS - COMPUTE_MS) * share / (1 - share) / ALONE_MS for job, share in SHARES.items()
}
"""By how much an attack may lengthen iterations: by the host's fair share of the link, and 5 %."""
_SOL_PACKET, _QDISC_BYPASS = 263, 20
_ADDRESSES = bytes.fromhex("020000000001020000000002") + ETHERTYPE.to_bytes(2, "big")
"""Switches route by IP addresses."""


@dataclass(frozen=True)
class Attack:
    """Carriers to a host: one each `every_s`, which changes `slots` slots by `delta`, from `ahead` slots on.

    With `rests`, nothing of every so many slots is announced.
    """

    to: str
    every_s: float
    delta: int
    ahead: int = 0
    slots: int = LANES
    rests: int = 0
    forged_source: bool = False
    version: int = VERSION


ATTACKS = {
    "fill": Attack(IDLE, 0.25, MAX_U32),
    "aim": Attack(VICTIM, 0.25, MAX_U32),
    "plans": Attack(VICTIM, SLOT_MS / 1e3, MAX_U32, slots=2, rests=32),
    "epochs": Attack(VICTIM, 2 * LANES * SLOT_MS / 1e3, 1, ahead=LANES),
    "lower": Attack(VICTIM, 0.25, -MAX_U32),
    "source": Attack(IDLE, 0.25, MAX_U32, forged_source=True),
    "version": Attack(IDLE, 0.25, MAX_U32, version=VERSION - 1),
    "flood": Attack(VICTIM, 1e-4, MAX_U32),
}


@dataclass(frozen=True)
class Phase:
    """A time in which the host attacks, or does not (`calm`), in ns of CLOCK_MONOTONIC."""

    attack: str
    begin_ns: int
    end_ns: int

    def meets(self, iteration: tuple[int, int]) -> bool:
        """Return whether an iteration, from its begin to its end, is partly in this phase."""
        return iteration[0] < self.end_ns and iteration[1] > self.begin_ns


@dataclass(frozen=True)
class Seen:
    """What the switches had counted at a time.

    By switch and port: the largest load of a slot that has not passed, and refusals by reason. At the hostile
    host's leaf: drops by reason.
    """

    at_ns: int
    loads: dict[tuple[str, int], float]
    refused: dict[tuple[str, int], dict[str, int]]
    drops: dict[str, int]


def _seen(ports: Sequence[Any], drops: Any) -> Seen:
    present = SlotClock.shared(SLOT_MS).slot()
    loads = {
        (port.switch, port.port): [
            each.load_mbps for each in port.slots if slot_near(present, each.slot) >= present
        ]
        for port in ports
    }
    return Seen(
        time.monotonic_ns(),
        {port: max(found, default=0.0) for port, found in loads.items()},
        {(port.switch, port.port): dict(port.refused) for port in ports},
        dict(drops.packets),
    )


# -- the hostile host


def forge(path: Path) -> None:
    """Follow the plan in the file, which is written when the jobs train. Print how many carriers were sent.

    The kernel sends them as they are: the programs of the host's agent do not see them.
    """
    while not path.exists():
        time.sleep(0.01)
    plan = json.loads(path.read_text(encoding="utf-8"))
    sent: Counter[str] = Counter()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.setsockopt(_SOL_PACKET, _QDISC_BYPASS, 1)
        wire.bind((plan["interface"], 0))
        for name, begin_ns, end_ns in plan["attacks"]:
            attack, due = ATTACKS[name], begin_ns
            source = plan["other"] if attack.forged_source else plan["own"]
            carried = bytes(IP(src=source, dst=plan["to"][attack.to]) / UDP(sport=1, dport=9))
            while due < end_ns:
                time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
                slot = SlotClock.shared(SLOT_MS).slot()
                if attack.rests and slot % attack.rests < attack.slots:
                    due += round(attack.every_s * 1e9)
                    continue
                with contextlib.suppress(OSError):  # the queue is full
                    sent[name] += bool(wire.send(_ADDRESSES + _header(attack, slot) + carried))
                due = max(due + round(attack.every_s * 1e9), time.monotonic_ns())
    print(json.dumps(sent))


def _header(attack: Attack, slot: int) -> bytes:
    header = bytearray(announcement(slot + attack.ahead, [attack.delta] * attack.slots).pack())
    header[0] = attack.version << 4 | header[0] & 0xF
    return bytes(header)


# -- the run


class Campaign:
    """One run of the jobs, in which attacks of each kind alternate with calm."""

    def __init__(self, running: runner.Running, kinds: Sequence[str], seconds: float, rounds: int) -> None:
        self._running = running
        self._kinds, self._seconds, self._rounds = kinds, seconds, rounds
        self._plan = running.directory / "plan.json"
        self._log = running.directory / "forge.log"
        self.phases: list[Phase] = []
        self.seen: list[Seen] = []

    def go(self) -> dict[str, Any]:
        """Run it. Return what `main` prints. Raises RunFailed."""
        running, network = self._running, self._running.network
        command = [*run_module("robustness"), "hostile", "--forge", str(self._plan)]
        forger = network.popen(HOSTILE, command, self._log)
        director = threading.Thread(target=self._direct, daemon=True)
        director.start()
        (combination,) = running.experiment.combinations()
        runner.run_one(running, combination, lambda *_: None)
        director.join(self._seconds)
        if director.is_alive() or forger.wait(10):
            raise EntrainError(
                f"the hostile host did not follow its plan: {self._log.read_text(encoding='utf-8')}"
            )
        records = next(running.directory.glob("*/records"))
        found: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for each in read_records(records).iterations:
            found[each.job, each.iteration].append((each.start_ns, each.end_ns))
        iterations: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for (job, _), ranks in found.items():
            iterations[job].append((min(begin for begin, _ in ranks), max(end for _, end in ranks)))
        sent = json.loads(self._log.read_text(encoding="utf-8").splitlines()[-1])
        return self._report(iterations, sent)

    def _direct(self) -> None:
        """Wait until the jobs train, tell the hostile host its plan, and look what the switches count."""
        live = self._running.live
        while not (live.jobs and all(job.done >= WARM_UP for job in live.jobs)):
            time.sleep(0.05)
        at_ns = time.monotonic_ns() + 500_000_000
        length_ns = round(self._seconds * 1e9)
        for kind in [*self._kinds] * self._rounds:
            for name, after_s in (("calm", 0.0), (kind, PAUSE_S)):
                self.phases.append(Phase(name, at_ns, at_ns + length_ns))
                at_ns += length_ns + round(after_s * 1e9)
        topology = self._running.experiment.topology
        ip = {host.name: host.ip for host in topology.hosts}
        plan = {
            "interface": topology.host_by_name[HOSTILE].interface,
            "own": ip[HOSTILE],
            "other": ip["h1"],
            "to": {host: ip[host] for host in (IDLE, VICTIM)},
            "attacks": [[p.attack, p.begin_ns, p.end_ns] for p in self.phases if p.attack != "calm"],
        }
        written = self._plan.with_suffix(".new")
        written.write_text(json.dumps(plan), encoding="utf-8")
        written.rename(self._plan)
        leaf = topology.host_by_name[HOSTILE].leaf
        with call(RunningNetwork(NAME, RUNS / NAME)) as stub:
            for reading in stub.WatchLoads(WatchLoadsRequest(interval_ms=LOOK_MS)):
                if not reading.problem:
                    drops = stub.ListDrops(ListDropsRequest()).switches
                    self.seen.append(_seen(reading.ports, next(each for each in drops if each.name == leaf)))
                if time.monotonic_ns() > at_ns:
                    return

    def _report(self, iterations: dict[str, list[tuple[int, int]]], sent: dict[str, int]) -> dict[str, Any]:
        hosts = self._running.experiment.topology.host_by_name
        idle = hosts[IDLE].leaf, hosts[IDLE].leaf_port
        hostile = hosts[HOSTILE].leaf, hosts[HOSTILE].leaf_port
        calm_ms = {job: self._iteration_ms(each, "calm") for job, each in iterations.items()}
        attacks = {}
        for name in self._kinds:
            refused, dropped = Counter[str](), Counter[str]()
            most_mbps = 0.0
            for phase in self.phases:
                if phase.attack == name:
                    seen = [each for each in self.seen if each.at_ns < phase.end_ns + PAUSE_S * 5e8]
                    during = [each for each in seen if each.at_ns > phase.begin_ns]
                    before = [each for each in seen if each.at_ns <= phase.begin_ns]
                    if not (before and during):
                        raise EntrainError("the switches answer too slowly for this; give more --seconds")
                    refused.update(during[-1].refused[hostile])
                    refused.subtract(before[-1].refused[hostile])
                    dropped.update(during[-1].drops)
                    dropped.subtract(before[-1].drops)
                    most_mbps = max(most_mbps, *(each.loads[idle] for each in during))
            attacks[name] = {
                "sent": sent[name],
                "refused": {reason: count for reason, count in sorted(refused.items()) if count},
                "dropped": {reason: count for reason, count in sorted(dropped.items()) if count},
                "counted_mbps_max": most_mbps,
                "jobs": {
                    job: _times(self._iteration_ms(each, name), calm_ms[job])
                    for job, each in iterations.items()
                },
            }
        others: Counter[str] = Counter()
        for port, reasons in self.seen[-1].refused.items():
            if port != hostile:
                others.update(reasons)
        return {
            "attacks": attacks,
            "calm": {job: _times(each, each) for job, each in calm_ms.items()},
            "refused_of_others": dict(others),
            "goals": {"slowdown": GOALS, "counted_mbps_max": RATE_MBPS},
            "origin": asdict(origin.here()),
            "load_average": os.getloadavg()[0],
        }

    def _iteration_ms(self, iterations: list[tuple[int, int]], attack: str) -> list[float]:
        """Return the lengths of those iterations that meet a phase of this kind."""
        phases = [phase for phase in self.phases if phase.attack == attack]
        return [(each[1] - each[0]) / 1e6 for each in iterations if any(p.meets(each) for p in phases)]


def _times(iteration_ms: Sequence[float], calm_ms: Sequence[float]) -> dict[str, float]:
    median = float(np.median(iteration_ms))
    return {
        "iterations": len(iteration_ms),
        "iteration_ms_median": median,
        "iteration_ms_max": max(iteration_ms),
        "slowdown": median / float(np.median(calm_ms)),
    }


def _experiment(total_s: float, target: str) -> dict[str, Any]:
    """Return an experiment with two jobs that train for at least `total_s`."""
    job = {"collective": "ring", "bytes": BYTES, "compute_ms": COMPUTE_MS}
    job["iterations"] = round(total_s * 1e3 / ALONE_MS) + 4 * WARM_UP
    return {
        "experiment": {"name": NAME, "policy": "slots", "timeout_s": 60 + 5 * total_s, "target": target},
        "network": {"slow_start_after_idle": False, "rto_min_ms": 20},
        "slots": {"slot_ms": SLOT_MS},
        "topology": {
            "kind": "dumbbell",
            "hosts_per_side": HOSTS,
            "host_rate_mbps": RATE_MBPS,
            "bottleneck_rate_mbps": (HOSTS - 1) * RATE_MBPS,
        },
        "job": [
            {"name": "one", "hosts": ["h1", "h4"], **job},
            {"name": "two", "hosts": ["h2", VICTIM], **job},
        ],
    }


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures beside the goals."""
    parser = argparse.ArgumentParser(prog="python -m robustness hostile")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each attack and each calm")
    parser.add_argument("--rounds", type=int, default=3, help="how often each kind of attack comes")
    parser.add_argument("--kinds", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--target", choices=["softswitch", "bmv2"], default="softswitch")
    parser.add_argument("--forge", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.forge:
        forge(options.forge)
        return
    if os.geteuid() != 0:
        raise EntrainError("the hostile host needs namespaces and eBPF; run as root")
    total_s = (2 * options.seconds + PAUSE_S) * options.rounds * len(options.kinds)
    tables = _experiment(total_s, options.target)
    experiment = parse_experiment(tables, Path(f"{NAME}.toml"))
    runner.check_machine(experiment)
    with owned_place(Console(stderr=True), None) as place:
        with runner.bring_up(
            experiment, place.record, place.directory, place.namespace, place.report
        ) as running:
            found = Campaign(running, options.kinds, options.seconds, options.rounds).go()
        place.ignore_signals()
    if options.json:
        print(json.dumps(found))
        return
    calm = ", ".join(f"{job} {times['iteration_ms_median']:.0f} ms" for job, times in found["calm"].items())
    print(f"calm: {calm}; refused of others: {found['refused_of_others'] or 'none'}")
    for name, seen in found["attacks"].items():
        slower = ", ".join(
            f"{job} {times['slowdown']:.2f} (goal {GOALS[job]:.2f})" for job, times in seen["jobs"].items()
        )
        print(
            f"{name:8} {seen['sent']:7} sent, refused {seen['refused']}, dropped {seen['dropped']}; "
            f"counted at most {seen['counted_mbps_max']:g} Mbit/s (goal {RATE_MBPS:g}); "
            f"iterations longer: {slower}"
        )
