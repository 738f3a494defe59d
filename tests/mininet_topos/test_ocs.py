"""A network around an emulated optical circuit switch: routes follow circuits, others lose nothing."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
from pathlib import Path

import pytest

from controlplane.fabric import Fabric
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy, desired_state
from controlplane.topology import Topology, parse_topology
from machine.errors import BadInput
from machine.patience import patience
from machine.record import Record
from mininet_topos.network import Network, check_possible
from ocs.manager import CircuitManager
from tests.attempts import undisturbed
from tests.mininet_topos.test_network import _serial, free_port
from tests.ocs.switch import circuits

pytestmark = pytest.mark.root

SOURCE = FabricPolicy(routing="source")


def clos(**ocs: object) -> Topology:
    """Two leaves with two hosts each, and two spines, all plugged in: 1-5 and 3-6 lead to the first spine."""
    number = next(_serial)
    leaves, spines = ([f"{letter}{number}{i}" for i in (1, 2)] for letter in "ls")
    hosts = [[f"{letter}{number}{i}" for i in (1, 2)] for letter in "ab"]
    roles = {"leaf": leaves, "spine": spines}
    tables = {
        "switch": [
            {"name": name, "role": role, "grpc_port": free_port()}
            for role, names in roles.items()
            for name in names
        ],
        "host": [{"name": name} for names in hosts for name in names],
        "link": [
            *({"a": leaf, "b": host} for leaf, names in zip(leaves, hosts, strict=True) for host in names),
            *(
                {"a": leaves[i], "b": spines[j], "ocs_ports": [2 * i + j + 1, 5 + 2 * j + i]}
                for i in range(2)
                for j in range(2)
            ),
        ],
        "ocs": ocs,
    }
    return parse_topology(tables, "test")


def lost_in_the_dark(network: Network) -> int:
    assert network.panel is not None
    return sum(traffic.lost for traffic in network.panel.traffic().values())


def test_a_change_reroutes_its_owner_and_nobody_else_loses_a_packet(tmp_path: Path) -> None:
    """`bert` pings over the first spine, `gpt` over the second, whose two circuits are then crossed."""
    longer_ms = itertools.chain([500.0], itertools.repeat(5000.0))
    undisturbed(lambda: rerouted(tmp_path, next(longer_ms)), bool)


def rerouted(tmp_path: Path, switching_ms: float) -> bool:
    """Whether the routes were written while it was dark; if so, the rest holds, too."""
    topology = clos(switching_ms=switching_ms)
    bert, gpt, _, _ = (host.name for host in topology.hosts)
    to_bert, to_gpt = (host.ip for host in topology.hosts[2:])

    def ping(network: Network, host: str, address: str, *options: str) -> subprocess.Popen[str]:
        inside = ["mnexec", "-a", str(network.net[host].pid)]
        return subprocess.Popen([*inside, "ping", "-q", *options, address], stdout=subprocess.PIPE, text=True)

    def counts(process: subprocess.Popen[str]) -> tuple[int, int]:
        said, _ = process.communicate(timeout=patience(60))
        found = re.search(r"(\d+) packets transmitted, (\d+) received", said)
        assert found is not None, said
        return int(found[1]), int(found[2])

    async def run(network: Network, fabric: Fabric) -> bool:
        assert network.panel is not None and topology.ocs is not None
        manager = CircuitManager(topology.ocs.crossbar, network.panel)
        await fabric.apply(desired_state(topology, SOURCE), routing="source")
        await manager.change("bert", circuits("1-5", "3-6"))
        await manager.change("gpt", circuits("2-7", "4-8"))
        assert counts(ping(network, gpt, to_gpt, "-c", "3", "-i", "0.01")) == (3, 3)

        streams = [
            ping(network, host, to, "-c", "400", "-i", "0.003")
            for host, to in ((bert, to_bert), (gpt, to_gpt))
        ]
        before = network.panel.traffic()[1].passed
        while network.panel.traffic()[1].passed < before + 10:  # both run
            await asyncio.sleep(0.005)
        crossed = circuits("2-8", "4-7")
        changing = asyncio.create_task(manager.change("gpt", crossed))
        lit = topology.lit(circuits("1-5", "3-6") | crossed)
        await fabric.apply(desired_state(lit, SOURCE), routing="source")  # while it is dark
        in_the_dark = not changing.done()
        await changing

        loop = asyncio.get_running_loop()
        (sent, received), (gpt_sent, gpt_received) = await asyncio.gather(
            *(loop.run_in_executor(None, counts, stream) for stream in streams)
        )
        if not in_the_dark:
            return False
        assert sent == received == 400
        assert gpt_sent == 400
        assert 0 < lost_in_the_dark(network) == gpt_sent - gpt_received
        assert counts(ping(network, gpt, to_gpt, "-c", "3", "-i", "0.01")) == (3, 3)
        return True

    async def main(network: Network) -> bool:
        async with Fabric(topology, Pipeline.load()) as fabric:
            return await run(network, fabric)

    with (
        Record("test-ocs", records=tmp_path / "records") as record,
        Network(topology, record, tmp_path) as network,
    ):
        return asyncio.run(main(network))


def test_a_real_switch_is_refused_in_an_emulation() -> None:
    with pytest.raises(BadInput, match='driver: "scpi" is for real switches'):
        check_possible(clos(driver="scpi", address="10.0.0.5:5025"))
