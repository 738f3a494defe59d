"""Tables of published rows: what `pages.toml` declares, as headings and cells.

A table has a line for each combination of the `rows` columns that occurs, and a column for each figure; with
`columns`, for each value of that column. With `each`, there is a table for each combination of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import Field

from machine.rows import Row, chosen
from machine.toml import Strict

ALL = "all"
"""What stands for an empty value, such as the job of a figure of all jobs."""
Words = Annotated[tuple[str, ...], Field(strict=False)]


class Figure(Strict):
    """A `[figure.NAME]` table: how a figure is shown."""

    heading: str
    form: str = ".4g"
    """A format of Python's for the value and its interval."""
    times: float = 1.0
    """The unit shown, such as 1000 for ms instead of s."""
    suffix: str = ""
    span: bool = False
    """A range: its ends are the figures with `_least` and `_most` after the name."""

    def show(self, row: Row, theirs: Row | None = None, form: str = "") -> str:
        """Return a value, its interval, and in parentheses what the paper prints."""
        form = form or self.form
        half = "" if row.half is None else f" ± {self.times * row.half:{form.lstrip('+')}}"
        paper = "" if theirs is None else f" ({self.times * theirs.value:{form}})"
        return f"{self.times * row.value:{form}}{half}{self.suffix}{paper}"


class Pivot(Strict):
    """A `[[section.table]]` table."""

    caption: str = ""
    """`{NAME}` stands for the value of a column of `each`."""
    figures: Words
    rows: Words = ("policy",)
    columns: str = ""
    each: Words = ()
    where: dict[str, str | Words] = Field(default_factory=dict)
    """Only rows with these values; one of them, if there are several."""
    form: str = ""
    """The format of all figures, instead of their own."""


def tables(
    pivot: Pivot, rows: Iterable[Row], figures: Mapping[str, Figure], labels: Mapping[str, str]
) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return caption, headings and cells of each table. `labels` are the names of columns and parameters."""
    names = {end: name for name in pivot.figures for end in _ends(name, figures[name])}
    known = [row for row in chosen(rows, pivot.where) if row.figure in names and row.seed is None]
    ours = [row for row in known if row.how != "paper"]
    theirs = {_key(row, row.figure, pivot): row for row in known if row.how == "paper"}
    made = []
    for value in _distinct(ours, pivot.each):
        part = [row for row in ours if _at(row, pivot.each) == value]
        columns = _distinct(part, (pivot.columns,)) if pivot.columns else [()]
        shown = [name for name in pivot.figures if any(names[row.figure] == name for row in part)]
        cell = {_key(row, row.figure, pivot): row for row in part}
        head = [labels.get(name, name) for name in pivot.rows]
        for column in columns:
            for name in shown:
                heading = figures[name].heading
                head.append(
                    heading if not column else column[0] if len(shown) == 1 else f"{heading}, {column[0]}"
                )
        body = []
        for line in _distinct(part, pivot.rows):
            cells = []
            for column in columns:
                for name in shown:
                    keys = [(value, line, column, end) for end in _ends(name, figures[name])]
                    ends = [
                        figures[name].show(cell[key], theirs.get(key), pivot.form)
                        for key in keys
                        if key in cell
                    ]
                    cells.append(" to ".join(dict.fromkeys(ends)))
            body.append([*(each or ALL for each in line), *cells])
        caption = pivot.caption.format(**dict(zip(pivot.each, value, strict=True)))
        made.append((caption, head, body))
    return made


def _ends(name: str, figure: Figure) -> tuple[str, ...]:
    return (f"{name}_least", f"{name}_most") if figure.span else (name,)


Key = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str]


def _key(row: Row, figure: str, pivot: Pivot) -> Key:
    column = _at(row, (pivot.columns,)) if pivot.columns else ()
    return _at(row, pivot.each), _at(row, pivot.rows), column, figure


def _at(row: Row, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(row.at(name) for name in names)


def _distinct(rows: Iterable[Row], names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the combinations of values that occur, in the order of the rows."""
    return list(dict.fromkeys(_at(row, names) for row in rows))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
