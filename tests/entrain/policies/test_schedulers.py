"""What is asked of the agents of a run, from one that only answers `GetStatus`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entrain.policies.slots import Schedulers
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc import calls as rpc
from hostbpf.rpc.agent_pb2_grpc import HostServicer, add_HostServicer_to_server

pytestmark = pytest.mark.sockets


class Answering(HostServicer):
    """Each answer has a thousand bytes of carriers more, and one decision more."""

    def __init__(self) -> None:
        self.asked = 0

    def GetStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked += 1
        delays = pb.Scheduling(negotiation_ms=[1.0] * self.asked, counts={"decisions": self.asked})
        return pb.Status(process_id=os.getpid(), carrier_bytes=1000 * self.asked, scheduling=delays)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    address = f"unix:{tmp_path}/agent.sock"
    with rpc.serving(lambda server: add_HostServicer_to_server(Answering(), server), address, threads=1):
        yield address


def test_costs_are_those_since_the_agents_were_ready(address: str) -> None:
    agents = Schedulers({"h1": address}, {"h1": 100.0}, Path("progress"))
    (first,) = agents.report().scheduling
    (second,) = agents.report().scheduling
    assert (first.carrier_bytes, second.carrier_bytes) == (1000, 2000)
    assert second.negotiation_ms == (1.0,) * 3
    assert second.counts == {"decisions": 3}
    assert 0 < first.seconds < second.seconds
    assert second.carrier_share == pytest.approx(2000 * 8 / second.seconds / 100e6)
    assert second.cpu_share == second.cpu_s / second.seconds


def test_an_agent_that_does_not_answer_is_reported(address: str, tmp_path: Path) -> None:
    agents = Schedulers(
        {"h1": address, "h2": f"unix:{tmp_path}/nobody.sock"}, {"h1": 1.0, "h2": 1.0}, tmp_path
    )
    here, gone = agents.report().scheduling
    assert here.events == ()
    (event,) = gone.events
    assert "does not answer" in event
    assert (gone.cpu_share, gone.carrier_share) == (None, None)
