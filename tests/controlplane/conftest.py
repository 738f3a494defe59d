"""The control plane drives all kinds of switches in the same way: its tests run on each."""

from __future__ import annotations

import pytest

from controlplane import heartbeat
from controlplane.pipeline import Pipeline
from machine.patience import patience
from tests.controlplane.fake_switch import FakeSwitch
from tests.controlplane.kinds import FakeKind
from tests.controlplane.stratum_switch import StratumSwitch, packed_pipeline


@pytest.fixture(scope="session", params=["plain", "stratum"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FakeKind:
    """A switch that keeps to the specification alone, and one with the rules of Stratum on a Tofino."""
    if request.param == "plain":
        return FakeKind(FakeSwitch, Pipeline.load())
    return FakeKind(StratumSwitch, packed_pipeline(tmp_path_factory.mktemp("tofino") / "out"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches are asked often, and must answer soon."""
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.05)
    monkeypatch.setattr(heartbeat, "ANSWER_S", patience(0.5))
