"""docs/results.md: what was simulated and what was run, beside the papers' figures.

The page is a head and sections, each with a title. Sections for which there are new results replace those
that stand on the page; the others stay, so that part of the experiments can be run again.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from entrain.results import live
from machine.errors import BadInput
from simulation import report
from simulation.experiments.registry import EXPERIMENTS

_HEAD = """# Results, beside the papers'

Every figure here was measured by the command above its table; this page is made by

    for name in parrot-jct parrot-readings parrot-scale parrot-eta parrot-theta parrot-load parrot-ps \\
            slots-jct slots-models slots-tau slots-latency mltcp-two-jobs; do
        entrain simulate $name --out results/$name
    done
    entrain simulate coflow-fb2010 --trace FB2010-1Hr-150-0.txt --out results/coflow-fb2010
    entrain simulate slots-jct --limit 100 --out results/slots-jct-100
    for name in {names}; do
        entrain run experiments/$name.toml --out results/live/$name
    done
    entrain report results --page docs/results.md

The last command writes the sections of which `results` holds figures, and leaves the others as they stand.

First comes the simulator. Each of its directories also holds `jobs.csv` (completion time and waiting of
each job), `coflows.csv` and a plot. With `--flows`, `flows.csv` gives each flow's completion time; with
`--usage SECONDS`, `usage.csv` and `usage.png` give each link's utilisation in bins of so many seconds.
`entrain simulate --help` lists the columns.

The sections whose titles begin with "Live" are of real TCP traffic in emulated networks on one machine,
in which whatever else uses the processors lengthens times; [experiments.md](experiments.md) describes
the files and the directories' contents. Where rates are a paper's divided by some number, so are the
bytes, and times are the paper's.

Nothing was tuned to come closer to a paper. Where figures differ, the reason that could be found stands
below, of the live slot scheduler in [slots.md](slots.md).
"""


def head() -> str:
    """What stands before the sections."""
    names = textwrap.fill(" ".join(live.compared()), 95, break_on_hyphens=False)
    return _HEAD.replace("{names}", names.replace("\n", " \\\n            "))


TITLES = (*(EXPERIMENTS[name].title for name in report.NAMES), *live.TITLES)
NOT_RUN = "Not run here"
_COMMAND = re.compile(r"^`(entrain [^`]*)`", re.MULTILINE)


def page(directories: Sequence[Path], old: str = "") -> str:
    """The page for the results in `directories`; sections without results stay as in the page `old`.

    Raises BadInput when there are no results, and when a section would lose figures that `old` has.
    """
    where = ", ".join(map(str, directories))
    found = {**report.sections(directories), **live.sections(directories)}
    if not found:
        raise BadInput(
            f"{where}: no results to put on the page; first run entrain simulate NAME --out DIR/NAME, or "
            f"entrain run experiments/NAME.toml --out DIR/live/NAME"
        )
    standing = split(old)
    for title, text in standing.items():
        lost = [each for each in commands(text) if each not in commands(found.get(title, text))]
        if lost:
            raise BadInput(
                f'section "{title}" has figures of `{"`, `".join(lost)}`, of which {where} holds none: '
                f"run that again, or delete the section from the page"
            )
    sections = {**standing, **found}
    text = head() + "".join(sections[title] for title in TITLES if title in sections)
    return text + _not_run(text)


def split(text: str) -> dict[str, str]:
    """By title, the sections of a page. Raises BadInput for one that nothing here makes."""
    parts = re.split(r"^(?=\n## )", text, flags=re.MULTILINE)[1:]
    sections = {part.splitlines()[1].removeprefix("## "): part for part in parts}
    sections.pop(NOT_RUN, None)
    for title in sections:
        if title not in TITLES:
            raise BadInput(
                f'section "{title}" of the page is none of those that are made here: move it elsewhere'
            )
    return sections


def commands(text: str) -> list[str]:
    """The commands whose figures a page or section shows."""
    return _COMMAND.findall(text)


def _not_run(text: str) -> str:
    """A section with the experiments of which a page has no figures."""
    expected = [
        *(f"entrain simulate {name}" for name in report.NAMES),
        *map(live.command, live.compared()),
    ]
    shown = [f"{each} " for each in commands(text)]  # options may follow
    missing = [
        f"`{each.removeprefix('entrain run ')}`"
        for each in expected
        if not any(run.startswith(f"{each} ") for run in shown)
    ]
    return f"\n## {NOT_RUN}\n\n{', '.join(missing)}.\n" if missing else ""
