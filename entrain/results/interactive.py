"""Interactive plots of an experiment, for the HTML report.

Names in them are escaped: plotly shows a subset of HTML in its labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from controlplane.topology import Topology
from entrain.experiment import Experiment
from entrain.results.comparison import ALL_JOBS, Change
from entrain.results.names import ideal_name, ideal_word, label
from entrain.results.values import RunResult, Summarized, scheduler, strategy, summarized
from machine import palette
from machine.interval import interval
from machine.palette import Line, style

BINS = 2000
"""Largest number of points of a curve of throughput; longer runs are shown in wider bins."""

_SYMBOLS = {
    "s": "square",
    "^": "triangle-up",
    "v": "triangle-down",
    "<": "triangle-left",
    "x": "x",
    "D": "diamond",
    "P": "cross",
    "H": "hexagon2",
    "h": "hexagon",
}
_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}


def _dash(line: Line) -> str:
    """Return a line style in Plotly's terms."""
    return _DASHES[line] if isinstance(line, str) else ",".join(f"{length}px" for length in line[1])


@dataclass(frozen=True)
class Picture:
    """A plot and its caption."""

    question: str
    """The question that it answers: its title."""
    caption: str
    figure: go.Figure


def pictures(experiment: Experiment, runs: Sequence[RunResult]) -> Iterator[Picture]:
    """Yield the plots that apply to `runs`; there is at least one run."""
    yield _completion(experiment, runs)
    if experiment.cluster is None:
        yield _iterations(experiment, runs)
    if experiment.sample_ms is not None:
        yield from _throughput(experiment, runs)
    yield _links(experiment, runs)


def _completion(experiment: Experiment, runs: Sequence[RunResult]) -> Picture:
    groups = summarized(runs)
    names = _names(experiment, groups)
    found = [interval([run.completion.mean for run in group.runs]) for group in groups]
    figure = go.Figure(
        go.Bar(
            x=names,
            y=[each.mean for each in found],
            error_y={
                "type": "data",
                "array": [each.half for each in found],
                "arrayminus": [each.bar()[0] for each in found],
            },
            marker_color=[_colour(group.runs[0], runs) for group in groups],
            hovertemplate="%{x}: %{y:.2f} s<extra></extra>",
        )
    )
    for place, group in enumerate(groups):
        figure.add_scatter(
            x=[names[place]] * len(group.runs),
            y=[run.completion.mean for run in group.runs],
            text=[f"seed {run.combination.seed}" for run in group.runs],
            mode="markers",
            marker={"color": "black", "size": 5, "opacity": 0.6},
            hovertemplate="%{text}: %{y:.2f} s<extra></extra>",
        )
    figure.update_layout(showlegend=False)
    _axes(figure, "", "mean job completion time (s)")
    differ = "" if experiment.alike else ", which differ in length"
    several = any(len(group.runs) > 1 for group in groups)
    error = " Dots: seeds. Error bars: 95 % confidence interval of the mean." if several else ""
    return Picture("How long do the jobs take?", f"Mean completion time of all jobs{differ}.{error}", figure)


def _iterations(experiment: Experiment, runs: Sequence[RunResult]) -> Picture:
    figure = go.Figure()
    for group, name in zip(summarized(runs), _names(experiment, summarized(runs)), strict=True):
        jobs = [job for run in group.runs for job in run.jobs]
        over = [[time / job.ideal_ms for time in job.summary.iteration_ms] for job in jobs]
        shortest = min(map(len, over))
        values = np.mean([each[:shortest] for each in over], axis=0)
        look = style(_scheme(group.runs[0], runs))
        figure.add_scatter(
            y=[round(float(each), 4) for each in values],
            name=name,
            mode="lines+markers" if shortest <= 50 else "lines",
            marker={"size": 5, "symbol": _SYMBOLS.get(look.marker, "circle")},
            line={"color": look.colour, "dash": _dash(look.line)},
        )
    figure.add_hline(y=1, line={"color": "black", "dash": "dash", "width": 1})
    _axes(figure, "iteration", f"iteration time / {ideal_word(runs)}")
    if len(figure.data[0].y) <= 20:
        figure.update_xaxes(dtick=1)  # no tick between two iterations
    figure.update_yaxes(rangemode="tozero")
    return Picture(
        "How do iteration times develop?",
        f"Mean over jobs and seeds. 1: {ideal_name(runs)}. Click a name to hide its line.",
        figure,
    )


def _throughput(experiment: Experiment, runs: Sequence[RunResult]) -> Iterator[Picture]:
    """Yield a plot per run of the first seed: each job's throughput on the busiest link."""
    first = [run for run in runs if run.combination.seed == runs[0].combination.seed]
    for run in first:
        busiest = max(run.links, key=lambda link: link.bytes).link
        figure, width = go.Figure(), 0.0
        for place, job in enumerate(experiment.jobs):
            for each in run.timeline.throughput:
                if (each.link, each.job) != (busiest, job.name):
                    continue
                wider = -(-len(each.mbps) // BINS) or 1
                width = each.bin_ms * wider
                rates = np.asarray(each.mbps[: len(each.mbps) // wider * wider], float)
                figure.add_scatter(
                    x=np.round(np.arange(len(rates) // wider) * width / 1e3, 4).tolist(),
                    y=np.round(rates.reshape(-1, wider).mean(axis=1), 2).tolist(),
                    name=escape(job.name),
                    mode="lines",
                    fill="tozeroy",
                    line={"shape": "hv", "width": 1, "color": palette.job(place)},
                )
        if not figure.data:
            continue
        _axes(figure, "time (s)", "Mbit/s")
        end = max(len(each.mbps) * each.bin_ms for each in run.timeline.throughput) / 1e3
        figure.update_xaxes(range=[0, min(end, 10.0)], rangeslider={"visible": True, "thickness": 0.08})
        yield Picture(
            f"Who sends when? {label(experiment, run, first)}",
            f"Throughput of each job on {busiest}, in bins of {width:g} ms, seed "
            f"{run.combination.seed}. Drag the strip below to see other times.",
            figure,
        )


def _links(experiment: Experiment, runs: Sequence[RunResult]) -> Picture:
    groups = summarized(runs)
    links = list(dict.fromkeys(link.link for run in runs for link in run.links))
    cells = []
    for group in groups:
        most = dict.fromkeys(links, 0)
        for run in group.runs:
            for link in run.links:
                most[link.link] = max(most[link.link], link.all_jobs)
        cells.append([most[name] for name in links])
    figure = go.Figure(
        go.Heatmap(
            z=cells,
            x=[escape(name) for name in links],
            y=_names(experiment, groups),
            colorscale="Cividis",
            zmin=0,
            colorbar={"title": "flows"},
            hovertemplate="%{x}, %{y}: %{z} flows at once<extra></extra>",
        )
    )
    _axes(figure, "fabric link", "")
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(height=160 + 34 * len(groups))
    return Picture(
        "On which links do flows meet?",
        "Largest number of simultaneous flows of all jobs on each fabric link, over all seeds. 1: no "
        "contention.",
        figure,
    )


def changes(found: Sequence[Change], first: str, second: str) -> Picture:
    """Return a plot of how completion times changed between two experiments; of iterations where completion
    times cannot be compared."""
    shown = [each for each in found if each.job == ALL_JOBS] or list(found)
    figure = go.Figure(
        go.Bar(
            x=[100 * each.change.mean for each in shown],
            y=[
                f"{escape(f'{each.run}: {each.job}, {each.measure}')}<br><i>{each.verdict}</i>"
                for each in shown
            ],
            orientation="h",
            error_x={
                "type": "data",
                "array": [None if each.change.half is None else 100 * each.change.half for each in shown],
            },
            marker_color=[_VERDICTS.get(each.verdict, "#BBBBBB") for each in shown],
            hovertemplate="%{y}: %{x:.1f} %<extra></extra>",
        )
    )
    figure.add_vline(x=0, line={"color": "black", "width": 1})
    _axes(figure, f"change from {escape(first)} to {escape(second)} (%)", "")
    figure.update_yaxes(autorange="reversed")  # from the top, as in the table
    figure.update_layout(height=160 + 40 * len(shown))
    return Picture(
        f"What has changed from {first} to {second}?",
        "Left of zero: shorter. Error bars: 95 % confidence interval over seeds. Grey: the seeds do not tell "
        "whether anything has changed.",
        figure,
    )


_VERDICTS = {"shorter": "#0072B2", "longer": "#D55E00"}


def drawing(topology: Topology) -> Picture:
    """Return a drawing of a topology: hosts at the bottom, and each switch by its distance from them."""
    nodes = _places(topology)
    figure = go.Figure()
    for one in topology.links:
        (x, y), (to_x, to_y) = nodes[one.a], nodes[one.b]
        said = f"{one.a} - {one.b}: {one.rate_mbps:g} Mbit/s, queue {one.queue_packets} packets"
        figure.add_scatter(
            x=[x, (x + to_x) / 2, to_x],
            y=[y, (y + to_y) / 2, to_y],
            mode="lines",
            line={"color": "#888888", "width": 1},
            text=[escape(said)] * 3,
            hovertemplate="%{text}<extra></extra>",
        )
    switches = {each.name: each for each in topology.switches}
    hosts = {each.name: each for each in topology.hosts}
    for names, symbol, colour in ((switches, "square", "#0072B2"), (hosts, "circle", "#E69F00")):
        words = [
            f"{name}: {switches[name].role}, device {switches[name].device_id}"
            if name in switches
            else f"{name}: {hosts[name].ip}"
            for name in names
        ]
        figure.add_scatter(
            x=[nodes[name][0] for name in names],
            y=[nodes[name][1] for name in names],
            text=[escape(name) for name in names],
            customdata=[escape(each) for each in words],
            mode="markers+text" if len(nodes) <= 60 else "markers",
            textposition="top center",
            marker={"symbol": symbol, "size": 14, "color": colour},
            hovertemplate="%{customdata}<extra></extra>",
        )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, range=[-0.4, max(y for _, y in nodes.values()) + 0.6])
    figure.update_layout(showlegend=False, template="plotly_white", margin={"t": 10, "b": 10}, height=380)
    return Picture(
        "On which network?", "Squares: switches. Circles: hosts. Point at a link to see its rate.", figure
    )


def _places(topology: Topology) -> dict[str, tuple[float, float]]:
    """Return where each node is drawn: x from 0 to 1, y the number of links to the nearest host."""
    level = {host.name: 0 for host in topology.hosts}
    while True:
        above = {
            far: level[near] + 1
            for one in topology.links
            for near, far in ((one.a, one.b), (one.b, one.a))
            if near in level and far not in level
        }
        if not above:
            break
        level |= above
    rest = max(level.values(), default=0) + 1
    level |= {each.name: rest for each in topology.switches if each.name not in level}
    rows: dict[int, list[str]] = {}
    for name, height in level.items():
        rows.setdefault(height, []).append(name)
    return {
        name: ((place + 0.5) / len(row), float(height))
        for height, row in rows.items()
        for place, name in enumerate(row)
    }


def _scheme(run: RunResult, runs: Sequence[RunResult]) -> str:
    """Return what a run's colour stands for: its scheduler, or if all have the same, its routing."""
    same = len({scheduler(each.combination) for each in runs}) == 1
    return strategy(run.combination) if same else scheduler(run.combination)


def _colour(run: RunResult, runs: Sequence[RunResult]) -> str:
    return style(_scheme(run, runs)).colour


def _names(experiment: Experiment, groups: Sequence[Summarized]) -> list[str]:
    """Return a name for each group, which distinguishes it from the others."""
    firsts = [group.runs[0] for group in groups]
    return [escape(label(experiment, run, firsts)) for run in firsts]


def _axes(figure: go.Figure, x: str, y: str) -> None:
    style: dict[str, Any] = {"template": "plotly_white", "margin": {"t": 20}, "height": 420}
    figure.update_layout(**style, xaxis_title=x, yaxis_title=y)
