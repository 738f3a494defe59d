"""The host agents of a network: one process for each host, as on real hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.topology import Host
from hostbpf.agent.agent import Scheduling
from machine.packages import run_module
from machine.record import Record

if TYPE_CHECKING:
    from mininet_topos.network import Network


@contextlib.contextmanager
def agents(
    network: Network,
    record: Record,
    directory: Path,
    *,
    slot_ms: float = 60.0,
    scheduling: Scheduling | None = None,
    paths: Mapping[str, Path] | None = None,
    progress: Path | None = None,
    vital: bool = True,
) -> Iterator[dict[str, str]]:
    """Run `entrain-agent` for every host of a running network. Yields gRPC addresses by host.

    With `scheduling` the agents schedule their hosts' flows. `paths` are the hosts' paths files, if they use
    emulated switches. `progress` is where training processes publish. Agents log to
    `directory`/agent-HOST.log.

    The agents stay in the caller's namespaces: only their eBPF programs are on the hosts. If the machine's
    congestion controls are not yet registered, the first agent registers them for all. `network.check` finds
    an agent that has ended, if they are `vital`. Raises EntrainError, with the end of its log, for an agent
    that does not start.
    """
    addresses, commands = {}, []
    for host in network.topology.hosts:
        address = addresses[host.name] = f"unix:{directory}/agent-{host.name}.sock"
        own_paths = (paths or {}).get(host.name)
        command = agent_command(network, host, address, slot_ms, scheduling, own_paths, progress)
        commands.append((f"the agent of host {host.name}", command, directory / f"agent-{host.name}.log"))
    with network.serving(record, commands, vital=vital):
        network.agents.update(addresses)
        try:
            yield addresses
        finally:
            network.agents.clear()


def agent_command(
    network: Network,
    host: Host,
    address: str,
    slot_ms: float,
    scheduling: Scheduling | None = None,
    paths: Path | None = None,
    progress: Path | None = None,
) -> list[str]:
    """Return the command line of the agent of `host`, which listens at `address`."""
    rate = network.topology.host_rates_mbps[host.name]
    return [
        *(*run_module("hostbpf"), "--interface", host.interface),
        *("--netns", f"/proc/{network.net[host.name].pid}/ns/net", "--listen", address),
        *("--slot-ms", str(slot_ms), "--link-mbps", str(rate)),
        *_options(scheduling, paths),
        *(["--progress", str(progress)] if progress is not None else []),
    ]


def _options(scheduling: Scheduling | None, paths: Path | None) -> list[str]:
    if scheduling is None:
        return []
    options = ["--schedule", "--loads", scheduling.loads, "--scheduler", scheduling.scheduler]
    options += ["--turns-from", str(scheduling.turns_from)]
    if paths is not None:
        options += ["--paths", str(paths)]
    return options
