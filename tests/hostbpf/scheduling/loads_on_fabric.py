"""Hosts decide with the loads of a running fabric and with those of emulated switches: a program of its own,
because it moves into a network namespace. Prints JSON: every decision with both."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from controlplane.fabric import Fabric
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy, desired_state
from controlplane.topology import Host, Topology, parse_topology
from ebpf import in_netns
from hostbpf.carriers import carriers
from hostbpf.carriers.carriers import Carriers
from hostbpf.clock import SlotClock
from hostbpf.emulated.client import Emulated, load_paths
from hostbpf.emulated.server import load_switch, serving
from hostbpf.rates.schedules import Schedules
from hostbpf.scheduling.loads import RATE_UNIT, InBand, LoadSource
from machine.record import Record
from mininet_topos.emulated_switches import write_files
from mininet_topos.isolation import private_namespace
from mininet_topos.network import Network
from schedulers.compiled import Floats
from tests.schedulers.slots.deciding import decide_one, whole_horizon
from wire.flow import Flow
from wire.slot_header import LANES

SLOT_S = 100.0
CLOCK = SlotClock(round(SLOT_S * 1e9), time.monotonic_ns() - round(1000 * SLOT_S * 1e9))  # all in slot 1000
SLOT = 1000
LINE = 1000 * RATE_UNIT
ENOUGH_S = 20.0
SEED, STEPS = 3, 80


class OnFabric:
    """One host whose switches are programmable."""

    def __init__(self, own: Carriers) -> None:
        self.source = InBand(own, LINE, self._wait, patience_s=ENOUGH_S)
        self._carriers = own
        self._schedules = Schedules(own.schedules, CLOCK, netns=0)

    def begin(self, flow: Flow) -> None:
        self._carriers.announce(flow)

    def put(self, flow: Flow, rates: Floats) -> None:
        self._schedules.set(flow, SLOT, (rates * 8e-6).tolist())
        self._carriers.probe(flow)

    def end(self, flow: Flow) -> None:
        self._schedules.clear(flow)
        self._carriers.withdraw(flow)

    def _wait(self, timeout_s: float) -> None:
        self._ring.poll(round(timeout_s * 1e3))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        self._ring = self._carriers.feedback(self.source.deliver)
        with contextlib.closing(self._ring):
            yield


def answer(source: LoadSource, flow: Flow) -> tuple[Floats, Floats]:
    source.ask([flow], SLOT)
    [found] = source.answers(ENOUGH_S)
    assert found.slot == SLOT
    return found.load, found.headroom


async def _prepare(topology: Topology) -> None:
    async with Fabric(topology, Pipeline.load()) as fabric:
        await fabric.apply(desired_state(topology, FabricPolicy("source")))


def main(target: str) -> None:
    shape = {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "uplink_rate_mbps": 400}
    topology = parse_topology({"topology": {"kind": "leaf-spine", **shape, "target": target}}, "loads")
    with (
        tempfile.TemporaryDirectory() as directory,
        Record("test-loads") as record,
        private_namespace(record) as namespace,
        Network(topology, record, Path(directory), namespace=namespace) as network,
        contextlib.ExitStack() as stack,
    ):
        asyncio.run(_prepare(topology))
        addresses = {switch.name: f"unix:{directory}/{switch.name}.sock" for switch in topology.switches}
        switches, paths = write_files(topology, "source", Path(directory), addresses)
        for file in switches.values():
            stack.enter_context(serving(load_switch(file), CLOCK.slot))
        fabric, emulated = {}, {}
        for host in topology.hosts:
            netns = f"/proc/{network.net[host.name].pid}/ns/net"
            index = in_netns(netns, functools.partial(socket.if_nametoindex, host.interface))
            fabric[host] = OnFabric(stack.enter_context(carriers.attached(index, CLOCK, netns=netns)))
            stack.enter_context(fabric[host].listening())
            file = load_paths(paths[host.name]).model_copy(update={"deadline_ms": ENOUGH_S * 1e3})
            emulated[host] = stack.enter_context(Emulated(file, LINE))
            for other in topology.hosts:  # no carrier waits for ARP
                if other is not host:
                    command = ["ip", "neigh", "replace", other.ip, "lladdr", other.mac, "dev", host.interface]
                    network.run(host.name, command)
        print(json.dumps(_run(topology, fabric, emulated)))


def _run(
    topology: Topology, fabric: dict[Host, OnFabric], emulated: dict[Host, Emulated]
) -> list[dict[str, object]]:
    draw = random.Random(SEED)
    flows: dict[Flow, Host] = {}
    decisions = []
    for step in range(STEPS):
        if len(flows) > 6:
            flow = draw.choice(list(flows))
            host = flows.pop(flow)
            fabric[host].end(flow)
            behind = flow._replace(source_port=1)  # takes the same path, and plans nothing
            fabric[host].begin(behind)
            for source in (fabric[host].source, emulated[host]):
                source.forget(flow)
                answer(source, behind)
                source.forget(behind)
            fabric[host].end(behind)
        elif flows and draw.random() < 0.3:
            flow = draw.choice(list(flows))
        else:
            host, destination = draw.sample(topology.hosts, 2)
            flow = Flow(host.ip, 1000 + step, destination.ip, 7000)
            flows[flow] = host
            fabric[host].begin(flow)
        if flow not in flows:
            continue
        host, volume = flows[flow], draw.random() * LINE * SLOT_S * 5
        both: list[list[float]] = []
        for source in (fabric[host].source, emulated[host]):
            load, headroom = answer(source, flow)
            rates = decide_one(whole_horizon(SLOT_S, LANES), LINE, load, headroom, 0.0, volume)
            if source is not emulated[host]:
                fabric[host].put(flow, rates)
            source.tell(flow, SLOT, rates)
            answer(source, flow)  # behind what was told, so the switches know it now
            both.append([*(rates / RATE_UNIT).tolist(), *(np.minimum(headroom, LINE) / RATE_UNIT).tolist()])
        decisions.append({"flow": flow, "in_band": both[0], "emulated": both[1]})
    return decisions


if __name__ == "__main__":
    main(sys.argv[1])
