"""`entrain flows`: what the kernel knows of each connection."""

from __future__ import annotations

import json
import time
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

pytestmark = pytest.mark.root

BURST = 400_000
COMPUTE_S = 0.25  # longer than any stall of a busy machine within a burst


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
        found.jobs.set_params(6, Params())
        connection, plain = connect("mltcp_reno", 6), connect("reno", 7)
        plain.transfer(1000)

        def ask() -> dict[int, Any]:
            result = CliRunner().invoke(command, ["--netns", pair.a, "--json"])
            assert result.exit_code == 0, result.output
            return {flow["job"]: flow["mltcp"] for flow in json.loads(result.output)}

        connection.transfer(BURST)
        assert ask()[6]["total_bytes"] is None
        for _ in range(7):
            time.sleep(COMPUTE_S)
            connection.transfer(BURST)
        asked = ask()
        assert asked[7] is None
        assert asked[6]["total_bytes"] == BURST
        assert COMPUTE_S * 500 < asked[6]["gap_ms"] < COMPUTE_S * 2000
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
