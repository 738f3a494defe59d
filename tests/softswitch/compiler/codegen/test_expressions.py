"""Random expressions: the program in the kernel against unbounded integers in Python."""

from __future__ import annotations

import random
from typing import Any

import pytest

from softswitch.compiler.ir import load_program
from softswitch.kernel.datapath import Datapath
from tests.softswitch.minimal import assign, constant, field, operation, program

FIELDS = [  # name, bits, signed
    ("a", 3, False),
    ("b", 13, False),
    ("c", 8, True),
    ("d", 32, False),
    ("e", 61, False),
    ("f", 64, True),
    ("g", 64, False),
    ("h", 7, True),
    ("i", 128, False),
    ("j", 100, True),
    ("k", 200, False),
    ("l", 24, False),
    ("m", 48, False),
]
PAD = -sum(bits for _, bits, _ in FIELDS) % 8
OUTPUTS = [1, 5, 8, 16, 24, 31, 32, 48, 63, 64, 65, 100, 128, 200]
PER_PROGRAM = 24

Values = dict[str, int]


def wrap(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


class Generator:
    """Makes an expression's JSON together with the function that computes it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def leaf(self) -> tuple[Any, Any]:
        if self.rng.random() < 0.3:
            value = self.rng.choice(
                [0, 1, 2, 255, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 2**64, 2**127 + 5, -1, -300]
            )
            return constant(value), lambda values: value
        name = self.rng.choice(FIELDS)[0]
        return field("input", name), lambda values: values[name]

    def number(self, depth: int) -> tuple[Any, Any]:
        if depth == 0:
            return self.leaf()
        kind = self.rng.choice(
            [
                "+",
                "-",
                "*",
                "&",
                "|",
                "^",
                "~",
                "<<",
                ">>",
                "mask",
                "two",
                "usat",
                "sat",
                "?",
                "b2d",
                "/",
                "%",
            ]
        )
        node, compute = self.number(depth - 1)
        if kind in "+-*&|^":
            other, second = self.number(depth - 1)
            if kind == "*":  # keep products within what the compiler takes
                node, compute = self.masked(node, compute, 64)
                other, second = self.masked(other, second, 64)
            functions = {
                "+": lambda v: compute(v) + second(v),
                "-": lambda v: compute(v) - second(v),
                "*": lambda v: compute(v) * second(v),
                "&": lambda v: compute(v) & second(v),
                "|": lambda v: compute(v) | second(v),
                "^": lambda v: compute(v) ^ second(v),
            }
            return operation(kind, node, other), functions[kind]
        if kind == "~":
            return operation("~", None, node), lambda v: ~compute(v)
        if kind in ("<<", ">>"):
            by, amount = field("input", self.rng.choice(["a", "b", "l"])), 0
            name = by["value"][1]
            if self.rng.random() < 0.5:
                amount = self.rng.choice([1, 7, 8, 31, 33, 64, 70])
                by = constant(amount)

            def shift(v: Values) -> int:
                count = amount or v[name]
                return compute(v) << count if kind == "<<" else compute(v) >> count

            made = operation(kind, node, by)
            return (
                self.masked(made, shift, self.rng.choice([8, 32, 64, 128])) if kind == "<<" else (made, shift)
            )
        if kind == "mask":
            return self.masked(node, compute, self.rng.choice([1, 8, 17, 32, 64, 100, 128]))
        if kind == "two":
            bits = self.rng.choice([8, 13, 32, 64, 128])
            return operation("two_comp_mod", node, constant(bits)), lambda v: wrap(compute(v), bits, True)
        if kind in ("usat", "sat"):
            bits = self.rng.choice([8, 13, 32, 63, 64, 128])
            low, high = (0, (1 << bits) - 1) if kind == "usat" else (-(1 << bits - 1), (1 << bits - 1) - 1)
            name = "usat_cast" if kind == "usat" else "sat_cast"
            return operation(name, node, constant(bits)), lambda v: min(max(compute(v), low), high)
        if kind in "/%":
            node, compute = self.masked(node, compute, 64)
            divisor = self.rng.choice([1, 3, 7, 1000, 2**40 + 1])
            made = operation(kind, node, constant(divisor))
            return made, (lambda v: compute(v) // divisor) if kind == "/" else (
                lambda v: compute(v) % divisor
            )
        condition, holds = self.condition(depth - 1)
        if kind == "b2d":
            return operation("b2d", None, condition), lambda v: int(holds(v))
        other, second = self.number(depth - 1)
        return operation("?", node, other, condition), lambda v: compute(v) if holds(v) else second(v)

    def masked(self, node: Any, compute: Any, bits: int) -> tuple[Any, Any]:
        ones = (1 << bits) - 1
        return operation("&", node, constant(ones)), lambda v: compute(v) & ones

    def condition(self, depth: int) -> tuple[Any, Any]:
        kind = self.rng.choice(["==", "!=", "<", ">", "<=", ">=", "and", "or", "not", "d2b"])
        if depth and kind in ("and", "or", "not"):
            left, first = self.condition(depth - 1)
            if kind == "not":
                return operation("not", None, left), lambda v: not first(v)
            right, second = self.condition(depth - 1)
            if kind == "and":
                return operation("and", left, right), lambda v: first(v) and second(v)
            return operation("or", left, right), lambda v: first(v) or second(v)
        left, first = self.number(max(0, depth - 1))
        if kind in ("d2b", "and", "or", "not"):
            return operation("d2b", None, left), lambda v: first(v) != 0
        right, second = self.number(max(0, depth - 1))
        compare = {
            "==": lambda v: first(v) == second(v),
            "!=": lambda v: first(v) != second(v),
            "<": lambda v: first(v) < second(v),
            ">": lambda v: first(v) > second(v),
            "<=": lambda v: first(v) <= second(v),
            ">=": lambda v: first(v) >= second(v),
        }
        return operation(kind, left, right), compare[kind]


def packed(fields: list[tuple[int, int]]) -> bytes:
    """(value, bits) end to end, padded to whole bytes."""
    total, size = 0, 0
    for value, bits in fields:
        total = total << bits | (value & ((1 << bits) - 1))
        size += bits
    pad = -size % 8
    return (total << pad).to_bytes((size + pad) // 8, "big")


@pytest.mark.bpf
@pytest.mark.parametrize("seed", range(8))
def test_expressions_are_exact(seed: int) -> None:
    generator = Generator(seed)
    rng = generator.rng
    outputs, statements, functions = [], [], []
    for number in range(PER_PROGRAM):
        bits, signed = rng.choice(OUTPUTS), rng.random() < 0.2
        signed = signed and bits > 1
        node, compute = generator.number(rng.randrange(1, 4))
        outputs.append((f"o{number}", bits, signed))
        statements.append(assign(field("output", f"o{number}"), node))
        functions.append(compute)
    pad = -sum(bits for _, bits, _ in outputs) % 8
    headers = {
        "input": [*FIELDS, *([("pad", PAD)] if PAD else [])],
        "output": [*outputs, *([("pad", pad)] if pad else [])],
    }
    setup = {"op": "add_header", "parameters": [{"type": "header", "value": "output"}]}
    datapath = Datapath.load(
        load_program(program(headers, ["input"], [setup, *statements])), name="expressions", netless=True
    )
    try:
        for _ in range(12):
            values: Values = {}
            for name, bits, signed in FIELDS:
                edge = rng.choice(
                    [0, 1, (1 << bits) - 1, 1 << (bits - 1), rng.getrandbits(bits), rng.getrandbits(bits)]
                )
                values[name] = wrap(edge, bits, signed)
            packet = packed([(values[n], b) for n, b, _ in FIELDS])
            (_, data), *rest = datapath.run(packet, 3)
            assert not rest
            expected = packet + packed(
                [(f(values), b) for f, (_, b, _) in zip(functions, outputs, strict=True)]
            )
            assert data == expected, [
                (name, hex(f(values) & ((1 << b) - 1)), statement["parameters"][1])
                for f, (name, b, _), statement in zip(functions, outputs, statements, strict=True)
            ]
    finally:
        datapath.close()
