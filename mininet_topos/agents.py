"""The host agents of a network: one process for each host, as on real hosts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from machine import record as records
from machine.errors import EntrainError
from machine.record import Record
from mininet_topos.network import Network


@contextlib.contextmanager
def agents(
    network: Network, record: Record, directory: Path, *, slot_ms: float = 60.0
) -> Iterator[dict[str, str]]:
    """Within, `entrain-agent` serves every host of a running network; yields gRPC addresses by host.

    The agents stay in the caller's namespaces, and only their eBPF programs are on the hosts. The first
    holds the machine's congestion controls for all. Raises EntrainError with what an agent that does not
    start says.
    """
    rates = {end: link.rate_mbps for link in network.topology.links for end in (link.a, link.b)}
    with contextlib.ExitStack() as stack:
        started = {}
        for host in network.topology.hosts:
            address = f"unix:{directory}/agent-{host.name}.sock"
            command = [
                *(sys.executable, "-m", "hostbpf", "--interface", host.interface),
                *("--netns", f"/proc/{network.net[host.name].pid}/ns/net", "--listen", address),
                *("--slot-ms", str(slot_ms), "--link-mbps", str(rates[host.name])),
            ]
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(record.release, record.own(records.process(process.pid)))
            started[host.name] = (process, address)
        for name, (process, _) in started.items():
            assert process.stdout is not None
            if not process.stdout.readline().startswith("ready"):
                raise EntrainError(f"the agent of {name} does not start: {process.communicate()[1].strip()}")
        yield {name: address for name, (_, address) in started.items()}
