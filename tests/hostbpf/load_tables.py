"""Hosts announce over a running fabric, and the switches' tables are read: a program of its own, because it
moves into a network namespace. Prints JSON: what was announced by flow, and what each port holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from controlplane.fabric import Fabric
from controlplane.loads import LoadReader
from controlplane.pipeline import Pipeline
from controlplane.routing import Policy, desired_state
from controlplane.topology import Host, parse_topology
from ebpf import in_netns
from hostbpf import carriers
from hostbpf.slots import Flow, Schedules, SlotClock
from machine.record import Record
from mininet_topos.isolation import private_namespace
from mininet_topos.network import Network

CLOCK = SlotClock.shared(3000)  # the window of ten slots outlasts the reading
SEED = 5


def main(target: str) -> None:
    draw = random.Random(SEED)
    tables = {"topology": {"kind": "dumbbell", "hosts_per_side": 2, "target": target}}
    topology = parse_topology(tables, "load tables")
    with (
        tempfile.TemporaryDirectory() as directory,
        Record("test-loads") as record,
        private_namespace(record) as namespace,
        Network(topology, record, Path(directory), namespace=namespace) as network,
        contextlib.ExitStack() as stack,
    ):
        pipeline = Pipeline.load()
        netns = {host.name: f"/proc/{network.net[host.name].pid}/ns/net" for host in topology.hosts}

        async def prepare() -> None:
            async with Fabric(topology, pipeline) as fabric:
                await fabric.apply(desired_state(topology, Policy(routing="ecmp")))

        async def read() -> list[dict[str, object]]:
            async with Fabric(topology, pipeline) as fabric:
                loads = await LoadReader(fabric).read()
            return [{"switch": each.switch, "peer": each.peer, "slots": each.slots} for each in loads]

        with asyncio.Runner() as loop:
            loop.run(prepare())
            attached = {}
            for host in topology.hosts:
                index = in_netns(netns[host.name], lambda host=host: socket.if_nametoindex(host.interface))
                attached[host.name] = stack.enter_context(
                    carriers.attached(index, CLOCK, netns=netns[host.name])
                )
            flows = []
            for number, source in enumerate(topology.hosts):
                for destination in topology.hosts:
                    if source is not destination:
                        sender = _connect(stack, netns, source, destination)
                        flows.append((source, destination, sender, Flow.of(sender)))
                        attached[source.name].announce(flows[-1][3], number)
            for change in range(3):
                base = CLOCK.slot()
                for source, _, sender, flow in flows:
                    rates = [float(draw.randrange(100)) for _ in range(25)]
                    Schedules(attached[source.name].schedules, CLOCK, netns=0).set(flow, base, rates)
                    sender.sendall(b"x" * 5000)
                _settle(attached, (change + 1) * len(flows))
            ports = loop.run(read())
        announced = [
            {"from": source.name, "to": destination.name, "slots": attached[source.name].announced(flow)}
            for source, destination, _, flow in flows
        ]
        counts = {name: each.counts() for name, each in attached.items()}
        print(json.dumps({"slot": CLOCK.slot(), "announced": announced, "ports": ports, "counts": counts}))


def _connect(
    stack: contextlib.ExitStack, netns: dict[str, str], source: Host, destination: Host
) -> socket.socket:
    listener = in_netns(netns[destination.name], lambda: socket.create_server((str(destination.ip), 0)))
    sender = stack.enter_context(in_netns(netns[source.name], socket.socket))
    sender.settimeout(20)
    sender.connect(listener.getsockname())
    receiver = stack.enter_context(listener.accept()[0])
    listener.close()

    def drain() -> None:
        with contextlib.suppress(OSError):
            while receiver.recv(65536):
                pass

    threading.Thread(target=drain, daemon=True).start()
    return sender


def _settle(attached: dict[str, carriers.Carriers], least: int) -> None:
    """Wait until as many carriers have arrived as have left, `least` of them."""
    deadline = time.monotonic() + 20
    while True:
        counts = [each.counts() for each in attached.values()]
        sent, received = (sum(each[key] for each in counts) for key in ("sent", "received"))
        if sent == received and sent >= least:
            return
        if time.monotonic() > deadline:
            sys.exit(f"{sent} carriers left, {received} arrived")
        threading.Event().wait(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
