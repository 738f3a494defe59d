"""How long queues are, where they mark, and how long TCP waits: from the rates and round trips of a network.

With C the rate of a link, RTT the longest round trip without queues, and B the bucket of a shaper, which the
link before may send at once:

- Queue: C RTT + B. A queue of one bandwidth-delay product keeps the link busy while one flow's halved window
  grows again (Appenzeller et al., SIGCOMM 2004). B is at least two offloaded packets.
- Marking threshold K: C RTT / 7 + B. DCTCP's guideline (Alizadeh et al., SIGCOMM 2010, equation 13), plus
  room for bursts (section 3.5). design/switch-program.md has the derivation.
- Least retransmission timeout: twice the longest round trip, which is RTT and a full queue. Linux adds it to
  the smoothed round trip, which may lag by a whole queue. Below, timeouts are spurious; far above, an incast
  waits for nothing (Vasudevan et al., SIGCOMM 2009).

A queue that several links share in a file is that of the slowest. What waits before a host's own link is in
its sender's account, and has Linux's length of 1,000 packets or that of the link. `experiments/` follows the
rule within a quarter; a file that does not says why (`tests/mininet_topos/test_sizing.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from controlplane.network import DEFAULT_MTU, ETHERNET_BYTES, Port, Topology
from controlplane.routing import switch_hops
from mininet_topos.links import TURN_MS, Shaping, burst_bytes, gso_max_bytes

PACKETS_PER_FRAME = 1.5
"""A queue of full frames also holds the reverse direction's acknowledgements, one for two frames (RFC 5681,
4.2). They are short, but a switch counts packets."""

LEAST_RTO_MS = 20
"""Timers of the kernel count jiffies, of up to 10 ms; a shorter timeout could expire after one."""


def round_trip_ms(topology: Topology) -> float:
    """Return the round-trip time in ms between the hosts furthest apart, without queues.

    It is the sum of each link's delay in both directions, and the time that an offloaded packet may hold it.
    """
    over = {
        end: TURN_MS + 2 * (link.delay_ms or 0.0)
        for link in topology.links
        for end in ((link.a, link.a_port), (link.b, link.b_port))
    }
    own: dict[str, float] = {}  # by leaf, over the link of a host
    for host in topology.hosts:
        own[host.leaf] = max(own.get(host.leaf, 0.0), over[host.leaf, host.leaf_port])
    return max(
        own[leaf] + trip + own[other]
        for leaf in own
        for other, trip in _between(topology, leaf, over).items()
        if other in own
    )


def _between(topology: Topology, leaf: str, over: Mapping[tuple[str, int], float]) -> dict[str, float]:
    """Return the longest round trip on shortest paths from each switch to `leaf`."""
    hops = switch_hops(topology, leaf)
    trips = {leaf: 0.0}
    for name in sorted(hops.keys() - trips, key=hops.__getitem__):
        trips[name] = max(
            trips[port.peer] + over[name, port.number]
            for port in topology.switch_by_name[name].ports
            if hops.get(port.peer) == hops[name] - 1
        )
    return trips


def queue_packets(rate_mbps: float, round_trip_ms: float, mtu: int = DEFAULT_MTU) -> int:
    """Return the length of the queue before a link of that rate, in full-size packets."""
    pipe_bytes = rate_mbps * 1e3 / 8 * round_trip_ms
    return math.ceil((pipe_bytes + burst_bytes(rate_mbps, mtu)) / (ETHERNET_BYTES + mtu))


def threshold_packets(
    rate_mbps: float, round_trip_ms: float, shaping: Shaping, mtu: int = DEFAULT_MTU
) -> int:
    """Return K for a link of that rate, in packets as counted by the switches: `PACKETS_PER_FRAME` for each
    full-size one."""
    pipe_bytes = rate_mbps * 1e3 / 8 * round_trip_ms / 7
    burst = gso_max_bytes(rate_mbps, mtu) if shaping == "none" else burst_bytes(rate_mbps, mtu)
    return math.ceil(PACKETS_PER_FRAME * (pipe_bytes + burst) / (ETHERNET_BYTES + mtu))


def rto_min_ms(rate_mbps: float, queue: int, round_trip_ms: float, mtu: int = DEFAULT_MTU) -> int:
    """Return the least retransmission timeout behind a queue of so many full-size packets."""
    full_ms = queue * (ETHERNET_BYTES + mtu) * 8 / (rate_mbps * 1e3)
    return max(LEAST_RTO_MS, round(2 * (round_trip_ms + full_ms)))


def thresholds(topology: Topology, shaping: Shaping) -> Callable[[Port], int]:
    """Return K by port, for `controlplane.routing.FabricPolicy`."""
    trip = round_trip_ms(topology)
    return lambda port: threshold_packets(port.rate_mbps, trip, shaping, port.mtu)
