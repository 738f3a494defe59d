"""The combinatorial search of vClos' stage 2: leaves whose free links meet at enough spines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedulers.compiled import Bools, Ints, compiled

Words = NDArray[np.uint64]

FOUND, NONE, UNDECIDED = 0, 1, 2


def rows(free_links: Ints, links_per_pair: int) -> Words:
    """Return the free links (leaves, spines) as bits, shape (leaves, words).

    A pair with c free links has the first c of its K bits set, so that the intersection of rows has as many
    bits as there are virtual spines that all these leaves reach.
    """
    bits = np.arange(links_per_pair) < free_links[:, :, None]
    leaves = len(free_links)
    packed = np.packbits(bits.reshape(leaves, -1), axis=1, bitorder="little")
    padded = np.zeros((leaves, -(-packed.shape[1] // 8) * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


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
    """Drop leaves that share fewer than `width` bits with the mask, and bits that fewer than `need` leaves
    have, until nothing changes; returns whether enough of both are left."""
    leaves, words = table.shape
    while True:
        degree[:] = 0
        left = 0
        dropped = False
        for leaf in range(leaves):
            if not alive[leaf]:
                continue
            common = 0
            for w in range(words):
                common += _ones(table[leaf, w] & mask[w])
            if common < width:
                alive[leaf] = False
                dropped = True
                continue
            left += 1
            for w in range(words):
                word = table[leaf, w] & mask[w]
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
    leaves, words = table.shape
    alive = np.zeros((count + 1, leaves), np.bool_)
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
        # Without this leaf, then; and without any that shares no more with the mask: in a placement with
        # one of those this leaf could take its place.
        for leaf in range(leaves):
            within = True
            for w in range(words):
                outside = table[leaf, w] & ~table[chosen[depth], w] & mask[depth, w]
                within = within and outside == np.uint64(0)
            if within:
                alive[depth, leaf] = False
    return UNDECIDED


def find(table: Words, count: int, width: int, limit: int) -> tuple[int, Ints]:
    """Look for `count` rows of `table` (leaves, words) that have `width` bits in common.

    Earlier rows are tried first, in lexicographic order. Returns `FOUND` and the rows' numbers, `NONE` if
    there are no such rows, or `UNDECIDED` after `limit` steps.
    """
    chosen = np.zeros(count, np.int64)
    status = _search(table, count, width, limit, chosen)
    return status, np.sort(chosen)
