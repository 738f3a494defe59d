"""Details recorded on request: each flow's completion time, and each link's utilisation over time.

Both are kept as columns, because there can be millions of rows.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from machine.palette import style
from machine.whole import whole
from simulation.engine import CoflowRecord
from simulation.topology import GBIT, Topology
from simulation.usage import Usage

Columns = Mapping[str, Sequence[Any]]


@dataclass
class FlowTimes:
    """Columns with one row per flow: the flow's coflow, its hosts, and its completion time (s)."""

    coflow: list[str] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)
    arrival_s: list[float] = field(default_factory=list)
    """A flow arrives with its coflow."""
    fct_s: list[float] = field(default_factory=list)

    def columns(self) -> Columns:
        """Return the columns by name."""
        return vars(self)


@dataclass(frozen=True)
class LinkUsage:
    """The links' utilisation in bins of equal length."""

    bin_s: float
    links: list[str]
    capacity_gbit_s: list[float]
    utilisation: list[list[float]]
    """Mean fraction of its capacity, by bin and link."""

    def columns(self) -> Columns:
        """Return columns with one row per bin and link, by name. A bin's time is its start."""
        bins, links = len(self.utilisation), len(self.links)
        return {
            "time_s": [b * self.bin_s for b in range(bins) for _ in range(links)],
            "link": self.links * bins,
            "utilisation": [share for row in self.utilisation for share in row],
            "capacity_gbit_s": self.capacity_gbit_s * bins,
        }


def flow_times(names: Sequence[str], coflows: Sequence[CoflowRecord]) -> FlowTimes:
    """Return the times of all flows of `coflows`, whose names are `names`.

    Raises ValueError if the flows' times were not recorded.
    """
    found = FlowTimes()
    for name, record in zip(names, coflows, strict=True):
        if record.flow_times is None:
            raise ValueError(f"the times of coflow {name}'s flows were not recorded; ask the transport to")
        flows = len(record.flow_times)
        found.coflow += [name] * flows
        found.src += record.work.src.tolist()
        found.dst += record.work.dst.tolist()
        found.bytes += record.work.size.tolist()
        found.arrival_s += [record.arrival] * flows
        found.fct_s += (record.flow_times - record.arrival).tolist()
    return found


def link_usage(usage: Usage, topology: Topology, until: float) -> LinkUsage:
    """Return `usage` up to `until` s."""
    return LinkUsage(
        usage.width,
        list(topology.link_names),
        (topology.capacity / GBIT).tolist(),
        usage.utilisation(topology.capacity, until).tolist(),
    )


def write_columns(directory: Path, name: str, blocks: Iterable[Columns]) -> None:
    """Write `blocks`, which have the same columns, one after another to `name`.csv. Also write `name`.parquet
    if pyarrow is installed."""
    parquet: Any = None
    path = directory / f"{name}.csv"
    with whole(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for i, block in enumerate(blocks):
            if i == 0:
                writer.writerow(block)
            writer.writerows(zip(*block.values(), strict=True))
            if importlib.util.find_spec("pyarrow") is not None:
                import pyarrow
                import pyarrow.parquet

                table = pyarrow.table(dict(block))
                if parquet is None:
                    parquet = pyarrow.parquet.ParquetWriter(directory / f"{name}.parquet", table.schema)
                parquet.write_table(table)
    if parquet is not None:
        parquet.close()


def plot_usage(path: Path, title: str, settings: Mapping[str, Sequence[tuple[str, LinkUsage]]]) -> None:
    """Plot utilisation over time: one row of panels per setting, with one line per policy and its usage."""
    from machine.headless import pyplot

    figure, axes = pyplot.subplots(len(settings), 2, figsize=(12, 3.6 * len(settings)), squeeze=False)
    for (setting, lines), (mean, busiest) in zip(settings.items(), axes, strict=True):
        for label, record in lines:
            shares = 100.0 * np.array(record.utilisation)
            edges = record.bin_s * np.arange(len(shares) + 1)
            used = shares.any(axis=0)
            look = style(label)
            mean.stairs(shares[:, used].mean(axis=1), edges, label=label, color=look.colour, ls=look.line)
            busiest.stairs(shares.max(axis=1), edges, label=label, color=look.colour, ls=look.line)
        width = lines[0][1].bin_s
        for axis, what in ((mean, "mean of links in use"), (busiest, "busiest link per bin")):
            axis.set_title(f"{setting}: {what}" if setting else what, fontsize=9)
            axis.set_xlabel(f"time (s), in bins of {width:g} s")
            axis.set_ylabel("link utilisation (%)")
            axis.set_ylim(0.0, 105.0)
            axis.legend(title="policy", fontsize=7)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
