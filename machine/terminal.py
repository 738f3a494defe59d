"""Tables on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table


def plain_table(*headings: str, text: int) -> Table:
    """Return a table without a frame. Columns keep their width, so that no cell is cut or wrapped.

    The first `text` columns are aligned to the left, the others (numbers) to the right.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < text else "right", no_wrap=True)
    return table
