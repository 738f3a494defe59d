"""Skips tests that need something this machine lacks, with the reason."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # no clock decides whether a test passes
settings.load_profile("untimed")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else its log tells of every switch that a test ends
os.environ.setdefault("ENTRAIN_CHECK", "1")  # the simulator asserts capacity, conservation and shares

_NEEDS = {
    "root": (lambda: os.geteuid() == 0, "needs root: namespaces, interfaces, BPF"),
    "bpf": (lambda: os.geteuid() == 0, "needs root: BPF"),
    "bmv2": (
        lambda: shutil.which("simple_switch_grpc") is not None,
        "needs simple_switch_grpc (BMv2) on PATH",
    ),
    "p4c": (lambda: shutil.which("p4c-bm2-ss") is not None, "needs p4c-bm2-ss on PATH"),
}


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """pytest's directory; with the marker `sockets` one whose path leaves room for names of sockets."""
    if not request.node.get_closest_marker("sockets"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="entrain-") as directory:
        yield Path(directory)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a test skipped where what its marker names is missing."""
    for marker, (present, reason) in _NEEDS.items():
        if present():
            continue
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
