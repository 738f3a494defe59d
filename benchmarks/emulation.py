"""The emulation beside what others wrote, under the same load: Linux routers, BMv2 and ns-3.

`python -m benchmarks emulation [--json] [--short] [--targets NAME ..] [--rounds N] [--seconds S]`. Each row
is a figure of one scenario, as the median of the rounds, and says where softswitch differs from another
target by more than the goal and more than the rounds do among themselves. BMv2 and ns-3 are left out where
they are missing. The exit status is 1 if softswitch differs from the routers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
from collections.abc import Sequence
from typing import get_args

from rich.table import Table

from controlplane.topology import Topology
from machine.errors import MissingTool
from machine.record import clean_stale
from machine.terminal import plain_table, print_whole
from mininet_topos.comparison import ns3
from mininet_topos.comparison.compare import Measurement, Row, compare, measure
from mininet_topos.comparison.measure import Kind
from mininet_topos.comparison.scenarios import SCENARIOS, SHORT

OURS = "softswitch"
_BMV2_MBPS = 60.0
"""BMv2 is measured only on networks whose bottleneck is no faster."""


def main(argv: Sequence[str]) -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks emulation", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--short", action="store_true", help="what takes a minute")
    parser.add_argument("--targets", nargs="+", default=["softswitch", "router", "bmv2", "ns-3"])
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each measurement")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds before it")
    options = parser.parse_args(argv)
    clean_stale()
    scenarios = [each for each in (SHORT if options.short else SCENARIOS) if options.only in each.name]
    rows: list[Row] = []
    for scenario in scenarios:
        print(scenario.name, file=sys.stderr)
        targets = _targets(options, scenario.topology)
        rows += compare([scenario], targets, options.rounds)
    if options.json:
        print(json.dumps([{"scenario": row.scenario, "figure": row.figure, **row.values} for row in rows]))
    else:
        print_whole(table(rows, options.targets))
    sys.exit(any(row.differs(OURS, "router") for row in rows if {OURS, "router"} <= row.values.keys()))


def _targets(options: argparse.Namespace, topology: Topology) -> dict[str, Measurement]:
    """Return what is here of the targets that were asked for, and carries this network."""
    length = {"seconds": options.seconds, "warm_up_s": options.warm_up}

    def live(kind: Kind) -> Measurement:
        return lambda scenario, _: measure(scenario, kind, **length)

    slow = min(link.rate_mbps for link in topology.links) <= _BMV2_MBPS
    there = {
        "softswitch": True,
        "router": True,
        "bmv2": slow and shutil.which("simple_switch_grpc") is not None,
    }
    found = {kind: live(kind) for kind in get_args(Kind) if kind in options.targets and there[kind]}
    if "ns-3" in options.targets and _has_ns3():
        whole_s, warm_up_s = options.seconds + options.warm_up, options.warm_up
        found["ns-3"] = lambda scenario, number: ns3.run(
            scenario, seconds=whole_s, warm_up_s=warm_up_s, seed=number
        )
    return found


def _has_ns3() -> bool:
    with contextlib.suppress(MissingTool):
        ns3.require()
        return True
    return False


def table(rows: Sequence[Row], targets: Sequence[str]) -> Table:
    """Return a table of the rows' medians, with what softswitch differs from."""
    shown = plain_table("scenario", "figure", *targets, "differs from", text=2)
    name = ""
    for row in rows:
        medians = [f"{row.median(each):.2f}" if each in row.values else "-" for each in targets]
        others = [each for each in row.values if each != OURS and OURS in row.values]
        differs = ", ".join(each for each in others if row.differs(OURS, each))
        shown.add_row(row.scenario if row.scenario != name else "", row.figure, *medians, differs)
        name = row.scenario
    return shown


if __name__ == "__main__":
    main(sys.argv[1:])
