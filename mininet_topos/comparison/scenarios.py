"""What is compared: small networks and their load, and what is measured on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.network import Host, Link, Switch, Topology, build
from controlplane.topology import leaf_spine


@dataclass(frozen=True)
class Flow:
    """What one host sends to another, all the time.

    `control` is a TCP congestion control, or "udp", which sends `rate_mbps` of payload in full-size packets.
    With `payload_bytes`, it sends that much, once, and all flows of the scenario start together.
    """

    source: str
    sink: str
    control: str
    rate_mbps: float | None = None
    payload_bytes: int | None = None


@dataclass(frozen=True)
class Scenario:
    """A network under a load. `queue` is the switch and port whose queue is measured."""

    name: str
    topology: Topology
    flows: tuple[Flow, ...]
    queue: tuple[str, int]
    offloads: bool = True


@dataclass(frozen=True)
class Carried:
    """What became of one flow.

    `goodput_mbps` is the payload that arrived, `lost` the share of UDP packets that did not arrive, or of TCP
    segments that were sent again. `seconds` is how long a flow of `payload_bytes` took.
    """

    goodput_mbps: float
    lost: float
    seconds: float | None = None


@dataclass(frozen=True)
class Measured:
    """What one run of a scenario measured. Round trips are those of small packets beside the first flow."""

    flows: tuple[Carried, ...]
    round_trip_ms: float
    round_trip_ms_p99: float
    queue_bytes: float
    queue_bytes_p99: float


def line(
    rates_mbps: Sequence[float],
    hosts: Sequence[int],
    queue_packets: int,
    *,
    host_mbps: float | None = None,
    delays_ms: Sequence[float] = (),
) -> Topology:
    """Return switches s1, s2, .. in a row, with links of `rates_mbps` between them.

    `hosts` has the number of each switch's hosts, which are h1, h2, .. along the row. A host's link has
    `host_mbps`: twice the fastest rate between switches unless given. `delays_ms` has the delay of each
    host's link, in order.
    """
    host_mbps = host_mbps or 2 * max(rates_mbps)
    switches = [Switch(f"s{i}", "switch", i, 9558 + i, "softswitch") for i in range(1, len(hosts) + 1)]
    made: list[Host] = []
    links = []
    for number, count in enumerate(hosts, 1):
        for slot in range(1, count + 1):
            host = f"h{len(made) + 1}"
            mac = f"02:00:0a:{number:02x}:{slot:02x}:02"
            delay_ms = delays_ms[len(made)] if delays_ms else None
            made.append(Host(host, f"10.{number}.{slot}.2", 8, mac, f"s{number}", slot))
            links.append(Link(f"s{number}", slot, host, 0, host_mbps, queue_packets, delay_ms or None))
    for number, rate_mbps in enumerate(rates_mbps, 1):
        right = hosts[number - 1] + (1 if number == 1 else 2)
        ends = (f"s{number}", right, f"s{number + 1}", hosts[number] + 1)
        links.append(Link(*ends, rate_mbps, queue_packets))
    return build("line", switches, made, links)


def _bottleneck(
    control: str, mbps: float = 50.0, *, load: float | None = None, packets: int = 64, offloads: bool = True
) -> Scenario:
    """Two flows over one bottleneck; a load is the share of its rate that UDP sends, by one flow."""
    topology = line([mbps], [2, 2], packets)
    if load is not None:
        flows = [Flow("h1", "h3", "udp", load * mbps)]
    else:
        flows = [Flow("h1", "h3", control), Flow("h2", "h4", control)]
    name = f"bottleneck {mbps:g} Mbit/s, {packets} packets, {control}"
    name += f" at {load:g}" if load is not None else ""
    name += "" if offloads else ", no offloads"
    return Scenario(name, topology, tuple(flows), ("s1", 3), offloads)


def _in_a_row(control: str) -> Scenario:
    flows = (Flow("h1", "h3", control), Flow("h2", "h4", control))
    topology = line([50, 40], [1, 1, 2], 64)
    return Scenario(f"two bottlenecks in a row, {control}", topology, flows, ("s2", 3))


def _round_trips(control: str) -> Scenario:
    flows = (Flow("h1", "h3", control), Flow("h2", "h4", control))
    topology = line([50], [2, 2], 64, delays_ms=(0.5, 5.0, 0.0, 0.0))
    return Scenario(f"round trips of 1 and 10 ms, {control}", topology, flows, ("s1", 3))


def _incast(control: str) -> Scenario:
    flows = tuple(Flow(f"h{i}", "h9", control, payload_bytes=65536) for i in range(1, 9))
    topology = line([], [9], 64, host_mbps=100.0)
    return Scenario(f"incast of 8, {control}", topology, flows, ("s1", 9))


def _collision(control: str) -> Scenario:
    topology = leaf_spine(2, 1, 2, host_rate_mbps=100.0, uplink_rate_mbps=100.0, queue_packets=64)
    flows = (Flow("h1", "h3", control), Flow("h2", "h4", control))
    return Scenario(f"leaf-spine with a collision, {control}", topology, flows, ("leaf1", 3))


SHORT = (*(_bottleneck("udp", mbps, load=1.8) for mbps in (50.0, 200.0, 1000.0)), _bottleneck("reno"))
"""What a minute suffices for: full queues at several rates, and senders that find the rate."""

SCENARIOS = (
    *SHORT,
    *(_bottleneck("udp", load=load) for load in (0.5, 1.0)),
    *(_bottleneck(control) for control in ("cubic", "bbr")),
    *(_bottleneck("reno", mbps) for mbps in (200.0, 1000.0)),
    *(_bottleneck(control, packets=packets) for control in ("reno", "cubic") for packets in (16, 256)),
    *(_bottleneck(control, offloads=False) for control in ("reno", "cubic", "bbr")),
    *(
        each(control)
        for each in (_in_a_row, _round_trips, _incast, _collision)
        for control in ("reno", "cubic")
    ),
)
