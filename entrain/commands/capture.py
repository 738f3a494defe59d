"""`entrain capture`: capture the packets of a link or a host of a network, for Wireshark or as text."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from machine.errors import BadInput, EntrainError, MissingTool


@click.command(short_help="Capture the packets of a link or a host.")
@click.argument("where", metavar="LINK|HOST")
@click.option("--network", help="Which network or run; needed only if there are several.")
@click.option("--slot-headers", is_flag=True, help="Only packets with a slot header.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many packets.")
@click.option("--out", type=click.Path(path_type=Path), help="Write a pcap file; `-` is standard output.")
def command(where: str, network: str | None, slot_headers: bool, count: int | None, out: Path | None) -> None:
    """Capture what passes LINK (`leaf1->spine1`, one direction) or HOST (`h1`, both), until Ctrl-C.

    Without --out it prints a line per packet. Wireshark shows slot headers with wire/slot_header.lua. Quote
    a link's name, for `>` means something to the shell; `leaf1-spine1` is the same link.

    \b
    entrain capture h1 --slot-headers --out carriers.pcap
    entrain capture leaf1-spine1 --out - | wireshark -k -i -
    """
    from controlplane.api_pb2 import GetNetworkRequest
    from controlplane.client import RUNS, call, choose
    from mininet_topos.isolation import enter
    from wire.slot_header import ETHERTYPE

    if shutil.which("tcpdump") is None:
        raise MissingTool("tcpdump is not on PATH: apt-get install tcpdump")
    chosen = choose(network, runs=RUNS)
    with call(chosen) as stub:
        running = stub.GetNetwork(GetNetworkRequest())
    namespace, interface, direction = _place(where, chosen.name, running)
    command = ["tcpdump", "-i", interface, "-n", "-U"]
    command += ["-Q", direction] if direction else []
    command += ["-c", str(count)] if count else []
    if out is not None:
        command += ["-w", "-"]
        _write_to(out)
    else:
        command += ["-e", "-l"]
    if slot_headers:
        command += [f"ether proto {ETHERTYPE:#x}"]
    enter(namespace)
    os.execvp("tcpdump", command)


def _place(where: str, name: str, running: Any) -> tuple[Path, str, str]:
    """Return the network namespace, the interface, and the direction of what is to be captured."""
    hosts = {host.name: host for host in running.hosts}
    if not running.namespace or not all(host.process_id for host in running.hosts):
        raise BadInput(f"network {name} is not emulated here; run tcpdump on the host itself")
    if where in hosts:
        return Path(f"/proc/{hosts[where].process_id}/ns/net"), hosts[where].interface, ""
    links = {port.link: (port.interface, "out") for port in running.ports}
    links |= {
        f"{port.peer}->{port.switch}": (port.interface, "in") for port in running.ports if port.peer in hosts
    }
    for link, (interface, direction) in links.items():
        if where in (link, link.replace("->", "-")):
            return Path("/run/netns") / running.namespace, interface, direction
    raise BadInput(f"{where}: no such link or host in {name}; it has {', '.join([*hosts, *links])}")


def _write_to(out: Path) -> None:
    """Let standard output be the file `out`."""
    if str(out) == "-":
        if sys.stdout.isatty():
            raise BadInput("--out -: standard output is a terminal; give a file, or pipe it to wireshark")
        return
    try:
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise EntrainError(f"--out {out}: {error.strerror}") from error
    os.dup2(file, 1)
