"""The report of experiments as one self-contained HTML page: tables, interactive plots, settings, versions.

The page loads nothing: the plotting library is inside. All names and messages are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2
import plotly.offline
from rich.table import Table

from entrain.experiment import Experiment
from entrain.results import comparison, files, interactive, queues, store, tables
from entrain.results.comparison import Held
from entrain.results.interactive import Picture
from entrain.results.names import ideal_word, label, scheduler_name
from entrain.results.values import RunResult, compared, strategy, summarized
from entrain.trials import slot_rates
from machine.errors import BadInput
from machine.interval import interval
from machine.origin import Origin
from machine.terminal import count

_TEMPLATE = Path(__file__).with_name("report.html.jinja")


@dataclass(frozen=True)
class _Table:
    """A table as the template shows it. `right` tells which columns are numbers."""

    heads: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: str = ""


@dataclass(frozen=True)
class _Drawn:
    """A plot as the template shows it."""

    question: str
    caption: str
    html: str


@dataclass(frozen=True)
class _Part:
    """What the page says of one experiment."""

    directory: str
    title: str
    compared: str
    warnings: tuple[str, ...]
    outcome: tuple[str, ...]
    summary: tuple[_Table, ...]
    pictures: tuple[_Drawn, ...]
    tables: tuple[_Table, ...]
    queues: str
    queue_tables: tuple[_Table, ...]
    origins: tuple[str, ...]
    settings: str


@dataclass(frozen=True)
class _Comparison:
    """What the page says of two experiments together."""

    first: str
    second: str
    changes: _Table
    remarks: tuple[str, ...]
    picture: _Drawn
    settings: _Table


def page(directories: Sequence[Path]) -> str:
    """Return the page for the results in `directories` (see `store.found`); two are also compared.

    Raises BadInput if a directory cannot be read, or two have no runs in common.
    """
    parts = [_part(directory) for directory in directories]
    both = _compared(directories)
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        _TEMPLATE.read_text(encoding="utf-8")
    )
    return template.render(
        title=" and ".join(dict.fromkeys(part.title for part in parts)),
        comparison=both,
        parts=parts,
        plotted=any(part.pictures for part in parts),
        plotly=plotly.offline.get_plotlyjs(),
    )


def _compared(directories: Sequence[Path]) -> _Comparison | None:
    held = comparison.pair(directories)
    if held is None:
        return None
    first, second = (str(each.directory) for each in held)
    changes, names = comparison.compare(*held), comparison.titles(*held)
    return _Comparison(
        first,
        second,
        _converted(comparison.table(changes, names), comparison.LEGEND),
        tuple(comparison.remarks(*held)),
        _drawn(interactive.changes(changes, *names)),
        _converted(comparison.settings_table(comparison.settings(*held), names)),
    )


def _part(directory: Path) -> _Part:
    if store.kind_of(directory) == slot_rates.KIND.name:
        return _slot_rates(directory)
    held = store.read(files.NETWORK, directory)
    experiment, runs = held.experiment, held.runs
    if not runs:
        raise BadInput(f"{directory}: no run is complete yet; there is nothing to report")
    drawn = [*interactive.pictures(experiment, runs), interactive.drawing(experiment.topology)]
    shown = tables.all_tables(experiment, runs)
    return _Part(
        str(directory),
        experiment.name,
        _what(experiment, runs),
        tuple(_warnings(held)),
        tuple(tables.outcome(experiment, runs)),
        (_summary(experiment, runs),),
        tuple(map(_drawn, drawn)),
        tuple(_converted(each, legend) for each, legend in shown),
        queues.sentence(runs),
        _queues(experiment, runs),
        _origins(run.origin for run in runs),
        _settings(files.NETWORK.experiment.dump_python(experiment, mode="json")),
    )


def _slot_rates(directory: Path) -> _Part:
    held = store.read(slot_rates.KIND, directory)
    name, trials = held.experiment.name, held.runs
    return _Part(
        str(directory),
        name,
        f"Wanted and measured rates of paced flows, in {count(len(trials), 'trial')}.",
        (),
        (),
        (_converted(slot_rates.table(name, trials)),),
        (),
        (),
        "",
        (),
        _origins(trial.origin for trial in trials),
        _settings(slot_rates.KIND.experiment.dump_python(held.experiment, mode="json")),
    )


def _what(experiment: Experiment, runs: Sequence[RunResult]) -> str:
    """Say in a sentence what an experiment compared."""
    ways = {
        "strategy" if experiment.cluster else "routing": {strategy(run.combination) for run in runs},
        "policy": {scheduler_name(experiment, run.combination) for run in runs},
        "load": {f"{run.combination.load:g} %" for run in runs if run.combination.load is not None},
    }
    varied = [f"{key} ({', '.join(sorted(found))})" for key, found in ways.items() if len(found) > 1]
    hosts, switches = len(experiment.topology.hosts), len(experiment.topology.switches)
    jobs = "the jobs of a cluster" if experiment.cluster else count(len(experiment.jobs), "job")
    what = f"Compared by {' and '.join(varied)}" if varied else "One combination"
    return (
        f"{what}: {jobs} on {count(hosts, 'host')} and "
        f"{count(switches, f'{experiment.target} switch', f'{experiment.target} switches')}, "
        f"{count(len({run.combination.seed for run in runs}), 'seed')}."
    )


def _warnings(held: Held) -> Iterable[str]:
    """Yield what limits the meaning of the results."""
    number = len(list(held.experiment.combinations()))
    if len(held.runs) < number:
        yield f"{len(held.runs)} of {number} runs are complete; entrain run --resume runs the others"
    yield from tables.remarks(held.runs)
    if len({run.combination.seed for run in held.runs}) == 1:
        yield "one seed: there is no confidence interval, and differences of a few per cent mean nothing"
    if len({run.origin and run.origin.version for run in held.runs}) > 1:
        yield "the runs are of different versions of entrain"


def _summary(experiment: Experiment, runs: Sequence[RunResult]) -> _Table:
    """Return a table with one row per combination, and per job if jobs differ.

    It has means over the seeds with their intervals, and the change from the baseline.
    """
    rows = []
    groups = compared(experiment, runs)
    firsts = [one.group.runs[0] for one in groups]
    for one in groups:
        for job in tables.jobs_of(experiment, one):
            over = interval(
                [
                    fmean(result.ratio_to_ideal for result in run.jobs if job in (None, result.name))
                    for run in one.group.runs
                ]
            )
            change = one.change(job)
            rows.append(
                (
                    label(experiment, one.group.runs[0], firsts),
                    job or tables.together(experiment, one),
                    over.show(".3f"),
                    interval(tables.by_seed(experiment, one, job)).show(),
                    "baseline" if one.is_baseline else "-" if change is None else change.percent(),
                    str(len(one.group.runs)),
                )
            )
    seeds = len({run.combination.seed for run in runs})
    spread = " Means over seeds ± half of the 95 % confidence interval." if seeds > 1 else ""
    return _Table(
        ("run", "job", f"iteration / {ideal_word(runs)}", "completion (s)", "change", "seeds"),
        (False, False, True, True, True, True),
        tuple(rows),
        f"{tables.completion_legend(experiment, runs)}.{spread}",
    )


def _queues(experiment: Experiment, runs: Sequence[RunResult]) -> tuple[_Table, ...]:
    """Return the table of queues, if one of them held or dropped something, and what TCP sent again."""
    firsts = [group.runs[0] for group in summarized(runs)]
    labels = [label(experiment, first, firsts) for first in firsts]
    sent_again = _converted(queues.sent_again(runs, labels), queues.SENT_AGAIN_LEGEND)
    held = queues.table(runs, labels)
    return (sent_again,) if held is None else (_converted(held, queues.LEGEND), sent_again)


def _converted(shown: Table, legend: str = "") -> _Table:
    """Return a table for terminals as one for the page."""
    columns = [list(map(str, column.cells)) for column in shown.columns]
    return _Table(
        tuple(str(column.header) for column in shown.columns),
        tuple(column.justify == "right" for column in shown.columns),
        tuple(zip(*columns, strict=True)),
        legend,
    )


def _drawn(picture: Picture) -> _Drawn:
    html = picture.figure.to_html(
        full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True}
    )
    return _Drawn(picture.question, picture.caption, html)


def _origins(origins: Iterable[Origin | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys("version not recorded" if each is None else str(each) for each in origins))


def _settings(experiment: Any) -> str:
    return json.dumps(experiment, indent=1)
