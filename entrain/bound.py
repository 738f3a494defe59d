"""What jobs do alone in the network, by their definitions: iteration times and profiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from controlplane.network import DEFAULT_MTU, ETHERNET_BYTES
from schedulers.cassini.profile import Profile, up_down
from workloads.collectives import steps
from workloads.jobs import JobSpec

_HEADERS = 52
"""Bytes of IP and TCP headers in a packet, with timestamps."""
MBPS = 1e6 / 8.0
"""Bytes/s of a Mbit/s."""


def payload_part(mtu: int = DEFAULT_MTU) -> float:
    """Return the fraction of a full-size frame that is TCP payload."""
    return (mtu - _HEADERS) / (mtu + ETHERNET_BYTES)


def bound_ms(
    spec: JobSpec,
    host_rates_mbps: Sequence[float],
    servers: Sequence[Hashable] = (),
    server_rate_mbps: float = 0.0,
    *,
    mtu: int = DEFAULT_MTU,
) -> float:
    """Return the iteration time (ms) of a job alone in the network, if only its hosts' links limit it.

    It is the compute time plus, for each step of the collective, the longest time that a rank needs to send
    or receive its share at its host's rate (`host_rates_mbps`, by rank) with full-size frames. Ranks of one
    server (`servers`, by rank) send to each other at `server_rate_mbps` instead, over a link of each pair.
    `mtu` is that of all hosts, in bytes. Workers are assumed to divide their links evenly among the
    parameter servers. This matters only if their links are the bottleneck: slower than the servers', or fewer
    workers than servers.
    """
    total = spec.compute_s() * 1e3
    for step in steps(spec.collective, len(spec.hosts), spec.options):
        used: dict[tuple[object, ...], float] = defaultdict(float)  # by link and direction, ms
        for flow in step:
            wire_bits = flow.fraction * spec.total_bytes() * 8 / payload_part(mtu)
            if servers and servers[flow.src] == servers[flow.dst]:
                used["inside", flow.src, flow.dst] += wire_bits / server_rate_mbps / 1e3
            else:
                used["send", flow.src] += wire_bits / host_rates_mbps[flow.src] / 1e3
                used["receive", flow.dst] += wire_bits / host_rates_mbps[flow.dst] / 1e3
        total += max(used.values())
    return total


def profile_of(spec: JobSpec, rates_mbps: Sequence[float], *, mtu: int = DEFAULT_MTU) -> Profile:
    """Return what a job sends alone in an iteration, by its definition: it computes for as long as its jitter
    allows, and then its ranks send at `rates_mbps`. The demand is the least of these, in bytes/s of frames.
    """
    sending = bound_ms(spec, rates_mbps, mtu=mtu) / 1e3 - spec.compute_s()
    return up_down(spec.compute_s() + spec.jitter_ms / 1e3, sending, min(rates_mbps) * MBPS)
