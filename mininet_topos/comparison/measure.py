"""Measure a scenario on this machine: with softswitch, BMv2, or Linux routers in place of switches."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from controlplane.fabric import Fabric
from controlplane.pipeline import Pipeline
from controlplane.routing import desired_state
from machine.errors import EntrainError
from machine.patience import patience
from machine.record import Record
from mininet_topos.comparison import routers
from mininet_topos.comparison.scenarios import Carried, Flow, Measured, Scenario
from mininet_topos.isolation import private_namespace
from mininet_topos.network import Network

Kind = Literal["softswitch", "bmv2", "router"]

SAMPLE_S = 0.01
PROBE_S = 0.02
_FIRST_PORT = 5201
SEGMENT_BYTES, _DATAGRAM_BYTES = 1448, 1472  # of payload
_ROUNDS, _PERIOD_S = 10, 0.5


def run(scenario: Scenario, kind: Kind, *, seconds: float, warm_up_s: float) -> Measured:
    """Measure a scenario. Raises EntrainError.

    Call it in the main thread of a process that has not used gRPC.
    """
    topology = scenario.topology.with_target("bmv2" if kind == "bmv2" else "softswitch")
    with (
        Record("comparison") as record,
        tempfile.TemporaryDirectory(prefix="entrain-comparison-") as scratch,
        private_namespace(record) as namespace,
    ):
        offloads = scenario.offloads and kind != "bmv2"
        with Network(topology, record, Path(scratch), namespace=namespace, offloads=offloads) as network:
            if kind == "router":
                routers.replace_switches(network)
            else:
                asyncio.run(_deploy(network))
            return _measure(network, scenario, Path(scratch), seconds, warm_up_s)


async def _deploy(network: Network) -> None:
    async with Fabric(network.topology, Pipeline.load()) as fabric:
        await fabric.apply(desired_state(network.topology))


def _measure(
    network: Network, scenario: Scenario, scratch: Path, seconds: float, warm_up_s: float
) -> Measured:
    first = scenario.flows[0]
    sink = network.topology.host_by_name[first.sink]
    network.run(first.source, ["ping", "-c", "3", "-i", "0.2", sink.ip])  # before the load, for ARP
    bursts = first.payload_bytes is not None
    log = scratch / "probes"
    probes = network.popen(first.source, ["ping", "-i", f"{PROBE_S:g}", sink.ip], log)
    with _sampled(network, scenario.queue, 0.0 if bursts else warm_up_s) as backlog:
        flows = (
            _burst(network, scenario.flows, scratch)
            if bursts
            else _stream(network, scenario.flows, scratch, seconds, warm_up_s)
        )
    network.end([probes])
    trips = [float(each) for each in re.findall(r"time=([0-9.]+) ms", log.read_text(encoding="utf-8"))]
    if not bursts:
        trips = trips[int(warm_up_s / PROBE_S) :]
    if not trips or not backlog:
        raise EntrainError(f"{scenario.name}: no probe returned, or no queue was read")
    return Measured(
        flows, statistics.fmean(trips), _p99(trips), statistics.fmean(backlog), _p99([*map(float, backlog)])
    )


def _p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


@contextmanager
def _sampled(network: Network, port: tuple[str, int], warm_up_s: float) -> Iterator[list[int]]:
    """Collect the bytes that wait at a switch's port, every SAMPLE_S, after the warm-up."""
    found: list[int] = []
    done = threading.Event()
    began_s = time.monotonic()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            queue = next(each for each in network.queues() if (each.node, each.port) == port)
            if time.monotonic() - began_s >= warm_up_s:
                found.append(queue.backlog_bytes)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def _stream(
    network: Network, flows: Sequence[Flow], scratch: Path, seconds: float, warm_up_s: float
) -> tuple[Carried, ...]:
    """Run all flows for some time, with iperf3."""
    servers, clients, reports = [], [], []
    for port, flow in enumerate(flows, _FIRST_PORT):
        servers.append(network.popen(flow.sink, ["iperf3", "--server", "--one-off", "--port", str(port)]))
        _listening(network, flow.sink, port)
    for port, flow in enumerate(flows, _FIRST_PORT):
        sink = network.topology.host_by_name[flow.sink]
        command = ["iperf3", "--json", "--client", sink.ip, "--port", str(port)]
        if flow.control == "udp":  # iperf3 would count what is lost in time that it omits
            command += ["--time", f"{seconds + warm_up_s:g}"]
            command += ["--udp", "--length", str(_DATAGRAM_BYTES), "--bitrate", f"{flow.rate_mbps:g}M"]
        else:
            command += ["--time", f"{seconds:g}", "--omit", f"{warm_up_s:g}", "--congestion", flow.control]
        reports.append(scratch / f"report-{port}.json")
        clients.append(network.popen(flow.source, command, reports[-1]))
    for client in clients:
        client.wait(timeout=seconds + warm_up_s + patience(30.0))
    network.end([*clients, *servers])
    return tuple(
        _carried(flow, _report(report.read_text(encoding="utf-8")))
        for flow, report in zip(flows, reports, strict=True)
    )


def _report(text: str) -> dict[str, Any]:
    """Return iperf3's report, which may follow messages."""
    try:
        report: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError:
        raise EntrainError(f"iperf3: {text.strip() or 'no report'}") from None
    return report


def _carried(flow: Flow, report: dict[str, Any]) -> Carried:
    if "error" in report:
        raise EntrainError(f"iperf3 from {flow.source} to {flow.sink}: {report['error']}")
    end = report["end"]
    if flow.control == "udp":
        lost = end["sum"]["lost_percent"] / 100
        return Carried(end["sum"]["bits_per_second"] / 1e6 * (1 - lost), lost)
    sent = end["sum_sent"]
    again = sent["retransmits"] * SEGMENT_BYTES / max(1, sent["bytes"])
    return Carried(end["sum_received"]["bits_per_second"] / 1e6, again)


def _burst(network: Network, flows: Sequence[Flow], scratch: Path) -> tuple[Carried, ...]:
    """Let all flows send their payload together, in several rounds."""
    size, sink = flows[0].payload_bytes or 0, network.topology.host_by_name[flows[0].sink]
    module = [sys.executable, "-m", "mininet_topos.comparison.burst"]
    found = scratch / "burst.json"
    receiving = network.popen(
        sink.name, [*module, "sink", str(_FIRST_PORT), str(len(flows)), str(size)], found
    )
    _listening(network, sink.name, _FIRST_PORT)
    first_s = time.monotonic() + patience(2.0)
    arguments = [sink.ip, str(_FIRST_PORT), str(size), str(_ROUNDS), str(first_s), str(_PERIOD_S)]
    senders = [network.popen(flow.source, [*module, "source", flow.control, *arguments]) for flow in flows]
    receiving.wait(timeout=_ROUNDS * _PERIOD_S + patience(30.0))
    network.end([*senders, receiving])
    times = json.loads(found.read_text(encoding="utf-8").splitlines()[-1])
    took = [[end - (first_s + number * _PERIOD_S) for number, end in enumerate(each)] for each in times]
    return tuple(Carried(size * 8e-6 / (seconds := statistics.fmean(each)), 0.0, seconds) for each in took)


def _listening(network: Network, host: str, port: int) -> None:
    """Wait until a process on the host listens on a TCP port."""
    deadline = time.monotonic() + patience(10.0)
    while not network.run(host, ["ss", "-Hltn", f"sport = :{port}"]).strip():
        if time.monotonic() > deadline:
            raise EntrainError(f"nothing on {host} listens on port {port}")
        time.sleep(0.01)
