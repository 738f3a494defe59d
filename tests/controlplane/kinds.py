"""The kinds of fake switches that the control plane's tests run on."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.pipeline import Pipeline
from tests.controlplane.fake_switch import FakeSwitch


@dataclass(frozen=True)
class FakeKind:
    """What makes a fake switch of a device id, and the pipeline that it takes."""

    make: type[FakeSwitch]
    pipeline: Pipeline
