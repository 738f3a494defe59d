"""Plots of an experiment's results, one PNG each, that can be read on their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from machine.palette import SPARE, style
from simulation.experiments.experiment import Point, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Summary = dict[str, Any]

VARIED = {
    "eta_ms": "observation interval η (ms)",
    "theta_max": "maximum occupancy ratio θ_max",
    "gap_ms": "mean time between arrivals (ms)",
    "delta": "maximum parameter servers per job, Δ",
    "slot_ms": "slot length τ (ms)",
}
"""Parameters that may vary along the horizontal axis, with their labels."""

PAPER_WITHIN = {"parrot": 78.3, "aalo": 48.3, "lccf": 8.3}
"""Parrot 6.2: % of jobs within 10 s at 10 Gbit/s."""
PAPER_TO_BOUND = {"parrot": 2.75, "aalo": 2.75 / (1 - 0.584), "lccf": 2.75 / (1 - 0.913)}
"""Parrot 6.2: ratio of total JCT to its lower bound, derived from the gains over the other policies."""


def plot(path: Path, summary: Summary, points: list[Point], results: list[Result]) -> None:
    """Plot `summary` and `results`, in the experiment's own kind of figure if it has one.

    If no figure suits the measurements, draw nothing and remove the figure of an earlier run.
    """
    import matplotlib

    matplotlib.use("Agg")
    own = OWN.get(summary["experiment"])
    within = PAPER_WITHIN if summary["experiment"] == "parrot-jct" else {}
    figure = own(summary["points"]) if own else _by_policy(points, results, within)
    if figure is None:
        path.unlink(missing_ok=True)
        return
    figure.suptitle(summary["title"])
    figure.tight_layout()
    figure.savefig(path, dpi=110)

    from matplotlib import pyplot

    pyplot.close(figure)


def _panels(count: int, width: float = 6.0, height: float = 4.2) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, count, figsize=(width * count, height), squeeze=False, sharey=True)
    return figure, axes[0]


def _legend(axes: Sequence[Axes]) -> None:
    """Draw the first panel's legend to the right of the last panel, where it covers no data."""
    axes[-1].legend(
        *axes[0].get_legend_handles_labels(), fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )


def _panel(point: Point) -> float:
    return float(point["gbps"] if "gbps" in point else point.get("domain") or 0)


def _panel_title(point: Point, panel: float) -> str:
    if "gbps" in point:
        return f"{panel:g} Gbit/s links"
    if "domain" in point:
        where = "jobs anywhere" if panel == point["servers"] else "each job in one rack"
        return f"{point['servers']} servers, {where}"
    return ""


def _by_policy(
    points: list[Point], results: list[Result], paper_within: Mapping[str, float] = MappingProxyType({})
) -> Figure | None:
    """Draw distributions of completion times if only policies differ, else total JCT over the varied
    parameter.

    `paper_within` holds the paper's values (%) at 10 s and 10 Gbit/s.
    """
    varied = next((k for k in VARIED if len({p.get(k) for p in points}) > 1), None)
    drawn = [(p["policy"], _panel(p)) for p, r in zip(points, results, strict=True) if r.get("jobs")]
    if not drawn or (varied is None and len(set(drawn)) < len(drawn)):
        return None
    single = all(len(r.get("coflows", ())) == len(r.get("jobs", ())) for r in results)
    what = "coflow completion time, CCT" if single else "job completion time, JCT"
    panels = sorted({_panel(p) for p in points})
    figure, axes = _panels(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        here = [(p, r) for p, r in zip(points, results, strict=True) if _panel(p) == panel and r.get("jobs")]
        for policy in dict.fromkeys(p["policy"] for p, _ in here):
            mine = [(p, r) for p, r in here if p["policy"] == policy]
            look = style(policy)
            if varied is not None:
                totals = [r["total_jct_s"] for _, r in mine]
                values = [p[varied] for p, _ in mine]
                axis.plot(values, totals, marker=look.marker, ls=look.line, label=policy, color=look.colour)
            else:
                jct = sorted(job["jct_s"] for job in mine[0][1]["jobs"])
                ended = 100.0 * np.arange(1, len(jct) + 1) / len(jct)
                axis.step(jct, ended, where="post", label=policy, color=look.colour, ls=look.line)
                if panel == 10.0 and policy in paper_within:
                    label = f"{policy}, paper"
                    axis.plot(10.0, paper_within[policy], "D", color=look.colour, mec="k", label=label)
        if varied is not None:
            bound = {p[varied]: r["lower_bound_s"] for p, r in here}
            axis.plot(list(bound), list(bound.values()), "k:", label="lower bound")
            if max(bound) > 10 * min(bound):
                axis.set_xscale("log")
                axis.set_xticks(list(bound), [f"{v:g}" for v in bound])
                axis.minorticks_off()
        else:
            if not single and here:
                alone = sorted(job["lower_bound_s"] for job in here[0][1]["jobs"])
                ended = 100.0 * np.arange(1, len(alone) + 1) / len(alone)
                axis.step(alone, ended, "k:", where="post", label="alone in the network")
            axis.set_xscale("log")
        axis.set_xlabel(VARIED[varied] if varied else f"{what} (s, logarithmic)")
        axis.set_title(_panel_title(points[0], panel))
        axis.grid(alpha=0.3)
    _legend(axes)
    if varied is None:
        axes[0].set_ylabel(f"{'coflows' if single else 'jobs'} completed (%)")
        return figure
    low, high = axes[0].get_ylim()
    if low > 0.1 * high:
        axes[0].set_ylim(0.0, high)
    else:
        axes[0].set_yscale("log")
    scale = "" if low > 0.1 * high else ", logarithmic"
    axes[0].set_ylabel(f"total JCT (s{scale}), lower is better")
    return figure


def _scale(rows: list[Summary]) -> Figure:
    """Draw the jobs that end within 10 s over the divisor of arrival times, with a panel per divisor of
    iterations."""
    cuts = sorted({r["scale"].split("/")[0] for r in rows}, key=float)
    figure, axes = _panels(len(cuts), width=4.6)
    for axis, cut in zip(axes, cuts, strict=True):
        here = [r for r in rows if r["scale"].split("/")[0] == cut]
        for policy in dict.fromkeys(r["policy"] for r in here):
            mine = [r for r in here if r["policy"] == policy]
            x = [float(r["scale"].split("/")[1]) for r in mine]
            y = [100 * r["within_10_s"] for r in mine]
            look = style(policy)
            axis.plot(x, y, marker=look.marker, ls=look.line, label=f"{policy}, ours", color=look.colour)
        for policy, percent in PAPER_WITHIN.items():
            axis.axhline(
                percent, color=style(policy).colour, alpha=0.35, linewidth=5, label=f"{policy}, paper"
            )
        bound = 100 * here[0]["bound_within_10_s"]
        axis.axhline(bound, color="black", linestyle=":", label="alone in the network")
        axis.set_xscale("log")
        axis.set_xlabel("arrival times divided by")
        axis.set_title(f"iterations divided by {cut}")
        axis.set_ylim(0, 100)
    axes[0].set_ylabel("jobs completed within 10 s (%)")
    _legend(axes)
    return figure


def _readings(rows: list[Summary]) -> Figure:
    """Draw the ratio of total JCT to its lower bound, with a bar per reading; lines show the paper's
    values."""
    rows = [r for r in rows if r["bytes_per_unit"] == 1]
    kinds = list(dict.fromkeys(r["length_of"] for r in rows))
    figure, axes = _panels(len(kinds), height=5.0)
    for axis, kind in zip(axes, kinds, strict=True):
        here = [r for r in rows if r["length_of"] == kind]
        names = [r["policy"] for r in here]
        ratios = [r["total_jct_s"] / r["lower_bound_s"] for r in here]
        looks = [style(name) for name in names]
        colours, hatches = [look.colour for look in looks], [look.hatch for look in looks]
        bars = axis.barh(names, ratios, color=colours, hatch=hatches, edgecolor="white", lw=0)
        axis.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
        for policy, ratio in PAPER_TO_BOUND.items():
            axis.axvline(
                ratio,
                color=style(policy).colour,
                linestyle="--",
                label=f"{policy}, paper (at most): {ratio:.3g}",
            )
        axis.set_xscale("log")
        axis.set_xlim(1.0, 100.0)
        axis.set_xlabel("total JCT / lower bound (logarithmic), lower is better")
        axis.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axis.set_title(f"length of a {kind}")
    axes[0].invert_yaxis()
    _legend(axes)
    return figure


def _two_jobs(rows: list[Summary]) -> Figure:
    """Draw by how much iterations exceed the best possible time, per model, with and without MLTCP."""
    parts = sorted({r["sending_percent"] for r in rows})
    models = list(dict.fromkeys(r["model"] for r in rows))
    policies = list(dict.fromkeys(r["policy"] for r in rows))
    figure, axes = _panels(len(parts), width=4.6)
    for axis, part in zip(axes, parts, strict=True):
        for i, policy in enumerate(policies):
            mine = {r["model"]: r for r in rows if r["policy"] == policy and r["sending_percent"] == part}
            place = np.arange(len(models)) + (i - (len(policies) - 1) / 2) * 0.4
            best = np.array([mine[m]["best_iteration_s"] for m in models])
            mean, p99 = (
                100 * (np.array([mine[m][key] for m in models]) / best - 1)
                for key in ("mean_iteration_s", "p99_iteration_s")
            )
            colour = style(policy).colour
            bars = axis.bar(place, mean, 0.38, label=f"{policy}: mean", color=colour)
            axis.bar_label(bars, fmt="%.0f %%", fontsize=7, padding=1)
            label = f"{policy}: 99th percentile"
            axis.plot(place, p99, "_", color=colour, markersize=16, mew=2, label=label)
        axis.set_xticks(range(len(models)), models)
        axis.set_xlabel("model")
        axis.set_title(f"each job sends {part} % of its period")
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("iteration time above the best possible (%)")
    _legend(axes)
    axes[-1].annotate(
        "fluid: exact sharing; others: window\nmodel of that congestion control.\n\n"
        "The papers, on clusters: with MLTCP\n"
        "the mean is up to 1.9 times, the\n99th percentile up to 2.7 times shorter,\n"
        "after about 30 iterations.",
        (1.02, 0.05),
        xycoords="axes fraction",
        fontsize=7,
    )
    return figure


def _unfairness(rows: list[Summary]) -> Figure | None:
    """Draw what each job gains by unfair sharing, over its group's score, with a panel per model."""
    cell = {(r["group"], r["model"], r["policy"]): r for r in rows}
    models = list(dict.fromkeys(r["model"] for r in rows))
    if len({r["policy"] for r in rows}) < 2:
        return None
    figure, axes = _panels(len(models), width=4.6)
    for axis, model in zip(axes, models, strict=True):
        for group, colour in zip(dict.fromkeys(r["group"] for r in rows), SPARE, strict=True):
            fair, unfair = (cell[group, model, policy] for policy in ("fair", "unfair"))
            gains = np.array(fair["iterations_s"]) / np.array(unfair["iterations_s"])
            axis.plot([fair["score"]] * len(gains), gains, "o-", color=colour, label=group, alpha=0.8)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xlabel("score of the group")
        axis.set_title(f"{model} model of DCQCN")
    axes[0].set_ylabel("fair / unfair iteration time of each job\n(above 1: unfairness helps the job)")
    _legend(axes)
    return figure


def _latency(rows: list[Summary]) -> Figure:
    """Draw the distribution of decision times, with a panel per number of flows; a diamond shows the paper's
    value."""
    flows = sorted({r["flows"] for r in rows})
    figure, axes = _panels(len(flows), width=4.6)
    extremes = [1500.0, *(t for r in rows for t in r["decision"]["percentiles_us"])]
    for axis, count in zip(axes, flows, strict=True):
        lines = ("-", "--", "-.", ":")
        for row, line in zip((r for r in rows if r["flows"] == count), itertools.cycle(lines), strict=False):
            times = row["decision"]["percentiles_us"]
            label, colour = f"horizon of {row['horizon']} slots", style("slots").colour
            axis.step(times, range(101), where="post", label=label, color=colour, ls=line)
        axis.plot(1500.0, 90.0, "D", color="black", label="paper: 90 % within 1.5 ms,\nthousands of jobs")
        axis.set_xscale("log")
        axis.set_xlim(0.8 * min(extremes), 1.25 * max(extremes))
        axis.set_xlabel("decision time for all flows (µs, logarithmic)")
        axis.set_title(f"a host with {count} flow{'s' if count > 1 else ''}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("cumulative share of decisions (%)")
    _legend(axes)
    return figure


def _models(rows: list[Summary]) -> Figure | None:
    """Draw mean JCT relative to fair sharing, with a group of bars per mix of models."""
    mixes = list(dict.fromkeys(r["models"] for r in rows))
    mean = {(r["models"], r["policy"]): r["mean_jct_s"] for r in rows}
    policies = [p for p in dict.fromkeys(r["policy"] for r in rows) if p != "fair"]
    if not policies or any((m, "fair") not in mean for m in mixes):
        return None
    figure, axes = _panels(1, width=10.0)
    for i, policy in enumerate(policies):
        place = np.arange(len(mixes)) + (i - (len(policies) - 1) / 2) * 0.8 / len(policies)
        change = [100.0 * (mean[m, policy] / mean[m, "fair"] - 1.0) for m in mixes]
        look = style(policy)
        shape: dict[str, Any] = {"color": look.colour, "hatch": look.hatch, "edgecolor": "white", "lw": 0}
        bars = axes[0].bar(place, change, 0.8 / len(policies), label=policy, **shape)
        axes[0].bar_label(bars, fmt="%+.0f", fontsize=7, padding=1)
    axes[0].axhline(0.0, color="black", linewidth=0.8)
    axes[0].set_xticks(range(len(mixes)), ["all four" if m == "all" else f"{m} only" for m in mixes])
    axes[0].set_xlabel("models of the jobs (lower is better)")
    axes[0].set_ylabel("mean JCT against fair sharing (%)")
    _legend(axes)
    return figure


OWN: dict[str, Callable[[list[Summary]], Figure | None]] = {
    "parrot-scale": _scale,
    "parrot-readings": _readings,
    "mltcp-two-jobs": _two_jobs,
    "slots-latency": _latency,
    "slots-models": _models,
    "cassini-unfairness": _unfairness,
}
"""Experiments with their own kind of figure, drawn from the points of summary.json."""
