"""The pictures of docs/concepts.md: `python docs/pictures.py` draws them anew, as SVG, into docs/images.

They explain ideas; nothing in them is measured. One colour is one job in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

IMAGES = Path(__file__).parent / "images"
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#BBBBBB"  # Okabe and Ito
HATCH = {BLUE: "", ORANGE: "//", GREEN: ".."}  # readable without colour, too
plt.rcParams.update(
    {"font.size": 11, "svg.hashsalt": "entrain", "svg.fonttype": "none", "hatch.linewidth": 0.6}
)


def _bar(axes: Axes, left: float, width: float, bottom: float, height: float, colour: str) -> None:
    axes.bar(
        left,
        height,
        width,
        bottom,
        align="edge",
        color=colour,
        hatch=HATCH.get(colour, ""),
        edgecolor="white",
    )


def slots() -> Figure:
    """What a link's table holds, and where a new flow goes."""
    figure, axes = plt.subplots(figsize=(8, 3.2))
    announced = np.array([[6, 6, 5, 0, 0, 0, 6, 6, 0, 0], [3, 3, 0, 0, 4, 4, 3, 3, 0, 0]])
    free = 10 - announced.sum(axis=0)
    left = 34.0
    for slot in np.lexsort((np.arange(10), announced.sum(axis=0))):  # the least loaded first
        take = min(free[slot], left)
        left -= take
        if take:
            _bar(axes, slot, 1, announced[:, slot].sum(), take, GREEN)
    for slot in range(10):
        for job, colour in enumerate((BLUE, ORANGE)):
            _bar(axes, slot, 1, announced[:job, slot].sum(), announced[job, slot], colour)
    axes.axhline(10, color="black", linestyle="--")
    axes.text(10.1, 10, "capacity", va="center")
    axes.set(
        xlim=(0, 10), ylim=(0, 11.5), ylabel="rate (Gbit/s)", xlabel="slot, counted from now (60 ms each)"
    )
    axes.set_xticks(np.arange(10) + 0.5, [f"+{slot}" for slot in range(10)])
    names = ("announced by job 1", "announced by job 2", "planned now by a flow of job 3")
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=c, hatch=HATCH[c], edgecolor="white")
        for c in (BLUE, ORANGE, GREEN)
    ]
    figure.legend(handles, names, loc="upper center", ncols=3, frameon=False)
    figure.subplots_adjust(left=0.08, right=0.89, top=0.86, bottom=0.17)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def coflows() -> Figure:
    """Two coflows on two links, shared and one after the other."""
    figure, (fair, ordered) = plt.subplots(1, 2, figsize=(8, 2.9), sharey=True)
    for axes, title in ((fair, "each flow its fair share"), (ordered, "coflow 1 first")):
        axes.set(title=title, xlim=(0, 5), xlabel="time (s)", ylim=(-0.2, 2.3))
        axes.set_yticks([0.4, 1.6], ["link B", "link A"])
        axes.spines[["top", "right"]].set_visible(False)
    _bar(fair, 0, 4, 1.2, 0.4, BLUE)
    _bar(fair, 0, 4, 1.6, 0.4, ORANGE)
    _bar(fair, 0, 2, 0, 0.4, BLUE)
    _bar(fair, 0, 2, 0.4, 0.4, ORANGE)
    _bar(fair, 2, 1, 0, 0.8, ORANGE)
    _bar(ordered, 0, 2, 1.2, 0.8, BLUE)
    _bar(ordered, 2, 2, 1.2, 0.8, ORANGE)
    _bar(ordered, 0, 1, 0, 0.8, BLUE)
    _bar(ordered, 1, 2, 0, 0.8, ORANGE)
    for axes, ends in ((fair, (4, 4)), (ordered, (2, 4))):
        for end, colour, where in zip(ends, (BLUE, ORANGE), (2.12, -0.13), strict=True):
            axes.plot(end, where, marker="v" if where > 1 else "^", color=colour, markersize=9)
        axes.text(5, 1, f"complete at\n{ends[0]} s and {ends[1]} s", ha="right", va="center", fontsize=9.5)
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=c, hatch=HATCH[c], edgecolor="white") for c in (BLUE, ORANGE)
    ]
    figure.legend(handles, ("coflow 1", "coflow 2"), loc="upper center", ncols=2, frameon=False)
    figure.subplots_adjust(left=0.09, right=0.98, top=0.77, bottom=0.19, wspace=0.08)
    return figure


def _nodes(axes: Axes, names: list[str], height: float, *, width: float = 0.7) -> None:
    for x, name in enumerate(names):
        axes.add_patch(
            plt.Rectangle((x - width / 2, height - 0.14), width, 0.28, fc="white", ec="black", zorder=3)
        )
        axes.text(x, height, name, ha="center", va="center", zorder=4)


def vclos() -> Figure:
    """Two jobs, each with links of its own."""
    figure, axes = plt.subplots(figsize=(8, 3.4))
    for leaf in range(4):
        for spine in range(4):
            axes.plot([leaf, spine], [1, 2], color=GREY, linewidth=1, zorder=1)
    jobs = ((BLUE, (0, 1), (0, 1)), (ORANGE, (2, 3), (2, 3)))
    for colour, leaves, spines in jobs:
        style = "-" if colour == BLUE else (0, (4, 1.5))
        for leaf in leaves:
            for number, spine in enumerate(spines):
                axes.plot([leaf, spine], [1, 2], color=colour, linewidth=3, linestyle=style, zorder=2)
                host = leaf + (number - 0.5) * 0.4
                axes.plot([host, leaf], [0.25, 1], color=colour, linewidth=3, linestyle=style, zorder=2)
                axes.plot(host, 0.25, "s", color=colour, markersize=12)
    _nodes(axes, [f"leaf {n}" for n in range(1, 5)], 1)
    _nodes(axes, [f"spine {n}" for n in range(1, 5)], 2)
    handles = [
        plt.Line2D([], [], color=BLUE, linewidth=3, label="job 1: 4 hosts, 2 leaves, 2 spines"),
        plt.Line2D([], [], color=ORANGE, linewidth=3, linestyle=(0, (4, 1.5)), label="job 2, likewise"),
        plt.Line2D([], [], color=GREY, linewidth=1, label="free link"),
    ]
    axes.legend(handles=handles, loc="lower center", ncols=3, frameon=False, bbox_to_anchor=(0.5, -0.02))
    axes.set(xlim=(-0.5, 3.5), ylim=(-0.2, 2.2))
    axes.axis("off")
    figure.subplots_adjust(left=0.01, right=0.99, top=1, bottom=0.03)
    return figure


def circuits() -> Figure:
    """The same switches, joined differently by an optical circuit switch."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.3))
    wiring = (
        ("before: two free links, of different spines", [(0, 0), (1, 1)]),
        ("after: both on spine 1, a network for the job", [(0, 0), (1, 0)]),
    )
    for axes, (title, joined) in zip(panels, wiring, strict=True):
        axes.add_patch(plt.Rectangle((-0.55, 1.2), 2.1, 0.6, fc="#F2F2F2", ec="black"))
        axes.text(-0.5, 1.76, "optical\ncircuit\nswitch", ha="left", va="top", fontsize=9)
        for number, (leaf, spine) in enumerate(joined):
            end = spine + (
                0.14 if number and spine == 0 else -0.14 if len({s for _, s in joined}) == 1 else 0
            )
            axes.plot([leaf, leaf, end, end], [1, 1.2, 1.8, 2], color=GREEN, linewidth=3)
            axes.plot([leaf, end], [1.2, 1.8], "o", color="black", markersize=5)
        if len({s for _, s in joined}) == 1:
            axes.plot([1, 1], [1.8, 2], color=GREY, linewidth=2, linestyle=":")
            axes.text(1.08, 1.9, "dark", va="center", fontsize=9)
        _nodes(axes, ["leaf 1", "leaf 2"], 0.9, width=0.6)
        _nodes(axes, ["spine 1", "spine 2"], 2.1, width=0.6)
        axes.set(xlim=(-0.65, 1.65), ylim=(0.7, 2.35), title=title)
        axes.title.set_fontsize(10.5)
        axes.axis("off")
    figure.subplots_adjust(left=0.01, right=0.99, top=0.9, bottom=0.01, wspace=0.05)
    return figure


def circles() -> Figure:
    """Two jobs' sending phases around a circle, before and after a shift."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.9), subplot_kw={"projection": "polar"})
    for axes, shift, title in (
        (panels[0], 0, "together: they collide"),
        (panels[1], 160, "job 2 shifted by 160°"),
    ):
        for ring, colour, length, start in ((1.0, BLUE, 150, 20), (1.45, ORANGE, 160, 20 + shift)):
            angles = np.deg2rad(start + length / 2)
            axes.bar(
                angles,
                0.4,
                np.deg2rad(length),
                ring,
                color=colour,
                hatch=HATCH[colour],
                edgecolor="white",
            )
            circle = np.linspace(0, 2 * np.pi, 200)
            axes.plot(circle, np.full(200, ring + 0.2), color=GREY, linewidth=0.8, zorder=0)
        axes.set(ylim=(0, 2), yticks=[], theta_zero_location="N", theta_direction=-1)
        axes.set_xticks(np.deg2rad([0, 90, 180, 270]), ["0", "¼", "½", "¾"])
        axes.set_title(title, pad=14)
        axes.spines["polar"].set_visible(False)
        axes.grid(False)
        axes.text(0, 0, "one\niteration", ha="center", va="center", fontsize=10)
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=c, hatch=HATCH[c], edgecolor="white") for c in (BLUE, ORANGE)
    ]
    figure.legend(handles, ("job 1 sends", "job 2 sends"), loc="lower center", ncols=2, frameon=False)
    figure.subplots_adjust(left=0.02, right=0.98, top=0.82, bottom=0.14)
    return figure


PICTURES: tuple[Callable[[], Figure], ...] = (slots, coflows, vclos, circuits, circles)


def main() -> None:
    """Draw all pictures."""
    for picture in PICTURES:
        figure = picture()
        path = IMAGES / f"concept-{picture.__name__}.svg"
        figure.savefig(path, metadata={"Date": None})
        path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
        plt.close(figure)


if __name__ == "__main__":
    main()
