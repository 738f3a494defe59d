"""Tables on a terminal, and numbers and times in words."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDEST = 10_000


def plain_table(*headings: str, text: int) -> Table:
    """Return a table without a frame. Columns keep their width, so that no cell is wrapped.
    `print_whole` cuts none.

    The first `text` columns are aligned to the left, the others (numbers) to the right.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < text else "right", no_wrap=True)
    return table


def print_whole(table: Table) -> None:
    """Print a table. In a terminal that is too narrow for it lines are wrapped, and cells are not cut."""
    console = Console()
    measured = Measurement.get(console, console.options.update(max_width=_WIDEST), table)
    needed = measured.maximum if all(column.no_wrap for column in table.columns) else measured.minimum
    Console(width=max(needed, console.width)).print(table)


def warn(console: Console, text: str) -> None:
    """Print one line that begins with `warning:`. Brackets in it, as of a TOML table, are text."""
    console.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)


def count(number: int, what: str, several: str = "") -> str:
    """Return a number with its noun: 1 job, 2 jobs; `several` is a plural that has more than an s."""
    return f"{number} {what if number == 1 else several or f'{what}s'}"


def duration(seconds: float) -> str:
    """Return a duration in at most seven characters: `4 s`, `12 min`, `3.5 h`, `12.1 d`."""
    for limit, unit, digits in ((120, 1, 0), (7200, 60, 0), (172800, 3600, 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {({1: 's', 60: 'min', 3600: 'h'})[unit]}"
    return f"{seconds / 86400:.1f} d"


class Remaining:
    """How long work goes on, if it goes on as fast as it did from its first progress on.

    What comes before that, such as bringing a network up, does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Read times (s) from `clock`."""
        self._clock = clock
        self._first: tuple[float, float] | None = None
        self._part = 0.0

    def seconds(self, part: float) -> float | None:
        """Note that `part` (0 to 1) is done. Return the remaining time, or None while it is unknown.

        A part that is less than before, as at a preparation for the next piece of work, counts as no
        progress.
        """
        self._part = max(self._part, part)
        if self._first is None:
            if self._part > 0.0:
                self._first = self._clock(), self._part
            return None
        since, begun = self._first
        gained = self._part - begun
        return (self._clock() - since) / gained * (1.0 - self._part) if gained > 0.0 else None
