"""An agent whose kernel side is in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hostbpf.agent.agent import Agent, Options
from hostbpf.clock import SlotClock
from hostbpf.flow import KEY
from hostbpf.mltcp import Jobs
from hostbpf.rates.schedules import Enforcer


class Map(dict[bytes, bytes]):
    """A BPF map."""

    def __init__(self, key_size: int, value_size: int) -> None:
        super().__init__()
        self.key_size, self.value_size = key_size, value_size

    def update(self, key: bytes, value: bytes) -> None:  # type: ignore[override]
        self[key] = value


def schedules() -> Map:
    """The map of schedules."""
    return Map(KEY.size, 512)


def agent_of(schedules: Map, carriers: object, clock: SlotClock, progress: Path | None = None) -> Agent:
    """An agent that limits all flows by pacing, and has `carriers` to announce."""
    enforcers = SimpleNamespace(assign=lambda flow: (Enforcer.PACING, False), changed=lambda flow, plan: None)
    jobs = Jobs(cast("Any", Map(4, 32)), cast("Any", Map(16, 96)), cast("Any", Map(4, 8)))
    shared: Any = SimpleNamespace(schedules=schedules, jobs=jobs)
    options = Options("eth0", progress=progress)
    return Agent(options, shared, cast("Any", carriers), clock, 0, cast("Any", enforcers), cast("Any", None))
