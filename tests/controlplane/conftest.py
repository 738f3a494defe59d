"""The control plane drives all kinds of switches in the same way: its tests run on each."""

from __future__ import annotations

import pytest

from controlplane.pipeline import Pipeline
from tests.controlplane.fake_switch import FakeSwitch
from tests.controlplane.kinds import FakeKind
from tests.controlplane.stratum_switch import StratumSwitch, packed_pipeline


@pytest.fixture(scope="session", params=["plain", "stratum"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FakeKind:
    """A switch that keeps to the specification alone, and one with the rules of Stratum on a Tofino."""
    if request.param == "plain":
        return FakeKind(FakeSwitch, Pipeline.load())
    return FakeKind(StratumSwitch, packed_pipeline(tmp_path_factory.mktemp("tofino") / "out"))
