"""A network's switches replaced by Linux routers, between the same links, shapers and queues.

The switches' interfaces are in one namespace. There, a rule for each interface selects the routing table of
the switch that it belongs to, so that each switch forwards as a router of its own. Neighbours are static: no
router has an address.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from controlplane.network import Switch, Topology
from controlplane.routing import next_hops
from machine.errors import EntrainError
from mininet_topos.network import Network

_FIRST_TABLE = 1000
_SYSCTLS = {"ip_forward": "1", "conf/*/rp_filter": "0", "conf/*/send_redirects": "0"}


def replace_switches(network: Network) -> None:
    """End the switches of a network in a private namespace, and let the kernel route in their place.

    Raises EntrainError where that fails.
    """
    topology = network.topology
    for node in network.switches.values():
        node.stop()
    for key, value in _SYSCTLS.items():
        for path in Path("/proc/sys/net/ipv4").glob(key):
            path.write_text(value, encoding="utf-8")
    macs = _macs()
    lines = [line for switch in topology.switches for line in _router(topology, switch, macs)]
    done = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(lines), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise EntrainError(f"cannot make routers of the switches: {done.stderr.strip()}")
    for host in topology.hosts:
        gateway = macs[topology.switch_by_name[host.leaf].interface(host.leaf_port)]
        neighbours = [
            f"neigh replace {other.ip} lladdr {gateway} dev {host.interface} nud permanent"
            for other in topology.hosts
            if other != host
        ]
        network.run(host.name, ["sh", "-ec", "\n".join(f"ip {each}" for each in neighbours)])


def _router(topology: Topology, switch: Switch, macs: dict[str, str]) -> Iterator[str]:
    """Yield the lines for `ip -batch` that make a router of a switch."""
    table = _FIRST_TABLE + switch.device_id
    for port in switch.ports:
        yield f"rule add iif {switch.interface(port.number)} table {table}"
    ports = {port.number: port for port in switch.ports}
    for host in topology.hosts:
        port = ports[min(next_hops(topology, switch, host))]
        interface = switch.interface(port.number)
        if port.peer == host.name:
            mac = host.mac
        else:
            mac = macs[topology.switch_by_name[port.peer].interface(port.peer_port)]
        yield f"route add {host.ip}/32 dev {interface} table {table}"
        yield f"neigh replace {host.ip} lladdr {mac} dev {interface} nud permanent"


def _macs() -> dict[str, str]:
    """Return the MAC address of each interface of this namespace."""
    shown = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True)
    return {each["ifname"]: each["address"] for each in json.loads(shown.stdout)}
