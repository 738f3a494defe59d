"""What both kinds of results have: tables as DataFrames, and pictures that a notebook shows."""

from __future__ import annotations

import base64
import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machine.errors import BadInput, MissingTool

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a DataFrame. Raises MissingTool without pandas."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        raise MissingTool(
            "DataFrames need pandas, which is not installed: `pip install pandas`. Without it, "
            "`.rows(TABLE)` has the same as a list of dictionaries"
        ) from None
    found: pd.DataFrame = pandas.DataFrame(list(rows))
    return found


class Tables:
    """Results as tables."""

    @cached_property
    def _rows(self) -> Mapping[str, list[dict[str, Any]]]:
        """The rows of each table, by its name."""
        raise NotImplementedError

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables."""
        return tuple(self._rows)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table, without pandas. Raises BadInput if there is no such table."""
        if table not in self._rows:
            raise BadInput(f"there is no table {table!r} in these results; there is {', '.join(self._rows)}")
        return self._rows[table]

    def frame(self, table: str) -> pd.DataFrame:
        """Return a table as a DataFrame. Raises BadInput if there is none, EntrainError without pandas."""
        return frame(self.rows(table))


@dataclass(frozen=True)
class Picture:
    """A picture in PNG format. A notebook shows it."""

    name: str
    png: bytes = b""

    def save(self, path: str | Path) -> None:
        """Write the picture to `path`."""
        Path(path).write_bytes(self.png)

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"<picture {self.name}>"


class Pictures(tuple[Picture, ...]):
    """Pictures. A notebook shows them one below the other."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return "".join(
            f'<img alt="{each.name}" src="data:image/png;base64,{base64.b64encode(each.png).decode()}">'
            for each in self
        )


def pictures(directory: Path) -> Pictures:
    """Return the pictures in `directory`, by name."""
    return Pictures(Picture(path.stem, path.read_bytes()) for path in sorted(directory.glob("*.png")))


@contextlib.contextmanager
def own_backend() -> Iterator[None]:
    """Restore matplotlib's backend at the end: modules that draw files choose one that shows nothing."""
    matplotlib = importlib.import_module("matplotlib")
    before = matplotlib.get_backend()
    try:
        yield
    finally:
        matplotlib.use(before)
