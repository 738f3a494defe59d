"""Details recorded on request: each flow's completion time, and each link's utilisation over time.

Both are kept as columns, because there can be millions of rows.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from machine.palette import style
from simulation.engine import CoflowRecord
from simulation.topology import GBIT, Topology
from simulation.usage import Usage

Columns = dict[str, list[Any]]

FLOW_COLUMNS = ("coflow", "src", "dst", "bytes", "arrival_s", "fct_s")
USAGE_COLUMNS = ("time_s", "link", "utilisation", "capacity_gbit_s")


def flow_columns(names: Sequence[str], coflows: Sequence[CoflowRecord]) -> Columns:
    """Return FLOW_COLUMNS for all flows of `coflows`, whose names are `names`. A flow arrives with its
    coflow. Raises ValueError if the flows' times were not recorded."""
    columns: Columns = {name: [] for name in FLOW_COLUMNS}
    for name, record in zip(names, coflows, strict=True):
        if record.flow_times is None:
            raise ValueError(f"the times of coflow {name}'s flows were not recorded; ask the transport to")
        flows = len(record.flow_times)
        columns["coflow"] += [name] * flows
        columns["src"] += record.work.src.tolist()
        columns["dst"] += record.work.dst.tolist()
        columns["bytes"] += record.work.size.tolist()
        columns["arrival_s"] += [record.arrival] * flows
        columns["fct_s"] += (record.flow_times - record.arrival).tolist()
    return columns


def usage_record(usage: Usage, topology: Topology, until: float) -> dict[str, Any]:
    """Return `usage` up to `until` s as plain values. Utilisation has one list per bin, with one value per
    link."""
    return {
        "bin_s": usage.width,
        "links": list(topology.link_names),
        "capacity_gbit_s": (topology.capacity / GBIT).tolist(),
        "utilisation": usage.utilisation(topology.capacity, until).tolist(),
    }


def usage_columns(record: dict[str, Any]) -> Columns:
    """Return USAGE_COLUMNS of a usage record: one row per bin and link, with the bin's start time."""
    bins, links = len(record["utilisation"]), len(record["links"])
    return {
        "time_s": [b * record["bin_s"] for b in range(bins) for _ in range(links)],
        "link": record["links"] * bins,
        "utilisation": [share for row in record["utilisation"] for share in row],
        "capacity_gbit_s": record["capacity_gbit_s"] * bins,
    }


def write_columns(directory: Path, name: str, blocks: Iterable[Columns]) -> None:
    """Write `blocks`, which have the same columns, one after another to `name`.csv. Also write `name`.parquet
    if pyarrow is installed."""
    parquet: Any = None
    with (directory / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        for i, block in enumerate(blocks):
            if i == 0:
                writer.writerow(block)
            writer.writerows(zip(*block.values(), strict=True))
            if importlib.util.find_spec("pyarrow") is not None:
                import pyarrow
                import pyarrow.parquet

                table = pyarrow.table(block)
                if parquet is None:
                    parquet = pyarrow.parquet.ParquetWriter(directory / f"{name}.parquet", table.schema)
                parquet.write_table(table)
    if parquet is not None:
        parquet.close()


def plot_usage(path: Path, title: str, settings: dict[str, list[tuple[str, dict[str, Any]]]]) -> None:
    """Plot utilisation over time: one row of panels per setting, with one line per (label, usage record)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(settings), 2, figsize=(12, 3.6 * len(settings)), squeeze=False)
    for (setting, lines), (mean, busiest) in zip(settings.items(), axes, strict=True):
        for label, record in lines:
            shares = 100.0 * np.array(record["utilisation"])
            edges = record["bin_s"] * np.arange(len(shares) + 1)
            used = shares.any(axis=0)
            look = style(label)
            mean.stairs(shares[:, used].mean(axis=1), edges, label=label, color=look.colour, ls=look.line)
            busiest.stairs(shares.max(axis=1), edges, label=label, color=look.colour, ls=look.line)
        width = lines[0][1]["bin_s"]
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
