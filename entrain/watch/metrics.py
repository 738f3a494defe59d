"""Metrics for Prometheus: switches, links, agents, jobs and the controller in one scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from entrain.watch.source import Snapshot

_PORT = ("switch", "port", "peer")
_LINK = ("link", "source", "target")


class _Collector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from _controller(self._snapshot)
        yield from _switches(self._snapshot)
        yield from _links(self._snapshot)
        yield from _agents(self._snapshot)
        yield from _jobs(self._snapshot)


def exposition(snapshot: Snapshot) -> tuple[bytes, str]:
    """Return what a scrape gets, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(snapshot))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _controller(snapshot: Snapshot) -> Iterator[Metric]:
    told = GaugeMetricFamily(
        "entrain_network_info",
        "The network that is watched.",
        labels=("network", "run", "routing", "program"),
    )
    told.add_metric((snapshot.network, snapshot.run, snapshot.routing, snapshot.program), 1)
    yield told
    yield GaugeMetricFamily(
        "entrain_controller_reads_switches",
        "1 if the controller could read all switches at the last reading.",
        value=0 if snapshot.problem else 1,
    )
    yield GaugeMetricFamily("entrain_slot", "Number of the present slot.", value=snapshot.slot)
    yield GaugeMetricFamily("entrain_slot_length_seconds", "Length of a slot.", value=snapshot.slot_ms / 1e3)
    yield GaugeMetricFamily(
        "entrain_circuits", "Circuits of the optical circuit switch.", value=len(snapshot.circuits)
    )


def _switches(snapshot: Snapshot) -> Iterator[Metric]:
    ready = GaugeMetricFamily(
        "entrain_switch_ready",
        "1 if the switch is in its desired state.",
        labels=("switch", "role", "target"),
    )
    entries = GaugeMetricFamily(
        "entrain_switch_table_entries", "Entries of a table.", labels=("switch", "table")
    )
    drops = CounterMetricFamily(
        "entrain_switch_dropped_packets",
        "Packets dropped by a rule of the network, by reason.",
        labels=("switch", "reason"),
    )
    peers = {(link.source, link.port): link.target for link in snapshot.links}
    ports = {
        field: CounterMetricFamily(f"entrain_port_{field}", text, labels=_PORT)
        for field, text in (
            ("received_packets", "Packets that a port has received, as the switch sees them."),
            ("received_bytes", "Bytes that a port has received."),
            ("sent_packets", "Packets that a port has sent, as the switch sees them."),
            ("sent_bytes", "Bytes that a port has sent."),
        )
    }
    for switch in snapshot.switches:
        ready.add_metric((switch.name, switch.role, switch.target), switch.status == "ready")
        for table, count in switch.tables.items():
            entries.add_metric((switch.name, table), count)
        for reason, count in switch.drops.items():
            drops.add_metric((switch.name, reason.lower()), count)
        for port, counted in switch.ports.items():
            for field, family in ports.items():
                where = (switch.name, str(port), peers.get((switch.name, port), ""))
                family.add_metric(where, getattr(counted, field))
    yield from (ready, entries, drops, *ports.values())


def _links(snapshot: Snapshot) -> Iterator[Metric]:
    families = {
        field: GaugeMetricFamily(f"entrain_link_{name}", text, labels=_LINK)
        for field, name, text in (
            ("capacity_mbps", "capacity_mbps", "Capacity of a link, in Mbit/s."),
            ("measured_mbps", "measured_mbps", "Measured since the reading before, in Mbit/s."),
            ("planned_mbps", "planned_mbps", "Planned for the present slot, in Mbit/s."),
        )
    }
    slots = GaugeMetricFamily(
        "entrain_link_slot_planned_mbps",
        "Planned for a slot, in Mbit/s, by slots from now.",
        labels=(*_LINK, "later"),
    )
    backlog = GaugeMetricFamily(
        "entrain_link_queue_bytes", "What waits in the queues in front of a link.", labels=_LINK
    )
    dropped = CounterMetricFamily(
        "entrain_link_queue_dropped_packets",
        "Packets dropped because a queue in front of a link was full, as the kernel counts them.",
        labels=_LINK,
    )
    for relay in snapshot.relays:
        target = relay.link.removeprefix(f"{relay.node}-")
        dropped.add_metric((relay.link, relay.node, target), relay.dropped_packets)
    for link in snapshot.links:
        where = (link.name, link.source, link.target)
        if link.backlog_bytes is not None:
            backlog.add_metric(where, link.backlog_bytes)
        if link.dropped_packets is not None:
            dropped.add_metric(where, link.dropped_packets)
        for field, family in families.items():
            if (value := getattr(link, field)) is not None:
                family.add_metric(where, value)
        for later, mbps in enumerate(link.slots):
            slots.add_metric((*where, str(later)), mbps)
    yield from (*families.values(), slots, backlog, dropped)


def _agents(snapshot: Snapshot) -> Iterator[Metric]:
    up = GaugeMetricFamily("entrain_agent_up", "1 if the agent of a host answers.", labels=("host",))
    flows = GaugeMetricFamily("entrain_agent_flows", "Flows with a schedule.", labels=("host",))
    carriers = CounterMetricFamily(
        "entrain_agent_carriers",
        "Packets with a slot header, by what became of them.",
        labels=("host", "event"),
    )
    decided = CounterMetricFamily(
        "entrain_agent_scheduling", "What the slot scheduler did, by what it was.", labels=("host", "event")
    )
    delays = GaugeMetricFamily(
        "entrain_agent_delay_seconds",
        "Median of the latest delays: asking for loads, and deciding.",
        labels=("host", "step"),
    )
    for agent in snapshot.agents:
        up.add_metric((agent.host,), not agent.problem)
        if agent.problem:
            continue
        flows.add_metric((agent.host,), agent.flows)
        for event, count in agent.carriers.items():
            carriers.add_metric((agent.host, event), count)
        for event, count in agent.counts.items():
            decided.add_metric((agent.host, event), count)
        for step, delay in (("ask", agent.negotiation_ms), ("decide", agent.decision_ms)):
            if delay is not None:
                delays.add_metric((agent.host, step), delay / 1e3)
    yield from (up, flows, carriers, decided, delays)


def _jobs(snapshot: Snapshot) -> Iterator[Metric]:
    info = GaugeMetricFamily("entrain_job_info", "A job and its state.", labels=("job", "state"))
    done = CounterMetricFamily("entrain_job_iterations", "Iterations that a job has done.", labels=("job",))
    took = GaugeMetricFamily(
        "entrain_job_iteration_seconds", "Median time of the latest iterations.", labels=("job",)
    )
    over = GaugeMetricFamily(
        "entrain_job_over_ideal", "Time of an iteration divided by the ideal one.", labels=("job",)
    )
    for job in snapshot.jobs:
        info.add_metric((job.name, job.state), 1)
        if job.done is not None:
            done.add_metric((job.name,), job.done)
        if job.iteration_ms is not None:
            took.add_metric((job.name,), job.iteration_ms / 1e3)
        if job.over_ideal is not None:
            over.add_metric((job.name,), job.over_ideal)
    yield from (info, done, took, over)
