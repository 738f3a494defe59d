"""Plots of an experiment's results, one PNG each, that can be read on their own."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from machine.interval import interval
from machine.palette import JOBS, SPARE, job_style, style
from simulation.experiments.parrot import PAPER_GAIN, PAPER_GBPS, PAPER_TO_BOUND, PAPER_WITHIN
from simulation.results import (
    LABELS,
    ClusterTimes,
    Collisions,
    Completion,
    Iterations,
    Latency,
    Parameters,
    Remedy,
    Result,
    Row,
    Settings,
    Snapshot,
    Summary,
    Trained,
    TrainingTimes,
    Unfairness,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VARIED = ("eta_ms", "theta_max", "gap_ms", "delta", "slot_ms")
"""Parameters that may vary along the horizontal axis."""
SMOOTHED = 5
"""Bins of rates over which a timeline takes the mean."""
TIMELINE_SHARING = {
    "fair": "fair: DCQCN's timer T is 125 µs for both jobs",
    "unfair": "unfair: DCQCN's timer T is 100 µs for job 1, 125 µs for job 2",
}


def plot(path: Path, summary: Summary, results: Sequence[Result]) -> None:
    """Plot `summary` and `results`, in the experiment's own kind of figure if it has one.

    If no figure suits the measurements, draw nothing and remove the figure of an earlier run.
    """
    from machine.headless import pyplot

    if own := OWN.get(summary.experiment):
        figure = own(summary)
    else:
        figure = DETAILED.get(summary.experiment, _by_policy)(summary, results)
    if figure is None:
        path.unlink(missing_ok=True)
        return
    title = summary.title
    if not title.startswith(f"{Path(summary.settings.trace or '').name}: "):  # not of a user's trace
        title = QUESTIONS.get(summary.experiment, title)
    figure.suptitle(textwrap.fill(title, int(9 * figure.get_figwidth())))
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panels(count: int, width: float = 6.0, height: float = 4.2) -> tuple[Figure, Sequence[Axes]]:
    from machine.headless import pyplot

    figure, axes = pyplot.subplots(1, count, figsize=(width * count, height), squeeze=False, sharey=True)
    return figure, axes[0]


def _legend(axes: Sequence[Axes], title: str = "policy") -> None:
    """Draw the first panel's legend to the right of the last panel, where it covers no data."""
    axes[-1].legend(
        *axes[0].get_legend_handles_labels(),
        title=title,
        fontsize=7,
        title_fontsize=8,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )


def _logarithmic(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with plain numbers at 1, 2, 5, 10 ..., or at powers of ten if it is long."""
    from machine.headless import ticker

    if which == "x":
        axes.set_xscale("log")
    else:
        axes.set_yscale("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(ticker.NullFormatter())


def _panel(at: Parameters) -> float:
    return float(at.gbps if at.gbps is not None else at.domain or 0)


def _panel_title(at: Parameters, settings: Settings) -> str:
    if at.gbps is not None:
        return f"{at.gbps:g} Gbit/s links"
    if at.domain is not None:
        where = "jobs anywhere" if at.domain == settings.servers else "each job in one rack"
        return f"{settings.servers:,} servers, {where}"
    return ""


def _by_policy(
    summary: Summary,
    results: Sequence[Result],
    paper_within: Mapping[str, float] = MappingProxyType({}),
) -> Figure | None:
    """Draw distributions of completion times if only policies differ, else total JCT over the varied
    parameter.

    `paper_within` holds the paper's values (%) at 10 s and PAPER_GBPS.
    """
    pairs = list(zip(summary.rows(Completion), results, strict=False))
    varied = next(iter(summary.varied(VARIED)), None)
    drawn = [(row.at.policy, _panel(row.at)) for row, _ in pairs]
    if not drawn or (varied is None and len(set(drawn)) < len(drawn)):
        return None
    single = all(len(result.coflows) == len(result.jobs) for result in results)
    what = "coflow completion time, CCT" if single else "job completion time, JCT"
    panels = sorted({panel for _, panel in drawn})
    figure, axes = _panels(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        here = [(row, result) for row, result in pairs if _panel(row.at) == panel]
        if varied is None:
            _distributions(axis, here, None if single else "alone in the network")
            if panel == PAPER_GBPS:
                for policy in dict.fromkeys(
                    row.at.policy for row, _ in here if row.at.policy in paper_within
                ):
                    percent, colour = paper_within[policy], style(policy).colour
                    axis.plot(10.0, percent, "D", color=colour, mec="k", label=f"{policy}, paper")
            axis.set_xlabel(f"{what} (s, logarithmic)")
        else:
            _totals(axis, [row for row, _ in here], varied)
        axis.set_title(_panel_title(here[0][0].at, summary.settings))
        axis.grid(alpha=0.3)
    _legend(axes)
    if varied is None:
        axes[0].set_ylabel(f"{'coflows' if single else 'jobs'} completed (%)")
        return figure
    low, high = axes[0].get_ylim()
    if low > 0.1 * high:
        axes[0].set_ylim(0.0, high)
    else:
        _logarithmic(axes[0], "y")
    scale = "" if low > 0.1 * high else ", logarithmic"
    axes[0].set_ylabel(f"total JCT (s{scale}), lower is better")
    return figure


def _distributions(axis: Axes, here: Sequence[tuple[Row[Completion], Result]], alone: str | None) -> None:
    """Draw the distribution of JCT by policy, and under the label `alone` that of the lower bound."""

    def step(times: list[float], **look: Any) -> None:
        axis.step(times, 100.0 * np.arange(1, len(times) + 1) / len(times), where="post", **look)

    for row, result in here:
        look = style(row.at.policy)
        jct = sorted(job.jct_s for job in result.jobs)
        step(jct, label=row.at.policy, color=look.colour, ls=look.line)
    if alone is not None:
        step(sorted(job.lower_bound_s for job in here[0][1].jobs), label=alone, color="black", ls=":")
    _logarithmic(axis, "x")


def _totals(axis: Axes, rows: Sequence[Row[Completion]], varied: str) -> None:
    """Draw total JCT over the parameter `varied`, by policy, and its lower bound."""
    for policy in dict.fromkeys(row.at.policy for row in rows):
        mine = [row for row in rows if row.at.policy == policy]
        look = style(policy)
        values = [getattr(row.at, varied) for row in mine]
        totals = [row.figures.total_jct_s for row in mine]
        axis.plot(values, totals, marker=look.marker, ls=look.line, label=policy, color=look.colour)
    bound = {getattr(row.at, varied): row.figures.lower_bound_s for row in rows}
    axis.plot(list(bound), list(bound.values()), "k:", label="alone in the network")
    axis.set_xlabel(LABELS[varied])
    if max(bound) > 10 * min(bound):
        axis.set_xscale("log")
        axis.set_xticks(list(bound), [f"{value:g}" for value in bound])
        axis.minorticks_off()
        axis.set_xlabel(f"{LABELS[varied]}, logarithmic")


def _scale(summary: Summary) -> Figure:
    """Draw the jobs that end within 10 s at 10 Gbit/s over the divisor of arrival times, with a panel per
    divisor of iterations."""
    found = [row for row in summary.rows(Completion) if row.at.gbps == PAPER_GBPS]
    rows = [((row.at.scale or "1/1").split("/"), row) for row in found]
    cuts = sorted({cut for (cut, _), _ in rows}, key=float)
    figure, axes = _panels(len(cuts), width=4.6)
    for axis, cut in zip(axes, cuts, strict=True):
        here = [(float(arrivals), row) for (iterations, arrivals), row in rows if iterations == cut]
        for policy in dict.fromkeys(row.at.policy for _, row in here):
            x = [arrivals for arrivals, row in here if row.at.policy == policy]
            y = [100 * row.figures.within_10_s for _, row in here if row.at.policy == policy]
            look = style(policy)
            axis.plot(x, y, marker=look.marker, ls=look.line, label=policy, color=look.colour)
        for policy, percent in PAPER_WITHIN.items():
            axis.axhline(
                percent, color=style(policy).colour, alpha=0.35, linewidth=5, label=f"{policy}, paper"
            )
        bound = 100 * here[0][1].figures.bound_within_10_s
        axis.axhline(bound, color="black", linestyle=":", label="alone in the network")
        axis.set_xscale("log")
        axis.set_xticks(sorted({arrivals for arrivals, _ in here}))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.set_xlabel("divisor of arrival times (logarithmic)")
        axis.set_title(f"iterations divided by {cut}")
        axis.set_ylim(0, 100)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("jobs completed within 10 s (%)")
    _legend(axes)
    return figure


def _readings(summary: Summary) -> Figure:
    """Draw the ratio of total JCT to its lower bound, with a bar per reading; lines show the paper's
    values."""
    rows = [row for row in summary.rows(Completion) if row.at.bytes_per_unit == 1]
    kinds = list(dict.fromkeys((row.at.length_of, row.at.scale) for row in rows))
    papers = {
        "parrot": PAPER_TO_BOUND,
        **{rival: PAPER_TO_BOUND / (1 - gain / 100) for rival, gain in PAPER_GAIN.items()},
    }
    figure, axes = _panels(len(kinds), height=5.0)
    for axis, kind in zip(axes, kinds, strict=True):
        here = [row for row in rows if (row.at.length_of, row.at.scale) == kind]
        names = [row.at.policy for row in here]
        looks = [style(name) for name in names]
        colours, hatches = [look.colour for look in looks], [look.hatch for look in looks]
        ratios = [row.figures.to_bound for row in here]
        inks = [look.ink for look in looks]
        bars = axis.barh(names, ratios, color=colours, hatch=hatches, edgecolor=inks, lw=0)
        clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axis.bar_label(bars, fmt="%.2f", fontsize=7, padding=2, bbox=clear)
        for policy, ratio in papers.items():
            axis.axvline(
                ratio, color=style(policy).colour, linestyle="--", label=f"{policy}: at most {ratio:.3g}"
            )
        axis.set_xscale("log")
        axis.set_xlim(1.0, 100.0)
        axis.set_xlabel("total JCT / lower bound (logarithmic), lower is better")
        axis.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axis.set_title(f"lengths are sizes of {kind[0]}s\niterations / arrivals divided by {kind[1]}")
    axes[0].set_ylabel("policy, with its reading")
    axes[0].invert_yaxis()
    _legend(axes, "the paper's ratio")
    return figure


def _two_jobs(summary: Summary) -> Figure:
    """Draw by how much iterations exceed the best possible time, per model, with and without MLTCP."""
    rows = summary.rows(Iterations)
    parts = sorted({row.at.sending_percent or 0 for row in rows})
    models = list(dict.fromkeys(row.at.model or "" for row in rows))
    policies = list(dict.fromkeys(row.at.policy for row in rows))
    figure, axes = _panels(len(parts), width=4.6)
    for axis, part in zip(axes, parts, strict=True):
        for i, policy in enumerate(policies):
            mine = {
                row.at.model: row.figures
                for row in rows
                if row.at.policy == policy and row.at.sending_percent == part
            }
            place = np.arange(len(models)) + (i - (len(policies) - 1) / 2) * 0.4
            mean = [100 * (mine[m].mean_to_best - 1) for m in models]
            p99 = [100 * (mine[m].p99_iteration_s / mine[m].best_iteration_s - 1) for m in models]
            look = style(policy)
            bars = axis.bar(place, mean, 0.38, label=f"{policy}: mean", color=look.colour)
            axis.bar_label(bars, fmt="%.0f %%", fontsize=7, padding=1)
            label = f"{policy}: 99th percentile"
            axis.plot(place, p99, "_", color=look.colour, markersize=16, mew=2, label=label)
        axis.set_xticks(range(len(models)), models, fontsize=8)
        axis.set_xlabel("model of the congestion control")
        axis.set_title(f"each job sends {part} % of its period")
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("iteration time above the best possible (%)")
    _legend(axes)
    axes[-1].annotate(
        "fluid: exact sharing; dcqcn: rates of\nNICs, and their differential equations;\nothers: windows.\n\n"
        "The papers, on clusters: with MLTCP\n"
        "the mean is up to 1.9 times, the\n99th percentile up to 2.7 times shorter,\n"
        "after about 30 iterations.",
        (1.02, 0.05),
        xycoords="axes fraction",
        fontsize=7,
    )
    return figure


def _unfairness(summary: Summary) -> Figure | None:
    """Draw what each job gains by unfair sharing, over its group's score, with a panel per model."""
    rows = summary.rows(Unfairness)
    cell = {(row.at.group, row.at.model, row.at.policy): row.figures for row in rows}
    models = list(dict.fromkeys(row.at.model for row in rows))
    groups = dict.fromkeys(row.at.group for row in rows)
    if len({row.at.policy for row in rows}) < 2:
        return None
    figure, axes = _panels(len(models), width=4.6)
    for axis, model in zip(axes, models, strict=True):
        for group, colour, marker in zip(groups, SPARE, "osD^vP", strict=False):
            fair, unfair = (cell[group, model, policy] for policy in ("fair", "unfair"))
            gains = np.array(fair.iterations_s) / np.array(unfair.iterations_s)
            look: dict[str, Any] = {"color": colour, "marker": marker, "alpha": 0.8, "mec": "black"}
            axis.plot([fair.score] * len(gains), gains, label=group, **look)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xlabel("Cassini's score of the group")
        axis.set_title(f"{model} model of DCQCN")
    axes[0].set_ylabel("fair / unfair iteration time of each job\n(above 1: unfairness helps the job)")
    _legend(axes, "group")
    return figure


def _timelines(summary: Summary, results: Sequence[Result]) -> Figure:
    """Draw the jobs' rates over time, with a row per model and policy, and the distribution of iteration
    times beside them."""
    from machine.headless import pyplot

    pairs = [(row.at, result.timeline) for row, result in zip(summary.points, results, strict=True)]
    drawn = [(at, timeline) for at, timeline in pairs if timeline is not None]
    models = list(dict.fromkeys(at.model for at, _ in drawn))
    figure = pyplot.figure(figsize=(14.0, 1.9 * len(drawn) + 1.0), layout="constrained")
    grid = figure.add_gridspec(len(drawn), 2, width_ratios=(3.2, 1.0))
    highest = max(rate for _, timeline in drawn for rates in timeline.gbit_s for rate in rates)
    shared: Axes | None = None
    for n, (at, timeline) in enumerate(drawn):
        axis = figure.add_subplot(grid[n, 0], sharex=shared, sharey=shared)
        shared = shared or axis
        for j, rates in enumerate(timeline.gbit_s):
            mean = np.convolve(rates, np.ones(SMOOTHED) / SMOOTHED, mode="same")
            time = (np.arange(len(rates)) + 0.5) * timeline.bin_s
            hatch = job_style(j).hatch
            area: dict[str, Any] = {"fc": JOBS[j], "ec": "black", "hatch": hatch, "alpha": 0.45, "lw": 0}
            axis.fill_between(time, mean, label=f"job {j + 1}", **area)
            axis.plot(time, mean, color=JOBS[j], lw=1.2)
            for end in np.cumsum(timeline.iterations_s[j]):
                if end < time[-1]:
                    axis.plot(end, 0.0, marker="^", color=JOBS[j], mec="black", ms=6, clip_on=False)
        axis.set_title(
            f"{at.model} model, {TIMELINE_SHARING.get(at.policy, at.policy)}", fontsize=9, loc="left"
        )
        axis.set_ylabel("rate (Gbit/s)")
        axis.set_xlim(0.0, len(timeline.gbit_s[0]) * timeline.bin_s)
        axis.set_ylim(0.0, 1.1 * highest)
        axis.grid(alpha=0.3)
    assert shared is not None
    axis.plot([], [], "^", color="white", mec="black", label="an iteration ends")
    axis.set_xlabel("time (s)")
    figure.legend(handles=axis.get_legend_handles_labels()[0], loc="outside lower left", fontsize=8, ncols=3)
    rows = len(drawn) // len(models)
    for m, model in enumerate(models):
        axis = figure.add_subplot(grid[m * rows : (m + 1) * rows, 1])
        for at, timeline in drawn:
            if at.model != model:
                continue
            for j, times in enumerate(timeline.iterations_s):
                percent = 100.0 * np.arange(1, len(times) + 1) / len(times)
                look: dict[str, Any] = {
                    "color": JOBS[j],
                    "ls": "-" if at.policy == "unfair" else "--",
                    "marker": job_style(j).marker,
                    "ms": 4,
                    "markevery": 0.1,
                }
                axis.step(
                    1e3 * np.sort(times), percent, where="post", label=f"{at.policy}, job {j + 1}", **look
                )
        axis.set_xlabel("iteration time (ms)")
        axis.set_ylabel("iterations (%)")
        axis.set_title(f"{model} model, all iterations", fontsize=9, loc="left")
        axis.legend(fontsize=7, handlelength=4)
        axis.grid(alpha=0.3)
    return figure


def _matrix(summary: Summary) -> Figure:
    """Draw routings by policies, a panel for each load."""
    from simulation.remedies import Cell, draw

    cells = {
        (f"jobs send {row.at.sending_percent} % of the time", row.at.routing or "", row.at.policy): Cell(
            row.figures.mean_to_alone, row.figures.p99_to_alone, row.figures.marks_per_iteration
        )
        for row in summary.rows(Remedy)
    }
    return draw(
        cells,
        "In each cell: mean iteration time over that alone in the network, 99th percentile, and ECN marks "
        "per job and iteration. 1 is ideal.",
    )


def _trained(summary: Summary) -> Figure:
    """Draw the mean completion time of each workload beside the published one."""
    rows = summary.rows(Trained)
    figure, axes = _panels(1)
    places = np.arange(len(rows))
    look = style("pollux")
    axes[0].bar(
        places - 0.2, [row.figures.mean_jct_s for row in rows], 0.4, color=look.colour, label="entrain"
    )
    axes[0].bar(
        places + 0.2,
        [row.figures.published_jct_s or 0.0 for row in rows],
        0.4,
        color="0.75",
        label="the authors' simulator",
    )
    axes[0].set_xticks(places, [str(row.at.workload) for row in rows])
    axes[0].set_xlabel("workload")
    axes[0].set_ylabel("mean job completion time (s)")
    _legend(axes, "simulator")
    return figure


def _training(summary: Summary) -> Figure:
    """Draw the distributions of iteration times, with a panel per trace."""
    traces: dict[str, list[Row[TrainingTimes]]] = {}
    for row in summary.rows(TrainingTimes):
        at = row.at
        title = f"{at.arrivals}, {at.models} models"
        title += f"\nload {at.load_percent} %" if at.arrivals == "poisson" else ""
        title += f"\n{at.gpus_per_server} GPUs per server" if at.gpus_per_server != 1 else ""
        traces.setdefault(title, []).append(row)
    figure, axes = _panels(len(traces), width=3.4)
    for axis, (title, rows) in zip(axes, traces.items(), strict=True):
        for row in rows:
            look = style(row.at.policy)
            times = 1e3 * np.array(row.figures.percentiles_s)
            axis.plot(times, range(101), color=look.colour, ls=look.line, label=row.at.policy)
        axis.set_xlim(0, 1e3 * 1.1 * max(row.figures.p99_iteration_s for row in rows))
        axis.set_xlabel("iteration time (ms)")
        axis.set_title(title, fontsize=9)
    axes[0].set_ylabel("iterations that take at most this long (%)")
    _legend(axes)
    return figure


def _snapshots(summary: Summary) -> Figure:
    """Draw the communication time of each job under each policy, with a panel per snapshot."""
    rows = summary.rows(Snapshot)
    groups = list(dict.fromkeys(row.at.group for row in rows))
    figure, axes = _panels(len(groups), width=2.8)
    for axis, group in zip(axes, groups, strict=True):
        here = [row for row in rows if row.at.group == group]
        for i, row in enumerate(here):
            look = style(row.at.policy)
            times = 1e3 * np.array(row.figures.communication_s)
            place = np.arange(len(times)) + (i - (len(here) - 1) / 2) * 0.8 / len(here)
            axis.bar(
                place,
                times,
                0.8 / len(here),
                color=look.colour,
                hatch=look.hatch,
                edgecolor=look.ink,
                label=row.at.policy,
            )
        axis.set_xticks(range(len(here[0].figures.shifts_s)))
        axis.set_xticklabels([f"job {n + 1}" for n in range(len(here[0].figures.shifts_s))])
        axis.set_title(f"{group}\nscore {here[0].figures.score:.2f}", fontsize=9)
    axes[0].set_ylabel("communication time of an iteration (ms),\nlower is better")
    _legend(axes)
    return figure


def _latency(summary: Summary) -> Figure:
    """Draw the distribution of decision times, with a panel per number of flows; a diamond shows the paper's
    value."""
    rows = [(row.at, row.figures.decision.percentiles_us or ()) for row in summary.rows(Latency)]
    flows = sorted({at.flows or 0 for at, _ in rows})
    figure, axes = _panels(len(flows), width=4.6)
    extremes = [1500.0, *(time for _, times in rows for time in times)]
    for axis, count in zip(axes, flows, strict=True):
        here = [(at, times) for at, times in rows if at.flows == count]
        for (at, times), line in zip(here, itertools.cycle(("-", "--", "-.", ":")), strict=False):
            label, colour = f"{at.horizon} slots", style("slots").colour
            axis.step(times, range(len(times)), where="post", label=label, color=colour, ls=line)
        axis.plot(1500.0, 90.0, "D", color="black", label="paper: 90 % within 1.5 ms,\nthousands of jobs")
        axis.set_xlim(0.8 * min(extremes), 1.25 * max(extremes))
        _logarithmic(axis, "x")
        axis.set_xlabel("decision time for all flows (µs, logarithmic)")
        axis.set_title(f"a host with {count} flow{'s' if count > 1 else ''}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("cumulative share of decisions (%)")
    _legend(axes, "horizon")
    return figure


def _models(summary: Summary) -> Figure | None:
    """Draw mean JCT relative to fair sharing, with a group of bars per mix of models."""
    rows = summary.rows(Completion)
    mixes = list(dict.fromkeys(row.at.models or "" for row in rows))
    mean = {(row.at.models or "", row.at.policy): row.figures.mean_jct_s for row in rows}
    policies = [policy for policy in dict.fromkeys(row.at.policy for row in rows) if policy != "fair"]
    if not policies or any((mix, "fair") not in mean for mix in mixes):
        return None
    figure, axes = _panels(1, width=10.0)
    for i, policy in enumerate(policies):
        place = np.arange(len(mixes)) + (i - (len(policies) - 1) / 2) * 0.8 / len(policies)
        change = [100.0 * (mean[mix, policy] / mean[mix, "fair"] - 1.0) for mix in mixes]
        look = style(policy)
        shape: dict[str, Any] = {"color": look.colour, "hatch": look.hatch, "edgecolor": look.ink, "lw": 0}
        bars = axes[0].bar(place, change, 0.8 / len(policies), label=policy, **shape)
        axes[0].bar_label(bars, fmt="%+.0f", fontsize=6, padding=2, rotation=90)
    axes[0].margins(y=0.15)
    axes[0].axhline(0.0, color="black", linewidth=0.8)
    axes[0].set_xticks(range(len(mixes)), ["all four" if mix == "all" else f"{mix} only" for mix in mixes])
    axes[0].set_xlabel(LABELS["models"])
    axes[0].set_ylabel("change of mean JCT from fair sharing (%)\n(lower is better)")
    _legend(axes)
    return figure


def _groups(varied: str, summary: Summary) -> Figure:
    """Draw mean JCT with a group of bars per value of `varied` and its interval over draws, and a line where
    it is that of jobs alone."""
    rows = summary.rows(Completion)
    values = list(dict.fromkeys(getattr(row.at, varied) for row in rows))
    policies = list(dict.fromkeys(row.at.policy for row in rows))
    width = 0.8 / len(policies)
    figure, axes = _panels(1, width=8.0)
    for i, policy in enumerate(policies):
        mine = {getattr(row.at, varied): row.figures for row in rows if row.at.policy == policy}
        place = np.arange(len(values)) + (i - (len(policies) - 1) / 2) * width
        look = style(policy)
        found = [interval(mine[value].draws_jct_s or (mine[value].mean_jct_s,)) for value in values]
        bars = axes[0].bar(
            place,
            [each.mean for each in found],
            width,
            label=policy,
            yerr=[each.half or 0.0 for each in found],
            color=look.colour,
            hatch=look.hatch,
            edgecolor="black",
            lw=0.5,
        )
        axes[0].bar_label(bars, fmt="%.1f", fontsize=7, padding=2, rotation=90)
    axes[0].margins(y=0.12)
    alone = {getattr(row.at, varied): row.figures.mean_alone_s for row in rows}
    for at, value in enumerate(values):
        label = "alone in the network" if at == 0 else None
        axes[0].plot([at - 0.45, at + 0.45], [alone[value]] * 2, "k:", label=label)
    axes[0].set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axes[0].set_xlabel(f"{LABELS[varied]}\nbars: mean and 95 % interval over draws")
    axes[0].set_ylabel("mean JCT (s), lower is better")
    _legend(axes)
    return figure


def _bars(axis: Axes, rows: Sequence[Row[ClusterTimes]]) -> None:
    """Draw the mean times that jobs run and, hatched, that they wait, with a bar per strategy."""
    from matplotlib.patches import Patch

    policies = [row.at.policy for row in rows]
    running = [row.figures.mean_jrt_s for row in rows]
    waiting = [row.figures.mean_jwt_s for row in rows]
    look: dict[str, Any] = {"color": [style(policy).colour for policy in policies], "edgecolor": "black"}
    axis.bar(policies, running, **look)
    bars = axis.bar(policies, waiting, bottom=running, hatch="///", alpha=0.5, **look)
    axis.bar_label(bars, labels=[f"{row.figures.mean_jct_s:.0f}" for row in rows], fontsize=7, padding=1)
    axis.margins(y=0.08)
    axis.set_xticks(range(len(policies)), policies, rotation=40, ha="right", rotation_mode="anchor")
    grey: dict[str, Any] = {"facecolor": "0.7", "edgecolor": "black"}
    patches = [
        Patch(**grey, hatch="///", alpha=0.5, label="waiting (JWT)"),
        Patch(**grey, label="running (JRT)"),
    ]
    axis.legend(handles=patches, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _lines(summary: Summary, varied: str) -> Figure:
    """Draw mean JCT over the parameter `varied`, with a line per strategy."""
    rows = summary.rows(ClusterTimes)
    figure, axes = _panels(1)
    for policy in dict.fromkeys(row.at.policy for row in rows):
        mine = [row for row in rows if row.at.policy == policy]
        look = style(policy)
        x = [float(getattr(row.at, varied)) for row in mine]
        means = [row.figures.mean_jct_s for row in mine]
        axes[0].plot(x, means, marker=look.marker, ls=look.line, label=policy, color=look.colour)
    _logarithmic(axes[0], "y")
    axes[0].set_xlabel(LABELS[varied])
    axes[0].set_ylabel("mean JCT (s, logarithmic), lower is better")
    axes[0].grid(alpha=0.3)
    _legend(axes, "strategy")
    return figure


def _cluster(summary: Summary) -> Figure:
    """Draw mean JCT over what varies if that is a number, else mean running and waiting times, with a panel
    for each setting."""
    rows = summary.rows(ClusterTimes)
    varied = summary.varied(
        ("gap_s", "communication", "order", "sizes", "gpus_per_server", "spines", "sharing")
    )
    if varied in (["gap_s"], ["communication"]):
        return _lines(summary, varied[0])
    panels: dict[str, list[Row[ClusterTimes]]] = {}
    for row in rows:
        given = {k: getattr(row.at, k) for k in varied}
        title = "\n".join(f"{LABELS[k]}: {'drawn' if v is None else v}" for k, v in given.items())
        panels.setdefault(title, []).append(row)
    figure, axes = _panels(len(panels), width=5.0)
    for axis, (title, here) in zip(axes, panels.items(), strict=True):
        _bars(axis, here)
        if axis is not axes[-1] and (legend := axis.get_legend()):
            legend.remove()
        axis.set_title(title, fontsize=9)
    axes[0].set_ylabel("mean time of a job (s), lower is better")
    return figure


def _waiting_and_running(summary: Summary, results: Sequence[Result]) -> Figure:
    """Draw the distributions of waiting, running and completion times, with a line per strategy (vClos,
    figure 12), and their means (figure 13)."""
    from machine.headless import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(21.0, 4.8))
    rows = summary.rows(ClusterTimes)
    for row, result in zip(rows, results, strict=True):
        look = style(row.at.policy)
        jct = np.array([job.jct_s for job in result.jobs])
        waiting = np.array([job.waiting_s for job in result.jobs])
        parts = 100.0 * np.arange(1, len(jct) + 1) / len(jct)
        for axis, times in zip(axes, (waiting, jct - waiting, jct), strict=False):
            ordered = np.maximum(np.sort(times), 1.0)
            axis.plot(ordered, parts, label=row.at.policy, color=look.colour, ls=look.line)
    for axis, what in zip(
        axes, ("waiting time, JWT", "running time, JRT", "completion time, JCT"), strict=False
    ):
        _logarithmic(axis, "x")
        axis.set_xlabel(f"{what} (s, logarithmic)")
        axis.set_ylim(0, 101)
        axis.grid(alpha=0.3)
    axes[0].set_xlabel("waiting time, JWT (s, logarithmic; below 1: as 1)")
    axes[0].set_ylabel("jobs (%)")
    axes[2].legend(fontsize=7, title="strategy", title_fontsize=8, loc="lower right")
    _bars(axes[3], rows)
    axes[3].set_ylabel("mean time of a job (s), lower is better")
    return figure


def _collisions(summary: Summary) -> Figure:
    """Draw the flows by how many share their most used link, with a panel for each routing."""
    rows = summary.rows(Collisions)
    policies = list(dict.fromkeys(row.at.policy for row in rows))
    figure, axes = _panels(len(policies))
    for axis, policy in zip(axes, policies, strict=True):
        here = [row for row in rows if row.at.policy == policy]
        for i, (row, hatch) in enumerate(zip(here, itertools.cycle(("", "///", "...", "xxx")), strict=False)):
            place = np.arange(1, 10) + (i - (len(here) - 1) / 2) * 0.8 / len(here)
            percent = [100 * part for part in row.figures.flows]
            look: dict[str, Any] = {"color": JOBS[i], "hatch": hatch, "edgecolor": "black", "lw": 0.5}
            axis.bar(place, percent, 0.8 / len(here), label=f"{row.at.gpus:,} GPUs", **look)
        axis.set_xticks(range(1, 10), [*map(str, range(1, 9)), "more"])
        axis.set_xlabel("flows on the most used link of a flow's way")
        axis.set_title(f"routing: {policy}")
    axes[0].set_ylabel("part of all flows (%)")
    _legend(axes, "network")
    return figure


QUESTIONS = {
    "parrot-jct": "Which coflow policy completes 60 jobs first? (Parrot, figures 5 and 6)",
    "parrot-readings": "Who should get leftover bandwidth? (Parrot, in all readings of the paper)",
    "parrot-scale": "How far must the workload be scaled down? (Parrot)",
    "parrot-eta": "How often should flows be observed? (Parrot, figure 7)",
    "parrot-theta": "How much of a link may jobs occupy at most? (Parrot, figure 8)",
    "parrot-load": "What does each policy lose as 100 jobs arrive more often? (Parrot, figure 9)",
    "parrot-ps": "Does the number of parameter servers matter? (Parrot, figure 10)",
    "parrot-live": "How long would the live experiment's jobs take with exact rates? (Parrot)",
    "slots-jct": "How long do jobs on servers with 8 GPUs take? (slot scheduler, figure 15a)",
    "slots-models": "Which models gain by slots?",
    "slots-tau": "How long should a slot be?",
    "slots-latency": "How long does a decision take? (slot scheduler, figure 15b)",
    "coflow-fb2010": "How long do Facebook's coflows take?",
    "mltcp-two-jobs": "Do two identical jobs on one link come to take turns? (MLTCP)",
    "pollux-jct": "How long do the workloads of Pollux's authors take?",
    "slots-bound": "How long would the live experiment's jobs take with exact rates?",
    "slots-load": "How long would jobs that queue for GPUs take with exact rates?",
    "cassini-unfairness": "Which jobs gain when DCQCN shares a link unfairly? (Cassini, chapter 3)",
    "cassini-themis": "What do jobs gain by Cassini under Themis? (figures 4.11 to 4.17)",
    "cassini-pollux": "What do jobs gain by Cassini under Pollux? (figures 4.13 to 4.15)",
    "cassini-snapshots": "How much shorter is communication with Cassini's shifts? (Cassini, table 4.3)",
    "vclos-512": "How long do jobs wait and run on 512 GPUs? (vClos, figures 12 and 13 a)",
    "vclos-2048": "How long do jobs wait and run on 2,048 GPUs? (vClos, figure 13 b)",
    "vclos-load": "What does each strategy lose as jobs arrive more often? (vClos, table 5)",
    "vclos-order": "Does isolation cost less in another order of the queue? (vClos, table 6)",
    "vclos-tpu": "What do large jobs gain by isolation? (vClos, table 7)",
    "vclos-testbed": "What do jobs gain by isolation on the testbed's 32 GPUs? (vClos, table 4)",
    "vclos-hash": "How many flows share a link? (vClos, figure 2)",
    "vclos-shape": "What do servers and spines change for isolation?",
    "vclos-sizes": "Which sizes of jobs leave links unused under isolation?",
    "vclos-share": "Does it matter how flows share a link?",
    "vclos-communication": "How much must jobs communicate for isolation to be worth its fragmentation?",
}
"""Titles of pictures, where that of the section does not ask what the picture answers."""

OWN: dict[str, Callable[[Summary], Figure | None]] = {
    "parrot-scale": _scale,
    "parrot-readings": _readings,
    "mltcp-two-jobs": _two_jobs,
    "slots-bound": partial(_groups, "gbps"),
    "slots-load": partial(_groups, "load_percent"),
    "slots-latency": _latency,
    "slots-models": _models,
    "cassini-unfairness": _unfairness,
    "matrix": _matrix,
    "pollux-jct": _trained,
    "cassini-themis": _training,
    "cassini-pollux": _training,
    "cassini-snapshots": _snapshots,
    "vclos-load": _cluster,
    "vclos-communication": _cluster,
    "vclos-order": _cluster,
    "vclos-tpu": _cluster,
    "vclos-testbed": _cluster,
    "vclos-shape": _cluster,
    "vclos-share": _cluster,
    "vclos-sizes": _cluster,
    "vclos-hash": _collisions,
}
"""Experiments with their own kind of figure."""

DETAILED: dict[str, Callable[[Summary, Sequence[Result]], Figure | None]] = {
    "parrot-jct": partial(_by_policy, paper_within=PAPER_WITHIN),
    "cassini-timeline": _timelines,
    "vclos-512": _waiting_and_running,
    "vclos-2048": _waiting_and_running,
}
"""The same for figures that need more than the summary. All others compare policies (`_by_policy`)."""
