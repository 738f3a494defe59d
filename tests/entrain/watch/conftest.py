"""A network to watch that needs no root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.client import RunningNetwork
from tests.entrain.watch.network import Controller, network


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[RunningNetwork, Controller]]:
    """A run in progress, and the controller that tells of it."""
    with network(tmp_path) as both:
        yield both
