"""The sections of docs/results.md on live experiments, made from what `entrain run --out` wrote."""

from __future__ import annotations

import csv
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from entrain.cross import NAME as CROSS
from entrain.policies import is_baseline, mltcp, series
from entrain.results.values import LEARNING
from machine.errors import BadInput
from simulation.report import change, table

Run = Mapping[str, Any]

SPEEDS = {"slots-jct": "10 Gbit/s", "slots-jct-16g": "16 Gbit/s", "slots-jct-24g": "24 Gbit/s"}
"""The paper's, which the experiments divide by 50."""
LOSSES = {
    "slots-loss-none": "none",
    "slots-loss-0.1": "0.1 %",
    "slots-loss-0.2": "0.2 %",
    "slots-loss-0.5": "0.5 %",
    "slots-loss": "1 %",
    "slots-loss-1.5": "1.5 %",
}
MLTCP = (
    *("mltcp-two-jobs", "mltcp-seeds", "mltcp-three-jobs", "mltcp-six-jobs", "mltcp-incompatible"),
    *(
        "mltcp-long-phases",
        "mltcp-short-phases",
        "mltcp-two-jobs-loss",
        "mltcp-two-jobs-loss-1",
        "mltcp-bmv2",
    ),
)
SERVERS = 6
"""The paper's testbed."""
SENDING = 0.1
"""A job counts as sending in a bin in which it has this part of the most that a bin has of the link."""


@dataclass(frozen=True)
class Live:
    """What an experiment left: by what schedules the flows, its runs of all seeds, and the directory that
    they are in; and the `summary` of its results.json."""

    directories: dict[str, Path]
    runs: dict[str, list[Run]]
    summary: list[Mapping[str, Any]]

    @property
    def best_tcp(self) -> str | None:
        """The plain TCP with the shortest mean completion time."""
        plain = [name for name, runs in self.runs.items() if is_baseline(runs[0]["policy"])]
        return min(plain, key=lambda name: fmean(self.jct_s(name)), default=None)

    def jct_s(self, name: str) -> list[float]:
        """Completion times of all jobs under `name`."""
        return [job["jct_s"] for run in self.runs[name] for job in run["jobs"]]

    def iteration_ms(self, name: str, model: str = "", key: str = "iteration_ms_mean") -> float:
        """Mean over the jobs whose names begin with `model`."""
        jobs = (job for run in self.runs[name] for job in run["jobs"])
        return fmean(job[key] for job in jobs if job["name"].startswith(model))

    def rounded_ms(self, name: str, model: str) -> str:
        """The same, for people."""
        return f"{self.iteration_ms(name, model):.0f}"

    def throughput(self, name: str) -> dict[str, dict[float, float]]:
        """By job, Mbit/s by time in the first run under `name`, on the link that carries most; {} where that
        was not sampled."""
        path = self.directories[name] / "throughput.csv"
        links: dict[str, dict[str, dict[float, float]]] = {}
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    if _name(row) == name and int(row["seed"]) == self.runs[name][0]["seed"]:
                        jobs = links.setdefault(row["link"], {})
                        jobs.setdefault(row["job"], {})[float(row["time_s"])] = float(row["mbps"])
        carried = {link: sum(sum(bins.values()) for bins in jobs.values()) for link, jobs in links.items()}
        return links[max(carried, key=lambda link: carried[link])] if links else {}


Found = Mapping[str, Live]
"""By experiment, those of a section of which there are results."""


@dataclass(frozen=True)
class Section:
    """A section: its title, the experiments that it shows, what they compare, and its tables."""

    title: str
    experiments: Sequence[str]
    text: str
    tables: Callable[[Found], str]


def _name(run: Run) -> str:
    """What schedules the flows of a run: a congestion control, or the slot scheduler."""
    return series(run["policy"], run["congestion_control"])


def _names(found: Found) -> list[str]:
    return list(dict.fromkeys(name for live in found.values() for name in live.runs))


def _matrix(
    corner: str, rows: Sequence[str], columns: Sequence[str], cell: Callable[[str, str], str | None]
) -> str:
    """A table; a cell that is None was not run."""
    return "\n" + table(
        [corner, *columns], [[row, *(cell(row, column) or "-" for column in columns)] for row in rows]
    )


def _claims(claims: Iterable[Sequence[str]]) -> str:
    return "\n" + table(["claim", "paper", "here"], [list(claim) for claim in claims])


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _range(values: Iterable[float | None], form: Callable[[float], str] = "{:.3g}".format) -> str:
    """From the least to the most; - where nothing is known."""
    known = [value for value in values if value is not None]
    return " to ".join(dict.fromkeys(map(form, (min(known), max(known))))) if known else "-"


def _busy(found: Found) -> str:
    runs = (run for live in found.values() for runs in live.runs.values() for run in runs)
    return f"\nProcessors busy: {_range((run['overhead']['processor_busy'] for run in runs), _percent)}.\n"


# -- the slot scheduler


def _completion(found: Found) -> str:
    by_speed = {SPEEDS[name]: live for name, live in found.items()}

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

    text = "\nMean completion time of the jobs (s), and against the best TCP at that speed:\n"
    text += _matrix("", _names(found), list(by_speed), mean)
    text += "\nShortest, longest and 99th percentile (s, interpolated):\n"
    text += _matrix("", _names(found), list(by_speed), spread)
    for speed, live in by_speed.items():
        jobs = next(iter(live.runs.values()))[0]["jobs"]
        models = list(dict.fromkeys(job["name"].partition("-")[0] for job in jobs))
        text += f"\nIteration time (ms, mean; the training speed is its inverse) at {speed}:\n"
        text += _matrix("", list(live.runs), models, live.rounded_ms)
    claims = []
    for speed, live in by_speed.items():
        best = live.best_tcp
        if "slots" in live.runs and best:
            ours = change(fmean(live.jct_s("slots")), fmean(live.jct_s(best)))
            claims.append([f"mean completion time, slots against {best}, {speed}", "at least -15 %", ours])
        paper = {"10 Gbit/s": "+22 %", "24 Gbit/s": "+14.2 %"}.get(speed)
        if paper and {"slots", "cubic"} <= set(live.runs):
            speed_up = change(live.iteration_ms("cubic", "vgg19"), live.iteration_ms("slots", "vgg19"))
            claims.append([f"training speed of VGG19, slots against cubic, {speed}", paper, speed_up])
    return text + _claims(claims) + _busy(found)


def _loss(found: Found) -> str:
    by_loss = {LOSSES[name]: live for name, live in found.items()}
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
        text += f"\nIteration time of {model}, mean, by loss rate (×: against no loss):\n"
        text += _matrix("", _names(found), list(by_loss), partial(time, model))
    claims = []

    def claim(what: str, paper: str, ours: tuple[str, str], other: tuple[str, str]) -> None:
        """Training speeds of VGG16, each of a control and a loss rate."""
        if all(loss in by_loss and name in by_loss[loss].runs for name, loss in (ours, other)):
            mine, others = (by_loss[loss].iteration_ms(name, "vgg16") for name, loss in (ours, other))
            times = f"× {others / mine:.2f}"
            claims.append([what, paper, times if paper.startswith("×") else change(others, mine)])

    for loss in ("1 %", "1.5 %"):
        claim(f"slots, {loss} of loss against none", "-4 %", ("slots", loss), ("slots", "none"))
        claim(f"slots against cubic, {loss} of loss", "× 5.1", ("slots", loss), ("cubic", loss))
    for name in ("cubic", "reno"):
        claim(f"{name}, 0.2 % of loss against none", "-62 %", (name, "0.2 %"), (name, "none"))
    return text + "\nTraining speed of VGG16:\n" + _claims(claims) + _busy(found)


def _two_jobs(found: Found) -> str:
    (live,) = found.values()

    def cell(name: str, column: str) -> str | None:
        if column.startswith("both"):
            overlap = _overlap(list(live.throughput(name).values()))
            return None if overlap is None else _percent(overlap)
        if column.startswith("mean"):
            return f"{fmean(live.jct_s(name)):.2f}"
        return live.rounded_ms(name, column.partition(" ")[0])

    columns = ["vgg19 (ms)", "resnet50 (ms)", "mean completion time (s)", "both send at once"]
    return _matrix("", list(live.runs), columns, cell) + _busy(found)


def _overlap(jobs: Sequence[Mapping[float, float]]) -> float | None:
    """Of the bins in which a job sends, the part in which another one does, too."""
    bins = [[job.get(time, 0.0) for job in jobs] for time in {time for job in jobs for time in job}]
    least = SENDING * max((sum(each) for each in bins), default=0.0)
    sending = [sum(mbps > least for mbps in each) for each in bins]
    busy = sum(number > 0 for number in sending)
    return sum(number > 1 for number in sending) / busy if busy else None


def _tcp_flow(found: Found) -> str:
    (live,) = found.values()
    rows = []
    for name in live.runs:
        jobs = live.throughput(name)
        on = [time for time, mbps in jobs.pop(CROSS, {}).items() if mbps]
        if not on:
            continue
        during = {
            job: fmean(mbps for time, mbps in bins.items() if min(on) <= time <= max(on))
            for job, bins in live.throughput(name).items()
        }
        tcp, total = during[CROSS], sum(during.values())
        rows.append([name, f"{tcp:.0f}", f"{total - tcp:.0f}", _percent(tcp / total)])
    head = ["job's scheduling", "TCP flow (Mbit/s)", "job (Mbit/s)", "the TCP flow's share"]
    return "\n" + table(head, rows) + _busy(found)


def _overhead(found: Found) -> str:
    rows, negotiations, shares, rates = [], [], [], []
    for experiment, live in found.items():
        hosts = [host for run in live.runs.get("slots", []) for host in run["scheduling"]]
        if not hosts:
            continue
        delays = {
            (kind, p): [host[kind] and host[kind][p] for host in hosts]
            for kind in ("negotiation_ms", "decision_ms")
            for p in ("p50", "p90", "p99")
        }
        processor = [host.get("cpu_share") for host in hosts]
        runs = [[host.get("carrier_mbps") for host in run["scheduling"]] for run in live.runs["slots"]]
        rate = [sum(each) for each in runs if None not in each]
        link = [host["carrier_share"] for host in hosts if host.get("carrier_share") is not None]
        rows.append(
            [
                *(experiment, str(len(live.runs["slots"][0]["scheduling"])), *map(_range, delays.values())),
                *(_range(processor, _percent), _range(rate), _percent(max(link), 2) if link else "-"),
            ]
        )
        negotiations += delays["negotiation_ms", "p90"]
        shares += processor
        rates += rate if len(live.runs["slots"][0]["scheduling"]) == SERVERS else []
    head = [
        *("experiment", "hosts", "negotiation p50 (ms)", "p90", "p99", "decision p50 (ms)", "p90", "p99"),
        *("agent, of a processor", "carriers of all hosts (Mbit/s)", "of a host's link, at most"),
    ]
    return (
        "\n"
        + table(head, rows)
        + _claims(
            [
                ["90 % of the negotiations take at most (ms)", "6.2", _range(negotiations)],
                ["negotiation traffic of six servers (Mbit/s)", "below 10 at most times", _range(rates)],
                ["processor time of a host's scheduler", "15 % on average", _range(shares, _percent)],
            ]
        )
    )


def _slot_rates(found: Found) -> str:
    (live,) = found.values()
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "control": ("control", str),
        "slot (ms)": ("slot_ms", "{:g}".format),
        "flows": ("flows", str),
        "error, mean": ("rate_error_mean", partial(_percent, digits=2)),
        "error, p99": ("rate_error_p99", partial(_percent, digits=2)),
        "within 1 % or half a segment": ("within_bound", partial(_percent, digits=1)),
        "first packet late by, p99 (ms)": ("boundary_delay_ms_p99", "{:.2f}".format),
        "processor": ("host_cpu", partial(_percent, digits=1)),
    }
    runs = [run for runs in live.runs.values() for run in runs]
    rows = [["-" if run[key] is None else form(run[key]) for key, form in columns.values()] for run in runs]
    return "\n" + table(list(columns), rows)


# -- MLTCP


def _mltcp(found: Found) -> str:
    rows, at, means, tails = [], [], [], []
    runs = converged = 0
    for experiment, live in found.items():
        settled = {_name(group): group["settled"] for group in live.summary}
        for group in live.summary:
            name = _name(group)
            mine = settled[name]
            when = group["converged_at_iteration_median"]
            ratios = ["", ""]
            if group["policy"] == mltcp.NAME:
                runs, converged = runs + group["runs"], converged + group["converged"]
                at.append(when)
                if mine and (plain := settled.get(name.removeprefix("mltcp_"))):
                    means.append(plain["iteration_ms_mean"] / mine["iteration_ms_mean"])
                    tails.append(plain["iteration_ms_p99"] / mine["iteration_ms_p99"])
                    ratios = [f"{means[-1]:.2f}", f"{tails[-1]:.2f}"]
            busy = _range((run["overhead"]["processor_busy"] for run in live.runs[name]), _percent)
            rows.append(
                [
                    *(experiment, name),
                    *((f"{mine['over_ideal']:.3f}", str(mine["iterations"])) if mine else ("-", "-")),
                    f"{group['converged']} of {group['runs']}",
                    "-" if when is None else f"{when:g}",
                    f"{group['slowest_progress']:.2f}",
                    *(*ratios, busy),
                ]
            )
    head = [
        *("experiment", "control", "settled, × ideal", "iterations", "converged", "at iteration"),
        *("slowest job", "mean, plain / MLTCP", "p99, plain / MLTCP", "processors busy"),
    ]
    when_settled = f"{_range(at)} (converged: {converged} of {runs} runs)"
    claims = [
        ["iterations until interleaved", "30", when_settled],
        ["mean iteration time, plain / MLTCP", "up to 1.9", _range(means, "{:.2f}".format)],
        ["99th percentile, plain / MLTCP", "up to 2.7", _range(tails, "{:.2f}".format)],
    ]
    return "\n" + table(head, rows) + _claims(claims)


SECTIONS = (
    Section(
        "Live, slot scheduler, figures 8 and 9, table I: completion times and training speeds",
        tuple(SPEEDS),
        "Five jobs (rings and parameter servers of four models) that arrive one after the other on "
        "six servers, with cross traffic: TCP, MLTCP and the slot scheduler. Speeds are the paper's, "
        "here divided by 50.",
        _completion,
    ),
    Section(
        "Live, slot scheduler, figure 10: random loss",
        tuple(LOSSES),
        "VGG16, which communicates, and ResNet50, which computes, each with two parameter servers and "
        "two workers; loss is random, on the links between the switches.",
        _loss,
    ),
    Section(
        "Live, slot scheduler, figure 11 (a): two jobs on one link",
        ("slots-two-jobs",),
        "Iteration time of each job, and of the time in which a job sends, the part in which both do "
        "(bins of 20 ms in which each has at least a tenth of the link). The paper shows the bursts "
        "staggered.",
        _two_jobs,
    ),
    Section(
        "Live, slot scheduler, figure 11 (b): a TCP flow beside a scheduled job",
        ("slots-tcp-flow",),
        "Mean throughput while the TCP flow is on. Both want the whole link; half of it each is an "
        "equal share. The paper shows the two next to each other.",
        _tcp_flow,
    ),
    Section(
        "Live, slot scheduler, figures 12 and 13: what scheduling costs",
        (*SPEEDS, *LOSSES, "slots-two-jobs", "slots-tcp-flow"),
        "From the least to the most of the hosts. A negotiation lasts from asking what others plan on "
        "a flow's path to the answer; links let carriers go before data.",
        _overhead,
    ),
    Section(
        "Live, slot scheduler, figure 7 (a): rates as wanted",
        ("slot-rates",),
        "Every flow gets a new random rate in every slot, on two hosts and a cable; the error is that "
        "of a slot's bytes against what the rate allows, relative. The paper shows one flow's rate, "
        "by eye as wanted.",
        _slot_rates,
    ),
    Section(
        "Live, MLTCP: jobs that share a link",
        MLTCP,
        "Ideal is what a job takes alone with the same control. Settled: the mean of the iterations that "
        f"follow upon the first {LEARNING}, in which MLTCP learns and jobs slide apart, and how many they "
        "are. Converged: in so many of the runs (seeds), from that iteration on (median) and until the "
        "end, any ten iterations in a row of every job take on average at most 1.05 of ideal. The slowest "
        "job's progress is ideal over its mean iteration, over the whole run: 1 is unhindered. Plain / "
        "MLTCP: of the settled iterations of all jobs, with the congestion control from which the variant "
        "is made.",
        _mltcp,
    ),
)
TITLES = tuple(section.title for section in SECTIONS)
NAMES = tuple(dict.fromkeys(name for section in SECTIONS for name in section.experiments))
COMMANDS = [f"entrain run experiments/{name}.toml" for name in NAMES]


def sections(directory: Path) -> dict[str, str]:
    """By title, the sections of which `directory` holds results, however deep.

    Those of one experiment may lie in several directories. Raises BadInput where it was run twice with the
    same congestion control.
    """
    found = _load(directory)
    made = {}
    for section in SECTIONS:
        here = {name: found[name] for name in section.experiments if name in found}
        if here:
            ran = "\n".join(f"`{COMMANDS[NAMES.index(name)]}`" for name in here)
            text = textwrap.fill(section.text, 110, break_on_hyphens=False)
            made[section.title] = f"\n## {section.title}\n\n{ran}\n\n{text}\n" + section.tables(here)
    return made


def _load(directory: Path) -> Found:
    found: dict[str, Live] = {}
    for path in sorted(directory.rglob("results.json")):
        results = json.loads(path.read_text())
        experiment = results.get("experiment")
        if experiment not in NAMES:
            continue
        live = found.setdefault(experiment, Live({}, {}, []))
        for run in results["runs"]:
            name = run["control"] if experiment == "slot-rates" else _name(run)
            if live.directories.setdefault(name, path.parent) != path.parent:
                both = f"{live.directories[name]} and {path.parent} both hold"
                raise BadInput(f"{both} results of {experiment} with {name}: remove one")
            live.runs.setdefault(name, []).append(run)
        live.summary.extend(results.get("summary", []))
    return found
