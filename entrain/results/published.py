"""The published results: rows in `data/results/`, and the pages of docs/ that follow from them.

`entrain report DIR... --publish` puts rows in place and writes the pages. They are a function of the rows,
`claims.toml`, `pages.toml` and the prose in `notes/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from entrain.results.claimed import CLAIMS, Judged, claims, judged, named
from entrain.results.pivots import Figure, Pivot, markdown, tables
from machine import rows as rows_of
from machine.errors import BadInput
from machine.packages import ROOT
from machine.rows import Row
from machine.toml import Strict, check, read_toml
from machine.whole import whole

ROWS = ROOT / "data" / "results"
DOCS = ROOT / "docs"
NOTES = Path(__file__).parent / "notes"
"""The prose of simulated sections: one file per experiment. It follows the tables, or surrounds them where a
file says `{tables}`."""
DECLARED = Path(__file__).with_name("pages.toml")
PAPERS = "papers.csv"
"""The file of the values that papers print."""

TITLES = {
    "slots": "Slot scheduler",
    "parrot": "Parrot",
    "vclos": "vClos",
    "cassini": "Cassini",
    "mltcp": "MLTCP",
}
"""The subject of each page of docs/results/."""
_OPENING = """# {title}: results

Each table shows rows of the CSV files that its section names: one row per value, with the seed, unit,
version, date and command. `pandas.read_csv` reads them. JCT is job completion time, JRT running time, JWT
waiting time, and CCT coflow completion time. ± is half of the 95 % interval. [results.md](../results.md) has
the method.
"""
SUMMARY = NOTES / "results.md"
"""The frame of the summary page: method and counts around the table of claims."""


class Section(Strict):
    """A `[[section]]` table: one simulated experiment, or several live ones, on a page."""

    page: str
    experiment: str = ""
    """The simulated experiment, whose title and prose the section has."""
    title: str = ""
    experiments: dict[str, str] = Field(default_factory=dict)
    """The live experiments, and what tables call them."""
    base: str = ""
    """The live experiment that iteration times of the others are compared with."""
    text: str = ""
    kept: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Figures that rows keep, and no table shows."""
    table: Annotated[tuple[Pivot, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _of_one_kind(self) -> Section:
        if bool(self.experiment) == bool(self.experiments and self.title):
            raise ValueError("give either experiment, or title and experiments")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its rows."""
        if self.experiment:
            return (named(self.experiment, live=False),)
        return tuple(named(name, live=True) for name in self.experiments)

    def rows(self, rows: Mapping[str, Sequence[Row]]) -> list[Row]:
        """Return its rows, with live experiments called as tables call them."""
        return [
            replace(row, experiment=self.experiments.get(row.experiment, row.experiment))
            for name in self.names
            for row in rows.get(name, ())
        ]


class _Declared(Strict):
    figure: dict[str, Figure]
    section: Annotated[tuple[Section, ...], Field(strict=False)]


@cache
def _declared(path: Path = DECLARED) -> _Declared:
    return check(_Declared, read_toml(path), str(path))


def sections() -> tuple[Section, ...]:
    """Return the sections of all pages, in their order. Raises BadInput."""
    return _declared().section


def bases() -> dict[str, str]:
    """Return the experiment that each live experiment is compared with, if there is one."""
    return {name: section.base for section in sections() if section.base for name in section.experiments}


def read(directory: Path = ROWS) -> dict[str, list[Row]]:
    """Return the published rows by name; those that papers print are with their simulated experiment's."""
    made: dict[str, list[Row]] = {}
    for path in sorted(directory.glob("**/*.csv")):
        for row in rows_of.read(path):
            made.setdefault(named(row.experiment, live=row.how == "live"), []).append(row)
    return made


def publish(made: Mapping[str, Sequence[Row]], directory: Path = ROWS) -> None:
    """Write rows by name, each to a file of its own, in place of those that were there.

    Only figures that a table or a claim shows are kept. Raises BadInput without a checkout to publish in, and
    if a claim would lose its value.
    """
    if not DOCS.is_dir():
        raise BadInput("this installation has no docs/; publish results in a checkout of entrain")
    before = read(directory)
    lost = _valued(before) - _valued({**before, **made})
    if lost:
        raise BadInput(
            f"claims {', '.join(sorted(lost))} would lose their values: run what they compare, too "
            f"(`entrain/results/claims.toml` names it), or remove them"
        )
    figures = {name: _shown(name) for name in made}
    for name, rows in made.items():
        if not (shown := figures[name]):
            continue
        path = directory / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows_of.write(path, (row for row in rows if row.figure in shown))


def _valued(rows: Mapping[str, Sequence[Row]]) -> set[str]:
    return {each.claim.id for each in all_judged(rows)}


def _shown(name: str) -> set[str]:
    """Return the figures of an experiment that tables and claims show, and those that are kept."""
    figures = _declared().figure
    shown = set[str]()
    for section in (section for section in sections() if name in section.names):
        for figure in (*section.kept, *(figure for pivot in section.table for figure in pivot.figures)):
            declared = figures.get(figure)
            is_span = declared is not None and declared.span
            shown |= {f"{figure}_least", f"{figure}_most"} if is_span else {figure}
    for claim in (claim for claim in claims() if claim.of_what == name):
        wanted = claim.of["figure"]
        shown |= {wanted} if isinstance(wanted, str) else set(wanted)
    return shown


def pages(rows: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """Return the pages by their paths in docs/."""
    known = all_judged(rows)
    made = {f"results/{name}.md": _page(name, rows, known) for name in TITLES}
    return {"results.md": _summary(known), **made}


def write(directory: Path = DOCS) -> None:
    """Write the pages of the published rows."""
    (directory / "results").mkdir(parents=True, exist_ok=True)
    for name, text in pages(read()).items():
        with whole(directory / name) as draft:
            draft.write_text(text, encoding="utf-8")


def check_pages(directory: Path = DOCS) -> None:
    """Raise BadInput if a page is not what follows from the published rows, or if a claim has no rows."""
    rows = read()
    if missing := {claim.id for claim in claims()} - _valued(rows):
        raise BadInput(f"{CLAIMS}: {ROWS} has no rows for {', '.join(sorted(missing))}; publish them")
    for name, text in pages(rows).items():
        path = directory / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            raise BadInput(f"{path}: is not what {ROWS} gives; write it with `entrain report --publish`")


def all_judged(rows: Mapping[str, Sequence[Row]]) -> list[Judged]:
    """Return the claims that have a value, in the order of their file."""
    known = (judged(claim, rows) for claim in claims())
    return [each for each in known if each is not None]


def _summary(known: Sequence[Judged]) -> str:
    counts = Counter(each.verdict for each in known if each.verdict is not None)
    lines = [
        [
            each.claim.text,
            each.claim.value,
            each.here,
            each.verdict or "",
            f"[{each.claim.experiment}](results/{each.claim.paper}.md)",
        ]
        for each in known
        if each.claim.why
    ]
    return SUMMARY.read_text(encoding="utf-8").format(
        pages=", ".join(f"[{title}](results/{name}.md)" for name, title in TITLES.items()),
        table=markdown(["claim", "paper", "here", "reproduced?", "experiment"], lines),
        total=sum(counts.values()),
        **{verdict: counts[verdict] for verdict in ("reproduced", "partly", "not")},
    )


def _page(name: str, rows: Mapping[str, Sequence[Row]], known: Sequence[Judged]) -> str:
    text = _OPENING.format(title=TITLES[name])
    beside = [
        [each.claim.text, each.claim.value, each.here, each.verdict or "", each.claim.why]
        for each in known
        if each.claim.paper == name
    ]
    text += "\n" + markdown(["claim", "paper", "here", "reproduced?", "why"], beside) if beside else ""
    for section in sections():
        if section.page == name and (shown := section.rows(rows)):
            text += _section(section, shown)
    return text


def _section(section: Section, rows: Sequence[Row]) -> str:
    from simulation.experiments.registry import EXPERIMENTS
    from simulation.results import LABELS

    text = ""
    for pivot in section.table:
        for caption, head, body in tables(pivot, rows, _declared().figure, LABELS):
            text += f"\n{caption}:\n" if caption else ""
            text += "\n" + markdown(head, body)
    title, note = section.title, section.text + "{tables}\n"
    if section.experiment:
        path = NOTES / f"{section.experiment}.md"
        title = EXPERIMENTS[section.experiment].title
        note = path.read_text(encoding="utf-8") if path.is_file() else ""
    lead, _, rest = note.rpartition("{tables}\n")
    parts = (f"## {title}", lead, _origins(section, rows), text, rest)
    return "\n" + "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _origins(section: Section, rows: Iterable[Row]) -> str:
    """Return the commands that made the rows, with versions and dates."""
    made = dict.fromkeys((row.command, row.version, row.date) for row in rows if row.command)
    said = "; ".join(f"`{command}` (version {version}, {date})" for command, version, date in made)
    files = ", ".join(f"`data/results/{name}.csv`" for name in section.names)
    return f"{said}. Rows: {files}."


def measured(directories: Sequence[Path]) -> dict[str, list[Row]]:
    """Return the rows of all results in `directories` or one level below, by name.

    Raises BadInput if there are none, or if they cannot be read.
    """
    from simulation.results import read_summary
    from simulation.rows import rows as simulated

    made: dict[str, list[Row]] = {}
    patterns = ("summary.json", "*/summary.json")
    paths = {path for each in directories for pattern in patterns for path in each.glob(pattern)}
    for summary in map(read_summary, sorted(paths)):
        made.setdefault(named(summary.experiment, live=False), []).extend(simulated(summary))
    made.update(_live(directories))
    if not made:
        where = ", ".join(map(str, directories))
        raise BadInput(f"{where}: no results; first run entrain simulate or entrain run, with --out")
    return made


def _live(directories: Sequence[Path]) -> Iterator[tuple[str, list[Row]]]:
    from entrain.results.live_rows import rows
    from entrain.results.measured import load

    lives = {live.name: live for live in load(directories)}
    compared = bases()
    for name, live in lives.items():
        yield named(name, live=True), rows(live, lives.get(compared.get(name, "")))
