"""Links of a topology file with a rate but no queue, or with a queue but no rate.

A queue that suits one rate is too long or too short for another, so a default beside a value of the file is
worth a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from controlplane.topology import LinkTable, TopologyFile, TopologyTable
from machine.toml import check

RATE, QUEUE = "rate_mbps", "queue_packets"


def unpaired(tables: Mapping[str, Any], source: str) -> Iterator[str]:
    """Yield a line for each kind of link whose rate comes without a queue, or whose queue without a rate.

    `tables` are those of `parse_topology`. Raises BadInput, as it does.
    """
    file = check(TopologyFile, tables, source)
    given = file.topology.model_fields_set
    queue, rate = (LinkTable.model_fields[key].default for key in (QUEUE, RATE))
    rates = [key for key in TopologyTable.model_fields if key.endswith(RATE) and key in given]
    if rates and QUEUE not in given:
        yield without_queue("[topology]", rates, queue)
    elif QUEUE in given and not rates:
        yield without_rate("[topology]", f"host_{RATE}", rate)
    links = [(number, link.model_fields_set) for number, link in enumerate(file.link, 1)]
    if alone := [number for number, keys in links if RATE in keys and QUEUE not in keys]:
        yield without_queue(f"[[link]] {_listed(alone)}", [RATE], queue)
    if alone := [number for number, keys in links if QUEUE in keys and RATE not in keys]:
        yield without_rate(f"[[link]] {_listed(alone)}", RATE, rate)


def without_queue(where: str, rates: Sequence[str], packets: int) -> str:
    """Return the line about a table with rates and no queue; its queues have the default, in packets."""
    return f"{where}: {' and '.join(rates)} without {QUEUE}: queues hold {packets} packets; give {QUEUE}, too"


def without_rate(where: str, key: str, rate_mbps: float) -> str:
    """Return the line about a table with a queue and no rate, whose key is `key`; it has the default."""
    return f"{where}: {QUEUE} without {key}: the rate is {rate_mbps:g} Mbit/s; give {key}, too"


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:3]))
    return shown if len(numbers) <= 3 else f"{shown} and {len(numbers) - 3} more"
