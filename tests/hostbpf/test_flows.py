"""`entrain flows`: what the kernel knows of each connection."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from entrain.commands.flows import command
from hostbpf import mltcp
from hostbpf.flows import read_flows
from hostbpf.mltcp import Params

from .conftest import Connection, Pair, or_skip

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


def test_command_selects_a_job(pair: Pair, connect: Callable[..., Connection]) -> None:
    connect("reno", 4)
    wanted = connect("cubic", 9)
    result = CliRunner().invoke(command, ["--netns", pair.a, "--job", "9", "--json"])
    assert result.exit_code == 0, result.output
    (flow,) = json.loads(result.output)
    assert flow["source_port"] == wanted.sender.getsockname()[1]
    assert flow["control"] == "cubic"
