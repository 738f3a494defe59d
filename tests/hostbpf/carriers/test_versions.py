"""Agents and switches of another version: the agent says so in one line, and goes on."""

from __future__ import annotations

import pytest

from hostbpf.agent import agent as agents
from hostbpf.agent.agent import Agent, Options
from hostbpf.carriers.carriers import COUNTS, EXPECTED, version_problem
from tests.hostbpf.conftest import Pair
from tests.hostbpf.taps import headers_of, mac, raw_socket, slot_frame, wait_until
from wire.flow import Flow
from wire.slot_header import VERSION, Kind, SlotHeader

NONE = dict.fromkeys(COUNTS, 0)


def test_only_carriers_that_nobody_answers_are_a_problem() -> None:
    sent = {**NONE, "sent": EXPECTED}
    assert "counts them as VERSION" in version_problem(sent, asks_switches=True)
    assert not version_problem(sent, asks_switches=False), "no switch is asked"
    assert not version_problem({**sent, "received_feedback": 1}, asks_switches=True)
    assert not version_problem({**NONE, "sent": EXPECTED - 1}, asks_switches=True)


@pytest.mark.root
def test_headers_of_another_version_are_refused_and_told_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agents, "HOUSEKEEPING_S", 0.02)
    carried = headers_of(Flow("10.77.0.1", 1, "10.77.0.2", 2))
    header = SlotHeader(kind=Kind.SCHEDULE).pack()
    with Agent.running(Options("eth0", pair.b)) as agent, raw_socket(pair.a) as raw:
        told = ""
        for number in range(1, 4):
            other = bytes([(VERSION - 1) << 4 | Kind.SCHEDULE]) + header[1:]
            raw.send(slot_frame(mac(pair.b)) + other + carried)
            assert agent.counts()["other_version"] == number
            assert agent.counts()["sent_feedback"] == 0

            def said() -> bool:
                nonlocal told
                told += capsys.readouterr().err
                return bool(told)

            wait_until(said)
    told += capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"slot headers of another version than {VERSION} arrive" in told
