"""A topology, running: what is made, what it is called, that it works, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from controlplane.fabric import Applied, Fabric
from controlplane.mtu import mtu_of
from controlplane.p4client import SwitchClient, Unreachable
from controlplane.pipeline import Pipeline
from controlplane.routing import desired_state
from controlplane.topology import Target, Topology, parse_topology
from entrain.certificates import issue
from machine.errors import BadInput, EntrainError, MissingTool
from machine.patience import patience
from machine.record import Record, clean_stale, process_start
from mininet_topos import links
from mininet_topos.network import Network
from mininet_topos.servers import Servers
from mininet_topos.switches import NODES, Bmv2Node, SwitchNode

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
_serial = itertools.count(os.getpid() % 10000 * 10)


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def topology(target: Target = "softswitch", certificates: Path | None = None, **link: object) -> Topology:
    """Two switches with a host each, under names that no other test on this machine uses."""
    number = next(_serial)
    left, right, a, b = (f"{letter}{number}" for letter in "lrab")
    tables = {
        "topology": {"target": target, "certificates": certificates},
        "switch": [{"name": left, "grpc_port": free_port()}, {"name": right, "grpc_port": free_port()}],
        "host": [{"name": a}, {"name": b}],
        "link": [
            {"a": left, "b": right, "rate_mbps": 50, **link},
            {"a": left, "b": a, "rate_mbps": 100},
            {"a": right, "b": b, "rate_mbps": 100},
        ],
    }
    return parse_topology(tables, "test")


class Idle(SwitchNode):
    """A process that serves nothing: enough for what is around the switches."""

    target: ClassVar[Target] = "softswitch"

    def command(self) -> list[str]:
        return ["sleep", "600"]

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        self.check()


class Broken(SwitchNode):
    """A switch that says why it ends."""

    target: ClassVar[Target] = "softswitch"

    def command(self) -> list[str]:
        return ["sh", "-c", "seq 100; echo the program does not fit; exit 3"]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record("test-network", records=tmp_path / "records") as opened:
        yield opened


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[SwitchNode]], None]:
    """Make networks of that node class."""
    return lambda node: monkeypatch.setitem(NODES, "softswitch", node)


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def made_by(which: Topology) -> set[str]:
    return {switch.interface(port.number) for switch in which.switches for port in switch.ports}


def test_hosts_have_their_addresses_and_nothing_stays(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Idle)
    wanted = topology()
    with Network(wanted, record, tmp_path) as network:
        assert made_by(wanted) <= interfaces()
        for host in wanted.hosts:
            shown = network.run(host.name, ["ip", "-brief", "address", "show", "dev", host.interface])
            assert f"{host.ip}/{host.prefix_len}" in shown
            assert "fe80" not in shown
            assert host.mac in network.run(host.name, ["ip", "link", "show", "dev", host.interface])
        pids = [node.process_id for node in network.switches.values()]
        pids += [network.net[host.name].pid for host in wanted.hosts]
        worker = network.popen(wanted.hosts[0].name, ["sleep", "600"])
    assert not made_by(wanted) & interfaces()
    assert [pid for pid in [*pids, worker.pid] if pid is not None and process_start(pid) is not None] == []


def test_what_a_user_left_on_a_host_ends_with_the_network(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Idle)
    wanted = topology()
    with Network(wanted, record, tmp_path) as network:
        namespace = f"/proc/{network.net[wanted.hosts[0].name].pid}/ns/net"
        left = subprocess.Popen(["nsenter", f"--net={namespace}", "sleep", "600"], start_new_session=True)
        outside = subprocess.Popen(["sleep", "600"])
        while Path(f"/proc/{left.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
    assert process_start(left.pid) is None
    assert outside.poll() is None
    outside.terminate()
    outside.wait(timeout=patience(60))


def test_a_second_network_follows_at_once_under_the_same_names(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Idle)
    wanted = topology()
    for _ in range(2):
        with Network(wanted, record, tmp_path) as network:
            assert len(network.switches) == 2


def test_names_in_use_are_an_error_before_anything_is_made(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Idle)
    wanted = topology()
    with Network(wanted, record, tmp_path):
        before = interfaces()
        with (
            pytest.raises(EntrainError, match=r"exists already .* another network"),
            Network(wanted, record, tmp_path),
        ):
            pass
        assert before <= interfaces()


def test_a_switch_that_ends_shows_the_end_of_its_log(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Broken)
    wanted = topology()
    with pytest.raises(EntrainError) as raised, Network(wanted, record, tmp_path):
        pass
    message = str(raised.value)
    assert f"switch {wanted.switches[0].name} (softswitch) ended with status 3" in message
    assert "the program does not fit" in message
    assert "| 100\n" in message
    assert "| 50\n" not in message
    assert not made_by(wanted) & interfaces()


def test_a_switch_that_does_not_answer_is_an_error(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Idle)
    wanted = topology()
    with Network(wanted, record, tmp_path) as network:
        node = next(iter(network.switches.values()))
        with pytest.raises(EntrainError, match="did not serve P4Runtime within 0 s"):
            SwitchNode.wait_ready(node, timeout_s=0.3)


def test_a_killed_switch_is_named(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Idle)
    wanted = topology()
    with Network(wanted, record, tmp_path) as network:
        network.check()
        name, node = next(iter(network.switches.items()))
        assert node.process_id is not None
        os.kill(node.process_id, signal.SIGKILL)
        os.waitid(os.P_PID, node.process_id, os.WEXITED | os.WNOWAIT)
        with pytest.raises(EntrainError, match=f"switch {name} .* was killed by SIGKILL"):
            network.check()


def test_a_port_in_use_is_named_with_the_remedy(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Idle)
    wanted = topology()
    with socket.socket() as other:
        other.bind((wanted.switches[1].grpc_host, wanted.switches[1].grpc_port))
        other.listen()
        with (
            pytest.raises(EntrainError, match=f"cannot listen on .*:{wanted.switches[1].grpc_port}"),
            Network(wanted, record, tmp_path),
        ):
            pass
    assert not made_by(wanted) & interfaces()


_HOLDER = """
import signal, sys
from pathlib import Path
from controlplane.topology import parse_topology
from machine.record import Record
from mininet_topos.network import Network
from mininet_topos.servers import Servers
from mininet_topos.switches import NODES, SwitchNode

class Idle(SwitchNode):
    target = "softswitch"
    def command(self): return ["sleep", "600"]
    def wait_ready(self, timeout_s=30.0): self.check()

NODES["softswitch"] = Idle
directory, left, right = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
topology = parse_topology({
    "switch": [{"name": left, "grpc_port": int(sys.argv[4])}, {"name": right, "grpc_port": int(sys.argv[5])}],
    "host": [{"name": "a" + left}],
    "link": [{"a": left, "b": right}, {"a": left, "b": "a" + left}],
}, "test")
with Network(topology, Record("holder", records=directory / "records"), directory) as network:
    print(*(node.process_id for node in network.switches.values()), flush=True)
    signal.pause()
"""


def test_what_a_killed_owner_left_is_removed(tmp_path: Path) -> None:
    """A network in a process of its own that is killed with -9; then what the next start does."""
    left, right = topology().switches
    command = [sys.executable, "-c", _HOLDER, str(tmp_path), left.name, right.name]
    command += [str(left.grpc_port), str(right.grpc_port)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert holder.stdout is not None
    switch_pids = [int(word) for word in holder.stdout.readline().split()]
    fabric = {left.interface(1), right.interface(1)}
    assert fabric <= interfaces()
    (journal,) = (tmp_path / "records").glob("*.jsonl")
    holder.kill()
    holder.wait()
    assert fabric <= interfaces(), "the link outlives its owner, so there is something to clean"
    assert clean_stale(tmp_path / "records")
    assert not fabric & interfaces()
    assert [pid for pid in switch_pids if process_start(pid) is not None] == []
    assert not journal.exists()


def test_a_target_that_does_not_run_here_is_bad_input(tmp_path: Path, record: Record) -> None:
    wanted = topology("tofino")
    with pytest.raises(BadInput, match="target tofino"), Network(wanted, record, tmp_path):
        pass


def test_bmv2_that_is_not_installed_is_named(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bmv2Node, "program", "no_such_simple_switch_grpc")
    with (
        pytest.raises(MissingTool, match="no_such_simple_switch_grpc is not on PATH"),
        Network(topology("bmv2"), record, tmp_path),
    ):
        pass


def test_offloads_are_off_where_a_switch_takes_packets_as_on_a_wire(tmp_path: Path, record: Record) -> None:
    assert not Network(topology("bmv2"), record, tmp_path).offloads
    assert Network(topology("softswitch"), record, tmp_path).offloads


def test_mininet_sees_its_network(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Idle)
    wanted = topology()
    with Network(wanted, record, tmp_path) as network:
        a, b = wanted.hosts
        assert network.net[a.name].IP() == a.ip
        assert network.net[a.name].cmd("echo", "hello").strip() == "hello"
        left, right = (network.net[switch.name] for switch in wanted.switches)
        assert [tuple(map(str, ends)) for ends in left.connectionsTo(right)] == [
            (wanted.switches[0].interface(1), wanted.switches[1].interface(1))
        ]
        assert len(network.net.links) == 3
        assert network.net[b.name].MAC() == b.mac


def test_a_delayed_link_takes_its_time_and_nothing_of_it_stays(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without netem, by a relay, which the network watches. The switch's end of a host's link is asked."""
    monkeypatch.setattr(links, "has_netem", lambda: False)
    use(Idle)
    wanted = topology()
    wanted = replace(
        wanted,
        links=tuple(
            replace(link, delay_ms=30) if link.b == wanted.hosts[0].name else link for link in wanted.links
        ),
    )
    before = interfaces()
    with Network(wanted, record, tmp_path) as network:
        host = wanted.hosts[0]
        subprocess.run(
            ["ip", "addr", "add", "10.200.0.1/8", "dev", wanted.switches[0].interface(2)], check=True
        )
        answer = network.run(host.name, ["ping", "-c", "3", "-i", "0.2", "10.200.0.1"])
        times = [float(part.split()[0]) for part in answer.split("time=")[1:]]
        assert len(times) == 3
        assert min(times) >= 60
        relayed = network.relayed()
        assert relayed.relays == 1
        assert relayed.frames >= 8  # and the request for the address, and its answer
        assert not relayed.dropped
        [relay] = network._relays
        relay.child.process.kill()
        relay.child.process.wait()
        with pytest.raises(EntrainError, match=r"the relay of link .* was killed by SIGKILL"):
            network.check()
    assert interfaces() == before


def test_all_interfaces_of_a_link_have_its_mtu_those_of_a_relay_too(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "has_netem", lambda: False)
    use(Idle)
    wanted = topology(mtu=9000, delay_ms=1)
    wanted = replace(wanted, hosts=tuple(replace(host, mtu=1400) for host in wanted.hosts))
    mtus = {
        (switch.name, port.number): mtu_of(wanted, port)
        for switch in wanted.switches
        for port in switch.ports
    }
    assert set(mtus.values()) == {1400, 9000}, "a host's end limits its link"
    before = interfaces()
    with Network(wanted, record, tmp_path) as network:
        shown = json.loads(subprocess.check_output(["ip", "-json", "link"]))
        found = {link["ifname"]: link["mtu"] for link in shown if link["ifname"] not in before}
        for switch in wanted.switches:
            for port in switch.ports:
                assert found.pop(switch.interface(port.number)) == mtus[switch.name, port.number]
        assert len(found) == 2 and set(found.values()) == {9000}  # of the relay
        for host in wanted.hosts:
            (link,) = json.loads(network.run(host.name, ["ip", "-json", "link", "show", host.interface]))
            assert link["mtu"] == 1400


def test_an_mtu_too_large_for_a_link_is_refused_before_anything_is_made(
    tmp_path: Path, record: Record
) -> None:
    wanted = topology()
    wanted = replace(wanted, hosts=tuple(replace(host, mtu=9000) for host in wanted.hosts))
    before = interfaces()
    with pytest.raises(BadInput, match="mtu 9000 exceeds 1500"), Network(wanted, record, tmp_path):
        pass
    assert interfaces() == before


@pytest.mark.parametrize("target", ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_full_size_packets_pass_from_host_to_host_and_longer_ones_are_refused_to_the_sender(
    tmp_path: Path, record: Record, target: Target
) -> None:
    wanted = topology(target)
    wanted = replace(
        wanted,
        links=tuple(replace(link, mtu=9000) for link in wanted.links),
        hosts=tuple(replace(host, mtu=9000) for host in wanted.hosts),
    )

    async def control() -> None:
        async with Fabric(wanted, Pipeline.load()) as fabric:
            await fabric.apply(desired_state(wanted))

    with Network(wanted, record, tmp_path) as network:
        asyncio.run(control())
        a, b = wanted.hosts
        ping = ["ping", "-c", "1", "-w", "60", "-M", "do", b.ip, "-s"]
        network.run(a.name, [*ping, str(9000 - 28)], timeout_s=patience(100))  # headers of IP and ICMP
        with pytest.raises(EntrainError):
            network.run(a.name, ["ping", "-c", "1", "-w", "1", "-M", "do", b.ip, "-s", str(9001 - 28)])


@pytest.mark.parametrize("target", ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_real_switches_become_ready_and_come_back(tmp_path: Path, record: Record, target: Target) -> None:
    wanted = topology(target)
    with Network(wanted, record, tmp_path) as network:
        network.check()
        name, node = next(iter(network.switches.items()))
        before = node.process_id
        node.restart()
        network.check()
        assert network.switches[name].process_id != before


@pytest.mark.bmv2
def test_a_port_of_bmv2_keeps_a_full_queue_while_it_has_no_processor(tmp_path: Path, record: Record) -> None:
    """What it has not read yet waits in a ring of libpcap, which is short where an interface offloads."""
    wanted = topology("bmv2")
    ports = {switch.interface(port.number): port for switch in wanted.switches for port in switch.ports}
    with Network(wanted, record, tmp_path):
        shown = subprocess.check_output(["ss", "--packet", "--extended", "--no-header"], text=True)
    rings = dict(re.findall(r"\*:(\S+) +\*[^*]*ring_rx\([^)]*frm_nr:(\d+)", shown))
    for interface, port in ports.items():
        assert int(rings[interface]) > port.queue_packets


@pytest.mark.parametrize("target", ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_switches_with_certificates_take_tables_from_an_operator_alone(
    tmp_path: Path, record: Record, target: Target
) -> None:
    wanted = topology(target, certificates=tmp_path / "certs")
    issue(wanted, tmp_path / "certs", days=1)
    stranger = replace(wanted.switches[0], certificates=None)

    async def control() -> list[Applied]:
        async with Fabric(wanted, Pipeline.load()) as fabric:
            applied = await fabric.apply(desired_state(wanted))
            client = SwitchClient(stranger, Pipeline.load())
            with pytest.raises(Unreachable):
                await client.connect(2)
            await client.close()
            return applied

    with Network(wanted, record, tmp_path):
        assert all(each.inserted for each in asyncio.run(control()))


def test_both_directions_of_every_fabric_link_have_a_name(
    tmp_path: Path, record: Record, use: Callable[[type[SwitchNode]], None]
) -> None:
    use(Idle)
    number = next(_serial)
    left, right, host = f"l{number}", f"r{number}", f"h{number}"
    tables = {
        "switch": [{"name": left, "grpc_port": free_port()}, {"name": right, "grpc_port": free_port()}],
        "host": [{"name": host}],
        "link": [{"a": left, "b": right}, {"a": left, "b": right}, {"a": left, "b": host}],
    }
    with Network(parse_topology(tables, "test"), record, tmp_path) as network:
        ports = list(network.fabric_ports())
        assert {port.link for port in ports} == {
            f"{left}->{right}:1",
            f"{left}->{right}:2",
            f"{right}->{left}:1",
            f"{right}->{left}:2",
        }
        assert {port.ifindex for port in ports} == {socket.if_nametoindex(port.interface) for port in ports}


def test_hosts_of_a_server_reach_each_other_without_the_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NODES, "softswitch", Idle)
    number = next(_serial)
    names = [f"h{number}x{place}" for place in range(4)]
    leaf = f"l{number}"
    tables = {
        "switch": [{"name": leaf, "grpc_port": free_port()}],
        "host": [{"name": name} for name in names],
        "link": [{"a": leaf, "b": name, "rate_mbps": 100} for name in names],
    }
    servers = Servers((tuple(names[:2]), tuple(names[2:])), 200.0)
    with (
        Record("servers", records=tmp_path / "records") as record,
        Network(parse_topology(tables, "test"), record, tmp_path, servers=servers) as network,
    ):
        hosts = network.topology.host_by_name
        first, neighbour, other = (hosts[name] for name in names[:3])
        assert " 0% packet loss" in network.run(first.name, ["ping", "-c", "1", "-W", "60", neighbour.ip])
        assert f"dev {first.interface} " in network.run(first.name, ["ip", "route", "get", other.ip])
        shaped = network.run(first.name, ["tc", "class", "show", "dev", f"{first.name}-s0"])
        assert "ceil 200Mbit" in shaped
