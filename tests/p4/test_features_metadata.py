"""Standard metadata, headers added and removed, random numbers."""

from __future__ import annotations

import pytest

from tests.p4.conftest import Start
from tests.p4.packets import bits, ether, unbits
from tests.p4.targets import Output

ADD, REMOVE, DROP_IN, DROP_OUT, RANDOM = range(1, 6)
STEADY = (9, 9, 9, 9, 3, 1, 32, 32, 32, 16)
UNSTEADY = (48, 48, 32, 32, 19, 19, 2, 32, 8)
STEADY_SIZE, UNSTEADY_SIZE = 19, 30


def request(op: int, port: int, low: int = 0, high: int = 0) -> bytes:
    return ether(0xA300, bits([(op, 8), (port, 9), (0, 7), (low, 32), (high, 32)]) + b"payload")


def split(output: Output) -> tuple[list[int], list[int], bytes]:
    """The steady and the unsteady fields of an output, and what is behind them."""
    packet = output[1]
    steady, unsteady = packet[14:], packet[14 + STEADY_SIZE :]
    return unbits(steady, STEADY), unbits(unsteady, UNSTEADY), packet[14 + STEADY_SIZE + UNSTEADY_SIZE :]


@pytest.mark.parametrize(("ingress", "egress"), [(1, 2), (4, 3), (2, 2)])
def test_ports_and_lengths(start: Start, ingress: int, egress: int) -> None:
    packet = request(0, egress)
    ((port, output),) = start("metadata").send(ingress, packet)
    assert port == egress
    steady, _, rest = split((port, output))
    assert steady == [ingress, 0, egress, 0, 5, 0, 0, len(packet), len(packet), 0]
    assert rest == packet[14:]


def test_an_added_header_counts_in_the_length_of_egress(start: Start) -> None:
    packet = request(ADD, 1)
    (output,) = start("metadata").send(1, packet)
    steady, _, rest = split(output)
    assert steady[7:9] == [len(packet), len(packet) + 20]
    assert rest == packet[14:25] + bits([(0xDEADBEEF, 160)]) + b"payload"


def test_a_removed_header_counts_too(start: Start) -> None:
    packet = request(REMOVE, 1)
    (output,) = start("metadata").send(1, packet)
    steady, _, rest = split(output)
    assert steady[7:9] == [len(packet), len(packet) - 11]
    assert rest == b"payload"


@pytest.mark.parametrize("op", [DROP_IN, DROP_OUT])
def test_drops(start: Start, op: int) -> None:
    assert start("metadata").send(1, request(op, 2)) == []


def test_the_drop_port_drops(start: Start) -> None:
    assert start("metadata").send(1, request(0, 511)) == []


def test_times_and_queues_make_sense(start: Start) -> None:
    _, unsteady, _ = split(start("metadata").send(1, request(0, 1))[0])
    ingress, egress, _, _, depth_in, depth_out, ordered, _, _ = unsteady
    assert ordered == 3
    assert egress - ingress < 1 << 32
    assert depth_in <= 1
    assert depth_out <= 1


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (5, 5), (10, 20), (0, 0xFFFFFFFF), (0x80000000, 0x80000001)]
)
def test_random_numbers_stay_in_their_range(start: Start, low: int, high: int) -> None:
    batch = start("metadata").send_batch([(1, request(RANDOM, 1, low, high))] * 60)
    fields = [split(outputs[0])[1] for outputs in batch.outputs]
    assert {values[8] for values in fields} == {1}
    drawn = {values[7] for values in fields}
    assert min(drawn) >= low
    assert max(drawn) <= high
    if high - low <= 10:
        assert len(drawn) >= min(2, high - low + 1)
    else:
        assert len(drawn) > 40
