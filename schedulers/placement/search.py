"""The combinatorial search of vClos' stage 2: leaves whose free links meet at enough spines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedulers.compiled import Bools, Ints, compiled

Words = NDArray[np.uint64]

FOUND, NONE, UNDECIDED = 0, 1, 2


@compiled
def _ones(word: np.uint64) -> int:
    one, two, four = (
        np.uint64(0x5555555555555555),
        np.uint64(0x3333333333333333),
        np.uint64(0x0F0F0F0F0F0F0F0F),
    )
    word = word - ((word >> np.uint64(1)) & one)
    word = (word & two) + ((word >> np.uint64(2)) & two)
    word = (word + (word >> np.uint64(4))) & four
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def _reduce(table: Words, alive: Bools, mask: Words, need: int, width: int, degree: Ints) -> bool:
    """Drop rows that share fewer than `width` bits with the mask, and bits that fewer than `need` rows have,
    until nothing changes; returns whether enough of both are left."""
    rows, words = table.shape
    while True:
        degree[:] = 0
        left = 0
        dropped = False
        for row in range(rows):
            if not alive[row]:
                continue
            common = 0
            for w in range(words):
                common += _ones(table[row, w] & mask[w])
            if common < width:
                alive[row] = False
                dropped = True
                continue
            left += 1
            for w in range(words):
                word = table[row, w] & mask[w]
                while word != np.uint64(0):
                    below = word - np.uint64(1)
                    degree[w * 64 + _ones(below & ~word)] += 1
                    word = word & below
        if left < need:
            return False
        bits = 0
        for w in range(words):
            word = mask[w]
            while word != np.uint64(0):
                below = word - np.uint64(1)
                bit = _ones(below & ~word)
                if degree[w * 64 + bit] < need:
                    mask[w] = mask[w] & ~(np.uint64(1) << np.uint64(bit))
                    dropped = True
                else:
                    bits += 1
                word = word & below
        if bits < width:
            return False
        if not dropped:
            return True


@compiled
def _search(table: Words, count: int, width: int, limit: int, chosen: Ints) -> int:
    """Look for `count` rows that have `width` bits in common; returns the status, and them in `chosen`."""
    rows, words = table.shape
    alive = np.zeros((count + 1, rows), np.bool_)
    mask = np.zeros((count + 1, words), np.uint64)
    degree = np.zeros(words * 64, np.int64)
    alive[0] = True
    mask[0] = ~np.uint64(0)
    depth = 0
    for _ in range(limit):
        if _reduce(table, alive[depth], mask[depth], count - depth, width, degree):
            if depth == count:
                return FOUND
            first = 0
            while not alive[depth, first]:
                first += 1
            chosen[depth] = first
            alive[depth + 1] = alive[depth]
            alive[depth + 1, first] = False
            for w in range(words):
                mask[depth + 1, w] = mask[depth, w] & table[first, w]
            depth += 1
            continue
        if depth == 0:
            return NONE
        depth -= 1
        # Without this row, then; and without any that shares no more with the mask: among rows
        # chosen with one of those this row could take its place.
        for row in range(rows):
            within = True
            for w in range(words):
                outside = table[row, w] & ~table[chosen[depth], w] & mask[depth, w]
                within = within and outside == np.uint64(0)
            if within:
                alive[depth, row] = False
    return UNDECIDED


def find(free_links: Ints, links_per_pair: int, count: int, width: int, limit: int) -> tuple[int, Ints]:
    """Look for `count` leaves n that reach `width` virtual spines in common: sum_m min_n C_nm >= width.

    `free_links` C (leaves, spines) counts the free links of each pair. Leaves and spines further ahead are
    tried first, in lexicographic order. Returns `FOUND` and the leaves, `NONE` if there are no such leaves,
    or `UNDECIDED` after `limit` steps.
    """
    # A pair with c free links has the first c of its K bits set: the intersection of leaves then has as many
    # bits as there are virtual spines that all of them reach. The smaller side is chosen: fewer levels.
    reached = (np.arange(links_per_pair) < free_links[:, :, None]).reshape(len(free_links), -1)
    if count <= width:
        chosen = np.zeros(count, np.int64)
        return _search(_packed(reached), count, width, limit, chosen), np.sort(chosen)
    chosen = np.zeros(width, np.int64)
    status = _search(_packed(reached.T), width, count, limit, chosen)
    return status, np.flatnonzero(reached[:, chosen].all(axis=1))[:count]


def _packed(table: Bools) -> Words:
    """The rows of `table` (n, bits) as words of 64 bits, shape (n, words)."""
    packed = np.packbits(table, axis=1, bitorder="little")
    padded = np.zeros((len(table), -(-packed.shape[1] // 8) * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)
