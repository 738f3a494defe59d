"""The switch: throughput, packets per second, table writes and deployment, compared with BMv2 and plain
redirect.

`python -m benchmarks switch [--json] [--rounds N] [--seconds S]`. All targets run the same fabric program
from the same JSON between the same two hosts. They take turns within each round, so that ratios hold when the
machine's speed drifts. Each figure is the median of the rounds. `redirect` is the minimum for any eBPF
switch: one program that sends every packet out of the other port. `copy` is the same, but takes packets from
their senders' sockets, as the switch does at ports with a queue; figures that begin with `queued` are of such
ports. Without BMv2, its figures and the ratios to it are null.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from controlplane.fabric import Fabric
from controlplane.network import Host, Link, Switch, Topology, build
from controlplane.pipeline import Pipeline
from controlplane.routing import desired_state
from controlplane.topology import leaf_spine
from ebpf import Object, compile_bpf
from machine.errors import EntrainError
from machine.record import Record, clean_stale
from machine.signals import ending_once
from mininet_topos.isolation import private_namespace
from mininet_topos.network import LOSSY_FEATURES, Network

Kind = Literal["redirect", "copy", "softswitch", "bmv2"]
Figures = dict[str, float]

FRAME_BYTES = 64
"""The smallest Ethernet frame, including its checksum."""

_PATHS = (1, 3)
_WRITES, _BATCH = 4000, 500
_ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str]) -> None:
    """Run the benchmark. With `--measure`, which it passes to its own processes, measure one target once."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks switch", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with every target in turn")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--targets", nargs="+", default=list(get_args(Kind)), choices=get_args(Kind))
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "SWITCHES"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure:
        kind, switches = options.measure
        with ending_once():
            print(json.dumps(_measure(kind, int(switches), options.seconds)))
        return
    clean_stale()
    results = _all_rounds(options.rounds, options.seconds, options.targets)
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        width = max(map(len, results))
        for key, value in results.items():
            shown = "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else value
            print(f"{key:<{width}}  {shown}")


# -- rounds and ratios


def _all_rounds(rounds: int, seconds: float, targets: Sequence[Kind]) -> dict[str, Any]:
    present = [kind for kind in targets if kind != "bmv2" or shutil.which("simple_switch_grpc")]
    samples: dict[tuple[Kind, int], list[Figures]] = {}
    for number in range(rounds):
        for switches in _PATHS:
            for kind in present:
                print(f"round {number + 1}/{rounds}: {kind}, {switches} switch(es)", file=sys.stderr)
                samples.setdefault((kind, switches), []).append(_in_own_process(kind, switches, seconds))
    if "softswitch" in present:
        print("deploying 8 switches", file=sys.stderr)
        samples["softswitch", 8] = [_in_own_process("softswitch", 8, seconds) for _ in range(rounds)]
    return _summary({key: _medians(values) for key, values in samples.items()})


def _in_own_process(kind: Kind, switches: int, seconds: float) -> Figures:
    """Measure in a new process, because a process with gRPC's threads cannot change its namespace."""
    command = [sys.executable, "-m", "benchmarks", "switch", "--measure", kind, str(switches)]
    done = subprocess.run(
        [*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True, cwd=_ROOT, check=False
    )
    if done.returncode:
        raise EntrainError(f"measuring {kind} over {switches} switches failed (status {done.returncode})")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _medians(samples: list[Figures]) -> Figures:
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def _summary(medians: dict[tuple[Kind, int], Figures]) -> dict[str, Any]:
    def figure(kind: Kind, switches: int, key: str) -> float | None:
        return medians.get((kind, switches), {}).get(key)

    def ratio(key: str, other: Kind, switches: int = 1, other_key: str | None = None) -> float | None:
        ours, theirs = figure("softswitch", switches, key), figure(other, switches, other_key or key)
        return ours / theirs if ours is not None and theirs else None

    results: dict[str, Any] = {
        # Each target has its best offload setting: BMv2 handles packets as they are on the wire.
        "tcp_ratio_bmv2": ratio("tcp_gbps", "bmv2", other_key="tcp_no_offload_gbps"),
        "pps_ratio_bmv2": ratio("pps", "bmv2"),
        "tcp_ratio_redirect": ratio("tcp_gbps", "redirect"),
        "tcp_no_offload_ratio_redirect": ratio("tcp_no_offload_gbps", "redirect"),
        "pps_ratio_redirect": ratio("pps", "redirect"),
        "queued_tcp_no_offload_ratio_redirect": ratio("queued_tcp_no_offload_gbps", "redirect"),
        "queued_tcp_no_offload_ratio_copy": ratio("queued_tcp_no_offload_gbps", "copy"),
        "queued_pps_ratio_redirect": ratio("queued_pps", "redirect"),
        "queued_pps_ratio_copy": ratio("queued_pps", "copy"),
        "three_switch_tcp_ratio_bmv2": ratio("tcp_gbps", "bmv2", 3, "tcp_no_offload_gbps"),
        "three_switch_pps_ratio_bmv2": ratio("pps", "bmv2", 3),
        "three_switch_tcp_ratio_redirect": ratio("tcp_gbps", "redirect", 3),
        "three_switch_pps_ratio_redirect": ratio("pps", "redirect", 3),
        "writes_per_s": figure("softswitch", 1, "writes_per_s"),
        "writes_per_s_bmv2": figure("bmv2", 1, "writes_per_s"),
        "deploy_8_switches_s": figure("softswitch", 8, "deploy_s"),
        "bring_up_8_switches_s": figure("softswitch", 8, "bring_up_s"),
    }
    for (kind, switches), figures in sorted(medians.items()):
        if switches in _PATHS:
            for key in ("tcp_gbps", "tcp_no_offload_gbps", "pps", "queued_tcp_no_offload_gbps", "queued_pps"):
                results[f"{kind}_{switches}_{key}"] = figures.get(key)
    return results


# -- one measurement


def _measure(kind: Kind, switches: int, seconds: float) -> Figures:
    target: Literal["softswitch", "bmv2"] = "bmv2" if kind == "bmv2" else "softswitch"
    topology = leaf_spine(4, 4, 1) if switches == 8 else _chain(switches)
    with (
        Record("benchmark") as record,
        tempfile.TemporaryDirectory(prefix="entrain-benchmark-") as scratch,
        private_namespace(record) as namespace,
    ):
        began = time.monotonic()
        # "off" rather than "warn": logging slows BMv2 down further.
        options: dict[str, Any] = {"shaping": "none", "offloads": True, "log_level": "off"}
        topology = topology.with_target(target)
        with Network(topology, record, Path(scratch), namespace=namespace, **options) as network:
            started = time.monotonic()
            asyncio.run(_deploy(topology))
            figures = {
                "deploy_s": time.monotonic() - started,
                "bring_up_s": time.monotonic() - began,
            }
            if switches == 8:
                return figures
            redirects = kind in ("redirect", "copy")
            with _redirecting(network, Path(scratch), kind) if redirects else contextlib.nullcontext():
                figures |= _traffic(network, kind, seconds)
            if not redirects and switches == 1:
                figures["writes_per_s"] = asyncio.run(_writes_per_s(topology))
            return figures


def _chain(length: int) -> Topology:
    """Return the chain h1 - s1 - .. - sN - h2, with links faster than any target."""
    switches = [Switch(f"s{i}", "switch", i, 9558 + i, "softswitch") for i in range(1, length + 1)]
    first, last = switches[0].name, switches[-1].name
    hosts = [
        Host("h1", "10.1.1.2", 8, "02:00:0a:01:01:02", first, 1),
        Host("h2", "10.2.1.2", 8, "02:00:0a:02:01:02", last, 2),
    ]
    rate_mbps, queue_packets = 400_000.0, 100_000
    ends = [(first, 1, "h1", 0), (last, 2, "h2", 0)]
    ends += [(a.name, 2, b.name, 1) for a, b in itertools.pairwise(switches)]
    return build("chain", switches, hosts, [Link(*end, rate_mbps, queue_packets) for end in ends])


async def _deploy(topology: Topology) -> None:
    async with Fabric(topology, Pipeline.load()) as fabric:
        await fabric.apply(desired_state(topology))


@contextlib.contextmanager
def _redirecting(network: Network, scratch: Path, kind: Kind) -> Iterator[None]:
    """Replace the switches by one redirect program on each of their interfaces."""
    for node in network.switches.values():
        node.stop()
    compiled = scratch / "redirect.bpf.o"
    compile_bpf(Path(__file__).with_name("bpf") / "redirect.bpf.c", compiled)
    indices = {
        (switch.name, port.number): socket.if_nametoindex(switch.interface(port.number))
        for switch in network.topology.switches
        for port in switch.ports
    }
    with contextlib.ExitStack() as stack:
        for (switch, port), ifindex in indices.items():
            program = stack.enter_context(Object.open(compiled))
            out = indices[switch, 3 - port]
            program.set_rodata("out_ifindex", out.to_bytes(4, sys.byteorder))
            program.set_rodata("copies", int(kind == "copy").to_bytes(4, sys.byteorder))
            program.load()
            stack.callback(program.programs["redirect"].attach_tc(ifindex, "ingress").detach)
        for host in network.topology.hosts:  # nothing answers ARP now
            other = next(peer for peer in network.topology.hosts if peer != host)
            neighbour = ["ip", "neigh", "replace", other.ip, "lladdr", other.mac, "dev", host.interface]
            network.run(host.name, neighbour)
        yield


def _traffic(network: Network, kind: Kind, seconds: float) -> Figures:
    figures = {}
    if kind != "bmv2":
        figures["tcp_gbps"] = _tcp_gbps(network, seconds)
    for host in network.topology.hosts:
        features = [word for feature in LOSSY_FEATURES for word in (feature, "off")]
        network.run(host.name, ["ethtool", "-K", host.interface, *features])
    figures["tcp_no_offload_gbps"] = _tcp_gbps(network, seconds)
    figures["pps"] = _pps(network, seconds)
    if kind != "bmv2":
        _add_queues(network)
        figures["queued_tcp_no_offload_gbps"] = _tcp_gbps(network, seconds)
        figures["queued_pps"] = _pps(network, seconds)
    return figures


def _add_queues(network: Network) -> None:
    """Give the switches' ports a queue, long enough to lose nothing."""
    for switch in network.topology.switches:
        for port in switch.ports:
            queue = ["tc", "qdisc", "add", "dev", switch.interface(port.number), "root", "bfifo"]
            subprocess.run([*queue, "limit", "100000000"], check=True)


def _tcp_gbps(network: Network, seconds: float) -> float:
    """Return the throughput of one TCP connection, as counted by the receiver."""
    receiver = network.topology.host_by_name["h2"]
    server = network.popen(receiver.name, ["iperf3", "--server", "--one-off"])
    try:
        _wait_for_socket(network, receiver, "-Hltn", 5201)
        command = ["iperf3", "--client", receiver.ip, "--time", f"{seconds:g}", "--omit", "1", "--json"]
        report = json.loads(network.run("h1", command, timeout_s=seconds + 30))
    finally:
        network.end([server])
    return float(report["end"]["sum_received"]["bits_per_second"]) / 1e9


def _wait_for_socket(network: Network, host: Host, kind: str, port: int, timeout_s: float = 10.0) -> None:
    """Wait until a process on `host` listens on `port`; `kind` holds the flags of `ss` for TCP or UDP."""
    deadline = time.monotonic() + timeout_s
    while not network.run(host.name, ["ss", kind, f"sport = :{port}"]).strip():
        if time.monotonic() > deadline:
            raise EntrainError(f"nothing on {host.name} listens on port {port}")
        time.sleep(0.01)


def _pps(network: Network, seconds: float) -> float:
    """Return how many of the smallest frames arrive per second, counted at the receiver's interface."""
    receiver = network.topology.host_by_name["h2"]
    sink = network.popen(receiver.name, [sys.executable, "-c", _SINK])
    port = 9000
    _wait_for_socket(network, receiver, "-Hlun", port)
    command = [sys.executable, "-m", "benchmarks.blast", receiver.ip, str(port)]
    before = _received(network, receiver)
    network.run("h1", [*command, f"{seconds:g}", str(FRAME_BYTES)], timeout_s=seconds + 30)
    after = _received(network, receiver)
    network.end([sink])
    return (after - before) / seconds


_SINK = """
import socket, threading
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
sink.bind(("", 9000))
threading.Event().wait()
"""
"""A socket that is never read: it discards packets cheaply, without an ICMP error for each."""


def _received(network: Network, host: Host) -> int:
    text = network.run(host.name, ["cat", "/proc/net/dev"])
    found = re.search(rf"{re.escape(host.interface)}:\s+\d+\s+(\d+)", text)
    assert found
    return int(found[1])


async def _writes_per_s(topology: Topology) -> float:
    """Return route inserts per second, `_BATCH` per P4Runtime write, as a controller sends them."""
    import finsy as fy
    from finsy.proto import p4r

    from controlplane import constants as p4
    from controlplane.p4client import SwitchClient

    pipeline = Pipeline.load()
    client = SwitchClient(topology.switches[0], pipeline)
    await client.connect(10.0)
    try:
        entries = [
            fy.P4TableEntry(
                p4.TABLE_ROUTE,
                match=fy.P4TableMatch(vrf=7, dst=f"{0x0B000000 + number:#x}/32"),
                action=fy.P4TableAction(p4.ACTION_TO_GROUP, group=1),
            )
            for number in range(_WRITES)
        ]
        updates = [
            p4r.Update(type=p4r.Update.INSERT, entity=entry.encode(pipeline.schema)) for entry in entries
        ]
        began = time.monotonic()
        for first in range(0, _WRITES, _BATCH):
            await client.write(updates[first : first + _BATCH])
        return _WRITES / (time.monotonic() - began)
    finally:
        await client.close()
