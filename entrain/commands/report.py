"""`entrain report DIR...`: show results again, plot them, or compare them with the papers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from machine.errors import BadInput, EntrainError
from machine.terminal import print_whole
from machine.whole import whole

Directory = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command(short_help="Report results; compare two experiments.")
@click.argument("directories", metavar="DIR...", nargs=-1, type=Directory)
@click.option("--draw", is_flag=True, help="Write results.json, CSV files and plots to DIR again.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print results.json; for several experiments, those of all, and a comparison of two.",
)
@click.option(
    "--publish",
    is_flag=True,
    help="Put the rows of the results in DIR into data/results/, and write the pages of results from them.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Check that the pages of results follow from data/results/, and that every claim has rows; no DIR.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one self-contained page to this file: tables, interactive plots, settings, versions.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("png", "svg", "pdf")),
    help="Format of the plots that --draw writes (default: png); svg and pdf are vector graphics.",
)
def command(
    directories: tuple[Path, ...],
    draw: bool,
    as_json: bool,
    publish: bool,
    check: bool,
    html: Path | None,
    form: str | None,
) -> None:
    """Report the results of experiments in DIR (their --out) and its subdirectories.

    The report covers all completed runs, also after an interruption. Two experiments are compared: run by
    run, and by their settings. --publish also takes results of `entrain simulate`.
    """
    if form is not None and not draw:
        raise click.UsageError("--format is the format of plots; add --draw")
    if check:
        if directories or publish or draw or as_json or html:
            raise click.UsageError("--check takes neither DIR nor other options")
        _check()
        return
    if not directories:
        raise click.UsageError("give DIR, the --out of an experiment")
    if publish:
        if draw or as_json or html:
            raise click.UsageError("--publish cannot be combined with --draw, --json or --html")
        _publish(directories)
        return
    from entrain.results import store

    found = store.found(directories)
    if not found:
        where = ", ".join(map(str, directories))
        raise BadInput(f"{where}: no results of entrain run; for results of entrain simulate, give --publish")
    documents = [_report(each, draw=form or "png" if draw else None, shown=not as_json) for each in found]
    if as_json:
        several = {"experiments": documents, "comparison": _comparison(found)}
        click.echo(json.dumps(documents[0] if len(documents) == 1 else several, indent=2))
    else:
        _compare(found)
    if html is not None:
        _write_html(found, html)


def _compare(directories: Sequence[Path]) -> None:
    """Print how two experiments differ; nothing for another number of them."""
    from entrain.results import comparison

    if (held := comparison.pair(directories)) is None:
        return
    console = Console()
    names = comparison.titles(*held)
    console.print(f"Comparison, from {names[0]} to {names[1]}:", highlight=False, markup=False)
    print_whole(comparison.table(comparison.compare(*held), names))
    console.print(comparison.LEGEND, highlight=False)
    for remark in comparison.remarks(*held):
        console.print(f"note: {remark}", highlight=False, markup=False)
    if settings := comparison.settings(*held):
        console.print(comparison.settings_table(settings, names))
    else:
        console.print("Their settings are the same.")


def _comparison(directories: Sequence[Path]) -> dict[str, object] | None:
    """Return how two experiments differ; None for another number of them, or without a run in common."""
    from entrain.results import comparison

    if (held := comparison.pair(directories)) is None:
        return None
    try:
        changes = comparison.compare(*held)
    except BadInput:
        return None
    return {
        "runs": [{**asdict(each), "meaning": each.verdict} for each in changes],
        "settings": [
            {"setting": setting, "first": first, "second": second}
            for setting, first, second in comparison.settings(*held)
        ],
    }


def _publish(directories: Sequence[Path]) -> None:
    """Publish the rows of all results in `directories` or one level below."""
    from entrain.results import published

    rows = published.measured(directories)
    published.publish(rows)
    published.write()
    click.echo(f"published {', '.join(rows)}; commit data/results and docs/", err=True)


def _check() -> None:
    from entrain.results import published

    published.check_pages()
    click.echo(f"the pages of results follow from the rows in {published.ROWS}")


def _write_html(directories: Sequence[Path], path: Path) -> None:
    from entrain.results import html

    _write(path, html.page(directories))
    click.echo(f"report in {path}", err=True)


def _report(directory: Path, *, draw: str | None, shown: bool) -> dict[str, object]:
    """Report one experiment, and return the content of its results.json. `draw`: the format of plots."""
    from entrain.results import files, store, tables, values
    from entrain.trials import slot_rates

    console = Console()
    if shown:
        console.print(f"{directory}:", highlight=False, markup=False, soft_wrap=True)
    if store.kind_of(directory) == slot_rates.KIND.name:
        rates = store.read(slot_rates.KIND, directory)
        name, trials = rates.experiment.name, rates.runs
        if trials and shown:
            console.print(slot_rates.table(name, trials))
        if trials and draw:
            with store.keeping(directory):
                slot_rates.write(directory, name, trials)
                slot_rates.draw(directory / f"results.{draw}", name, trials)
        return slot_rates.document(name, trials)
    held = store.read(files.NETWORK, directory)
    number = len(list(held.experiment.combinations()))
    if shown:
        if held.runs:
            tables.show(held.experiment, held.runs, console)
        if len(held.runs) < number:
            console.print(f"{len(held.runs)} of {number} runs completed", highlight=False)
        for line in tables.outcome(held.experiment, held.runs):
            console.print(line, highlight=False, markup=False)
    if held.runs and draw:
        with store.keeping(directory):
            files.write(directory, held.experiment, held.runs)
            files.draw(directory, held.experiment, held.runs, draw)
    return values.document(held.experiment, held.runs)


def _write(path: Path, text: str) -> None:
    try:
        with whole(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EntrainError(f"{path}: cannot be written ({error.strerror}); give another file") from error
