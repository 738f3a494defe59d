"""A rate without a queue, or a queue without a rate, is named."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.unpaired import unpaired

DUMBBELL = {"kind": "dumbbell", "hosts_per_side": 1}
CLOS = {"kind": "leaf-spine", "leaves": 2, "spines": 1, "hosts_per_leaf": 1}


def told(*links: dict[str, Any], **topology: Any) -> list[str]:
    ends = [{"a": "s1", "b": f"h{number}", **link} for number, link in enumerate(links, 1)]
    return list(unpaired({"topology": topology, "link": ends}, "net.toml"))


@pytest.mark.parametrize(
    ("keys", "about"),
    [
        ({**DUMBBELL, "bottleneck_rate_mbps": 10}, "bottleneck_rate_mbps without queue_packets"),
        (
            {**CLOS, "host_rate_mbps": 10, "uplink_rate_mbps": 5},
            "host_rate_mbps and uplink_rate_mbps without queue_packets: queues hold 256 packets",
        ),
        ({**CLOS, "queue_packets": 5}, "queue_packets without host_rate_mbps: the rate is 1000 Mbit/s"),
    ],
)
def test_a_generated_topology_with_one_of_both_names_the_keys(keys: dict[str, Any], about: str) -> None:
    (line,) = told(**keys)
    assert line.startswith("[topology]: ") and about in line


def test_links_with_one_of_both_are_named_by_number() -> None:
    both, neither = {"rate_mbps": 10, "queue_packets": 9}, dict[str, Any]()
    lines = told(both, {"rate_mbps": 10}, neither, {"queue_packets": 9}, {"rate_mbps": 2})
    assert [line.partition(":")[0] for line in lines] == ["[[link]] 2, 5", "[[link]] 4"]
    assert "queues hold 256 packets" in lines[0] and "the rate is 1000 Mbit/s" in lines[1]


def test_both_or_neither_is_no_doubt() -> None:
    assert told() == told({}) == told({"rate_mbps": 10, "queue_packets": 9}) == []
    assert told(**CLOS) == told(**DUMBBELL, host_rate_mbps=10, queue_packets=9) == []
