"""What an agent tells of its host's flows: their bytes by bin, and when their iterations begin."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from ebpf import in_netns
from hostbpf.counting import counting
from hostbpf.flows import read_flows
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.counts import counts_of
from machine.patience import patience
from tests.hostbpf.agent.test_agent import Started, start
from tests.hostbpf.conftest import Connection, Pair
from wire.flow import Flow
from wire.progress import Direction, Phase, Publisher

__all__ = ["start"]
pytestmark = pytest.mark.root


def sent_bytes(pair: Pair, flow: Flow) -> int:
    """What the kernel has sent of a flow of host a, also again: a busy machine answers late."""
    (found,) = (each for each in read_flows([pair.a]) if each.source_port == flow.source_port)
    return found.bytes_sent


def test_every_byte_is_counted_once_and_in_its_bin(
    pair: Pair, connect: Callable[..., Connection], tmp_path: Path
) -> None:
    connection = connect(mark=7)
    flow = Flow.of(connection.sender)
    with counting(pair.index_a, 2.0, netns=pair.a, progress=tmp_path / "progress") as counter:
        counter.take()
        time.sleep(0.02)  # bins that are not over are left to the next time
        found = []
        for size in (100_000, 30_000):
            begin = time.monotonic_ns()
            connection.transfer(size)
            time.sleep(0.02)
            counts, end = counter.take(), time.monotonic_ns()
            found.append((counts, begin, end, sent_bytes(pair, flow)))
    assert found[0][0].end == found[1][0].first
    before = 0
    for counts, begin, end, sent in found:
        count = counts.flows[flow]
        assert count.mark == 7
        assert sum(count.sent.values()) == sent - before
        before = sent
        assert all(counts.first <= number < counts.end for number in count.sent)
        assert (end - begin) / counts.bin_ns + 2 >= max(count.sent) - min(count.sent)


def test_an_agent_streams_counts_and_the_beginnings_of_iterations(
    pair: Pair, connect: Callable[..., Connection], start: Callable[..., Started], tmp_path: Path
) -> None:
    directory = tmp_path / "progress"
    agent = start(pair.a, "--progress", str(directory))
    assert agent.ready.startswith("ready"), agent.process.communicate()[1]
    connection = connect(mark=9)
    flow = Flow.of(connection.sender)
    with in_netns(pair.a, lambda: Publisher("training", directory=directory)) as publisher:
        watch = agent.stub.WatchFlows(pb.WatchFlowsRequest(bin_ms=1.0), timeout=patience(60))
        assert ("subscribed", "true") in watch.initial_metadata()
        stream = iter(watch)
        begins: dict[int, int] = {}
        sent, last, names = 0, None, set[tuple[int, str]]()
        number = 0
        while len(begins) < 3 or sent < sent_bytes(pair, flow):
            message = counts_of(next(stream))
            assert last is None or message.first == last
            last = message.end
            if flow in message.flows:
                count = message.flows[flow]
                sent += sum(count.sent.values())
                begins |= count.begins
                names.add((count.mark, count.job))
            if not number:
                entry = publisher.flow((*flow,), Direction.SENT)
            # the next iteration begins only when the agent has seen this one
            if number < 4 and (
                not number or number - 1 in begins or (number == 1 and (9, "training") in names)
            ):
                entry.update(number, Phase.COMPUTING, 10_000, 0, 0)
                number += 1
            if len(begins) < 3:
                connection.transfer(10_000)
        watch.cancel()
        assert sent == sent_bytes(pair, flow) >= 40_000
    assert names <= {(9, ""), (9, "training")}
    assert (9, "training") in names
    assert list(begins) == [1, 2, 3]
    assert sorted(begins.values()) == list(begins.values())


def test_a_width_that_cannot_be_is_refused(pair: Pair, start: Callable[..., Started]) -> None:
    agent = start(pair.a)
    with pytest.raises(grpc.RpcError) as refused:
        next(iter(agent.stub.WatchFlows(pb.WatchFlowsRequest(bin_ms=0.0), timeout=patience(20))))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "bin_ms" in refused.value.details()
