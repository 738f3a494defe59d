"""What the queues in front of links hold and have dropped, wherever they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from controlplane import api_pb2 as api

Place = Literal["interface", "switch", "relay"]
"""Where a queue is: at the interface of the sender (its qdisc), in the switch, or in the relay of a link."""


@dataclass(frozen=True)
class Queue:
    """A queue of `node`, a switch or a host, in front of `link`, such as `leaf1->spine2`.

    A relay has one count for both directions of its link, `leaf1-spine2`. Packets are the kernel's: an
    offloaded one, of up to 64 KB, counts once.
    """

    node: str
    port: int
    """Of the switch; 0 for hosts."""
    link: str
    place: Place
    dropped_packets: int
    """Since the network came up, or the switch's program was set."""
    backlog_packets: int = 0
    backlog_bytes: int = 0
    limit_bytes: int = 0
    """0: not known, or not in bytes."""

    def message(self) -> api.Queue:
        """Return the queue as a message of the API."""
        return api.Queue(**asdict(self))


def by_link(queues: Iterable[Queue]) -> list[Queue]:
    """Return one queue for each link, in their order.

    A packet is dropped in one place only, so drops are added. It may be in the account of several places, so
    the backlog is that of the longest.
    """
    found: dict[str, Queue] = {}
    for queue in queues:
        if (other := found.get(queue.link)) is None:
            found[queue.link] = queue
            continue
        longer = max(other, queue, key=lambda each: each.backlog_bytes)
        dropped = other.dropped_packets + queue.dropped_packets
        limit = other.limit_bytes or queue.limit_bytes
        found[queue.link] = replace(longer, dropped_packets=dropped, limit_bytes=limit)
    return list(found.values())


def since(now: Sequence[Queue], before: Sequence[Queue]) -> list[Queue]:
    """Return the queues with what they have dropped since `before`; all of it if they count anew since."""
    counted = {(queue.link, queue.place): queue.dropped_packets for queue in before}
    found = []
    for queue in now:
        earlier = counted.get((queue.link, queue.place), 0)
        new = queue.dropped_packets - earlier
        found.append(replace(queue, dropped_packets=new if new >= 0 else queue.dropped_packets))
    return found


def queue_of(message: api.Queue) -> Queue:
    """Return the queue of a message of the API."""
    return Queue(**{field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields})
