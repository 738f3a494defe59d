"""Hosts announce over a running fabric, and the switches' tables are read: a program of its own, because it
moves into a network namespace.

Flows start, change their schedules and stop at random. Prints JSON: for each flow the ports on its path, what
a plain model says that it plans in each slot, and the sum of the changes in carriers that were lost; and what
each port's table holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import random
import socket
import struct
import sys
import tempfile
import termios
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.fabric import Fabric
from controlplane.loads import LoadReader, PortLoad
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy, desired_state, fixed_path
from controlplane.topology import Host, Topology, parse_topology
from ebpf import in_netns
from hostbpf.carriers import carriers
from hostbpf.carriers.carriers import Carriers
from hostbpf.clock import SlotClock
from hostbpf.rates.schedules import Schedules
from machine.patience import patience
from machine.record import Record
from mininet_topos.isolation import private_namespace
from mininet_topos.loss import lossy
from mininet_topos.network import Network
from wire.flow import Flow
from wire.slot_header import ETHERTYPE, LANES, Kind, SlotHeader, slot_near

CLOCK = SlotClock.shared(3000)  # the window of ten slots outlasts the reading
SEED = 5
STEPS = 12
STILL_S = 3.0
ETH_P_ALL, SO_RCVBUFFORCE = 3, 33


@dataclass(eq=False)
class Sender:
    """A flow, and the plain model of it."""

    source: Host
    destination: Host
    flow: Flow
    connection: socket.socket | None = None
    """None: there is not even a socket, and probes announce."""
    plan: tuple[int, list[int]] | None = None
    """First slot and rates; None: stopped."""
    planned: dict[int, int] = field(default_factory=dict)
    """By slot, after the carriers that have left."""
    missing: Counter[int] = field(default_factory=Counter)
    """By slot, the sum of changes that have left and not arrived."""

    def left(self, header: SlotHeader) -> None:
        """A carrier has left: the ten slots are what the plan says."""
        first, rates = self.plan or (0, [])
        for slot in range(header.base_slot, header.base_slot + LANES):
            self.planned[slot] = rates[slot - first] if 0 <= slot - first < len(rates) else 0
        self._count(header, 1)

    def arrived(self, header: SlotHeader) -> None:
        """One of them has arrived."""
        self._count(header, -1)

    def _count(self, header: SlotHeader, sign: int) -> None:
        for number, lane in enumerate(header.lanes):
            self.missing[header.slot_in(number)] += sign * abs(lane.delta)


class Taps:
    """Sees the carriers that leave and arrive at every host."""

    def __init__(self, stack: contextlib.ExitStack, topology: Topology, netns: dict[str, str]) -> None:
        self._taps = []
        for host in topology.hosts:
            tap = stack.enter_context(
                in_netns(netns[host.name], lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            )
            tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
            tap.bind((host.interface, ETH_P_ALL))
            tap.setblocking(False)
            self._taps.append(tap)

    def read(self, senders: dict[int, Sender]) -> None:
        """Tell the senders, by the number in the header, what has left and what has arrived since."""
        for tap in self._taps:
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame, address = tap.recvfrom(65536)
                    if frame[12:14] != struct.pack("!H", ETHERTYPE):
                        continue
                    header = SlotHeader.unpack(frame[14:])
                    if header.kind == Kind.SCHEDULE:
                        sender = senders[header.flow]
                        leaves = address[2] == socket.PACKET_OUTGOING
                        (sender.left if leaves else sender.arrived)(header)


def main(target: str, loss: float) -> None:
    draw = random.Random(SEED)
    shape = {"leaves": 3, "spines": 2, "hosts_per_leaf": 3}
    topology = parse_topology({"topology": {"kind": "leaf-spine", **shape, "target": target}}, "load tables")
    policy = FabricPolicy("source", {host.name: 1 + i % 2 for i, host in enumerate(topology.hosts)})
    with (
        tempfile.TemporaryDirectory() as directory,
        Record("test-loads") as record,
        private_namespace(record) as namespace,
        Network(topology, record, Path(directory), namespace=namespace) as network,
        contextlib.ExitStack() as stack,
        asyncio.Runner() as loop,
    ):
        netns = {host.name: f"/proc/{network.net[host.name].pid}/ns/net" for host in topology.hosts}
        loop.run(_prepare(topology, policy))
        for host in topology.hosts:  # no carrier waits for ARP
            neighbours = [f"{each.ip} lladdr {each.mac}" for each in topology.hosts if each is not host]
            script = "; ".join(f"ip neigh replace {each} dev {host.interface}" for each in neighbours)
            network.run(host.name, ["sh", "-ec", script])
        attached = {}
        for host in topology.hosts:
            index = in_netns(netns[host.name], functools.partial(socket.if_nametoindex, host.interface))
            attached[host.name] = stack.enter_context(carriers.attached(index, CLOCK, netns=netns[host.name]))
        senders = [
            Sender(source, destination, Flow(str(source.ip), 1000, str(destination.ip), port, 17))
            for source in topology.hosts
            for destination in topology.hosts
            for port in (2001, 2002)
            if source is not destination and policy.vrfs[source.name] == policy.vrfs[destination.name]
        ]
        if loss:
            ports = [(switch, port.number) for switch in topology.switches for port in switch.ports]
            interfaces = [socket.if_nametoindex(switch.interface(number)) for switch, number in ports]
            stack.enter_context(lossy(interfaces, loss))
        else:  # some announce with their own data
            for sender in senders[::4]:
                sender.connection = _connect(stack, netns, sender.source, sender.destination)
                sender.flow = Flow.of(sender.connection)
        taps = Taps(stack, topology, netns)
        numbers: dict[int, Sender] = {}
        lost = [0, 0]
        for _ in range(STEPS):
            for sender in senders:
                _act(sender, attached[sender.source.name], draw, numbers)
            if not loss:
                _settle(senders, attached, lost)
            taps.read(numbers)  # before the tables: what is still under way then counts as lost
        tables = loop.run(_read(topology))
        result = {
            "slot": CLOCK.slot(),
            "flows": [
                {
                    "path": fixed_path(topology, "source", each.source, each.destination),
                    "planned": each.planned,
                    "missing": each.missing,
                }
                for each in senders
            ],
            "ports": [
                {
                    "port": [each.switch, each.port],
                    "slots": {slot_near(CLOCK.slot(), slot): load for slot, load in each.slots.items()},
                }
                for each in tables
            ],
            "counts": {name: each.counts() for name, each in attached.items()},
        }
        print(json.dumps(result))


def _act(sender: Sender, own: Carriers, draw: random.Random, numbers: dict[int, Sender]) -> None:
    """Start, change, stop, or nothing."""
    schedules = Schedules(own.schedules, CLOCK, netns=0)
    action = draw.random()
    if sender.plan is not None and action < 0.2:
        sender.plan = None
        schedules.clear(sender.flow)
        own.withdraw(sender.flow)
    elif action < 0.6:
        if sender.plan is None:
            numbers[own.announce(sender.flow)] = sender
        rates = [draw.randrange(100) for _ in range(draw.choice([3, 12, 25]))]
        sender.plan = (CLOCK.slot() + draw.choice([0, 0, 2]), rates)
        schedules.set(sender.flow, sender.plan[0], [float(rate) for rate in rates])
        if sender.connection is None:
            own.probe(sender.flow)
        else:
            sender.connection.sendall(bytes(5000))


async def _prepare(topology: Topology, policy: FabricPolicy) -> None:
    async with Fabric(topology, Pipeline.load()) as fabric:
        await fabric.apply(desired_state(topology, policy))


async def _read(topology: Topology) -> list[PortLoad]:
    async with Fabric(topology, Pipeline.load()) as fabric:
        return await LoadReader(fabric).read()


def _connect(
    stack: contextlib.ExitStack, netns: dict[str, str], source: Host, destination: Host
) -> socket.socket:
    listener = in_netns(netns[destination.name], lambda: socket.create_server((str(destination.ip), 0)))
    sender = stack.enter_context(in_netns(netns[source.name], socket.socket))
    sender.settimeout(patience(20))
    sender.connect(listener.getsockname())
    receiver = stack.enter_context(listener.accept()[0])
    listener.close()

    def drain() -> None:
        with contextlib.suppress(OSError):
            while receiver.recv(65536):
                pass

    threading.Thread(target=drain, daemon=True).start()
    return sender


def _settle(senders: list[Sender], attached: dict[str, Carriers], lost: list[int]) -> None:
    """Wait until all data and carriers have arrived, and all feedback, but for as many as are `lost` already.

    BMv2 loses packets while it has no processor. Where for STILL_S nothing comes any more, what is missing is
    added to `lost`: carriers, feedback.
    """
    connections = [each.connection for each in senders if each.connection is not None]
    deadline, since, before = time.monotonic() + patience(60), time.monotonic(), {}
    while True:
        unacknowledged = [fcntl.ioctl(each, termios.TIOCOUTQ, bytes(4)) for each in connections]
        counts = [each.counts() for each in attached.values()]
        total = {key: sum(each[key] for each in counts) for key in counts[0]}
        back = total["received_feedback"] + total["unknown_flow"]  # the latter of withdrawn flows
        missing = [total["sent"] - total["received"], total["sent"] - back]
        if total != before:
            since, before = time.monotonic(), total
        if not any(map(any, unacknowledged)):
            if missing == lost:
                return
            if time.monotonic() > since + STILL_S:
                lost[:] = missing
                return
        if time.monotonic() > deadline:
            sys.exit(f"data are not acknowledged; carriers: {total}")
        threading.Event().wait(0.02)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
