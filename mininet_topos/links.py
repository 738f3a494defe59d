"""Links with a rate and a bounded queue, from what every kernel has: HTB or TBF over a byte FIFO.

Queue limits are specified in full-size packets and enforced in bytes. With segmentation offload, one kernel
packet carries up to 64 KB, so a limit in kernel packets would be meaningless. For the same reason, an
offloaded packet is capped to one millisecond of its link. At 100 Mbit/s a 64 KB packet would hold the link
for 5 ms, and flows that share it would alternate in turns of that length.

With HTB, carriers bypass that queue, as in switches with a control queue. A full queue would delay or lose
information that is needed before data are sent.
"""

from __future__ import annotations

import functools
import math
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from controlplane.network import DEFAULT_MTU, ETHERNET_BYTES
from controlplane.topology import Link, Plug, Topology
from machine.errors import MissingTool
from mininet_topos import relays
from wire.slot_header import ETHERTYPE

Shaping = Literal["htb", "tbf", "none"]

_CARRIERS = f"protocol all u32 match u16 {ETHERTYPE:#x} 0xffff at -2"
"""Matches the EtherType in the frame, since the kernel's protocol field may be outdated after a program."""

FRAME_BYTES = ETHERNET_BYTES + DEFAULT_MTU
"""What one full-size packet of the default MTU costs on the wire, as the shapers count it."""

TURN_MS = 1.0
"""The longest time that one offloaded packet may hold its link."""

BURST_MS = 2.0
"""A shaper's burst, after a pause or when its timer is late."""

CARRIERS_PART = 0.05
"""Fraction of the link's rate with priority for carriers, which need a tenth of that."""

_MAX_GSO_BYTES = 65536


def gso_max_bytes(rate_mbps: float, mtu: int = DEFAULT_MTU) -> int:
    """Return the size limit of offloaded packets: `TURN_MS` of the rate, from two full frames to 64 KB."""
    turn = int(rate_mbps * 1e6 / 8 * TURN_MS / 1e3)
    return min(_MAX_GSO_BYTES, max(2 * (ETHERNET_BYTES + mtu), turn))


def burst_bytes(rate_mbps: float, mtu: int = DEFAULT_MTU) -> int:
    """Return a shaper's bucket: `BURST_MS` of the rate, and at least two of the largest packets.

    TBF segments or drops packets that exceed its bucket, and a late timer cannot make up for more than the
    bucket: with 16 KB, HTB gave 937 of 1000 Mbit/s.
    """
    return max(int(rate_mbps * 1e6 / 8 * BURST_MS / 1e3), 2 * gso_max_bytes(rate_mbps, mtu))


def queue_bytes(link: Link | Plug) -> int:
    """Return the queue limit in bytes for each direction of `link`, at least one offloaded packet."""
    return max(_stated_bytes(link), gso_max_bytes(link.rate_mbps, link.mtu))


def _stated_bytes(link: Link | Plug) -> int:
    return link.queue_packets * link.frame_bytes


def tc_commands(interface: str, link: Link | Plug, shaping: Shaping) -> list[str]:
    """Return lines for `tc -batch` that shape traffic from `interface` onto `link`."""
    if shaping == "none":
        return []
    rate = f"{link.rate_mbps * 1e6:.0f}bit"
    burst, limit = burst_bytes(link.rate_mbps, link.mtu), queue_bytes(link)
    device = f"dev {interface}"
    if shaping == "htb":
        bucket = f"ceil {rate} burst {burst} cburst {burst} quantum 60000"
        first = f"{link.rate_mbps * 1e6 * CARRIERS_PART:.0f}bit"
        others = f"{link.rate_mbps * 1e6 * (1 - CARRIERS_PART):.0f}bit"
        lines = [
            f"qdisc add {device} root handle 1: htb default 2",
            f"class add {device} parent 1: classid 1:1 htb rate {rate} {bucket}",
            f"class add {device} parent 1:1 classid 1:2 htb rate {others} {bucket} prio 1",
            f"class add {device} parent 1:1 classid 1:3 htb rate {first} {bucket} prio 0",
            f"filter add {device} parent 1: {_CARRIERS} flowid 1:3",
        ]
    else:
        lines = [f"qdisc add {device} root handle 1: tbf rate {rate} burst {burst} limit {limit}"]
    if link.delay_ms or link.loss:
        jitter = f" {link.jitter_ms:g}ms" if link.jitter_ms else ""
        impairments = [f"delay {link.delay_ms:g}ms{jitter}"] if link.delay_ms else []
        impairments += [f"loss {link.loss * 100:g}%"] if link.loss else []
        longest_ms = (link.delay_ms or 0) + (link.jitter_ms or 0)
        in_flight = int(link.rate_mbps * 1e3 * longest_ms / 8 / link.frame_bytes)
        packets = link.queue_packets + in_flight  # netem's limit includes the packets that it delays
        # A link delays and loses carriers just like data, so each class of HTB has its own netem.
        for handle, below in enumerate(("1:2", "1:3") if shaping == "htb" else ("1:1",), start=10):
            lines.append(
                f"qdisc add {device} parent {below} handle {handle}: netem limit {packets} "
                f"{' '.join(impairments)}"
            )
    elif shaping == "htb":
        lines.append(f"qdisc add {device} parent 1:2 handle 10: bfifo limit {limit}")
    return lines


def lengthened(links: Iterable[Link | Plug], shaping: Shaping, key: str = "queue_packets") -> Iterator[str]:
    """Yield a line for each queue length that `queue_bytes` raises, with its links and what is used instead.

    `key` is the key of the file that gives the queue's length.
    """
    alike: dict[tuple[float, int, int], list[str]] = defaultdict(list)
    for link in links:
        # A queue in netem is counted in packets.
        if shaping != "none" and not (link.delay_ms or link.loss) and _stated_bytes(link) < queue_bytes(link):
            name = f"{link.a}-{link.b}" if isinstance(link, Link) else f"{link.switch}-ocs{link.ocs_port}"
            alike[link.rate_mbps, link.queue_packets, link.mtu].append(name)
    for (rate_mbps, packets, mtu), names in alike.items():
        largest, frame = gso_max_bytes(rate_mbps, mtu), ETHERNET_BYTES + mtu
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield (
            f"link {names[0]}{others}: {key} = {packets} is {packets * frame} bytes, less than one "
            f"offloaded packet at {rate_mbps:g} Mbit/s, so the queue has {largest} bytes; "
            f"give at least {key} = {math.ceil(largest / frame)}"
        )


def check_qdiscs(shaping: Shaping) -> None:
    """Raise MissingTool, naming the kernel's option, if this machine lacks what shaped links consist of."""
    if shaping == "none":
        return
    if shutil.which("tc") is None:
        raise MissingTool(
            f'shaping = "{shaping}" needs tc, which is not on PATH; install it (Debian: apt-get install '
            f'iproute2), or take shaping = "none"'
        )
    other: Shaping = "tbf" if shaping == "htb" else "htb"
    for what, option, lines in _QDISCS[shaping]:
        if not _tried(*lines):
            raise MissingTool(
                f'shaping = "{shaping}" needs the {what}, which this kernel lacks ({option}); take shaping = '
                f'"{other}" in [network] of an experiment, or a kernel that has it'
            )


_QDISCS: dict[Shaping, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "htb": (
        ("qdisc htb", "CONFIG_NET_SCH_HTB", ("htb",)),
        ("classifier u32", "CONFIG_NET_CLS_U32", ("htb", f"filter add dev lo parent 1: {_CARRIERS}")),
        ("qdisc bfifo", "CONFIG_NET_SCH_FIFO", ("bfifo limit 3028",)),
    ),
    "tbf": (("qdisc tbf", "CONFIG_NET_SCH_TBF", ("tbf rate 1mbit burst 3028 limit 3028",)),),
}
"""By shaping: each part of a shaped link, the kernel's option for it, and how it is tried (`_tried`)."""


def is_relayed(topology: Topology, link: Link) -> bool:
    """Return whether a relay delays `link`: the kernel has no netem. A circuit's plugs have none."""
    return bool(link.delay_ms) and not _is_circuit(topology, link) and not has_netem()


def _is_circuit(topology: Topology, link: Link) -> bool:
    return topology.ocs is not None and (link.a, link.a_port) in topology.ocs.port_of


def without_relay(topology: Topology, link: Link) -> Link:
    """Return `link` without what a relay does for it."""
    return replace(link, delay_ms=None, jitter_ms=None) if is_relayed(topology, link) else link


def check_impairments(topology: Topology, shaping: Shaping) -> None:
    """Raise MissingTool if a link needs delay or loss that kernel, shaping and relays cannot provide."""
    if any(is_relayed(topology, link) for link in topology.links):
        relays.compiler()
    shaped = [without_relay(topology, link) for link in topology.links]
    impaired = [link for link in shaped if link.delay_ms or link.loss]
    if not impaired:
        return
    link = impaired[0]
    asked = "delay_ms" if link.delay_ms else "loss"
    if shaping == "none":
        raise MissingTool(f'link {link.a}-{link.b}: {asked} needs shaping = "htb" or "tbf", not "none"')
    if not has_netem():
        raise MissingTool(
            f"link {link.a}-{link.b}: {asked} needs the qdisc netem, which this kernel lacks "
            f"(CONFIG_NET_SCH_NETEM); remove {asked}, or use a kernel that has it"
        )


def has_netem() -> bool:
    """Return whether this kernel can delay and lose packets."""
    return _tried("netem delay 1ms")


@functools.cache
def _tried(qdisc: str, *further: str) -> bool:
    """Return whether a temporary namespace's loopback accepts `qdisc` and the `further` commands."""
    lines = [f"qdisc add dev lo root handle 1: {qdisc}", *further]
    trial = ["unshare", "--net", "tc", "-batch", "-"]
    done = subprocess.run(trial, input="\n".join(lines), text=True, capture_output=True, check=False)
    return done.returncode == 0
