"""Agents on the hosts of a running fabric: one flow gets a schedule, and its feedback is printed as JSON.

A program of its own, because it moves into a network namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
import threading
from pathlib import Path

import grpc

from controlplane.fabric import Fabric
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy, desired_state
from controlplane.topology import parse_topology
from ebpf import in_netns
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc import agent_pb2_grpc as rpc
from machine.patience import patience
from machine.record import Record
from mininet_topos.agents import agents
from mininet_topos.isolation import private_namespace
from mininet_topos.network import Network
from wire.flow import Flow

RATE = 30.0


def main(target: str) -> None:
    tables = {
        "topology": {
            "kind": "dumbbell",
            "hosts_per_side": 1,
            "host_rate_mbps": 200,
            "bottleneck_rate_mbps": 100,
            "target": target,
        }
    }
    topology = parse_topology(tables, "agents")
    source, destination = topology.hosts
    with (
        tempfile.TemporaryDirectory() as directory,
        Record("test-agents") as record,
        private_namespace(record) as namespace,
        Network(topology, record, Path(directory), namespace=namespace) as network,
        agents(network, record, Path(directory), slot_ms=1000) as addresses,
        contextlib.ExitStack() as stack,
    ):

        async def prepare() -> None:
            async with Fabric(topology, Pipeline.load()) as fabric:
                await fabric.apply(desired_state(topology, FabricPolicy(routing="ecmp")))

        asyncio.run(prepare())
        netns = {host.name: f"/proc/{network.net[host.name].pid}/ns/net" for host in topology.hosts}
        listener = in_netns(netns[destination.name], lambda: socket.create_server((str(destination.ip), 0)))
        sender = stack.enter_context(in_netns(netns[source.name], socket.socket))
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"slot_cubic")
        sender.settimeout(patience(20))
        sender.connect(listener.getsockname())
        receiver = listener.accept()[0]

        def drain() -> None:
            while receiver.recv(65536):
                pass

        threading.Thread(target=drain).start()
        flow = Flow.of(sender)
        stub = rpc.HostStub(grpc.insecure_channel(addresses[source.name]))
        watch = stub.WatchFeedback(pb.WatchFeedbackRequest(), timeout=patience(20))
        watch.initial_metadata()  # comes with the subscription
        message = pb.Flow(
            source=flow.source,
            source_port=flow.source_port,
            destination=flow.destination,
            destination_port=flow.destination_port,
        )
        answer = stub.SetSchedule(pb.SetScheduleRequest(flow=message, rates_mbps=[RATE] * 30))
        ended = threading.Event()

        def send() -> None:
            while not ended.wait(0.05):
                sender.sendall(bytes(5000))
            sender.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send)
        sending.start()
        feedback = next(iter(watch))
        watch.cancel()
        ended.set()
        sending.join()
        slots = [
            {"slot": each.slot, "load": each.load_mbps, "headroom": each.headroom_mbps}
            for each in feedback.slots
        ]
        print(
            json.dumps(
                {"first": answer.slot, "base": feedback.base_slot, "hops": feedback.hops, "slots": slots}
            )
        )


if __name__ == "__main__":
    main(sys.argv[1])
