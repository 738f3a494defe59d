"""Write the sections of docs/results.md on live experiments, from the results of `entrain run --out`.

The experiments' files say which section they belong to, and what the paper claims (`entrain.paper`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from entrain.paper import read_papers
from entrain.results import files, store
from entrain.results.claims import (
    Found,
    Live,
    carriers_mbps,
    claims,
    cpu_shares,
    delays_ms,
    percent,
    span,
)
from entrain.results.values import LEARNING, RunResult, fairness, scheduler
from entrain.run.cross import NAME as CROSS
from entrain.trials.slot_rates import KIND as SLOT_RATES
from machine.errors import BadInput
from simulation.report import change, table

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"

SENDING = 0.1
"""A job counts as sending in a bin if it has at least this fraction of the fullest bin's throughput."""


@dataclass(frozen=True)
class Section:
    """A section of the page: its title, the papers' figures in it, its introduction, and its tables."""

    title: str
    figures: Sequence[str]
    text: str
    tables: Callable[[Found], str]


def _names(found: Found) -> list[str]:
    return list(dict.fromkeys(name for live in found.values() for name in live.runs))


def _matrix(
    corner: str, rows: Sequence[str], columns: Sequence[str], cell: Callable[[str, str], str | None]
) -> str:
    """Return a table. A cell of None was not run."""
    return "\n" + table(
        [corner, *columns], [[row, *(cell(row, column) or "-" for column in columns)] for row in rows]
    )


def _claims(found: Found, *figures: str) -> str:
    rows = claims(found, figures)
    return "\n" + table(["claim", "paper", "here"], rows) if rows else ""


def _busy(found: Found) -> str:
    return f"\nCPU utilisation: {_busy_span(run for each in found.values() for run in _runs(each))}.\n"


def _runs(live: Live) -> Iterable[RunResult]:
    return (run for runs in live.runs.values() for run in runs)


def _busy_span(runs: Iterable[RunResult]) -> str:
    return span((run.overhead["processor_busy"] for run in runs), percent)


# -- the slot scheduler


def _completion(found: Found) -> str:
    by_speed = {live.condition(["slots/8"]): live for live in found.values()}

    def mean(name: str, speed: str) -> str | None:
        live = by_speed[speed]
        if name not in live.runs:
            return None
        ours = fmean(live.jct_s(name))
        best = live.best_tcp
        return f"{ours:.2f}" + (f" ({change(ours, fmean(live.jct_s(best)))})" if best else "")

    def spread(name: str, speed: str) -> str | None:
        if name not in by_speed[speed].runs:
            return None
        times = by_speed[speed].jct_s(name)
        return f"{min(times):.2f}, {max(times):.2f}, {np.percentile(times, 99):.2f}"

    text = "\nMean completion time of the jobs (s), and its change from the best TCP at that speed:\n"
    text += _matrix("", _names(found), list(by_speed), mean)
    text += "\nShortest, longest and 99th-percentile completion time (s; the percentile is interpolated):\n"
    text += _matrix("", _names(found), list(by_speed), spread)
    for speed, live in by_speed.items():
        jobs = next(iter(_runs(live))).jobs
        models = list(dict.fromkeys(job.name.partition("-")[0] for job in jobs))
        text += f"\nMean iteration time (ms) at {speed}; the training speed is its inverse:\n"
        text += _matrix("", list(live.runs), models, partial(_rounded_ms, live))
    return text + _claims(found, "slots/8") + _busy(found)


def _rounded_ms(live: Live, name: str, model: str) -> str:
    return f"{live.iteration_ms(name, model):.0f}"


def _loss(found: Found) -> str:
    by_loss = {live.condition(["slots/10"]): live for live in found.values()}
    lossless = by_loss.get("none")

    def time(model: str, name: str, loss: str) -> str | None:
        if name not in by_loss[loss].runs:
            return None
        ours = by_loss[loss].iteration_ms(name, model)
        if loss == "none" or lossless is None or name not in lossless.runs:
            return f"{ours:.0f} ms"
        return f"× {ours / lossless.iteration_ms(name, model):.2f}"

    text = ""
    for model in ("vgg16", "resnet50"):
        text += f"\nMean iteration time of {model} by loss rate (×: relative to no loss):\n"
        text += _matrix("", _names(found), list(by_loss), partial(time, model))
    return text + "\nTraining speed of VGG16:\n" + _claims(found, "slots/10") + _busy(found)


def _throughput(live: Live, name: str) -> dict[str, Sequence[float]]:
    """Return Mbit/s per bin by job, on the busiest link of the first run under `name`; {} without samples."""
    links: dict[str, dict[str, Sequence[float]]] = {}
    for each in live.runs[name][0].timeline.throughput:
        links.setdefault(each.link, {})[each.job] = each.mbps
    return max(links.values(), key=lambda jobs: sum(map(sum, jobs.values())), default={})


def _two_jobs(found: Found) -> str:
    (live,) = found.values()

    def cell(name: str, column: str) -> str | None:
        if column.startswith("both"):
            overlap = _overlap(list(_throughput(live, name).values()))
            return None if overlap is None else percent(overlap)
        if column.startswith("mean"):
            return f"{fmean(live.jct_s(name)):.2f}"
        return _rounded_ms(live, name, column.partition(" ")[0])

    columns = ["vgg19 (ms)", "resnet50 (ms)", "mean completion time (s)", "both send"]
    return _matrix("", list(live.runs), columns, cell) + _claims(found, "slots/11a") + _busy(found)


def _overlap(jobs: Sequence[Sequence[float]]) -> float | None:
    """Return the fraction of the bins with a sending job in which another job sends, too."""
    bins = list(zip(*jobs, strict=True))
    least = SENDING * max(map(sum, bins), default=0.0)
    sending = [sum(mbps > least for mbps in each) for each in bins]
    busy = sum(number > 0 for number in sending)
    return sum(number > 1 for number in sending) / busy if busy else None


def _tcp_flow(found: Found) -> str:
    (live,) = found.values()
    rows = []
    for name in live.runs:
        jobs = _throughput(live, name)
        on = [place for place, mbps in enumerate(jobs.get(CROSS, ())) if mbps]
        if not on:
            continue
        during = {job: fmean(mbps[min(on) : max(on) + 1]) for job, mbps in jobs.items()}
        tcp, total = during[CROSS], sum(during.values())
        rows.append([name, f"{tcp:.0f}", f"{total - tcp:.0f}", percent(tcp / total)])
    head = ["job's scheduler", "TCP flow (Mbit/s)", "job (Mbit/s)", "TCP flow's share"]
    return "\n" + table(head, rows) + _claims(found, "slots/11b") + _busy(found)


def _overhead(found: Found) -> str:
    rows = []
    for experiment, live in found.items():
        runs = [run for run in live.runs.get("slots", ()) if run.scheduling]
        if not runs:
            continue
        this = {experiment: live}
        delays = [
            span(delays_ms(this, percentile, kind))
            for kind in ("negotiation", "decision")
            for percentile in (50, 90, 99)
        ]
        link = [host.carrier_share for run in runs for host in run.scheduling]
        most = max((share for share in link if share is not None), default=None)
        rows.append(
            [
                *(experiment, str(len(runs[0].scheduling)), *delays),
                *(span(cpu_shares(this), percent), span(carriers_mbps(this))),
                "-" if most is None else percent(most, 2),
            ]
        )
    head = [
        *("experiment", "hosts", "negotiation p50 (ms)", "p90", "p99", "decision p50 (ms)", "p90", "p99"),
        *("agent CPU (of one core)", "carriers, all hosts (Mbit/s)", "carriers, max share of a host's link"),
    ]
    return "\n" + table(head, rows) + _claims(found, "slots/12")


def _slot_rates(found: Found) -> str:
    head = [
        *("control", "slot (ms)", "flows", "error, mean", "error, p99", "within 1 % or half a segment"),
        *("first-packet delay, p99 (ms)", "CPU"),
    ]
    rows = []
    for result in (result for live in found.values() for result in live.trials):
        figures = result.figures
        late, cpu = figures.boundary_delay_ms_p99, figures.host_cpu
        rows.append(
            [
                *(figures.control, f"{figures.slot_ms:g}", str(figures.flows)),
                *(percent(figures.rate_error_mean, 2), percent(figures.rate_error_p99, 2)),
                percent(figures.within_bound, 1),
                "-" if late is None else f"{late:.2f}",
                "-" if cpu is None else percent(cpu, 1),
            ]
        )
    return "\n" + table(head, rows)


# -- MLTCP


def _mltcp(found: Found) -> str:
    rows = []
    for experiment, live in found.items():
        for name, runs in live.runs.items():
            settled, at, ups = live.settled(name), live.converged_at(name), live.speed_up(name)
            rows.append(
                [
                    *(experiment, name),
                    *((f"{settled.over_ideal:.3f}", str(settled.iterations)) if settled else ("-", "-")),
                    f"{live.converged(name)} of {len(runs)}",
                    "-" if at is None else f"{at:g}",
                    f"{min(fairness(run).slowest for run in runs):.2f}",
                    *((f"{up:.2f}" for up in ups) if ups else ("", "")),
                    _busy_span(runs),
                ]
            )
    head = [
        *("experiment", "control", "settled, × ideal", "iterations", "converged", "at iteration"),
        *("slowest job", "mean, plain / MLTCP", "p99, plain / MLTCP", "CPU utilisation"),
    ]
    return "\n" + table(head, rows) + _claims(found, "mltcp")


SECTIONS = (
    Section(
        "Live, slot scheduler, figures 8 and 9, table I: completion times and training speeds",
        ("slots/8",),
        "Five jobs (rings and parameter servers, four models) arrive one after the other on six servers "
        "with cross traffic. The table compares TCP, MLTCP and the slot scheduler. Link rates are the "
        "paper's divided by 50.",
        _completion,
    ),
    Section(
        "Live, slot scheduler, figure 10: random loss",
        ("slots/10",),
        "VGG16 (communication-bound) and ResNet50 (compute-bound) each have two parameter servers and two "
        "workers. Packets are lost at random on the links between the switches.",
        _loss,
    ),
    Section(
        "Live, slot scheduler, figure 11 (a): two jobs on one link",
        ("slots/11a",),
        "The table gives each job's iteration time, and the fraction of the sending time in which both "
        "jobs send. A job sends in a bin of 20 ms if it has at least a tenth of the link. In the paper, "
        "the bursts are staggered.",
        _two_jobs,
    ),
    Section(
        "Live, slot scheduler, figure 11 (b): a TCP flow beside a scheduled job",
        ("slots/11b",),
        "Mean throughput while the TCP flow is active. Each of the two could use the whole link, so a fair "
        "share is one half. In the paper, the two share the link.",
        _tcp_flow,
    ),
    Section(
        "Live, slot scheduler, figures 12 and 13: scheduling overhead",
        ("slots/12", "slots/8", "slots/10", "slots/11a", "slots/11b"),
        "Figures are ranges over the hosts. A negotiation lasts from the query for the planned load on a "
        "flow's path until the answer. Links send carriers ahead of data.",
        _overhead,
    ),
    Section(
        "Live, slot scheduler, figure 7 (a): rate accuracy",
        ("slots/7a",),
        "Two hosts share a cable. Every flow gets a new random rate in every slot. The error is the relative "
        "difference between a slot's bytes and the bytes that its rate allows. The paper plots one flow's "
        "rate, which visibly follows the wanted rate.",
        _slot_rates,
    ),
    Section(
        "Live, MLTCP: jobs that share a link",
        ("mltcp",),
        "Ideal is a job's iteration time alone with the same congestion control. Settled is the mean over "
        f"the iterations after the first {LEARNING}, in which MLTCP learns and the jobs move apart; the next "
        "column is their number. A run has converged at an iteration if from then until the end, every ten "
        "consecutive iterations of each job take at most 1.05 of ideal on average. The table gives the "
        "number of converged runs (seeds) and the median of that iteration. The slowest job's progress is "
        "its ideal over its mean iteration time in the whole run; 1 means unhindered. Plain / MLTCP divides "
        "the settled iteration time with the plain congestion control by that with its MLTCP variant.",
        _mltcp,
    ),
)
TITLES = tuple(section.title for section in SECTIONS)


def _order(name: str, condition: str) -> tuple[float, str]:
    """Return a sort key: the number in the condition, if there is one, then the name."""
    number = re.search(r"\d+(\.\d+)?", condition)
    return (float(number[0]) if number else 0.0, name)


def compared() -> dict[str, Section]:
    """Return entrain's experiments that reproduce a paper's figure, in the order of the sections.

    By name: the first section that shows the experiment.
    """
    papers = dict(map(read_papers, sorted(EXPERIMENTS.glob("*.toml"))))
    found: dict[str, Section] = {}
    for section in SECTIONS:
        members = {
            name: next(paper.condition for paper in entries if paper.figure in section.figures)
            for name, entries in papers.items()
            if any(paper.figure in section.figures for paper in entries)
        }
        for name in sorted(members, key=lambda name: _order(name, members[name])):
            found.setdefault(name, section)
    return found


def command(name: str) -> str:
    """Return the command that runs one of entrain's experiments."""
    return f"entrain run experiments/{name}.toml"


def sections(directories: Sequence[Path]) -> dict[str, str]:
    """Return, by title, the sections with results in `directories` or their subdirectories.

    Results of one experiment may be in several directories. Raises BadInput if the experiment was run twice
    with the same congestion control.
    """
    found = _load(directories)
    made = {}
    for section in SECTIONS:
        lives = [live for live in found if any(paper.figure in section.figures for paper in live.papers)]
        lives.sort(key=lambda live: _order(live.name, live.condition(section.figures)))
        if lives:
            ran = "\n".join(f"`{command(live.name)}`" for live in lives)
            text = textwrap.fill(section.text, 110, break_on_hyphens=False)
            tables = section.tables({live.name: live for live in lives})
            made[section.title] = f"\n## {section.title}\n\n{ran}\n\n{text}\n{tables}"
    return made


def _load(directories: Sequence[Path]) -> list[Live]:
    """Return the measurements of every experiment that belongs to a paper's figure."""
    found: dict[str, Live] = {}
    origin: dict[tuple[str, str], Path] = {}

    def once(experiment: str, name: str, directory: Path) -> None:
        if origin.setdefault((experiment, name), directory) != directory:
            both = f"{origin[experiment, name]} and {directory} both hold"
            raise BadInput(f"{both} results of {experiment} with {name}: remove one")

    for directory in store.found(directories):
        if store.kind_of(directory) == SLOT_RATES.name:
            rates = store.read(SLOT_RATES, directory)
            name, papers = rates.experiment.name, rates.experiment.paper
            once(name, "its trials", directory)
            found[name] = Live(name, papers, trials=rates.runs)
            continue
        held = store.read(files.NETWORK, directory)
        name, papers = held.experiment.name, held.experiment.paper
        runs = dict(found[name].runs) if name in found else {}
        for run in held.runs:
            once(name, scheduler(run.combination), directory)
            runs[scheduler(run.combination)] = [*runs.get(scheduler(run.combination), ()), run]
        found[name] = Live(name, papers, runs)
    return [live for live in found.values() if live.papers and (live.runs or live.trials)]
