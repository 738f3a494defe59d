"""Every operator equals Python's arithmetic on integers of any width, cut to the width of the field."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.p4.conftest import Start
from tests.p4.packets import bits, ether, signed, unbits

UNSIGNED = {1: 7, 7: 1, 8: 8, 13: 3, 16: 8, 32: 8, 33: 7, 63: 1, 64: 8}
UNSIGNED_WIDE = {65: 7, 72: 8, 128: 8, 129: 7, 256: 8}
SIGNED = {8: 8, 13: 3, 32: 8, 33: 7, 64: 8, 100: 4, 128: 8}
SAMPLES = 40


def operands(width: int, seed: int) -> Iterator[tuple[int, int, int]]:
    """Pairs of operands and a shift: the corners, their neighbours, and random ones."""
    full = (1 << width) - 1
    corners = sorted({value & full for value in (0, 1, 2, full, full - 1, full >> 1, (full >> 1) + 1)})
    for a in corners:
        for b in corners:
            for shift in (0, 1, width - 1, width, 255):
                yield a, b, shift & 255
    rng = random.Random(seed)
    for _ in range(SAMPLES):
        yield (
            rng.getrandbits(width),
            rng.getrandbits(width),
            rng.choice([rng.randrange(width), rng.randrange(256)]),
        )


def unsigned_results(a: int, b: int, shift: int, width: int) -> list[int]:
    """What ops.p4 computes, in the order of its header."""
    full = (1 << width) - 1
    values = [a + b, a - b, a & b, a | b, a ^ b, ~a, -a, a << shift, a >> shift]
    values += [min(a + b, full), max(a - b, 0), a if a > b else b]
    values += [((a + b & full) >> 1) ^ (~b & a - 1)]
    logic = (a == 0 or b == 0) << 1 | (not (a == 0 and b == 0))
    flags = [a == b, a != b, a < b, a <= b, a > b, a >= b]
    return [value & full for value in values] + [int(flag) for flag in flags] + [logic]


def signed_results(a: int, b: int, shift: int, width: int) -> list[int]:
    """What expr_signed.p4 computes, in the order of its header."""
    full = (1 << width) - 1
    low, high = -(1 << width - 1), (1 << width - 1) - 1
    x, y = signed(a, width), signed(b, width)
    values = [x + y, x - y, -x, ~x, x & y, x << shift, x >> shift]
    values += [max(low, min(high, x + y)), max(low, min(high, x - y)), max(x, y), x - y, a >> shift]
    flags = [x == y, x < y, x <= y, x > y, x >= y, x < 0]
    tail = [x & (1 << 200) - 1, a, x & 31]
    return [value & full for value in values] + [int(flag) for flag in flags] + tail


@pytest.mark.parametrize("width", [*UNSIGNED, *UNSIGNED_WIDE])
def test_unsigned_operators(start: Start, width: int) -> None:
    target = start("expr" if width in UNSIGNED else "expr_wide")
    pad = (UNSIGNED | UNSIGNED_WIDE)[width]
    cases = list(operands(width, seed=width))
    packets = [
        ether(0x9500 + width, bits([(a, width), (0, pad), (b, width), (0, pad), (shift, 8)]))
        for a, b, shift in cases
    ]
    batch = target.send_batch([(1, packet) for packet in packets])
    layout = [width, pad] * 13 + [1] * 6 + [2]
    for case, packet, outputs in zip(cases, packets, batch.outputs, strict=True):
        ((port, output),) = outputs
        assert (port, output[: len(packet)]) == (1, packet)
        fields = unbits(output[len(packet) :], layout)
        assert fields[:26:2] + fields[26:] == unsigned_results(*case, width), case
        assert set(fields[1:26:2]) == {0}


@pytest.mark.parametrize("width", SIGNED)
def test_signed_operators(start: Start, width: int) -> None:
    target, pad = start("expr_signed"), SIGNED[width]
    cases = list(operands(width, seed=width))
    packets = [
        ether(0x9800 + width, bits([(a, width), (0, pad), (b, width), (0, pad), (shift, 8)]))
        for a, b, shift in cases
    ]
    batch = target.send_batch([(1, packet) for packet in packets])
    layout = [width, pad] * 12 + [1] * 6 + [2, 200, 200, 5]
    for case, packet, outputs in zip(cases, packets, batch.outputs, strict=True):
        ((_, output),) = outputs
        fields = unbits(output[len(packet) :], layout)
        assert fields[:24:2] + fields[24:30] + fields[31:] == signed_results(*case, width), case


def test_products(start: Start) -> None:
    rng = random.Random(5)
    widths = [8, 8, 32, 32, 64, 64, 100, 100, 16, 16]
    cases = [[rng.getrandbits(width) for width in widths] for _ in range(100)]
    cases += [[(1 << width) - 1 for width in widths], [0] * len(widths), [1 << width - 1 for width in widths]]
    packets = [ether(0x9A00, bits(zip(case, widths, strict=True))) for case in cases]
    batch = start("multiply").send_batch([(2, packet) for packet in packets])
    results = [8, 32, 64, 100, 100, 16, 64, 64]
    for (a8, b8, a32, b32, a64, b64, a100, b100, sa, sb), packet, outputs in zip(
        cases, packets, batch.outputs, strict=True
    ):
        ((_, output),) = outputs
        products = [a8 * b8, a32 * b32, a64 * b64, a100 * b100, a32 * a64, sa * sb]
        products += [(a64 >> 8) * 3 + 100 // 7 * 5 + 100 % 7, b64 * 0x100000001]
        expected = [value & (1 << width) - 1 for value, width in zip(products, results, strict=True)]
        assert unbits(output[len(packet) :], results) == expected
