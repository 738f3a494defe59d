"""`entrain flows`: what the kernel knows of each connection."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from entrain.commands.flows import command
from hostbpf import mltcp
from hostbpf.controls import controls
from hostbpf.flows import read_flows
from hostbpf.mltcp import Params
from machine.record import Record
from tests.hostbpf.conftest import Connection, Pair, or_skip
from tests.hostbpf.test_mltcp import ATTEMPTS, BURST, COMPUTE_S, iterate

pytestmark = pytest.mark.root


def test_flows_of_a_namespace(pair: Pair, connect: Callable[..., Connection]) -> None:
    with or_skip(mltcp.registered({5: Params(total_bytes=400_000, gap_ms=10_000)})):
        plain, scaled = connect("reno", 4), connect("mltcp_reno", 5)
        plain.transfer(200_000)
        scaled.transfer(200_000)
        flows = {flow.job: flow for flow in read_flows([pair.a])}
        assert set(flows) == {4, 5}
        for job, connection in ((4, plain), (5, scaled)):
            assert (flows[job].source, flows[job].source_port) == connection.sender.getsockname()
            assert (flows[job].destination, flows[job].destination_port) == connection.sender.getpeername()
            assert flows[job].bytes_sent - flows[job].retransmitted * flows[job].mss <= 200_000
            assert flows[job].bytes_sent >= 200_000
        assert (flows[4].control, flows[4].gain) == ("reno", None)
        assert flows[5].control == "mltcp_reno"
        assert flows[5].gain == pytest.approx(1.75 * 0.5 + 0.25, abs=0.01)


def test_command_says_what_was_learned(
    pair: Pair, connect: Callable[..., Connection], tmp_path: Path
) -> None:
    with (
        Record("test-flows", records=tmp_path / "flows") as record,
        or_skip(controls(record)) as found,
    ):
        if not found.own:
            pytest.skip("another process of this machine holds the congestion controls")
        connect("reno", 7).transfer(1000)

        def ask() -> dict[int, Any]:
            result = CliRunner().invoke(command, ["--netns", pair.a, "--json"])
            assert result.exit_code == 0, result.output
            return {flow["job"]: flow["mltcp"] for flow in json.loads(result.output)}

        for attempt in range(ATTEMPTS):
            mark, compute_s = 60 + attempt, COMPUTE_S * 2**attempt
            found.jobs.set_params(mark, Params())
            connection = connect("mltcp_reno", mark)
            connection.transfer(BURST)
            assert ask()[mark]["total_bytes"] is None
            if iterate([connection], 7, compute_s):
                break
        asked = ask()
        assert asked[7] is None
        assert asked[mark]["total_bytes"] == BURST
        assert compute_s * 500 < asked[mark]["gap_ms"] < compute_s * 2000
        shown = CliRunner().invoke(command, ["--netns", pair.a], env={"COLUMNS": "160"}).output
        assert f"{BURST / 1e6:.3f}" in shown


def test_command_selects_a_job(pair: Pair, connect: Callable[..., Connection]) -> None:
    connect("reno", 4)
    wanted = connect("cubic", 9)
    result = CliRunner().invoke(command, ["--netns", pair.a, "--job", "9", "--json"])
    assert result.exit_code == 0, result.output
    (flow,) = json.loads(result.output)
    assert flow["source_port"] == wanted.sender.getsockname()[1]
    assert flow["control"] == "cubic"
