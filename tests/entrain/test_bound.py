"""What jobs do alone, by their definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrain.bound import bound_ms, profile_of
from mininet_topos.links import FRAME_BYTES
from workloads.jobs import parse_job


def test_a_job_computes_and_then_its_busiest_rank_sends(tmp_path: Path) -> None:
    data = {
        "name": "a",
        "hosts": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"],
        "rendezvous": str(tmp_path),
        "output": str(tmp_path),
        "model": "vgg16",
    }
    job = parse_job(data, "test")
    profile = profile_of(job, [42e3] * 4)
    # A ring of four ranks carries 1.5 times the model's 528 MiB; figure 4.3 shows 255 ms.
    assert profile.bytes == pytest.approx(1.5 * 528 * 2**20 * FRAME_BYTES / 1448)
    assert profile.period == pytest.approx(bound_ms(job, [42e3] * 4) / 1e3)
    assert profile.period == pytest.approx(0.141 + 0.165, abs=1e-3)
    shards = profile_of(
        parse_job({**data, "collective": "parameter-server", "servers": 1}, "test"), [8e3] * 4
    )
    assert shards.bytes > 2 * profile.bytes, "the only server sends the model to three workers"


def test_a_slow_host_holds_its_job_up(tmp_path: Path) -> None:
    data = {
        "name": "a",
        "hosts": ["10.0.0.1", "10.0.0.2"],
        "rendezvous": str(tmp_path),
        "output": str(tmp_path),
    }
    job = parse_job(
        {**data, "collective": "ring", "bytes": 1_000_000, "compute_ms": 50, "jitter_ms": 10}, "test"
    )
    fast, slow = (profile_of(job, rates) for rates in ([100, 100], [100, 50]))
    assert slow.peak == pytest.approx(fast.peak / 2)
    assert fast.phases[0].seconds == slow.phases[0].seconds == pytest.approx(0.06)
    assert slow.phases[1].seconds == pytest.approx(2 * fast.phases[1].seconds)
