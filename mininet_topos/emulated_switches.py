"""Emulated switches for a topology: their files, the paths files of its hosts, and the processes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.network import Host, Switch, Topology
from controlplane.routing import Routing, fixed_path
from machine.packages import run_module
from machine.record import Record

if TYPE_CHECKING:
    from mininet_topos.network import Network


def switch_file(switch: Switch, listen: str, slot_ms: float = 60.0, certificates: Path | None = None) -> str:
    """Return the configuration file of the emulated switch for `switch` (`hostbpf.emulated.server`)."""
    lines = [f"name = {json.dumps(switch.name)}", f"listen = {json.dumps(listen)}", f"slot_ms = {slot_ms}"]
    if certificates is not None:
        lines.append(f"certificates = {json.dumps(str(certificates.absolute()))}")
    for port in switch.ports:
        lines += ["", f"[[port]]  # to {port.peer}"]
        lines += [f"number = {port.number}", f"rate_mbps = {port.rate_mbps}"]
    return "\n".join(lines) + "\n"


def paths_file(
    topology: Topology,
    routing: Routing,
    source: Host,
    addresses: Mapping[str, str],
    certificates: Path | None = None,
) -> str:
    """Return the paths file of host `source` (`hostbpf.emulated.client`), with the switches' `addresses`.

    Raises BadInput if a path is not fixed.
    """
    lines = []
    if certificates is not None:
        lines += [f"certificates = {json.dumps(str(certificates.absolute()))}"]
        lines += [f"host = {json.dumps(source.name)}", ""]
    for destination in topology.hosts:
        if destination == source:
            continue
        hops = ", ".join(
            f"{{ switch = {json.dumps(addresses[switch])}, port = {port}"
            + (f", name = {json.dumps(switch)} }}" if certificates else " }")
            for switch, port in fixed_path(topology, routing, source, destination)
        )
        lines += [f"[[path]]  # to {destination.name}", f'destination = "{destination.ip}"']
        lines += [f"hops = [{hops}]", ""]
    return "\n".join(lines)


def write_files(
    topology: Topology,
    routing: Routing,
    directory: Path,
    addresses: Mapping[str, str],
    slot_ms: float = 60.0,
    certificates: Path | None = None,
) -> tuple[dict[str, Path], dict[str, Path]]:
    """Write all files into `directory`. Return the switches' files and the hosts' paths files, by name.

    With the directory of `certificates`, switches and hosts speak TLS. Raises BadInput if a path is not
    fixed, before writing anything.
    """
    paths = {
        host.name: paths_file(topology, routing, host, addresses, certificates) for host in topology.hosts
    }
    switches = {
        each.name: switch_file(each, addresses[each.name], slot_ms, certificates)
        for each in topology.switches
    }
    directory.mkdir(parents=True, exist_ok=True)
    written: list[dict[str, Path]] = []
    for texts, suffix in ((switches, "switch"), (paths, "paths")):
        written.append({name: directory / f"{name}.{suffix}.toml" for name in texts})
        for name, text in texts.items():
            written[-1][name].write_text(text, encoding="utf-8")
    return written[0], written[1]


@contextlib.contextmanager
def emulated_switches(
    network: Network, routing: Routing, record: Record, directory: Path, *, slot_ms: float = 60.0
) -> Iterator[dict[str, Path]]:
    """Run an emulated switch for every switch of `network`. Yields the hosts' paths files, by host.

    They listen on Unix sockets in `directory`, as the agents do, and log to `directory`/emulated-SWITCH.log.
    `network.check` finds one that has ended. Raises EntrainError, with the end of its log, for one that does
    not start.
    """
    topology = network.topology
    addresses = {switch.name: f"unix:{directory}/{switch.name}.sock" for switch in topology.switches}
    files, paths = write_files(topology, routing, directory, addresses, slot_ms)
    command = (*run_module("entrain.cli"), "emulated-switch")
    commands = [
        (f"emulated switch {name}", [*command, str(file)], directory / f"emulated-{name}.log")
        for name, file in files.items()
    ]
    with network.serving(record, commands):
        yield paths
