"""What p4c made of the load table's actions does what the Python model of the load table does.

The million of cells per action: ENTRAIN_CELLS=1000000 pytest tests/p4src/test_stateful_alu.py
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

from p4src.compile import BUILD
from p4src.tofino import ARCHITECTURES
from tests.p4.load_table import Cell, Link
from tests.p4src.stateful_alu import StatefulTable, Words, read
from wire.slot_header import EPOCHS, LANES, MAX_U32, Kind, Lane, SlotHeader

CELLS = int(os.environ.get("ENTRAIN_CELLS", "5000"))

ACTIONS = {
    "add": (Kind.SCHEDULE, 1),
    "subtract": (Kind.SCHEDULE, -1),
    "fetch_load": (Kind.QUERY, 1),
    "fetch_epoch": (Kind.QUERY, -1),
}
"""Kind of carrier and sign of the lane that choose each action."""


@cache
def tables(target: str) -> dict[str, StatefulTable]:
    return read((BUILD / target / "stateful.bfa").read_text())


def numbers(rng: np.random.Generator, shape: tuple[int, int]) -> Words:
    """Numbers of 32 bits: half anywhere, half close to an end, so that sums saturate."""
    near = rng.choice(np.array([0, 1 << 31, MAX_U32 - 1000]), shape) + rng.integers(0, 1000, shape)
    return np.where(rng.random(shape) < 0.5, rng.integers(0, MAX_U32 + 1, shape), near)


def lanes_of(target: str) -> list[StatefulTable]:
    return [tables(target)[f"lane{n}"] for n in range(LANES)]


@pytest.mark.parametrize("target", ARCHITECTURES)
def test_each_lane_has_four_actions_of_the_same_instructions(target: str) -> None:
    found = lanes_of(target)
    for n, table in enumerate(found):
        assert table.inputs == (f"meta.epoch{n}", f"hdr.lane{n}.amount")
        assert list(table.actions) == [f"load_table_{name}{n}" for name in ACTIONS]
        assert list(table.actions.values()) == list(found[0].actions.values())


@pytest.mark.parametrize("target", ARCHITECTURES)
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_does_what_the_model_does(target: str, action: str) -> None:
    kind, sign = ACTIONS[action]
    rng = np.random.default_rng(1)
    shape = (-(-CELLS // LANES), LANES)
    epochs = np.where(
        rng.random(shape[0]) < 0.1,
        rng.integers(EPOCHS - 3, EPOCHS, shape[0]),
        rng.integers(0, EPOCHS, shape[0]),
    )
    first = rng.integers(0, LANES, shape[0])
    own = (epochs[:, None] + (np.arange(LANES) < first[:, None])) % EPOCHS
    near = (own + rng.integers(-2, 4, shape)) % EPOCHS
    held = np.where(rng.random(shape) < 0.8, near, rng.integers(0, EPOCHS, shape))
    loads, amounts = numbers(rng, shape), numbers(rng, shape)
    if kind == Kind.QUERY or sign < 0:
        amounts = np.maximum(amounts, 1)  # a lane of 0 has no sign

    after = [
        table.run(f"load_table_{action}{n}", (loads[:, n], held[:, n]), (own[:, n], amounts[:, n]))
        for n, table in enumerate(lanes_of(target))
    ]
    chip = np.stack([np.stack(words, axis=-1) for words in after], axis=1)

    model = np.empty((*shape, 3), np.int64)
    for row in range(shape[0]):
        link = Link(0, [Cell(int(e), int(c)) for e, c in zip(held[row], loads[row], strict=True)])
        lanes = tuple(Lane(sign * int(amount)) for amount in amounts[row])
        header = SlotHeader(kind=kind, epoch=int(epochs[row]), first_lane=int(first[row]), lanes=lanes)
        told = link.pass_(header)
        cells = zip(link.cells, told.lanes, strict=True)
        model[row] = [(cell.load, cell.epoch, lane.load) for cell, lane in cells]

    same = (chip == model).all(axis=-1)
    if target == "tofino" and kind == Kind.SCHEDULE:
        # Its two comparators do not see that epoch 0 follows the last: the lane restarts (docs/tofino.md).
        wrapped = (own == EPOCHS - 1) & (held == 0)
        restarted = np.where(sign > 0, amounts, 0)
        assert wrapped.any()
        assert (chip[wrapped] == np.stack([restarted, own, restarted], axis=-1)[wrapped]).all()
        same |= wrapped
    assert same.all(), (held[~same][:3], own[~same][:3], chip[~same][:3], model[~same][:3])


@pytest.mark.parametrize("target", ARCHITECTURES)
def test_the_guard_counts_a_ports_carriers_by_window(target: str) -> None:
    rng = np.random.default_rng(2)
    table = tables(target)["carriers"]
    (action,) = table.actions
    held, now = (rng.integers(0, 1 << 16, CELLS) for _ in range(2))
    held = np.where(rng.random(CELLS) < 0.7, now, held)
    counted = rng.integers(0, MAX_U32, CELLS)
    number, window, told = table.run(action, (counted, held), (now, np.zeros_like(now)))
    expected = np.where(held == now, counted + 1, 1)
    assert (number == expected).all()
    assert (told == expected).all()
    assert (window == now).all()
