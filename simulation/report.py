"""Write the simulator's sections of docs/results.md from the experiments' summaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from machine.interval import Interval, relative
from machine.origin import listed
from machine.packages import ROOT
from simulation.experiments.cassini import PAPER_GAINS, PAPER_MARKS, TABLE_4_3, WITH
from simulation.experiments.parrot import (
    LIKE_RIVALS,
    PAPER_GAIN,
    PAPER_GBPS,
    PAPER_TO_BOUND,
    PAPER_WITHIN,
    PARROT_READINGS,
    paper_gain,
)
from simulation.experiments.registry import EXPERIMENTS
from simulation.experiments.unfairness import GROUPS
from simulation.results import (
    LABELS,
    ClusterTimes,
    Collisions,
    Completion,
    Iterations,
    Latency,
    Parameters,
    Placed,
    Remedy,
    Row,
    Snapshot,
    Summary,
    Trained,
    TrainingTimes,
    Unfairness,
    figures_by_name,
    read_summary,
)

Rows = Sequence[Row[Completion]]

NOTES = ROOT / "docs" / "results-notes"
"""The prose of the sections: one file per experiment. It follows the tables, or surrounds them where a file
says `{tables}`."""
TABLES = "{tables}"


def change(a: float, b: float) -> str:
    """Return the change from `b` to `a` in per cent."""
    return f"{100.0 * (a / b - 1.0):+.1f} %"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


CLAIMS, PARENTHESES = "| paper | here |", "the paper's in parentheses"
"""What tells that tables have the paper's figures."""


def claims_table(claim: str, claims: list[list[str]]) -> str:
    """Return a table of claims, the paper's figures, and ours."""
    return table([claim, "paper", "here"], claims)


def _policies(rows: Sequence[Row[Any]]) -> list[str]:
    return list(dict.fromkeys(row.at.policy for row in rows))


def _by_policy(rows: Rows) -> dict[str, Completion]:
    return {row.at.policy: row.figures for row in rows}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# -- Parrot


def _parrot_jct(summary: Summary) -> str:
    text, claims = "", []
    rows = summary.rows(Completion)
    for speed in dict.fromkeys(row.at.gbps for row in rows):
        found = _by_policy([row for row in rows if row.at.gbps == speed])
        bound = next(iter(found.values())).lower_bound_s
        text += f"\nJob completion times (s) at {speed} Gbit/s. The lower bound of their total is {bound:.1f}"
        text += " s:\n\n"
        text += table(
            ["policy", "total JCT", "/ lower bound", "mean", "p99", "within 10 s"],
            [
                [
                    *(name, f"{each.total_jct_s:.1f}", f"{each.to_bound:.2f}"),
                    *(f"{each.mean_jct_s:.2f}", f"{each.p99_jct_s:.2f}", _percent(each.within_10_s)),
                ]
                for name, each in found.items()
            ],
        )
        for own in (name for name in ("parrot", "parrot-letter") if name in found):
            paper, here = f"at most {PAPER_TO_BOUND}", f"{found[own].to_bound:.2f}"
            claims.append([f"{own} / lower bound, {speed} Gbit/s", paper, here])
            for rival in (*LIKE_RIVALS, *PAPER_GAIN):
                if own == "parrot" and rival in found:
                    paper = f"up to -{paper_gain(rival)} %" if speed == PAPER_GBPS else "a smaller gain"
                    here = change(found[own].total_jct_s, found[rival].total_jct_s)
                    claims.append([f"{own} against {rival}, {speed} Gbit/s", paper, here])
        if speed == PAPER_GBPS:
            for name, percent in PAPER_WITHIN.items():
                shown = f"{name}-factor" if f"{name}-factor" in found else name
                if shown in found:
                    here = _percent(found[shown].within_10_s)
                    claims.append([f"jobs within 10 s, {shown}, {speed} Gbit/s", f"{percent} %", here])
        each = found.get("parrot")
        if each and each.competitive_ratio is not None and each.competitive_bound is not None:
            paper, here = f"at most {each.competitive_bound:.0f}", f"{each.competitive_ratio:.3f}"
            claims.append([f"parrot, competitive ratio (theorem 4), {speed} Gbit/s", paper, here])
    return text + "\n" + claims_table("claim", claims) if claims else text


def _unit(row: Row[Completion]) -> str:
    """Return the unit in which θ counts, for a policy that has a θ."""
    if row.at.policy not in PARROT_READINGS:
        return ""
    return "bytes" if row.at.bytes_per_unit == 1 else "MB"


def _readings(summary: Summary) -> str:
    text = ""
    points = summary.rows(Completion)
    for of, scale in dict.fromkeys((row.at.length_of, row.at.scale) for row in points):
        rows = [row for row in points if (row.at.length_of, row.at.scale) == (of, scale)]
        first, (cut, _, arrivals) = rows[0].figures, (scale or "").partition("/")
        text += f"\nLengths are read as sizes of {of}s. Iterations are divided by {cut}, arrival times by "
        text += f"{arrivals}. Alone in the network, the jobs take {first.lower_bound_s:.1f} s in total, and "
        text += f"{_percent(first.bound_within_10_s)} of them less than 10 s:\n\n"
        text += table(
            ["policy", "θ counts", "total JCT (s)", "/ lower bound", "within 10 s"],
            [
                [
                    row.at.policy,
                    _unit(row),
                    f"{row.figures.total_jct_s:.1f}",
                    f"{row.figures.to_bound:.2f}",
                    _percent(row.figures.within_10_s),
                ]
                for row in rows
            ],
        )
        total = {row.at.policy: row.figures.total_jct_s for row in rows if row.at.bytes_per_unit == 1}
        own = [policy for policy in PARROT_READINGS if policy in total]
        rivals = [policy for policy in total if policy not in own]
        text += "\nTotal JCT of each reading of Parrot (columns) against each reading of a rival (rows):\n\n"
        text += table(
            ["", *own],
            [[rival, *(change(total[one], total[rival]) for one in own)] for rival in rivals],
        )
    return text


def _scale(summary: Summary) -> str:
    """Return a table per speed with a row per scale: jobs within 10 s, and total JCT against rivals."""
    text, points = "", summary.rows(Completion)
    for speed in dict.fromkeys(row.at.gbps for row in points):
        rows = [row for row in points if row.at.gbps == speed]
        policies, cell = _policies(rows), {(row.at.policy, row.at.scale): row.figures for row in rows}
        rivals = [name for name in policies if name.partition("-")[0] in PAPER_GAIN]
        within = [name for name in policies if name != "lccf-wo-wc"]
        own = "parrot" in policies
        body = []
        for scale in dict.fromkeys(row.at.scale for row in rows):
            each = {name: cell[name, scale] for name in policies}
            first = each[policies[0]]
            row = [scale or "", _percent(first.bound_within_10_s)]
            row += [_percent(each[name].within_10_s) for name in within]
            if own:
                row.append(f"{each['parrot'].to_bound:.2f}")
                row += [change(each["parrot"].total_jct_s, each[rival].total_jct_s) for rival in rivals]
            body.append(row)
        text += f"\nAt {speed} Gbit/s: jobs within 10 s (%) alone in the network and under each policy"
        text += (
            ", and the total JCT of `parrot` over its lower bound and against rivals:\n\n" if own else ":\n\n"
        )
        head = [LABELS["scale"], "alone", *within]
        text += table(
            [*head, "parrot / lower bound", *(f"against {r}" for r in rivals)] if own else head, body
        )
    return text


def _sweep(varied: str, summary: Summary) -> str:
    """Return tables of total JCT with a row per value of `varied`, and of Parrot against the others."""
    text, points = "", summary.rows(Completion)
    for speed in dict.fromkeys(row.at.gbps for row in points):
        rows = [row for row in points if row.at.gbps == speed]
        policies = _policies(rows)
        cell = {(row.at.policy, getattr(row.at, varied)): row.figures.total_jct_s for row in rows}
        bound = {getattr(row.at, varied): row.figures.lower_bound_s for row in rows}
        text += f"\nTotal JCT (s) at {speed} Gbit/s:\n\n" + table(
            [LABELS[varied], *policies, "lower bound"],
            [
                [str(value), *(f"{cell[policy, value]:.1f}" for policy in policies), f"{least:.1f}"]
                for value, least in bound.items()
            ],
        )
        rivals = [rival for rival in (*PAPER_GAIN, *LIKE_RIVALS) if rival in policies]
        compared = []
        for own in (policy for policy in PARROT_READINGS if rivals and policy in policies):
            best = []
            for rival in rivals:
                at = min(bound, key=lambda value: cell[own, value] / cell[rival, value])
                best.append(f"{change(cell[own, at], cell[rival, at])} at {at}")
            ratios = [cell[own, value] / least for value, least in bound.items()]
            longer = [
                ", ".join(str(value) for value in bound if cell[own, value] > cell[rival, value]) or "none"
                for rival in rivals
                if rival.startswith("aalo")
            ]
            compared.append([own, *best, f"{min(ratios):.2f} to {max(ratios):.2f}", *longer])
        if compared:
            best_of = [f"best against {rival}" for rival in rivals]
            behind = [f"longer than {rival} at" for rival in rivals if rival.startswith("aalo")]
            head = ["policy", *best_of, "/ lower bound", *behind]
            text += "\n" + table(head, compared)
    return text


def _live(summary: Summary) -> str:
    """Return a table of mean JCT with a row per policy and a column per η."""
    points = summary.rows(Completion)
    etas = list(dict.fromkeys(row.at.eta_ms for row in points))
    cell = {(row.at.policy, row.at.eta_ms): row.figures.mean_jct_s for row in points}
    return "\nMean JCT (s), by observation interval η:\n\n" + table(
        ["policy", *(f"{eta} ms" for eta in etas)],
        [[policy, *(f"{cell[policy, eta]:.2f}" for eta in etas)] for policy in _policies(points)],
    )


# -- the slot scheduler

_PAPER_MEAN = {"mcs": "-33.6 %", "mcs-steps": "-33.6 %", "ccml": "-23.3 %", "ccml-equal": "-23.3 %"}
"""The change of mean JCT from each rival to the slot scheduler (figure 15a)."""


def _slots(summary: Summary) -> str:
    text, claims = "", []
    points = summary.rows(Completion)
    for domain in dict.fromkeys(row.at.domain for row in points):
        found = _by_policy([row for row in points if row.at.domain == domain])
        where = "anywhere" if domain == summary.settings.servers else "in one rack"
        text += f"\nEach job placed {where}:\n\n" + table(
            ["policy", "mean JCT (s)", "p99", "max", "mean / alone"],
            [
                [
                    *(name, f"{each.mean_jct_s:.1f}", f"{each.p99_jct_s:.1f}", f"{each.max_jct_s:.1f}"),
                    f"{each.to_bound:.2f}",
                ]
                for name, each in found.items()
            ],
        )
        for rival in (*_PAPER_MEAN, "fair", "slots-whole", "slots-drawn", "varys"):
            if "slots" in found and rival in found:
                here = change(found["slots"].mean_jct_s, found[rival].mean_jct_s)
                claims.append([f"slots against {rival}, {where}", _PAPER_MEAN.get(rival, ""), here])
    return text + "\n" + claims_table("claim (mean JCT)", claims) if claims else text


def _means(varied: str, summary: Summary) -> str:
    """Return a table of mean JCT with a row per value of `varied` and a column per policy."""
    points = summary.rows(Completion)
    cell = {(row.at.policy, getattr(row.at, varied)): row.figures for row in points}
    policies = _policies(points)
    rows = []
    for value in dict.fromkeys(getattr(row.at, varied) for row in points):
        means = [cell[policy, value].mean_jct_s for policy in policies]
        alone = cell[policies[0], value].mean_alone_s
        rows.append([str(value), *(f"{mean:.1f}" for mean in (alone, *means))])
    text = '\nMean JCT (s); "alone" is that of jobs alone in the network:\n\n'
    return text + table([LABELS[varied], "alone", *policies], rows)


def _against_fair(varied: str, unit: str, summary: Summary) -> str:
    """Return a table of mean JCT with a row per policy and a column per value of `varied`, and the changes
    from fair sharing; and the mean time in a queue, where there is one."""
    points = summary.rows(Completion)
    cell = {(row.at.policy, getattr(row.at, varied)): row.figures for row in points}
    values = list(dict.fromkeys(getattr(row.at, varied) for row in points))
    alone = {getattr(row.at, varied): row.figures.mean_alone_s for row in points}
    rows = [["alone in the network", *(f"{alone[value]:.2f}" for value in values)]]
    for policy in _policies(points):
        shown = []
        for value in values:
            mine, fair = cell[policy, value], cell.get(("fair", value))
            gain = f" ({_change_by_draw(fair, mine).percent()})" if fair and policy != "fair" else ""
            shown.append(f"{mine.mean_jct_s:.2f}{gain}")
        rows.append([policy, *shown])
    head = ["policy", *(f"{value} {unit}" for value in values)]
    text = "\nMean JCT (s), and the change from fair sharing with its 95 % interval over draws:\n\n"
    text += table(head, rows)
    if any(each.mean_queued_s for each in cell.values()):
        body = [
            [policy, *(f"{cell[policy, value].mean_queued_s:.1f}" for value in values)]
            for policy in _policies(points)
        ]
        text += "\nOf that, mean time in the queue (s):\n\n" + table(head, body)
    claims = [
        [
            f"slots against max-min sharing, {value} {unit}",
            *summary.paper.values(),
            _change_by_draw(cell["fair", value], cell["slots", value]).percent(),
        ]
        for value in values
        if summary.paper and ("fair", value) in cell and ("slots", value) in cell
    ]
    return text + ("\n" + claims_table("claim (mean JCT)", claims) if claims else "")


def _change_by_draw(first: Completion, second: Completion) -> Interval:
    """Return the change of mean JCT as a fraction; draws are the same in both."""
    means = ((each.draws_jct_s or (each.mean_jct_s,)) for each in (first, second))
    before, after = (dict(enumerate(each)) for each in means)
    return relative(before, after)


def _latency(summary: Summary) -> str:
    rows = [
        [
            *(str(row.at.flows), str(row.at.horizon)),
            *(f"{row.figures.decision.mean_us:.1f}", f"{row.figures.decision.p90_us:.1f}"),
            f"{row.figures.decision.p99_us:.1f}",
        ]
        for row in summary.rows(Latency)
    ]
    text = (
        "\nTime (µs) in which a host decides for all of its flows. In the paper, 90 % take at most 1,500:\n\n"
    )
    return text + table([LABELS["flows"], LABELS["horizon"], "mean", "p90", "p99"], rows)


# -- others


def _fb2010(summary: Summary) -> str:
    rows = [
        [
            *(row.at.policy, f"{row.figures.mean_cct_s:.2f}", f"{row.figures.p95_cct_s:.2f}"),
            *(f"{row.figures.total_jct_s:.0f}", str(row.figures.events)),
        ]
        for row in summary.rows(Completion)
    ]
    drawn = "" if summary.settings.trace else "\nThe coflows are drawn from the trace's distributions.\n"
    head = ["policy", "mean CCT (s)", "p95 CCT (s)", "total CCT (s)", "simulated events"]
    return drawn + "\n" + table(head, rows)


def _two_jobs(summary: Summary) -> str:
    """Return a table with a row per point, and what MLTCP gains where jobs fit."""
    points = summary.rows(Iterations)
    rows = [
        [
            *(f"{row.at.sending_percent} %", row.at.model or "", row.at.policy),
            "never" if row.figures.settled_after is None else str(row.figures.settled_after),
            *(f"{row.figures.mean_iteration_s:.4g}", f"{row.figures.p99_iteration_s:.4g}"),
            *(f"{row.figures.max_iteration_s:.4g}", f"{row.figures.best_iteration_s:.4g}"),
            f"{row.figures.mean_to_best:.4g}",
            "-" if row.figures.lost_or_marked is None else f"{100 * row.figures.lost_or_marked:.2f} %",
        ]
        for row in points
    ]
    text = "\nIteration times (s) of both jobs. A job sends during the given part of its period:\n\n"
    text += table(
        [
            *("sends", "model", "policy", "settles after (iterations)"),
            *("mean", "p99", "max", "best possible", "mean / best", "lost or marked"),
        ],
        rows,
    )
    return text + _mltcp_gains(points)


def _mltcp_gains(points: Sequence[Row[Iterations]]) -> str:
    """Return what MLTCP gains where jobs fit, over the models that have a congestion control; empty without
    these points."""
    found = {
        (row.at.model, row.at.policy): row.figures
        for row in points
        if row.at.model != "fluid" and (row.at.sending_percent or 100) < 50
    }
    pairs = [
        (found[model, "fair"], ours)
        for (model, policy), ours in found.items()
        if policy == "mltcp" and (model, "fair") in found
    ]
    if not pairs:
        return ""

    def span(gain: Callable[[Iterations, Iterations], float]) -> str:
        gains = [gain(plain, ours) for plain, ours in pairs]
        return f"{min(gains):.2f} to {max(gains):.2f}"

    after = sorted(each.settled_after for _, each in pairs if each.settled_after is not None)
    settled = f"{after[0]} to {after[-1]} (in {len(after)} of {len(pairs)} models)" if after else "never"
    claims = [
        ["iterations until interleaved", "about 30", settled],
        [
            "mean iteration time, plain / MLTCP",
            "up to 1.9",
            span(lambda plain, ours: plain.mean_iteration_s / ours.mean_iteration_s),
        ],
        [
            "99th percentile, plain / MLTCP",
            "up to 2.7",
            span(lambda plain, ours: plain.p99_iteration_s / ours.p99_iteration_s),
        ],
        [
            "lost or marked segments, plain / MLTCP",
            "up to 28.87",
            span(
                lambda plain, ours: (
                    (plain.lost_or_marked or 0.0) / ours.lost_or_marked if ours.lost_or_marked else math.inf
                )
            ),
        ],
    ]
    return "\n" + claims_table("claim, where jobs fit", claims)


def _unfairness(summary: Summary) -> str:
    """Return a table with a row per job: what the group scores, and what unfairness gains in each model."""
    points = summary.rows(Unfairness)
    cell = {(row.at.group or "", row.at.model or "", row.at.policy): row.figures for row in points}
    models = list(dict.fromkeys(model for _, model, _ in cell))
    rows = []
    for group in dict.fromkeys(group for group, _, _ in cell):
        if any((group, model, policy) not in cell for model in models for policy in ("fair", "unfair")):
            continue
        for n, job in enumerate(GROUPS[group]):
            row = [group if n == 0 else "", job.model]
            row.append(f"{cell[group, models[0], 'fair'].score:.2f}" if n == 0 else "")
            for model in models:
                fair, unfair = (
                    1e3 * cell[group, model, policy].iterations_s[n] for policy in ("fair", "unfair")
                )
                row += [f"{fair:.0f}", f"{unfair:.0f}", f"{fair / unfair:.2f}"]
            paper = job.fair_ms and job.unfair_ms and f"{job.fair_ms / job.unfair_ms:.2f}"
            rows.append([*row, paper or ""])
    figures = [f"{model}: {word}" for model in models for word in ("fair (ms)", "unfair (ms)", "gain")]
    return "\n" + table(["group", "job", "score", *figures, "paper: gain"], rows)


def _timeline(summary: Summary) -> str:
    """Return a table of the two jobs' rates in the first iteration and of their iterations."""
    rows = [
        [
            *(row.at.model or "", row.at.policy),
            " and ".join(f"{rate:.1f}" for rate in row.figures.first_gbit_s),
            " and ".join(f"{1e3 * mean:.0f}" for mean in row.figures.iterations_s),
            f"{1e3 * row.figures.p99_iteration_s:.0f}",
            " and ".join(f"{each:.3f}" for each in row.figures.to_alone),
            f"{row.figures.marks_per_iteration:.0f}",
        ]
        for row in summary.rows(Unfairness)
    ]
    head = ["model", "sharing", "first rates (Gbit/s)", "mean iteration (ms)", "p99 (ms)", "mean / alone"]
    return "\n" + table([*head, "marks per iteration"], rows)


def _matrix(summary: Summary) -> str:
    """Return a table per load: routings by policies."""
    text = ""
    points = summary.rows(Remedy)
    for load in dict.fromkeys(row.at.sending_percent for row in points):
        rows = [row for row in points if row.at.sending_percent == load]
        text += f"\nJobs that send {load} % of an iteration when alone:\n\n"
        text += table(
            [
                *("routing", "score", "jobs on a link", "policy", "mean / alone", "p99 / alone"),
                *("slowest job / alone", "JCT / alone", "marks per iteration"),
            ],
            [
                [
                    *(row.at.routing or "", f"{row.figures.score:.2f}", str(row.figures.jobs_on_a_link)),
                    *(row.at.policy, f"{row.figures.mean_to_alone:.3f}", f"{row.figures.p99_to_alone:.3f}"),
                    *(f"{row.figures.slowest_to_alone:.3f}", f"{row.figures.jct_to_alone:.3f}"),
                    f"{row.figures.marks_per_iteration:.0f}",
                ]
                for row in rows
            ],
        )
    return text


def _trained(summary: Summary) -> str:
    """Return a table with a row per workload, and the mean over them."""
    found = [row.figures for row in summary.rows(Trained)]
    rows = [
        [
            str(row.at.workload),
            *(f"{each:.0f}" for each in (row.figures.mean_jct_s, row.figures.p99_jct_s)),
            f"{row.figures.makespan_s / 3600:.1f}",
            *(f"{row.figures.mean_restarts:.1f}", f"{row.figures.mean_waiting_s:.0f}"),
            *_beside(row.figures.mean_jct_s, row.figures.published_jct_s),
        ]
        for row in summary.rows(Trained)
    ]
    published = [each.published_jct_s for each in found if each.published_jct_s is not None]
    means = [
        f"{sum(values) / len(found):{form}}"
        for form, values in (
            (".0f", [each.mean_jct_s for each in found]),
            (".0f", [each.p99_jct_s for each in found]),
            (".1f", [each.makespan_s / 3600 for each in found]),
            (".1f", [each.mean_restarts for each in found]),
            (".0f", [each.mean_waiting_s for each in found]),
        )
    ]
    mean = sum(each.mean_jct_s for each in found) / len(found)
    theirs = sum(published) / len(found) if len(published) == len(found) else None
    rows.append(["mean", *means, *_beside(mean, theirs)])
    head = ["workload", "mean JCT (s)", "p99 JCT (s)", "last job ends (h)", "restarts per job"]
    return "\n" + table([*head, "waits per job (s)", "published mean JCT (s)", "difference"], rows)


def _beside(ours: float, theirs: float | None) -> tuple[str, str]:
    return ("", "") if theirs is None else (f"{theirs:.0f}", f"{100 * (ours / theirs - 1):+.1f} %")


def _training(summary: Summary) -> str:
    """Return a table per trace, and one of what Cassini gains beside the paper's."""
    text, claims = "", []
    traces: dict[tuple[Any, ...], dict[str, TrainingTimes]] = {}
    for row in summary.rows(TrainingTimes):
        at = row.at
        trace = (at.arrivals, at.models, at.gpus_per_server, at.load_percent)
        traces.setdefault(trace, {})[at.policy] = row.figures
    for (arrivals, models, per_server, load), found in traces.items():
        title = f"{arrivals}, {models} models"
        title += f", load {load} %" if arrivals == "poisson" else ""
        title += f", {per_server} GPUs per server" if per_server != 1 else ""
        text += f"\nTrace: {title}:\n\n"
        head = ["policy", "mean iteration (ms)", "p99 (ms)", "/ alone, mean", "p99", "marks per iteration"]
        counted = any(each.placed is not None for each in found.values())
        places = ["placements of jobs", "share a link", "paced", "shifted"] if counted else []
        text += table(
            [*head, "mean JCT (s)", "moves", *places, "score", "adjustments per minute", "waits"],
            [
                [
                    *(name, f"{1e3 * each.mean_iteration_s:.0f}", f"{1e3 * each.p99_iteration_s:.0f}"),
                    *(f"{each.mean_to_alone:.2f}", f"{each.p99_to_alone:.2f}"),
                    *(f"{each.marks_per_iteration:.0f}", f"{each.mean_jct_s:.0f}", str(each.restarts)),
                    *(_placed(each.placed) if counted else ()),
                    "" if each.score is None else f"{each.score:.2f}",
                    f"{each.adjustments_per_minute:.1f}" if name.endswith(WITH) else "",
                    f"{100 * each.waited:.1f} %" if name.endswith(WITH) else "",
                ]
                for name, each in found.items()
            ],
        )
        if arrivals == "dynamic" and per_server == 1:
            text += f"\nBy model, {title}:\n\n" + _by_model(found)
        for name in found:
            if f"{name}{WITH}" not in found:
                continue
            own, other = found[f"{name}{WITH}"], found[name]
            paper = PAPER_GAINS.get((arrivals, models, per_server), {}).get(name)
            here = (
                other.mean_iteration_s / own.mean_iteration_s,
                other.p99_iteration_s / own.p99_iteration_s,
                other.mean_to_alone / own.mean_to_alone,
            )
            means = [f"{each:.2f}x" for each in here]
            papers = [f"{each}x" for each in paper] if paper else ["", ""]
            claim = f"{name} over {name}{WITH}, {title}"
            for what, value, its in zip(("mean", "p99", "mean / alone"), (*papers, ""), means, strict=True):
                claims.append([f"{claim}: {what}", value, its])
            if arrivals == "dynamic" and models == "mixed" and per_server == 1:
                marks = [
                    next(each.marks_per_iteration for each in of.by_model if each.model == "DLRM")
                    for of in (other, own)
                ]
                claims.append([f"{claim}: marks of DLRM", f"{PAPER_MARKS[name]}x", _times(*marks)])
    return text + ("\n" + table(["claim", "paper", "here"], claims) if claims else "")


def _placed(placed: Placed | None) -> tuple[str, ...]:
    if placed is None:
        return ("",) * 4
    return tuple(map(str, (placed.jobs, placed.sharing, placed.paced, placed.shifted)))


def _by_model(found: Mapping[str, TrainingTimes]) -> str:
    """Return a table with a row per model: times over alone, and marks, under each policy."""
    models = dict.fromkeys(each.model for figures in found.values() for each in figures.by_model)
    rows = []
    for model in models:
        mine = [next((each for each in of.by_model if each.model == model), None) for of in found.values()]
        rows.append(
            [
                model,
                *("" if each is None else f"{each.to_alone:.2f}" for each in mine),
                *("" if each is None else f"{each.marks_per_iteration:.0f}" for each in mine),
            ]
        )
    head = [f"{what}, {name}" for what in ("mean / alone", "marks") for name in found]
    return table(["model", *head], rows)


def _times(a: float, b: float) -> str:
    return f"{a / b:.2f}x" if b else "no marks with Cassini"


def _snapshots(summary: Summary) -> str:
    """Return two tables with a row per job: its communication time under each policy, and the paper's gain;
    its iteration time, and what keeping to the shifts takes."""
    cell = {(row.at.group or "", row.at.policy): row.figures for row in summary.rows(Snapshot)}
    policies = ("ideal", "themis", f"themis{WITH}")
    rows, iterations = [], []
    for group, paper in TABLE_4_3.items():
        if any((group, policy) not in cell for policy in policies):
            continue
        found = [cell[group, policy] for policy in policies]
        for n, (with_ms, without_ms) in enumerate(paper):
            times = [1e3 * each.communication_s[n] for each in found]
            row = [group if n == 0 else "", f"{n + 1}", f"{found[0].score:.2f}" if n == 0 else ""]
            row += [f"{each:.0f}" for each in times] + [f"{times[1] / times[2]:.2f}x"]
            row += [str(without_ms), str(with_ms), f"{without_ms / with_ms:.2f}x"]
            row += [f"{each.marks_per_iteration:.0f}" if n == 0 else "" for each in found[1:]]
            rows.append(row)
            seconds = [each.iterations_s[n] for each in found]
            row = [group if n == 0 else "", f"{n + 1}", *(f"{1e3 * each:.0f}" for each in seconds)]
            row += [f"{seconds[1] / seconds[2]:.2f}x"]
            row += [str(found[2].adjustments), f"{100 * found[2].waited:.1f} %"] if n == 0 else ["", ""]
            iterations.append(row)
    head = ["snapshot", "job", "score", "alone (ms)", "themis (ms)", f"themis{WITH} (ms)", "gain"]
    head += ["paper: themis", "paper: with Cassini", "paper: gain", "marks, themis", f"marks, themis{WITH}"]
    text = "\nCommunication:\n\n" + table(head, rows)
    head = [
        "snapshot",
        "job",
        "alone (ms)",
        "themis (ms)",
        f"themis{WITH} (ms)",
        "gain",
        "adjustments",
        "waits",
    ]
    return text + "\nIterations, with the time that jobs wait for their pace:\n\n" + table(head, iterations)


# -- vClos

_COLUMNS = ("ocs-vclos", "vclos", "best", "source", "balanced-ecmp", "ecmp", "ocs-relaxed")
_TABLE_5 = {
    100: (7800.5, 9799.6, 7514.3, 10083.5, 12267.1, 35032.9, 24313.3),
    110: (6368.0, 6981.5, 6131.8, 7449.6, 8622.5, 25055.6, 13768.4),
    120: (5229.9, 5550.6, 5053.0, 6228.6, 7105.4, 23545.4, 11291.4),
    130: (4491.5, 4710.4, 4340.7, 4955.6, 5436.9, 13118.7, 7586.6),
    140: (4025.4, 4105.1, 3986.5, 4209.3, 4764.5, 11395.6, 5917.9),
}
_TABLE_6: dict[str, Sequence[float | None]] = {
    "fifo": _TABLE_5[120][:6],
    "edf": (None, 4401.4, 4176.5, 4685.5, 5020.9, 7658.6),
    "fewest-gpus": (4081.6, 4137.2, 4029.9, 4250.5, 4607.8, 6667.6),
}
_TABLE_2: dict[Any, dict[str, tuple[int, int]]] = {
    100: {"vclos": (1311, 264), "ocs-vclos": (1180, 172)},
    110: {"vclos": (988, 250), "ocs-vclos": (1047, 161)},
    120: {"vclos": (878, 218), "ocs-vclos": (920, 129)},
    130: {"vclos": (726, 145), "ocs-vclos": (705, 98)},
}
"""The paper's tables: mean JCT (s) of the strategies in `_COLUMNS`, and failed attempts for want of GPUs and
of links."""
_CLAIMS = {
    "vclos-512": (
        ("mean_jrt_s", "ocs-vclos", "source", "-3.1 %"),
        ("mean_jrt_s", "ocs-vclos", "balanced-ecmp", "-6.17 %"),
        ("mean_jwt_s", "ocs-vclos", "source", "-65.65 %"),
        ("mean_jwt_s", "ocs-vclos", "vclos", "-20.35 %"),
        ("mean_jct_s", "ocs-vclos", "best", "+3.38 %"),
    ),
    "vclos-2048": (
        ("mean_jrt_s", "ocs-vclos", "source", "-1.59 %"),
        ("mean_jwt_s", "ocs-vclos", "source", "-64.91 %"),
        ("mean_jwt_s", "vclos", "ocs-vclos", "+12.06 %"),
    ),
    "vclos-testbed": (
        ("mean_jrt_s", "vclos", "source", change(74.72, 76.92)),
        ("mean_jrt_s", "vclos", "recmp", change(74.72, 86.23)),
        ("mean_jrt_s", "vclos", "ecmp", change(74.72, 95.12)),
        ("mean_jwt_s", "vclos", "source", change(45.56, 50.19)),
        ("mean_jwt_s", "vclos", "recmp", change(45.56, 60.73)),
        ("mean_jwt_s", "vclos", "ecmp", change(45.56, 72.64)),
    ),
    "vclos-tpu": (
        ("mean_jwt_s", "vclos", "ocs-vclos", change(8102.8, 8101.9)),
        ("mean_jwt_s", "source", "ocs-vclos", change(8115.7, 8101.9)),
        ("mean_jwt_s", "balanced-ecmp", "ocs-vclos", change(8160.2, 8101.9)),
        ("mean_jwt_s", "ecmp", "ocs-vclos", change(17839.8, 8101.9)),
        ("mean_jct_s", "vclos", "ocs-vclos", change(11958.9, 11958.1)),
        ("mean_jct_s", "source", "ocs-vclos", change(11973.7, 11958.1)),
        ("mean_jct_s", "balanced-ecmp", "ocs-vclos", change(12021.8, 11958.1)),
        ("mean_jct_s", "ecmp", "ocs-vclos", change(22808.7, 11958.1)),
    ),
}
"""By experiment: the figure, the strategy, the other that it is compared with, and the paper's change."""


def _strategies(summary: Summary) -> str:
    """Return the times under each strategy, and the paper's comparisons."""
    rows = summary.rows(ClusterTimes)
    found = {row.at.policy: row.figures for row in rows}
    text = f"\n{_cluster_text(rows[0].at)}. Without waiting, the jobs would use "
    text += f"{_percent(rows[0].figures.offered_load)} of the GPUs. Times are in s.\n{_WORDS}{_STABILITY}\n"
    text += table(
        [
            *("strategy", "mean JRT", "mean JWT", "mean JCT", "p99 JCT", "mean slowdown", "p99", "stability"),
            *("failed: GPUs", "failed: links"),
        ],
        [
            [
                *(name, f"{each.mean_jrt_s:.1f}", f"{each.mean_jwt_s:.1f}", f"{each.mean_jct_s:.1f}"),
                *(f"{each.p99_jct_s:.0f}", f"{each.mean_slowdown:.3f}", f"{each.p99_slowdown:.2f}"),
                *(f"{each.stability_s:.0f}", str(each.fragmentation_gpu), str(each.fragmentation_network)),
            ]
            for name, each in found.items()
        ],
    )
    claims = [
        [
            f"{what[5:8].upper()}, {one} against {other}",
            paper,
            change(getattr(found[one], what), getattr(found[other], what)),
        ]
        for what, one, other, paper in _CLAIMS.get(summary.experiment, ())
        if one in found and other in found and getattr(found[other], what)
    ]
    return text + "\n" + claims_table("claim (means)", claims) if claims else text


_WORDS = """
Slowdown is running time over that with links of its own. The last two columns count attempts to place a job
that failed: too few GPUs were free, or GPUs sufficed and no free links joined them.
"""
_STABILITY = """Stability is how much the JCT of jobs of one size differs (mean standard deviation, s).
"""


def _cluster_text(at: Parameters, varied: Sequence[str] = ()) -> str:
    parts = {"gpus_per_server": f"T = {at.gpus_per_server}", "spines": f"{at.spines} spines"}
    words = [f"{at.gpus} GPUs", *(text for name, text in parts.items() if name not in varied)]
    return ", ".join([*words, f"λ = {at.gap_s} s"] if "sizes" not in varied else words)


def _compared(varied: str, paper: Mapping[Any, Sequence[float | None]], summary: Summary) -> str:
    """Return mean JCT with a row per value of `varied`, the paper's in parentheses."""
    rows = summary.rows(ClusterTimes)
    cell = {(row.at.policy, getattr(row.at, varied)): row.figures.mean_jct_s for row in rows}
    policies = _policies(rows)
    body = []
    for value in dict.fromkeys(getattr(row.at, varied) for row in rows):
        theirs = zip(_COLUMNS, paper.get(value, ()), strict=False)
        told = {name: f" ({mean:.0f})" for name, mean in theirs if mean}
        body.append([str(value), *(f"{cell[name, value]:.0f}{told.get(name, '')}" for name in policies)])
    return f"\nMean JCT (s), {PARENTHESES}:\n\n" + table([LABELS[varied], *policies], body)


def _load(summary: Summary) -> str:
    text = _compared("gap_s", _TABLE_5, summary)
    rows = [row for row in summary.rows(ClusterTimes) if row.at.policy in ("vclos", "ocs-vclos")]
    body = []
    for row in rows:
        theirs = _TABLE_2.get(row.at.gap_s, {}).get(row.at.policy)
        gpu, network = row.figures.fragmentation_gpu, row.figures.fragmentation_network
        body.append(
            [
                *(str(row.at.gap_s), row.at.policy, _percent(row.figures.offered_load)),
                f"{gpu}" + (f" ({theirs[0]})" if theirs else ""),
                f"{network}" + (f" ({theirs[1]})" if theirs else ""),
            ]
        )
    text += "\nAttempts to place a job that failed, for want of GPUs or of links (the paper's):\n\n"
    return text + table([LABELS["gap_s"], "strategy", "offered load", "GPUs", "links"], body)


def _by_cluster(summary: Summary) -> str:
    """Return the times with a row per strategy and value of what else varies."""
    rows = summary.rows(ClusterTimes)
    varied = summary.varied(("communication", "sizes", "gpus_per_server", "spines", "sharing"))
    return f"\n{_cluster_text(rows[0].at, varied)}. Times are in s.\n{_WORDS}\n" + table(
        [
            *(LABELS[name] for name in varied),
            *(
                "strategy",
                "mean JRT",
                "mean JWT",
                "mean JCT",
                "mean slowdown",
                "failed: GPUs",
                "failed: links",
            ),
        ],
        [
            [
                *("drawn" if (it := getattr(row.at, name)) is None else str(it) for name in varied),
                *(row.at.policy, f"{row.figures.mean_jrt_s:.1f}", f"{row.figures.mean_jwt_s:.1f}"),
                *(f"{row.figures.mean_jct_s:.1f}", f"{row.figures.mean_slowdown:.3f}"),
                *(str(row.figures.fragmentation_gpu), str(row.figures.fragmentation_network)),
            ]
            for row in rows
        ],
    )


def _communication(summary: Summary) -> str:
    """Return mean JCT and slowdown by strategy, with a row per part of the time that jobs communicate."""
    rows = summary.rows(ClusterTimes)
    cell = {(row.at.policy, row.at.communication): row.figures for row in rows}
    policies, parts = _policies(rows), list(dict.fromkeys(row.at.communication for row in rows))
    text = f"\n{_cluster_text(rows[0].at)}.\n"
    for name, figure, digits in (
        ("Mean JCT (s)", "mean_jct_s", 0),
        ("Mean running time over that with links of one's own", "mean_slowdown", 3),
    ):
        body = [
            [str(part), *(f"{getattr(cell[policy, part], figure):.{digits}f}" for policy in policies)]
            for part in parts
        ]
        text += f"\n{name}:\n\n" + table([LABELS["communication"], *policies], body)
    return text


def _hash(summary: Summary) -> str:
    rows = summary.rows(Collisions)
    return "\nPart of the flows (%) whose most used link has so many flows:\n\n" + table(
        ["GPUs", "GPUs per leaf", "routing", *map(str, range(1, 9)), "more", "mean"],
        [
            [
                *(str(row.at.gpus), str(row.at.gpus_per_leaf), row.at.policy),
                *(f"{100 * part:.1f}" for part in row.figures.flows),
                f"{row.figures.mean_flows:.2f}",
            ]
            for row in rows
        ],
    )


def _plain(summary: Summary) -> str:
    """Return a table of all points: the parameters that vary, and the figures."""
    points = [(row.at.given(), figures_by_name(row.figures)) for row in summary.points]
    varied = summary.varied()
    names = [name for name, value in points[0][1].items() if not isinstance(value, dict)]
    rows = [
        [
            *(str(at[name]) for name in varied),
            *(_shown(figures[name]) for name in names),
        ]
        for at, figures in points
    ]
    return "\n" + table([*(LABELS.get(name, name) for name in varied), *names], rows)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


SECTIONS: dict[str, Callable[[Summary], str]] = {
    "parrot-jct": _parrot_jct,
    "parrot-readings": _readings,
    "parrot-scale": _scale,
    "parrot-eta": partial(_sweep, "eta_ms"),
    "parrot-theta": partial(_sweep, "theta_max"),
    "parrot-load": partial(_sweep, "gap_ms"),
    "parrot-ps": partial(_sweep, "delta"),
    "parrot-live": _live,
    "slots-jct": _slots,
    "slots-models": partial(_means, "models"),
    "slots-tau": partial(_means, "slot_ms"),
    "slots-bound": partial(_against_fair, "gbps", "Gbit/s"),
    "slots-load": partial(_against_fair, "load_percent", "% load"),
    "slots-latency": _latency,
    "coflow-fb2010": _fb2010,
    "mltcp-two-jobs": _two_jobs,
    "cassini-unfairness": _unfairness,
    "cassini-timeline": _timeline,
    "matrix": _matrix,
    "pollux-jct": _trained,
    "cassini-snapshots": _snapshots,
    "cassini-themis": _training,
    "cassini-pollux": _training,
    "vclos-512": _strategies,
    "vclos-2048": _strategies,
    "vclos-load": _load,
    "vclos-order": partial(_compared, "order", _TABLE_6),
    "vclos-tpu": _strategies,
    "vclos-testbed": _strategies,
    "vclos-hash": _hash,
    "vclos-shape": _by_cluster,
    "vclos-share": _by_cluster,
    "vclos-communication": _communication,
    "vclos-sizes": _by_cluster,
}


NAMES = (*SECTIONS, *(name for name in EXPERIMENTS if name not in SECTIONS))
"""All experiments, in the order of their sections."""


def _options(summary: Summary) -> str:
    """Return the options that reproduce `summary`."""
    options = f"--seed {summary.seed}"
    trace = Path(summary.settings.trace or "").name
    included = EXPERIMENTS[summary.experiment].trace
    if trace and not (included and included.path and included.path.name == trace):
        options += f" --trace {trace}"
    return options + (f" --limit {summary.limit}" if summary.limit else "")


def _settings(summary: Summary) -> str:
    """Return the workload's settings in words; they are not the user's to choose."""
    held, words = summary.settings, []
    if held.iteration_scale is not None and held.arrival_scale is not None:
        words.append(
            f"iterations divided by {held.iteration_scale:g}, arrival times by {held.arrival_scale:g}"
        )
    if held.servers is not None:
        words.append(f"{held.servers:,} servers")
    if held.jobs is not None:
        words.append(f"{summary.limit or held.jobs:,} jobs")
    if held.tenants is not None:
        words.append(f"{summary.limit or held.tenants:,} jobs")
    if held.nic_gbps is not None:
        words.append(f"NICs of {held.nic_gbps:g} Gbit/s, {held.server_gbps:g} within a server")
    if held.draws is not None:
        words.append(f"{held.draws} draws")
    if held.window_s is not None:
        words.append(f"arrivals within {held.window_s:g} s")
    return f": {', '.join(words)}" if words else ""


def sections(directories: Iterable[Path]) -> dict[str, str]:
    """Return, by title, the section of each experiment with summaries in `directories` or one level below.

    Raises BadInput if a summary cannot be read.
    """
    patterns = ("summary.json", "*/summary.json")
    paths = {path for each in directories for pattern in patterns for path in each.glob(pattern)}
    summaries = [read_summary(path) for path in sorted(paths)]
    found = {}
    for name in NAMES:
        here = [summary for summary in summaries if summary.experiment == name]
        if not here:
            continue
        title, text = EXPERIMENTS[name].title, ""
        for summary in here:
            text += f"\n`entrain simulate {name} {_options(summary)}`{_settings(summary)}\n"
            text += SECTIONS.get(name, _plain)(summary)
            text += f"\nComputed: {listed([summary.origin])}.\n"
        if here[0].paper and not any(shown in text for shown in (CLAIMS, PARENTHESES)):
            text += "\nThe paper reports: " + "; ".join(f"{k}: {v}" for k, v in here[0].paper.items()) + ".\n"
        path = NOTES / f"{name}.md"
        note = path.read_text(encoding="utf-8") if path.is_file() else ""
        lead, _, rest = note.rpartition(f"{TABLES}\n")
        parts = (f"## {title}", lead, text, rest)
        found[title] = "\n" + "\n".join(part.strip("\n") + "\n" for part in parts if part)
    return found
