"""DCTCP's marking threshold K on emulated links, in packets as counted by the switches.

The guideline is K >= C RTT / 7 (Alizadeh et al., SIGCOMM 2010, equation 13), plus room for senders' bursts
(section 3.5). On an emulated link, a burst is a shaper's bucket. docs/decisions.md has the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from controlplane.network import DEFAULT_MTU, ETHERNET_BYTES, Port, Topology
from controlplane.routing import switch_hops
from mininet_topos.links import TURN_MS, Shaping, burst_bytes, gso_max_bytes

PACKETS_PER_FRAME = 1.5
"""A queue of full frames also holds the reverse direction's acknowledgements, one for two frames (RFC 5681,
4.2). They are short, but a switch counts packets."""


def round_trip_ms(topology: Topology) -> float:
    """Return the round-trip time in ms between the hosts furthest apart, without queues.

    It is the sum of each link's delay in both directions, and the time that an offloaded packet may hold it.
    """
    names = [switch.name for switch in topology.switches]
    links = 2 + max(hops for name in names for hops in switch_hops(topology, name).values())
    delay_ms = max(link.delay_ms or 0.0 for link in topology.links)
    return links * (TURN_MS + 2 * delay_ms)


def threshold_packets(
    rate_mbps: float, round_trip_ms: float, shaping: Shaping, mtu: int = DEFAULT_MTU
) -> int:
    """Return K for a link of that rate: `PACKETS_PER_FRAME` (C RTT / 7 + burst), in full-size packets."""
    pipe_bytes = rate_mbps * 1e3 / 8 * round_trip_ms / 7
    burst = gso_max_bytes(rate_mbps, mtu) if shaping == "none" else burst_bytes(rate_mbps, mtu)
    return math.ceil(PACKETS_PER_FRAME * (pipe_bytes + burst) / (ETHERNET_BYTES + mtu))


def thresholds(topology: Topology, shaping: Shaping) -> Callable[[Port], int]:
    """Return K by port, for `controlplane.routing.FabricPolicy`."""
    trip = round_trip_ms(topology)
    return lambda port: threshold_packets(port.rate_mbps, trip, shaping, port.mtu)
