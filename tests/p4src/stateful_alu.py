"""Runs the instructions of a Tofino's stateful ALUs, as p4c's assembly has them, on many cells at once.

The meaning of each instruction follows Intel's model (github.com/tchadelicard/open-p4studio,
pkgsrc/tofino-model/src/shared/mau-stateful-alu.cpp: run_cmp, run_state, calculate_output), written anew:
- a comparator compares the sum of a word of memory, a word of the packet and a constant with 0. Each may be
  negative, and the sum is as wide as it needs to be: it does not wrap at 32 bits;
- of the two ALUs of a word those whose predicate holds are ORed; if neither's holds, the word stays;
- the output, which is read after the ALUs, is 0 where its predicate does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]
Flags = NDArray[np.bool_]

MASK = np.int64(0xFFFFFFFF)
_ZERO = np.int64(0)

COMPARE: dict[str, Callable[[Words], Flags]] = {
    "equ": lambda x: x == 0,
    "neq": lambda x: x != 0,
}

COMPUTE: dict[str, Callable[[Words, Words], Words]] = {
    "saddu": lambda a, b: np.minimum(a + b, MASK),
    "ssubu": lambda a, b: np.maximum(a - b, _ZERO),
    "ssubru": lambda a, b: np.maximum(b - a, _ZERO),
    "add": lambda a, b: (a + b) & MASK,
    "sub": lambda a, b: (a - b) & MASK,
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
}


@dataclass(frozen=True)
class Instruction:
    """One line of an action: its name and operands, the predicate among them."""

    name: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class StatefulTable:
    """A register's table: where its packet words come from, and the instructions of its actions."""

    name: str
    inputs: tuple[str, ...]
    """The fields that are `phv_lo` and, if there is a second one, `phv_hi`."""
    actions: dict[str, tuple[Instruction, ...]]

    def run(
        self, action: str, memory: tuple[Words, Words], packet: tuple[Words, Words]
    ) -> tuple[Words, Words, Words]:
        """Return the low and the high word of each cell after `action`, and its output.

        `memory` and `packet` are the low and the high words before it, each below 2^32.
        """
        lo, hi = memory
        values = {"lo": lo, "hi": hi, "phv_lo": packet[0], "phv_hi": packet[1]}
        flags: dict[str, Flags] = {}
        everywhere = np.ones(lo.shape, np.bool_)
        written: dict[str, tuple[Words, Flags]] = {}
        output: Words = np.zeros_like(lo)
        later = sorted(self.actions[action], key=lambda each: each.name == "output")
        for instruction in later:
            name, operands = instruction.name, list(instruction.operands)
            if name in COMPARE:
                sum_ = sum((_signed(each, values) for each in operands[1:]), np.zeros_like(lo))
                flags[_comparator(operands[0])] = COMPARE[name](sum_)
                continue
            where = everywhere
            if operands[0].lstrip("(!").startswith("cmp"):
                where = _predicate(operands.pop(0), flags)
            if name == "output":
                if operands[0].startswith("word"):
                    assert operands.pop(0) == "word0", "one word of output is all that a Tofino 1 has"
                after = {f"mem_{word}": values[word] for word in ("lo", "hi")}
                for word in ("lo", "hi"):
                    value, on = written.get(word, (values[word], ~everywhere))
                    after[f"alu_{word}"] = np.where(on, value, values[word])
                output = np.where(where, after[operands[0]], _ZERO)
                continue
            word = operands.pop(0)
            value = _compute(name, [_signed(each, values) for each in operands])
            before, on = written.get(word, (np.zeros_like(lo), ~everywhere))
            written[word] = before | np.where(where, value, _ZERO), on | where
        after_lo, after_hi = (
            np.where(on, value, values[word])
            for word in ("lo", "hi")
            for value, on in [written.get(word, (values[word], ~everywhere))]
        )
        return after_lo, after_hi, output


def _comparator(name: str) -> str:
    return {"lo": "cmplo", "hi": "cmphi"}.get(name, name)


def _signed(operand: str, values: dict[str, Words]) -> Words | np.int64:
    negative, name = operand.startswith("-"), operand.removeprefix("-")
    name, _, bits = name.partition("(")  # the low bits of a word: phv_lo(0..15)
    value = values[name] if name in values else np.int64(int(name, 0))
    if bits:
        first, _, last = bits.removesuffix(")").partition("..")
        assert first == "0"
        value = value & np.int64((1 << int(last) + 1) - 1)
    return -value if negative else value


def _compute(name: str, operands: list[Words | np.int64]) -> Words | np.int64:
    if name in ("alu_a", "alu_b", "a", "b"):
        (value,) = operands
        return value & MASK
    if name == "setz":
        return _ZERO
    a, b = operands
    return COMPUTE[name](a & MASK, b & MASK)


def _predicate(text: str, flags: dict[str, Flags]) -> Flags:
    """The value of a predicate such as `(!cmplo & cmphi)`."""
    result: Flags = eval(text.replace("!", "~"), {"__builtins__": {}}, dict(flags))
    return result


_STATEFUL = re.compile(r"^stateful (\w+):\n((?:    .*\n)+)", re.MULTILINE)
_INPUTS = re.compile(r"exact group \d+: \{ (.+) \}")
_INPUT = re.compile(r"(\d+): ([\w.]+?)(?:\.\d+-\d+)?(?:, |$)")
_HASHED = re.compile(r"^        (\d+)\.\.(\d+): \w+\.(\d+)-(\d+)$", re.MULTILINE)
_ACTION = re.compile(r"^      (\w+):\n((?:      - .*\n)+)", re.MULTILINE)


def read(text: str) -> dict[str, StatefulTable]:
    """The stateful tables of an assembly, by name."""
    tables = {}
    for name, body in _STATEFUL.findall(text):
        assert "format: { lo: 32, hi:32 }" in body
        (places,) = _INPUTS.findall(body)
        at = {field: int(place) for place, field in reversed(_INPUT.findall(places))}
        inputs = tuple(sorted(at, key=lambda field: at[field]))
        if len(inputs) == 2:
            assert at[inputs[1]] == at[inputs[0]] + 32
        for hashed in _HASHED.findall(
            body
        ):  # a field in parts is put together by a hash that changes nothing
            assert hashed[:2] == hashed[2:]
        actions = {
            action: tuple(map(_instruction, lines.splitlines())) for action, lines in _ACTION.findall(body)
        }
        tables[name] = StatefulTable(name, inputs, actions)
    return tables


def _instruction(line: str) -> Instruction:
    name, _, operands = line.strip().removeprefix("- ").partition(" ")
    return Instruction(name, tuple(operands.split(", ")))
