"""`python -m mininet_topos.comparison SCENARIO KIND SECONDS WARM_UP_S`: measure once, and print JSON.

A process of its own, because one with gRPC's threads cannot change its namespace.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import cast

from machine.signals import ending_once
from mininet_topos.comparison.measure import Kind, run
from mininet_topos.comparison.scenarios import SCENARIOS


def main(name: str, kind: str, seconds: str, warm_up_s: str) -> None:
    """Measure the scenario of that name."""
    scenario = next(each for each in SCENARIOS if each.name == name)
    with ending_once():
        found = run(scenario, cast(Kind, kind), seconds=float(seconds), warm_up_s=float(warm_up_s))
    print(json.dumps(dataclasses.asdict(found)))


main(*sys.argv[1:])
