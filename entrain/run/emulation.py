"""What the `[network]` table of an experiment does to its network, under `entrain run` and `entrain up`."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.topology import Port, Topology
from ebpf.struct_ops import available_congestion_controls
from entrain.experiment import NetworkTable
from machine.errors import BadInput, EntrainError
from machine.record import Record
from mininet_topos.loss import lossy
from mininet_topos.servers import Servers
from mininet_topos.sizing import thresholds

if TYPE_CHECKING:
    from mininet_topos.network import Network

KEPT = "emulation.json"
"""Name of the file, in the directory of a network that is up, with the options that it has."""
RUN_ONLY = ("gap_ms",)
"""The keys of `[network]` that say how a run is measured, and change nothing of its network."""


def network_of(
    topology: Topology,
    options: NetworkTable,
    record: Record,
    directory: Path,
    *,
    namespace: str,
    servers: Servers,
    leaves_links: bool = True,
) -> Network:
    """Return the network of `topology` with the links, offloads and TCP of `options`; it is not yet up.

    The parameters are those of `Network`. Raises MissingTool without Mininet.
    """
    from mininet_topos.network import Network, Tcp  # commands check a file without Mininet, too

    return Network(
        topology,
        record,
        directory,
        namespace=namespace,
        shaping=options.shaping,
        offloads=options.offloads,
        tcp=Tcp(
            options.congestion_control,
            options.rto_min_ms,
            options.slow_start_after_idle,
            options.receive_buffer_bytes,
            options.host_queue_packets,
        ),
        servers=servers,
        leaves_links=leaves_links,
    )


@contextlib.contextmanager
def losing(topology: Topology, options: NetworkTable) -> Iterator[None]:
    """Lose packets between the switches of a network that is up in this namespace, as `options.loss` says.

    Links that an optical circuit switch may make later lose packets, too. Raises EbpfError.
    """
    if not options.loss:
        yield
        return
    ends = [
        socket.if_nametoindex(switch.interface(port.number))
        for switch in topology.switches
        for port in topology.fabric_ports_of(switch.name)
    ]
    with lossy(ends, options.loss):
        yield


def ecn_threshold(topology: Topology, options: NetworkTable) -> int | Callable[[Port], int]:
    """Return the queue length, in packets, from which switches mark ECN; by port unless the table has it."""
    given = options.ecn_threshold_packets
    return thresholds(topology, options.shaping) if given is None else given


def features(topology: Topology, options: NetworkTable) -> set[str]:
    """Return what the network needs, of the features that `entrain doctor` tries."""
    found = set()
    if any(switch.target == "softswitch" for switch in topology.switches):
        found.add("P4 switch")
    if options.loss:
        found.add("loss")
    return found


def run_only(options: NetworkTable) -> tuple[str, ...]:
    """Return the keys that the file sets in `[network]`, and that have a meaning in a run alone."""
    return tuple(key for key in RUN_ONLY if key in options.model_fields_set)


def keep(options: NetworkTable, directory: Path) -> None:
    """Write the options of a network to its directory."""
    (directory / KEPT).write_text(options.model_dump_json(), encoding="utf-8")


def check_kept(options: NetworkTable, directory: Path, name: str) -> None:
    """Raise EntrainError, naming the first key, if the network `name` that is up has other options."""
    try:
        kept = NetworkTable.model_validate_json((directory / KEPT).read_bytes())
    except (FileNotFoundError, ValueError):  # another version of entrain brought it up
        return
    for key in (key for key in NetworkTable.model_fields if key not in RUN_ONLY):
        has, asked = getattr(kept, key), getattr(options, key)
        if has != asked:
            raise EntrainError(
                f"network {name} is up with another {key} in [network] ({_shown(has)}, and the file asks for "
                f"{_shown(asked)}); take it down first: `entrain down`"
            )


def _shown(value: object) -> str:
    return "the default" if value is None else str(value)


def check_control(where: str, name: str | None, others: tuple[str, ...] = ()) -> None:
    """Raise BadInput if neither this kernel nor `others` have the congestion control; None is the system's.

    `where` is the file and the table in which it stands.
    """
    there = (*available_congestion_controls(), *others)
    if name is not None and name not in there and not _has_module(f"tcp_{name}"):
        raise BadInput(
            f"{where}, congestion_control: this kernel has no {name!r}; use one of {', '.join(sorted(there))}"
        )


def _has_module(name: str) -> bool:
    """Return whether the kernel can load the module. It loads it by itself when a socket asks for it."""
    if shutil.which("modprobe") is None:
        return False
    found = subprocess.run(["modprobe", "--dry-run", "--quiet", name], check=False, capture_output=True)
    return found.returncode == 0
