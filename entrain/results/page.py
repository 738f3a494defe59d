"""Write docs/results.md, which compares live results with the papers' figures.

The page opens with a table of what reproduces, also of simulated experiments (`published.py`). Titled
sections follow. Sections with new results replace the existing ones; the others stay, so that some of the
experiments can be run again.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from entrain.results import live, published
from entrain.results.opening import opening
from machine.errors import BadInput

_TITLE = """# Results compared with the papers

This page compares what entrain measures with what the papers claim: first in one table, then figure by
figure, with the commands that repeat each measurement.
"""
_METHOD = """These commands measure what this page shows, and write it:

    for name in {names}; do
        entrain run experiments/$name.toml --out results/live/$name
    done
    entrain report results --page docs/results.md

The last command writes the sections that have results in `results`, and leaves the others unchanged.

**Simulated** results have a page for each paper: [slots](results/slots.md), [Parrot](results/parrot.md),
[MLTCP](results/mltcp.md), [Cassini](results/cassini.md) and [vClos](results/vclos.md). They follow from
rows in `data/results/`, one for each value. A section's command with `--out DIR`, and then
`entrain report DIR --publish`, replace the rows of its experiment. Published are the figures that a page or
a claim shows; DIR has more (`entrain simulate --help`). "A against B" is the change from B to A.

**Live sections** measure real TCP traffic in emulated networks on one machine. Other load on its
CPUs lengthens the times. [experiments.md](experiments.md) describes the files and the result
directories. Where a paper's link rates are divided by a number, so are the bytes. Times are then
comparable with the paper's.

Parameters that the papers leave open, and that were chosen to match one of their figures: Parrot's scale
(iterations and arrivals of its trace, `parrot-scale`) and its weights per link, how long vClos' jobs run
(`vclos-load`), the durations and arrivals of `vclos-testbed`, the 8 spines of `vclos-512`
(`vclos-shape`), and the profiles of Cassini's snapshots. Where figures differ from the paper's, the section
gives the reasons that were found. For the live slot scheduler, they are in [slots.md](slots.md).

Whether a figure is reproduced follows from one rule (`entrain/results/verdicts.py`): within a third of the
paper's effect and clear of its own interval, it is; with at least a third of the effect, partly. Not built
are PCC, Aurora and DeepCC, the rate-based and learned rivals of the flow-scheduling paper (figures 8, 10
and 13b).

Each section names the version that measured it. Its experiment's file may have changed since: until
version 0.1.0 (75e73fa), the five jobs of `slots-jct` and its siblings had 13 workers, and have 12 now.
"""


def method() -> str:
    """Return how the figures on the page were made."""
    names = textwrap.fill(" ".join(live.compared()), 95, break_on_hyphens=False)
    return _METHOD.replace("{names}", names.replace("\n", " \\\n            "))


NOT_RUN, OPENING, METHOD = (
    "Not run here",
    "What reproduces, and what does not",
    "How these figures were made",
)
"""Titles of the page's other sections."""
_COMMAND = re.compile(r"^`(entrain [^`]*)`", re.MULTILINE)


def titles() -> tuple[str, ...]:
    """Return the titles of the sections, in their order."""
    return live.titles()


def page(directories: Sequence[Path], old: str = "") -> str:
    """Return the page for the results in `directories`; sections without results stay as in the page `old`.

    Raises BadInput if there are no results, or if a section would lose figures that `old` has.
    """
    where = ", ".join(map(str, directories))
    found = live.sections(directories)
    if not found:
        raise BadInput(
            f"{where}: no results to put on the page; first run "
            f"entrain run experiments/NAME.toml --out DIR/live/NAME"
        )
    standing = split(old)
    for title, text in standing.items():
        lost = [each for each in commands(text) if each not in commands(found.get(title, text))]
        if lost:
            raise BadInput(
                f'section "{title}" has figures of `{"`, `".join(lost)}`, but {where} has no results of it: '
                f"run that again, or delete the section from the page"
            )
    sections = {**standing, **found}
    text = "".join(sections[title] for title in titles() if title in sections)
    return _TITLE + _opening(sections) + f"\n## {METHOD}\n\n{method()}" + text + _not_run(text)


def _opening(sections: Mapping[str, str]) -> str:
    """Return the section that opens the page, or nothing if none of its claims was run."""
    rows = opening(sections, published.all_judged(published.read()))
    return f"\n## {OPENING}\n\n{rows}" if rows else ""


def split(text: str) -> dict[str, str]:
    """Return the sections of a page by title. Raises BadInput for an unknown section."""
    parts = re.split(r"^(?=\n## )", text, flags=re.MULTILINE)[1:]
    sections = {part.splitlines()[1].removeprefix("## "): part for part in parts}
    for written in (NOT_RUN, OPENING, METHOD):
        sections.pop(written, None)
    for title in sections:
        if title not in titles():
            raise BadInput(
                f'section "{title}" of the page is unknown, and would be lost: move it to another file'
            )
    return sections


def commands(text: str) -> list[str]:
    """Return the commands whose figures a page or section shows."""
    return _COMMAND.findall(text)


def _not_run(text: str) -> str:
    """Return a section that lists the experiments without figures on the page."""
    shown = [f"{each} " for each in commands(text)]  # options may follow
    missing = [
        f"`{each.removeprefix('entrain run ')}`"
        for each in map(live.command, live.compared())
        if not any(run.startswith(f"{each} ") for run in shown)
    ]
    return f"\n## {NOT_RUN}\n\n{', '.join(missing)}.\n" if missing else ""
