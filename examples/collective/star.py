"""An allreduce over a star: all ranks send to rank 0, which sends the sum back."""

from __future__ import annotations

from workloads.collectives import Options, Program, Transfer


def star(ranks: int, options: Options) -> Program:
    """Return the steps of the star on `ranks` ranks. `options` has the keys of `[[job]]`; it uses none."""
    # A transfer: from rank, to rank, from unit, into unit, number of units, and whether it adds or replaces.
    there = tuple(Transfer(rank, 0, 0, 0, 1, True) for rank in range(1, ranks))
    back = tuple(Transfer(0, rank, 0, 0, 1, False) for rank in range(1, ranks))
    return Program("star", ranks, 1, (there, back), sources=tuple(range(ranks)))
