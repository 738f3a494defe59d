"""Measured values in long form: one row per value, with what it is of and what measured it.

`data/results/` has those that the pages of docs/ show, as CSV. `pandas.read_csv` reads them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from machine.errors import BadInput
from machine.origin import Origin
from machine.whole import whole

How = Literal["live", "simulated", "paper"]

UNITS = {
    "_s": "s",
    "_ms": "ms",
    "_us": "us",
    "_percent": "%",
    "_gbit_s": "Gbit/s",
    "_mbps": "Mbit/s",
    "_bytes": "bytes",
    "_per_minute": "1/min",
}
"""The unit of a figure, by the end of its name; others are counts or ratios."""


@dataclass(frozen=True)
class Row:
    """A measured value. Texts are empty where they do not apply."""

    experiment: str
    how: How
    """`paper`: a value that a paper prints."""
    parameters: str
    """What else the experiment varies, such as `gbps=10; load_percent=60`."""
    policy: str
    routing: str
    control: str
    job: str
    """The job, or the model of several jobs."""
    figure: str
    """Its name in summary.json or results.json."""
    seed: int | None
    """The seed or the number of the draw; None: over all of them."""
    value: float
    half: float | None = None
    """Half of the 95 % confidence interval."""
    n: int = 1
    """How many seeds or draws it is the mean of."""
    version: str = ""
    date: str = ""
    command: str = ""
    machine: str = ""

    @property
    def unit(self) -> str:
        """The unit of the value; empty for counts and ratios."""
        ends = (end for end in sorted(UNITS, key=len, reverse=True) if self.figure.endswith(end))
        return UNITS.get(next(ends, ""), "")

    def at(self, name: str) -> str:
        """Return a column or a parameter as text; empty if the row has none of this name."""
        if name in _COLUMNS:
            return str(getattr(self, name))
        return parameters(self.parameters).get(name, "")

    def measured(self, origin: Origin | None, command: str) -> Row:
        """Return the row with what measured it."""
        if origin is None:
            return replace(self, command=command)
        processors = f"{origin.processors} CPU{'' if origin.processors == 1 else 's'}"
        where = f"Linux {origin.kernel}, {processors}"
        return replace(self, version=origin.version, date=origin.ended[:10], command=command, machine=where)


_COLUMNS = tuple(each.name for each in fields(Row))
HEAD = (*_COLUMNS[: _COLUMNS.index("half")], "unit", *_COLUMNS[_COLUMNS.index("half") :])
"""The columns of a CSV file."""
_ROW = TypeAdapter(Row)


def parameters(text: str) -> dict[str, str]:
    """Return parameters by name."""
    return dict(part.split("=", 1) for part in text.split("; ") if part)


def joined(values: Mapping[str, object]) -> str:
    """Return parameters as text, the reverse of `parameters`."""
    return "; ".join(f"{name}={_plain(value)}" for name, value in values.items())


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to a CSV file; values keep nine significant digits."""
    with whole(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for row in rows:
            writer.writerow(["" if (cell := getattr(row, name)) is None else _cell(cell) for name in HEAD])


def _cell(value: object) -> object:
    return f"{value:.9g}" if isinstance(value, float) else value


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file. Raises BadInput that names the file and the line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != HEAD:
                raise BadInput(f"{path}: its columns are not {', '.join(HEAD)}; write it again")
            rows = []
            for line in reader:
                known = {name: cell for name, cell in line.items() if name != "unit"}
                optional = {name: known[name] or None for name in ("seed", "half")}
                rows.append(_ROW.validate_python({**known, **optional}))
            return rows
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error})") from error
    except ValidationError as error:
        where = ", ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
        raise BadInput(f"{path}, line {reader.line_num}: {where}") from error


def chosen(rows: Iterable[Row], where: Mapping[str, str | tuple[str, ...]]) -> list[Row]:
    """Return the rows whose columns and parameters have the given values, or one of them."""
    wanted = {name: value if isinstance(value, tuple) else (value,) for name, value in where.items()}
    return [row for row in rows if all(row.at(name) in values for name, values in wanted.items())]
