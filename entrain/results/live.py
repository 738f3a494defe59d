"""Write the sections of docs/results.md on live experiments, from the results of `entrain run --out`.

`experiments/results-page.toml` has the sections. The experiments' files say which of them they belong to, and
what the paper claims (`entrain.paper`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from entrain import paper
from entrain.fluid import BOUNDS, has_bounds, mean_jct_s
from entrain.paper import EXPERIMENTS, Section, Tables
from entrain.results import files, store
from entrain.results.claims import (
    Found,
    Live,
    carriers_mbps,
    claims,
    cpu_shares,
    delays_ms,
    percent,
    scheduled,
    span,
)
from entrain.results.cluster import Stay, times
from entrain.results.gains import gains
from entrain.results.pivots import markdown as table
from entrain.results.remedies import cell as remedies_cell
from entrain.results.tables import SHIFTING_HEADINGS, label, shifting_cells
from entrain.results.values import LEARNING, RunResult, fairness, scheduler, series_of, strategy, summarized
from entrain.run.cross import NAME as CROSS
from entrain.trials.slot_rates import KIND as SLOT_RATES
from entrain.trials.slot_rates import TrialResult
from machine.errors import BadInput
from machine.interval import interval, relative
from machine.origin import EMULATION, listed

SENDING = 0.1
"""A job counts as sending in a bin if it has at least this fraction of the fullest bin's throughput."""


def _names(found: Found) -> list[str]:
    return list(dict.fromkeys(name for live in found.values() for name in live.runs))


def _matrix(
    corner: str, rows: Sequence[str], columns: Sequence[str], cell: Callable[[str, str], str | None]
) -> str:
    """Return a table. A cell of None was not run."""
    return "\n" + table(
        [corner, *columns], [[row, *(cell(row, column) or "-" for column in columns)] for row in rows]
    )


def _by_condition(section: Section, found: Found) -> dict[str, Live]:
    """Return the experiments by their conditions. Raises BadInput if two have the same."""
    by_condition: dict[str, Live] = {}
    for live in found.values():
        condition = live.condition(section.figures)
        other = by_condition.setdefault(condition, live)
        if other is not live:
            raise BadInput(
                f"{other.name} and {live.name}: both have the condition {condition!r} in figure "
                f"{section.figures[0]}; give each another `condition` under [[paper]]"
            )
    return by_condition


def _one_by_one(found: Found, tables: Callable[[Live], str]) -> str:
    """Return the tables of each experiment, under its name if there are several."""
    return "".join((f"\n{live.name}:\n" if len(found) > 1 else "") + tables(live) for live in found.values())


def _claims(section: Section, found: Found) -> str:
    rows = claims(found, section.figures)
    return "\n" + table(["claim", "paper", "here"], rows) if rows else ""


def _busy(found: Found) -> str:
    return f"\nCPU utilisation: {_busy_span(run for each in found.values() for run in _runs(each))}.\n"


def _runs(live: Live) -> Iterable[RunResult]:
    return (run for runs in live.runs.values() for run in runs)


def _busy_span(runs: Iterable[RunResult]) -> str:
    return span((run.overhead["processor_busy"] for run in runs), percent)


# -- the slot scheduler


def _completion(section: Section, found: Found) -> str:
    by_speed = _by_condition(section, found)

    fluid = {speed: _fluid_jct_s(live) for speed, live in by_speed.items()}

    def mean(name: str, speed: str) -> str | None:
        live = by_speed[speed]
        if name not in live.runs and name not in fluid[speed]:
            return None
        ours, best = fluid[speed].get(name) or live.mean_jct_s(name), live.best_tcp
        text = interval(list(ours.values())).show()
        return text + (f" ({relative(live.mean_jct_s(best), ours).percent()})" if best else "")

    def goodput(name: str, speed: str) -> str | None:
        runs = by_speed[speed].runs.get(name, ())
        seen = [run.overhead["cross_mbps"] for run in runs if "cross_mbps" in run.overhead]
        return interval(seen).show(".0f") if seen else None

    def spread(name: str, speed: str) -> str | None:
        if name not in by_speed[speed].runs:
            return None
        times = by_speed[speed].jct_s(name)
        return f"{min(times):.2f}, {max(times):.2f}, {np.percentile(times, 99):.2f}"

    text = "\nMean job completion time (s), and its difference from that of the best TCP at that link rate. "
    text += "±: half of the 95 % confidence interval over seeds; a difference within it is none:\n"
    if any(fluid.values()):
        text = text.rstrip(":\n") + ". The last rows are the same jobs as fluid:\n"
    bounds = [name for name in BOUNDS.values() if any(name in each for each in fluid.values())]
    text += _matrix("", [*_names(found), *bounds], list(by_speed), mean)
    if any("cross_mbps" in run.overhead for live in by_speed.values() for run in _runs(live)):
        text += "\nMean goodput of a flow of cross traffic (Mbit/s), which is not held back:\n"
        text += _matrix("", _names(found), list(by_speed), goodput)
    text += "\nShortest, longest and 99th-percentile completion time (s; the percentile is interpolated):\n"
    text += _matrix("", _names(found), list(by_speed), spread)
    for speed, live in by_speed.items():
        text += f"\nMean iteration time (ms) at {speed}; training speed is its inverse:\n"
        text += _matrix("", list(live.runs), _models(live), partial(_rounded_ms, live))
    return text + _claims(section, found) + _busy(found)


def _models(live: Live) -> list[str]:
    """Return the models of the jobs, which their names begin with."""
    jobs = next(iter(_runs(live))).jobs
    return list(dict.fromkeys(job.name.partition("-")[0] for job in jobs))


def _iteration_ms(live: Live | None, name: str, model: str) -> dict[int, float]:
    """Return the mean iteration time of the jobs of `model` under `name`, by seed; {} if none was run."""
    if live is None or name not in live.runs or model not in _models(live):
        return {}
    return live.iteration_ms_by_seed(name, model)


def _rounded_ms(live: Live, name: str, model: str) -> str:
    return f"{live.iteration_ms(name, model):.0f}"


def _loss(section: Section, found: Found) -> str:
    by_loss = _by_condition(section, found)

    def time(model: str, name: str, loss: str) -> str | None:
        ours, lossless = (_iteration_ms(by_loss.get(each), name, model) for each in (loss, "none"))
        if not ours:
            return None
        if loss == "none" or not lossless:
            return interval(list(ours.values())).show(".0f") + " ms"
        return relative(lossless, ours).factor()

    text = ""
    for model in dict.fromkeys(model for live in found.values() for model in _models(live)):
        text += f"\nMean iteration time of {model} by loss rate (×: relative to no loss):\n"
        text += _matrix("", _names(found), list(by_loss), partial(time, model))
    return text + _claims(section, found) + _busy(found)


def _throughput(run: RunResult) -> dict[str, Sequence[float]]:
    """Return Mbit/s per bin by job, on the busiest link of a run; {} without samples."""
    links: dict[str, dict[str, Sequence[float]]] = {}
    for each in run.timeline.throughput:
        links.setdefault(each.link, {})[each.job] = each.mbps
    return max(links.values(), key=lambda jobs: sum(map(sum, jobs.values())), default={})


def _two_jobs(section: Section, found: Found) -> str:
    return _one_by_one(found, _shares_of_two) + _claims(section, found) + _busy(found)


def _shares_of_two(live: Live) -> str:
    def cell(name: str, column: str) -> str | None:
        if column.startswith("both"):
            overlap = _overlap(list(_throughput(live.runs[name][0]).values()))
            return None if overlap is None else percent(overlap)
        if column.startswith("mean"):
            return f"{fmean(live.jct_s(name)):.2f}"
        return _rounded_ms(live, name, column.partition(" ")[0])

    columns = [*(f"{model} (ms)" for model in _models(live)), "mean completion time (s)", "both send"]
    return _matrix("", list(live.runs), columns, cell)


def _overlap(jobs: Sequence[Sequence[float]]) -> float | None:
    """Return the fraction of the bins with a sending job in which another job sends, too."""
    bins = list(zip(*jobs, strict=True))
    least = SENDING * max(map(sum, bins), default=0.0)
    sending = [sum(mbps > least for mbps in each) for each in bins]
    busy = sum(number > 0 for number in sending)
    return sum(number > 1 for number in sending) / busy if busy else None


def _tcp_flow(section: Section, found: Found) -> str:
    return _one_by_one(found, _share_of_tcp) + _claims(section, found) + _busy(found)


def _share_of_tcp(live: Live) -> str:
    rows = []
    for name in live.runs:
        jobs = _throughput(live.runs[name][0])
        on = [place for place, mbps in enumerate(jobs.get(CROSS, ())) if mbps]
        if not on:
            continue
        during = {job: fmean(mbps[min(on) : max(on) + 1]) for job, mbps in jobs.items()}
        tcp, total = during[CROSS], sum(during.values())
        rows.append([name, f"{tcp:.0f}", f"{total - tcp:.0f}", percent(tcp / total)])
    head = ["job scheduled by", "TCP flow (Mbit/s)", "job (Mbit/s)", "TCP flow's share"]
    return "\n" + table(head, rows)


def _overhead(section: Section, found: Found) -> str:
    rows = []
    for experiment, live in found.items():
        this = {experiment: live}
        for name in live.runs:
            runs = list(scheduled(this, name))
            if not runs:
                continue
            delays = [
                span(delays_ms(this, percentile, kind, name))
                for kind in ("negotiation", "decision")
                for percentile in (50, 90, 99)
            ]
            link = [host.carrier_share for run in runs for host in run.scheduling]
            most = max((share for share in link if share is not None), default=None)
            rows.append(
                [
                    experiment if name == "slots" else f"{experiment}, {name}",
                    *(str(len(runs[0].scheduling)), *delays),
                    *(span(cpu_shares(this, name), percent), span(carriers_mbps(this, name=name))),
                    "-" if most is None else percent(most, 2),
                ]
            )
    head = [
        *("experiment", "hosts", "negotiation p50 (ms)", "p90", "p99", "decision p50 (ms)", "p90", "p99"),
        *("agent CPU (of one core)", "carriers, all hosts (Mbit/s)", "carriers, max share of a host's link"),
    ]
    return "\n" + table(head, rows) + _claims(section, found)


def _slot_rates(section: Section, found: Found) -> str:
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


def _mltcp(section: Section, found: Found) -> str:
    rows = []
    for experiment, live in found.items():
        for name, runs in live.runs.items():
            settled, at, ups = live.settled(name), live.converged_at(name), live.speed_up(name)
            lost = live.lost_or_marked(name)
            rows.append(
                [
                    *(experiment, name),
                    *((f"{settled.over_ideal:.3f}", str(settled.iterations)) if settled else ("-", "-")),
                    f"{live.converged(name)} of {len(runs)}",
                    "-" if at is None else f"{at:g}",
                    f"{min(fairness(run).slowest for run in runs):.2f}",
                    "-" if lost is None else f"{lost:.1f}",
                    *((f"{up:.2f}" for up in ups) if ups else ("", "")),
                    _busy_span(runs),
                ]
            )
    head = [
        *("experiment", "control", "settled, × ideal", "iterations", "converged", "at iteration"),
        *("slowest job", "lost or marked", "mean, plain / MLTCP", "p99, plain / MLTCP", "CPU utilisation"),
    ]
    return "\n" + table(head, rows) + _claims(section, found)


# -- unfair sharing


def _unfairness(section: Section, found: Found) -> str:
    return _one_by_one(found, _gains) + _claims(section, found) + _busy(found)


def _gains(live: Live) -> str:
    runs = list(_runs(live))
    rows = [each.cells() for each in (gains(live.experiment, runs) if live.experiment is not None else ())]
    if not rows:
        return ""
    return "\n" + table(["job", "score", "fair, ms", "unfair, ms", "gain"], rows)


# -- beside fluid bounds


def _bounds(section: Section, found: Found) -> str:
    return _one_by_one(found, _beside_fluid) + _claims(section, found) + _busy(found)


def _beside_fluid(live: Live) -> str:
    """Completion times under each scheduler, and those of the same jobs as fluid."""
    best = live.best_tcp
    theirs = live.mean_jct_s(best) if best else {}

    def row(name: str, ours: Mapping[int, float], stays: Sequence[Stay] = ()) -> list[str]:
        against = relative(theirs, ours).percent() if best and name != best else ""
        waiting = f"{times(stays)['jwt_s_mean']:.2f}" if stays else ""
        return [name, interval(list(ours.values())).show(), against, waiting]

    rows = [row(name, live.mean_jct_s(name), live.stays(name)) for name in live.runs]
    rows += [row(name, fluid) for name, fluid in _fluid_jct_s(live).items()]
    head = ["", "mean JCT (s)", f"against {best}" if best else "", "mean waiting (s)"]
    return "\n" + table(head, rows)


def _fluid_jct_s(live: Live) -> dict[str, dict[int, float]]:
    """Return the mean completion times of the same jobs as fluid (s), by name of the bound and by seed; {} if
    they have no bounds."""
    experiment = live.experiment
    if experiment is None or not has_bounds(experiment):
        return {}
    seeds = sorted({run.combination.seed for run in _runs(live)})
    return {name: {seed: mean_jct_s(experiment, seed, key) for seed in seeds} for key, name in BOUNDS.items()}


# -- jobs on a cluster


def _cluster(section: Section, found: Found) -> str:
    return _one_by_one(found, _strategies) + _claims(section, found)


def _strategies(live: Live) -> str:
    def row(name: str) -> list[str]:
        runs, stayed = live.runs[name], times(live.stays(name))
        failed = [run.stays.failed_attempts for run in runs if run.stays]
        over_alone = [value for run in runs for value in run.over_alone]
        return [
            name,
            *(
                f"{stayed[f'{key}_mean']:.2f}, {stayed[f'{key}_p99']:.2f}"
                for key in ("jrt_s", "jwt_s", "jct_s")
            ),
            str(max(run.max_flows_per_link_all for run in runs)),
            *(str(sum(each.get(cause, 0) for each in failed)) for cause in ("gpus", "network")),
            str(sum(run.stays.circuits_changed for run in runs if run.stays)),
            f"{np.percentile(over_alone, 99):.2f}" if over_alone else "-",
            _busy_span(runs),
        ]

    head = [
        *(
            "strategy",
            "JRT, mean, p99 (s)",
            "JWT (s)",
            "JCT (s)",
            "most flows on a link",
            "no GPUs",
            "no links",
        ),
        *("circuits made", "iteration over alone, p99", "CPU utilisation"),
    ]
    return "\n" + table(head, [row(name) for name in live.runs])


# -- jobs that are shifted


def _shifts(section: Section, found: Found) -> str:
    return _one_by_one(found, _iterations_and_shifts) + _claims(section, found) + _busy(found)


def _iterations_and_shifts(live: Live) -> str:
    """Iteration times of each run, and how Cassini's jobs were shifted and kept to it."""
    runs = list(_runs(live))
    sampled = any(run.timeline.throughput for run in runs)
    rows = []
    for run in runs:
        times = [fmean(job.summary.iteration_ms) for job in run.jobs]
        ideals = [job.ideal_ms for job in run.jobs]
        marks = fmean(job.summary.marks_per_iteration or 0.0 for job in run.jobs)
        rows.append(
            [
                label(run, runs),
                ", ".join(f"{time:.0f}" for time in times),
                ", ".join(f"{ideal:.0f}" for ideal in ideals),
                f"{fmean(time / ideal for time, ideal in zip(times, ideals, strict=True)):.3f}",
                f"{marks:.0f}" if marks else "",
                *([_meet(run)] if sampled else []),
            ]
        )
    head = ["run", "mean iteration, ms", "alone, ms", "× alone", "marks per iteration"]
    text = "\n" + table([*head, *(["meet"] if sampled else [])], rows)
    shifted = [[label(run, runs), *shifting_cells(run)] for run in runs if run.paced.score is not None]
    return text + ("\n" + table(["run", *SHIFTING_HEADINGS], shifted) if shifted else "")


def _meet(run: RunResult) -> str:
    """How often more than one of the jobs that send does, in the second half of a run (figure 4.16)."""
    overlap = _overlap([mbps[len(mbps) // 2 :] for mbps in _throughput(run).values()])
    return "-" if overlap is None else percent(overlap)


# -- routings and policies


def _remedies(section: Section, found: Found) -> str:
    return _one_by_one(found, _cells) + _claims(section, found) + _busy(found)


def _cells(live: Live) -> str:
    """Iteration times over those alone, by load, routing and policy, as in the simulated matrix."""
    rows = []
    for group in summarized(list(_runs(live))):
        which, found = group.runs[0].combination, remedies_cell(group.runs)
        load = f"{which.load:g} %" if which.load else ""
        figures = [f"{found.mean:.3f}", f"{found.p99:.3f}", f"{found.marks or 0.0:.0f}"]
        rows.append([load, strategy(which), scheduler(which), *figures])
    head = ["load", "routing", "policy", "mean × alone", "p99 × alone", "marks per iteration"]
    return "\n" + table(head, rows)


TABLES: Mapping[Tables, Callable[[Section, Found], str]] = {
    "completion": _completion,
    "loss": _loss,
    "two-jobs": _two_jobs,
    "tcp-flow": _tcp_flow,
    "overhead": _overhead,
    "slot-rates": _slot_rates,
    "mltcp": _mltcp,
    "cluster": _cluster,
    "bounds": _bounds,
    "unfairness": _unfairness,
    "shifts": _shifts,
    "remedies": _remedies,
}


def titles() -> tuple[str, ...]:
    """Return the titles of the sections, in their order."""
    return tuple(section.title for section in paper.sections())


def _order(name: str, condition: str) -> tuple[float, str]:
    """Return a sort key: the number in the condition, if there is one, then the name."""
    number = re.search(r"\d+(\.\d+)?", condition)
    return (float(number[0]) if number else 0.0, name)


def compared() -> dict[str, Section]:
    """Return entrain's experiments that reproduce a paper's figure, in the order of the sections.

    By name: the first section that shows the experiment.
    """
    papers = _papers()
    found: dict[str, Section] = {}
    for section in paper.sections():
        members = {
            name: next(each.condition for each in entries if each.figure in section.shown)
            for name, entries in papers.items()
            if any(each.figure in section.shown for each in entries)
        }
        for name in sorted(members, key=lambda name: _order(name, members[name])):
            found.setdefault(name, section)
    return found


def _papers() -> dict[str, tuple[paper.Paper, ...]]:
    """Return the `[[paper]]` tables of entrain's experiments, by name."""
    return dict(map(paper.read_papers, sorted(EXPERIMENTS.glob("*.toml"))))


def command(name: str) -> str:
    """Return the command that runs one of entrain's experiments."""
    return f"entrain run experiments/{name}.toml"


OLDER = " This precedes [queues that hold no sender back](emulation.md#queues)."
"""What a section says whose results are of an earlier emulation."""


def sections(directories: Sequence[Path]) -> dict[str, str]:
    """Return, by title, the sections with results in `directories` or their subdirectories.

    Results of one experiment may be in several directories. Raises BadInput if the experiment was run twice
    with the same congestion control or strategy.
    """
    found = _load(directories)
    made = {}
    for section in paper.sections():
        lives = [live for live in found if any(each.figure in section.shown for each in live.papers)]
        lives.sort(key=lambda live: _order(live.name, live.condition(section.shown)))
        if lives:
            ran = "\n".join(f"`{command(live.name)}`" for live in lives)
            text = section.text.strip().replace("{learning}", str(LEARNING))
            tables = TABLES[section.tables](section, {live.name: live for live in lives})
            results: list[RunResult | TrialResult] = []
            for live in lives:
                results += [*_runs(live), *live.trials]
            origin = listed(result.origin for result in results)
            older = any(each.origin is None or each.origin.emulation < EMULATION for each in results)
            measured = f"Measured: {origin}." + (OLDER if older else "")
            made[section.title] = f"\n## {section.title}\n\n{ran}\n\n{text}\n{tables}\n{measured}\n"
    return made


def _load(directories: Sequence[Path]) -> list[Live]:
    """Return the measurements of every experiment that belongs to a paper's figure.

    The papers' claims are those in entrain's file of the experiment, or if it has none, in the results.
    """
    found: dict[str, Live] = {}
    ours = _papers()
    origin: dict[tuple[str, str], Path] = {}

    def once(experiment: str, name: str, directory: Path) -> None:
        if origin.setdefault((experiment, name), directory) != directory:
            both = f"{origin[experiment, name]} and {directory} both hold"
            raise BadInput(f"{both} results of {experiment} with {name}: remove one")

    for directory in store.found(directories):
        if store.kind_of(directory) == SLOT_RATES.name:
            rates = store.read(SLOT_RATES, directory)
            name = rates.experiment.name
            once(name, "its trials", directory)
            found[name] = Live(name, ours.get(name, rates.experiment.paper), trials=rates.runs)
            continue
        held = store.read(files.NETWORK, directory)
        name = held.experiment.name
        runs = dict(found[name].runs) if name in found else {}
        for run in held.runs:
            key = series_of(held.experiment, run.combination)
            once(name, key, directory)
            runs[key] = [*runs.get(key, ()), run]
        papers = ours.get(name, held.experiment.paper)
        found[name] = Live(name, papers, runs, experiment=held.experiment)
    return [live for live in found.values() if live.papers and (live.runs or live.trials)]
