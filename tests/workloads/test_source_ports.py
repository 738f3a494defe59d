"""Source ports are what makes ECMP's hashes differ from seed to seed."""

from __future__ import annotations

import itertools
from pathlib import Path

from workloads.connections import source_port
from workloads.jobs import SOURCE_PORTS, parse_job


def ports(seed: int) -> list[int]:
    job = {
        "name": "job",
        "hosts": [f"10.0.0.{host}" for host in range(1, 9)],
        "collective": "all-to-all",
        "bytes": 1000,
        "rendezvous": Path("/nowhere"),
        "output": Path("/nowhere"),
        "seed": seed,
    }
    spec = parse_job(job, "test")
    return [source_port(spec, src, dst, 0) for src in range(8) for dst in range(8) if src != dst]


def test_ports_repeat_and_differ() -> None:
    assert ports(1) == ports(1)
    assert ports(1) != ports(2)
    assert set(ports(1)) <= set(SOURCE_PORTS)


def test_the_difference_of_two_ports_depends_on_the_seed() -> None:
    """A linear hash of the 5-tuple sees only differences: were they the same, so would be the collisions."""
    first, second = ports(1), ports(2)
    assert {a ^ b for a, b in itertools.pairwise(first)} != {a ^ b for a, b in itertools.pairwise(second)}
    same = sum(a ^ first[0] == b ^ second[0] for a, b in zip(first, second, strict=True))
    assert same < 5
