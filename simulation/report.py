"""Write the simulator's sections of docs/results.md from the experiments' summaries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from simulation.experiments.parrot import PARROT_READINGS, RIVAL_READINGS
from simulation.experiments.registry import EXPERIMENTS
from simulation.experiments.unfairness import GROUPS

Summary = dict[str, Any]


def change(a: float, b: float) -> str:
    """Return the change from `b` to `a` in per cent."""
    return f"{100.0 * (a / b - 1.0):+.1f} %"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def _by_policy(rows: list[Summary]) -> dict[str, Summary]:
    return {row["policy"]: row for row in rows}


def _parrot_jct(summary: Summary) -> str:
    text, claims = "", []
    for speed in ("10", "40"):
        rows = _by_policy([p for p in summary["points"] if str(p["gbps"]) == speed])
        bound = rows["parrot"]["lower_bound_s"]
        text += f"\n{speed} Gbit/s (total JCT in s; lower bound {bound:.1f} s):\n\n"
        text += table(
            ["policy", "total JCT", "/ lower bound", "mean", "p99", "within 10 s"],
            [
                [
                    n,
                    f"{r['total_jct_s']:.1f}",
                    f"{r['total_jct_s'] / r['lower_bound_s']:.2f}",
                    f"{r['mean_jct_s']:.2f}",
                    f"{r['p99_jct_s']:.2f}",
                    f"{100 * r['within_10_s']:.1f} %",
                ]
                for n, r in rows.items()
            ],
        )
        for own in PARROT_READINGS:
            total = rows[own]["total_jct_s"]
            for rival, paper in (("aalo", "up to -58.4 %"), ("lccf", "up to -91.3 %")):
                ours = change(total, rows[rival]["total_jct_s"])
                claims.append(
                    [f"{own} against {rival}, {speed} Gbit/s", paper if speed == "10" else "less", ours]
                )
            claims.append([f"{own} / lower bound, {speed} Gbit/s", "at most 2.75", f"{total / bound:.2f}"])
        found, limit = rows["parrot"]["competitive_ratio"], rows["parrot"]["competitive_bound"]
        claims.append([f"theorem 4, {speed} Gbit/s", f"at most {limit:.0f}", f"{found:.3f}"])
    return text + "\n" + table(["claim", "paper", "ours"], claims)


def _readings(summary: Summary) -> str:
    text = ""
    for of in dict.fromkeys(p["length_of"] for p in summary["points"]):
        rows = [p for p in summary["points"] if p["length_of"] == of]
        text += f"\nA length is that of a {of}, iterations / arrivals are divided by {rows[0]['scale']}; "
        text += "lower bound "
        text += (
            f"{rows[0]['lower_bound_s']:.1f} s, within 10 s {100 * rows[0]['bound_within_10_s']:.1f} %:\n\n"
        )
        text += table(
            ["policy", "θ counts", "total JCT (s)", "/ lower bound", "within 10 s"],
            [
                [
                    p["policy"],
                    "MB" if p["bytes_per_unit"] < 1 else "bytes" if p["policy"] in PARROT_READINGS else "",
                    f"{p['total_jct_s']:.1f}",
                    f"{p['total_jct_s'] / p['lower_bound_s']:.2f}",
                    f"{100 * p['within_10_s']:.1f} %",
                ]
                for p in rows
            ],
        )
        total = {p["policy"]: p["total_jct_s"] for p in rows if p["bytes_per_unit"] == 1}
        own = [p for p in PARROT_READINGS if p in total]
        rivals = [p for p in RIVAL_READINGS if p in total]
        text += "\n" + table(
            ["against", *own],
            [[rival, *(change(total[one], total[rival]) for one in own)] for rival in rivals],
        )
    return text


def _scale(summary: Summary) -> str:
    cell = {(p["policy"], p["scale"]): p for p in summary["points"]}
    policies = list(dict.fromkeys(p["policy"] for p in summary["points"]))
    rows = [
        [scale, f"{cell[policies[0], scale]['lower_bound_s']:.0f}"]
        + [f"{100 * cell[p, scale]['within_10_s']:.1f}" for p in policies]
        for scale in dict.fromkeys(p["scale"] for p in summary["points"])
    ]
    head = ["iterations / arrivals divided by", "lower bound (s)", *(f"{p}, % within 10 s" for p in policies)]
    return "\n" + table(head, rows)


def _sweep(summary: Summary, key: str) -> str:
    text = ""
    for speed in (10, 40):
        rows = [p for p in summary["points"] if p["gbps"] == speed]
        policies = list(dict.fromkeys(p["policy"] for p in rows))
        values = list(dict.fromkeys(p[key] for p in rows))
        cell = {(p["policy"], p[key]): p["total_jct_s"] for p in rows}
        bound = {p[key]: p["lower_bound_s"] for p in rows}
        head = [f"{key} at {speed} Gbit/s", *policies, "lower bound"]
        body = [[str(v), *(f"{cell[p, v]:.1f}" for p in policies), f"{bound[v]:.1f}"] for v in values]
        text += "\n" + table(head, body)
        if "aalo" in policies:
            for ours in PARROT_READINGS:
                for rival in ("aalo", "lccf"):
                    v = min(values, key=lambda v: cell[ours, v] / cell[rival, v])
                    best = change(cell[ours, v], cell[rival, v])
                    text += f"\n{ours} against {rival} at best: {best} ({key} {v})."
                ratios = [cell[ours, v] / bound[v] for v in values]
                worse = [str(v) for v in values if cell[ours, v] > cell["aalo", v]]
                text += f" Over the lower bound: {min(ratios):.2f} to {max(ratios):.2f}."
                text += f" Worse than aalo at: {', '.join(worse) or 'none'}.\n"
    return text


def _slots(summary: Summary) -> str:
    text, claims = "", []
    for domain in dict.fromkeys(p["domain"] for p in summary["points"]):
        rows = _by_policy([p for p in summary["points"] if p["domain"] == domain])
        where = "in one rack" if domain == 10 else "anywhere"
        text += f"\nJobs placed {where}:\n\n" + table(
            ["policy", "mean JCT (s)", "p99", "max", "mean / alone", "decision p99 (ms, all hosts)"],
            [
                [
                    n,
                    f"{r['mean_jct_s']:.1f}",
                    f"{r['p99_jct_s']:.1f}",
                    f"{r['max_jct_s']:.1f}",
                    f"{r['total_jct_s'] / r['lower_bound_s']:.2f}",
                    f"{r['decision']['p99_us'] / 1000:.2f}",
                ]
                for n, r in rows.items()
            ],
        )
        papers = {"mcs": "-33.6 %", "mcs-steps": "-33.6 %", "ccml": "-23.3 %", "ccml-equal": "-23.3 %"}
        for rival, paper in {**papers, "fair": "", "slots-whole": "", "slots-drawn": "", "varys": ""}.items():
            if rival in rows:
                ours = change(rows["slots"]["mean_jct_s"], rows[rival]["mean_jct_s"])
                claims.append([f"slots against {rival}, {where}", paper, ours])
    return text + "\n" + table(["claim (mean JCT)", "paper", "ours"], claims)


def _means(summary: Summary, key: str) -> str:
    """Return a table of mean JCT with a row per value of `key` and a column per policy."""
    cell = {(p["policy"], p[key]): p for p in summary["points"]}
    policies = list(dict.fromkeys(p for p, _ in cell))
    rows = []
    for value in dict.fromkeys(v for _, v in cell):
        alone = cell[policies[0], value]
        bound = alone["lower_bound_s"] / alone["total_jct_s"] * alone["mean_jct_s"]
        means = [cell[p, value]["mean_jct_s"] for p in policies]
        rows.append([str(value), f"{bound:.1f}", *(f"{m:.1f}" for m in means)])
    return "\nMean JCT (s):\n\n" + table([key, "alone", *policies], rows)


def _latency(summary: Summary) -> str:
    rows = [
        [
            str(p["flows"]),
            str(p["horizon"]),
            *(f"{p['decision'][k]:.1f}" for k in ("mean_us", "p90_us", "p99_us")),
        ]
        for p in summary["points"]
    ]
    return "\nTime to decide for all flows of a host, µs (paper: 90 % within 1,500 µs):\n\n" + table(
        ["flows", "horizon", "mean", "p90", "p99"], rows
    )


def _fb2010(summary: Summary) -> str:
    rows = [
        [
            p["policy"],
            f"{p['mean_cct_s']:.2f}",
            f"{p['p95_cct_s']:.2f}",
            f"{p['total_jct_s']:.0f}",
            str(p["events"]),
        ]
        for p in summary["points"]
    ]
    drawn = "" if "trace" in summary["settings"] else "\nCoflows drawn with the trace's distributions:\n"
    return drawn + "\n" + table(["policy", "mean CCT (s)", "p95 CCT (s)", "sum (s)", "events"], rows)


def _unfairness(summary: Summary) -> str:
    """Return a table with a row per job: what the group scores, and what unfairness gains in each model."""
    cell = {(p["group"], p["model"], p["policy"]): p for p in summary["points"]}
    models = list(dict.fromkeys(p["model"] for p in summary["points"]))
    rows = []
    for group in dict.fromkeys(p["group"] for p in summary["points"]):
        if any((group, model, policy) not in cell for model in models for policy in ("fair", "unfair")):
            continue
        for n, job in enumerate(GROUPS[group]):
            row = [group if n == 0 else "", job.model]
            row.append(f"{cell[group, models[0], 'fair']['score']:.2f}" if n == 0 else "")
            for model in models:
                fair, unfair = (
                    1e3 * cell[group, model, policy]["iterations_s"][n] for policy in ("fair", "unfair")
                )
                row += [f"{fair:.0f}", f"{unfair:.0f}", f"{fair / unfair:.2f}"]
            paper = job.fair_ms and job.unfair_ms and f"{job.fair_ms / job.unfair_ms:.2f}"
            rows.append([*row, paper or ""])
    figures = [f"{model}: {word}" for model in models for word in ("fair (ms)", "unfair (ms)", "gain")]
    return "\n" + table(["group", "job", "score", *figures, "paper: gain"], rows)


def _plain(summary: Summary) -> str:
    """Return a table of all points: the parameters that vary, and the figures."""
    points = summary["points"]
    varied = [k for k in summary["parameters"] if len({str(p[k]) for p in points}) > 1]
    figures = [
        k for k, v in points[0].items() if k not in summary["parameters"] and not isinstance(v, dict | list)
    ]
    rows = [
        [
            *(str(p[k]) for k in varied),
            *(f"{p[k]:.4g}" if isinstance(p[k], float) else str(p[k]) for k in figures),
        ]
        for p in points
    ]
    return "\n" + table([*varied, *figures], rows)


SECTIONS: dict[str, Callable[[Summary], str]] = {
    "parrot-jct": _parrot_jct,
    "parrot-readings": _readings,
    "parrot-scale": _scale,
    "parrot-eta": lambda s: _sweep(s, "eta_ms"),
    "parrot-theta": lambda s: _sweep(s, "theta_max"),
    "parrot-load": lambda s: _sweep(s, "gap_ms"),
    "parrot-ps": lambda s: _sweep(s, "delta"),
    "slots-jct": _slots,
    "slots-models": lambda s: _means(s, "models"),
    "slots-tau": lambda s: _means(s, "slot_ms"),
    "slots-latency": _latency,
    "coflow-fb2010": _fb2010,
    "cassini-unfairness": _unfairness,
}


NAMES = (*SECTIONS, *(name for name in EXPERIMENTS if name not in SECTIONS))
"""All experiments, in the order of their sections."""


def _options(summary: Summary, trace: str) -> str:
    """Return the options that reproduce `summary`. `trace` is the name of its trace file, if any."""
    options = f"--seed {summary['seed']}"
    included = EXPERIMENTS[summary["experiment"]].trace
    if trace and not (included and included.path and included.path.name == trace):
        options += f" --trace {trace}"
    return options + (f" --limit {summary['limit']}" if summary["limit"] else "")


def sections(directories: Iterable[Path]) -> dict[str, str]:
    """Return, by title, the section of each experiment with summaries in `directories` or one level below."""
    patterns = ("summary.json", "*/summary.json")
    paths = {path for each in directories for pattern in patterns for path in each.glob(pattern)}
    summaries = [json.loads(path.read_text()) for path in sorted(paths)]
    notes = Path(__file__).resolve().parent.parent / "docs" / "results-notes"
    found = {}
    for name in NAMES:
        here = [summary for summary in summaries if summary["experiment"] == name]
        if not here:
            continue
        title, text = EXPERIMENTS[name].title, ""
        for summary in here:
            settings = dict(summary["settings"])
            text += f"\n`entrain simulate {name} {_options(summary, Path(settings.pop('trace', '')).name)}`"
            text += (
                f" with {', '.join(f'{k} = {v}' for k, v in settings.items())}" if settings else ""
            ) + "\n"
            text += SECTIONS.get(name, _plain)(summary)
        if here[0]["paper"]:
            text += "\nThe paper: " + "; ".join(f"{k}: {v}" for k, v in here[0]["paper"].items()) + ".\n"
        note = notes / f"{name}.md"
        if note.is_file():
            text += "\n" + note.read_text()
        found[title] = f"\n## {title}\n{text}"
    return found
