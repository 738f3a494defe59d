"""The published results: rows in `data/results/`, and the pages of docs/results/ that follow from them.

`entrain report DIR... --publish` puts rows in place and writes the pages. A page is a function of the rows,
`claims.toml`, `pages.toml` and the prose in `docs/results-notes/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from entrain.results.claimed import Judged, claims, judged
from entrain.results.pivots import Figure, Pivot, markdown, tables
from machine import rows as rows_of
from machine.errors import BadInput
from machine.packages import ROOT
from machine.rows import Row
from machine.toml import Strict, check, read_toml
from machine.whole import whole

ROWS = ROOT / "data" / "results"
PAGES = ROOT / "docs" / "results"
NOTES = ROOT / "docs" / "results-notes"
"""The prose of the sections: one file per experiment. It follows the tables, or surrounds them where a file
says `{tables}`."""
DECLARED = Path(__file__).with_name("pages.toml")
PAPERS = "papers"
"""The file of the values that papers print."""

TITLES = {
    "slots": "Slot scheduler: simulated results",
    "parrot": "Parrot: simulated results",
    "vclos": "vClos: simulated results",
    "cassini": "Cassini: simulated results",
    "mltcp": "MLTCP: simulated results",
}
"""The title of each page."""
_OPENING = """# {title}

Each table shows rows of the CSV file that its section names: one row per value, with the seed, unit,
version, date and command. `pandas.read_csv` reads it. JCT is job completion time, JRT running time, JWT
waiting time, and CCT coflow completion time. [results.md](../results.md) has the method and the live
measurements.
"""


class Section(Strict):
    """A `[[section]]` table: an experiment on a page."""

    page: str
    experiment: str
    table: Annotated[tuple[Pivot, ...], Field(strict=False)]


class _Declared(Strict):
    figure: dict[str, Figure]
    section: Annotated[tuple[Section, ...], Field(strict=False)]


@cache
def _declared(path: Path = DECLARED) -> _Declared:
    return check(_Declared, read_toml(path), str(path))


def sections() -> tuple[Section, ...]:
    """Return the sections of all pages, in their order. Raises BadInput."""
    return _declared().section


def read(directory: Path = ROWS) -> dict[str, list[Row]]:
    """Return the published rows by experiment; those that papers print are with their experiment's."""
    made: dict[str, list[Row]] = {}
    for path in sorted(directory.glob("*.csv")):
        for row in rows_of.read(path):
            made.setdefault(row.experiment, []).append(row)
    return made


def publish(made: Mapping[str, Sequence[Row]], directory: Path = ROWS) -> None:
    """Write the rows of experiments, each to a file of its own, in place of those that were there.

    Only figures that a table or a claim shows are kept. Raises BadInput without a checkout to publish in.
    """
    if not NOTES.is_dir():
        raise BadInput("this installation has no docs/; publish results in a checkout of entrain")
    directory.mkdir(parents=True, exist_ok=True)
    for experiment, rows in made.items():
        shown = _shown(experiment)
        rows_of.write(directory / f"{experiment}.csv", (row for row in rows if row.figure in shown))


def _shown(experiment: str) -> set[str]:
    """Return the figures of an experiment that tables and claims show."""
    pivots = (pivot for section in sections() if section.experiment == experiment for pivot in section.table)
    claimed = (str(claim.of["figure"]) for claim in claims() if claim.experiment == experiment)
    return {*(figure for pivot in pivots for figure in pivot.figures), *claimed}


def pages(rows: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """Return the pages by name."""
    return {name: _page(name, rows) for name in TITLES}


def write(directory: Path = PAGES) -> None:
    """Write the pages of the published rows."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages(read()).items():
        with whole(directory / f"{name}.md") as draft:
            draft.write_text(text, encoding="utf-8")


def check_pages(directory: Path = PAGES) -> None:
    """Raise BadInput if a page is not what follows from the published rows."""
    for name, text in pages(read()).items():
        path = directory / f"{name}.md"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            raise BadInput(f"{path}: is not what {ROWS} gives; write it with `entrain report --publish`")


def all_judged(rows: Mapping[str, Sequence[Row]]) -> list[Judged]:
    """Return the claims that have a value, in the order of their file."""
    known = (judged(claim, rows) for claim in claims())
    return [each for each in known if each is not None]


def _page(name: str, rows: Mapping[str, Sequence[Row]]) -> str:
    text = _OPENING.format(title=TITLES[name])
    beside = [
        [each.claim.text, each.claim.value, each.here, each.verdict or ""]
        for each in all_judged(rows)
        if each.claim.paper == name
    ]
    if beside:
        text += "\n" + markdown(["claim", "paper", "here", "reproduced?"], beside)
    for section in sections():
        if section.page == name and section.experiment in rows:
            text += _section(section, rows[section.experiment])
    return text


def _section(section: Section, rows: Sequence[Row]) -> str:
    from simulation.experiments.registry import EXPERIMENTS
    from simulation.results import LABELS

    text = ""
    for pivot in section.table:
        for caption, head, body in tables(pivot, rows, _declared().figure, LABELS):
            text += f"\n{caption}:\n" if caption else ""
            text += "\n" + markdown(head, body)
    path = NOTES / f"{section.experiment}.md"
    note = path.read_text(encoding="utf-8") if path.is_file() else ""
    lead, _, rest = note.rpartition("{tables}\n")
    parts = (f"## {EXPERIMENTS[section.experiment].title}", lead, _origins(section, rows), text, rest)
    return "\n" + "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _origins(section: Section, rows: Iterable[Row]) -> str:
    """Return the commands that made the rows, with versions and dates."""
    made = dict.fromkeys((row.command, row.version, row.date) for row in rows if row.command)
    said = "; ".join(f"`{command}` (version {version}, {date})" for command, version, date in made)
    return f"{said}. Rows: `data/results/{section.experiment}.csv`."
