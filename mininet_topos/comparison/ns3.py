"""A scenario in ns-3. Its program is `ns3.cc`, compiled when it is first needed.

Each host and switch is a node that routes, and each link a pair of point-to-point devices. What waits is in
the device's queue, which is limited in bytes as the emulation's is, and a full packet has 1514 bytes there,
too. ns-3 makes segments one by one, so `Scenario.offloads` changes nothing. Between equal paths, it takes one
and the same for all flows.

Congestion controls are ns-3's own. In 3.37, which Debian 12 has, CUBIC does not keep up with Reno where Reno
is faster, as Linux's does, so it grows more slowly on short paths. Its BBR counts the low rates that it has
while it looks for the shortest round trip, for 200 ms every 10 s. Where ten round trips take no longer, it
forgets the bottleneck's rate, and needs long to find it again. Linux does not count them.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane.network import Link, Topology
from machine import cache
from machine.errors import BadInput, EntrainError, MissingTool
from mininet_topos.comparison.scenarios import Carried, Flow, Measured, Scenario
from mininet_topos.links import queue_bytes

SOURCE = Path(__file__).with_name("ns3.cc")
PREFIX = Path("/usr")
"""Where Debian's package puts ns-3: its headers are in `include/ns3`, its libraries below `lib`."""

MODULES = ("core", "network", "internet", "point-to-point")
CONTROLS = ("reno", "cubic", "bbr", "udp")
"""What a flow can be. DCTCP needs switches that mark, and a scenario does not say from which queue on."""

_REMEDY = "Debian: apt-get install libns3-dev g++"


def require() -> None:
    """Raise MissingTool without ns-3's headers or libraries, or without a C++ compiler."""
    _compiler()
    _libraries()


def run(scenario: Scenario, *, seconds: float, warm_up_s: float, seed: int) -> Measured:
    """Run `scenario` for `seconds` of simulated time, and measure what comes after the first `warm_up_s`.

    A flow with a payload counts from its start. The run ends early when all flows have one and are done.
    Without a queue's or a probe's sample, its figures are NaN. `seed` is at least 0, and decides when flows
    start and packets of UDP leave; the same one gives the same figures.

    Raises BadInput for what ns-3 cannot run, MissingTool without ns-3, and EntrainError with the message of
    the program or the compiler.
    """
    text = describe(scenario, seconds=seconds, warm_up_s=warm_up_s, seed=seed)
    done = subprocess.run([compiled()], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EntrainError(f"scenario {scenario.name}: ns-3 failed: {done.stderr.strip() or done.returncode}")
    return _measured(json.loads(done.stdout))


def describe(scenario: Scenario, *, seconds: float, warm_up_s: float, seed: int) -> str:
    """Return the description of a run that `ns3.cc` reads. Raises BadInput for what ns-3 cannot run."""
    for problem in _problems(scenario, seconds, warm_up_s, seed):
        raise BadInput(f"scenario {scenario.name}: {problem}")
    topology = scenario.topology
    names = [*(switch.name for switch in topology.switches), *(host.name for host in topology.hosts)]
    numbers = {name: number for number, name in enumerate(names)}
    lines = [f"run {seconds!r} {warm_up_s!r} {seed}", f"nodes {len(numbers)}"]
    for link in topology.links:
        limit = queue_bytes(link)
        ends = f"{numbers[link.a]} {numbers[link.b]}"
        lines.append(f"link {ends} {link.rate_mbps!r} {limit} {limit} {link.delay_ms or 0!r}")
    queue = _queue(topology, scenario.queue)
    assert queue is not None
    lines.append("queue {} {}".format(*queue))
    for flow in scenario.flows:
        ends = f"{numbers[flow.source]} {numbers[flow.sink]}"
        rate_mbps = flow.rate_mbps if flow.control == "udp" else 0
        lines.append(f"flow {ends} {flow.control} {rate_mbps!r} {flow.payload_bytes or 0}")
    return "\n".join([*lines, ""])


def compiled() -> Path:
    """Return the compiled program, from a cache.

    Raises MissingTool without ns-3 or a compiler, and EntrainError with the compiler's message.
    """
    compiler, libraries = _compiler(), _libraries()
    # a library of another version needs a program of its own: its file is named after the version
    version = " ".join(str(library.resolve()) for library in libraries)
    options = ["-std=c++20", "-O2", "-Wall"]
    return cache.program(SOURCE, [compiler, *options], [*map(str, libraries)], version)


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise MissingTool(f"ns-3 needs a C++ compiler: install one ({_REMEDY}), or set CXX")


def _libraries() -> list[Path]:
    """Return the libraries of `MODULES`: libns3-core.so and so on, with or without a version in the name.

    They are not taken from pkg-config: Debian's ns3-core.pc names libraries that libns3-dev does not install.
    """
    if not (PREFIX / "include/ns3/core-module.h").exists():
        raise MissingTool(f"ns-3's headers are missing from {PREFIX / 'include/ns3'}; {_REMEDY}")
    candidates = sorted(PREFIX.glob("lib*/libns3*.so")) + sorted(PREFIX.glob("lib/*/libns3*.so"))
    found = []
    for module in MODULES:
        name = re.compile(rf"libns3[\d.]*-{module}(-(default|release|optimized))?\.so")
        library = next((path for path in candidates if name.fullmatch(path.name)), None)
        if library is None:
            raise MissingTool(
                f"ns-3's library libns3-{module}.so is missing from {PREFIX / 'lib'}; {_REMEDY}"
            )
        found.append(library)
    return found


def _problems(scenario: Scenario, seconds: float, warm_up_s: float, seed: int) -> Iterator[str]:
    topology = scenario.topology
    if not 0 <= warm_up_s < seconds:
        yield f"a warm-up of {warm_up_s:g} s leaves nothing of {seconds:g} s to measure; take a shorter one"
    if seed < 0:
        yield f"the seed is {seed}; take 0 or more"
    if topology.ocs is not None:
        yield "ns-3 runs no optical circuit switch; take a topology without one"
    for link in topology.links:
        for asked in ("loss", "jitter_ms"):
            if getattr(link, asked):
                yield f"link {link.a}-{link.b}: ns-3 runs no {asked} here; remove it"
    switch, port = scenario.queue
    if _queue(topology, scenario.queue) is None:
        yield f"the measured queue is at switch {switch}, port {port}, which no link joins"
    if not scenario.flows:
        yield "it has no flow; add one"
    for flow in scenario.flows:
        yield from (
            f"flow {flow.source}-{flow.sink}: {problem}" for problem in _flow_problems(topology, flow)
        )


def _flow_problems(topology: Topology, flow: Flow) -> Iterator[str]:
    for host in (flow.source, flow.sink):
        if host not in topology.host_by_name:
            yield f"the topology has no host {host}"
    if flow.source == flow.sink:
        yield "its source is its sink"
    if flow.control not in CONTROLS:
        yield f'ns-3 does not run the control "{flow.control}" here; take one of {", ".join(CONTROLS)}'
    if flow.control == "udp" and not (flow.rate_mbps and flow.rate_mbps > 0):
        yield "udp needs rate_mbps, above 0"


def _queue(topology: Topology, queue: tuple[str, int]) -> tuple[int, int] | None:
    """Return the number of the link that a switch's port belongs to, and which end of it the port is."""

    def ends(link: Link) -> tuple[tuple[str, int], tuple[str, int]]:
        return (link.a, link.a_port), (link.b, link.b_port)

    if queue[0] not in topology.switch_by_name:
        return None
    found = ((number, ends(link)) for number, link in enumerate(topology.links) if queue in ends(link))
    return next(((number, both.index(queue)) for number, both in found), None)


def _measured(result: dict[str, Any]) -> Measured:
    flows = tuple(Carried(each["goodput_mbps"], each["lost"], each["seconds"]) for each in result["flows"])
    names = ("round_trip_ms", "round_trip_ms_p99", "queue_bytes", "queue_bytes_p99")
    return Measured(flows, **{name: math.nan if result[name] is None else result[name] for name in names})
