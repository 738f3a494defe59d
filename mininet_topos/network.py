"""A running topology: hosts as namespaces, switches as processes, and shaped links between them.

    with Record("run") as record, private_namespace(record) as namespace:
        with Network(topology, record, directory, namespace=namespace) as network:
            network.popen("h1", ["ping", "-c", "1", "10.2.1.2"])

The network consists of Mininet's objects (`network.net`), so that Mininet's command line and tools work. The
interfaces behind them are created in batches. For sixteen hosts and eight switches, one shell command after
another takes longer than the experiment.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource as limits
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from controlplane.fabric import PortCounters
from controlplane.mtu import too_long
from controlplane.queues import Queue
from controlplane.topology import Host, Link, Topology
from machine import record as records
from machine.errors import BadInput, EntrainError
from machine.patience import patience
from machine.process import Child, launch
from machine.record import Record, Resource
from mininet_topos import relays
from mininet_topos.base import Host as MininetHost
from mininet_topos.base import Intf as MininetIntf
from mininet_topos.base import Link as MininetLink
from mininet_topos.base import Mininet
from mininet_topos.counters import Counters
from mininet_topos.isolation import inhabitants
from mininet_topos.links import (
    Shaping,
    check_impairments,
    check_qdiscs,
    gso_max_bytes,
    is_relayed,
    tc_commands,
    without_relay,
)
from mininet_topos.queues import Queues
from mininet_topos.relays import Passed, Relay
from mininet_topos.servers import Servers, interface, setup
from mininet_topos.switches import NODES, SwitchNode, thrift_ports, wait_ready
from ocs.emulated import Panel

READY_TIMEOUT_S = patience(60.0)
"""How long `Network.serving` waits. All processes start, and load their eBPF programs, at once."""

LOSSY_FEATURES = ("tx", "tso", "gso", "gro")
"""Offloads to disable if a switch (BMv2) needs packets in wire format.

At the switch's end, too: where an interface may offload, libpcap makes room for 64 KB in each frame of its
ring of 2 MB, so BMv2 lost what came beyond 32 packets while it had no processor.
"""


class _ReadyInterface(MininetIntf):  # type: ignore[misc]
    """Mininet's view of an interface that is already created and configured."""

    def config(self, **_: object) -> dict[str, object]:
        return {}


class _ReadyLink(MininetLink):  # type: ignore[misc]
    """Mininet's view of a link that already exists, and that its owner removes."""

    def __init__(self, intf1: _ReadyInterface, intf2: _ReadyInterface) -> None:
        self.intf1, self.intf2 = intf1, intf2
        intf1.link = intf2.link = self

    def stop(self) -> None:
        return None


@dataclass(frozen=True)
class Tcp:
    """TCP settings of the hosts. None keeps the kernel's default.

    `rto_min_ms` is the minimum retransmission timeout (Linux: 200 ms, for wide-area networks).
    `slow_start_after_idle` restarts an idle connection with a small window, as Linux does by default.
    `receive_buffer_bytes` limits a connection's receive buffer; the window is about half of it.
    """

    congestion_control: str | None = None
    rto_min_ms: float | None = None
    slow_start_after_idle: bool | None = None
    receive_buffer_bytes: int | None = None
    queue_packets: int | None = None
    """The queue before a host's own link. None makes it as long as the link's other queue."""


DEFAULT_TCP = Tcp()
NO_SERVERS = Servers()


@dataclass(frozen=True)
class FabricPort:
    """One direction of a link between two switches, at its sending end."""

    switch: str
    port: int
    peer: str
    interface: str
    ifindex: int
    link: str
    """The name of this direction, `leaf1->spine2`; with the port where the pair has several links."""


class Network:
    """Builds `topology` in the present network namespace; a context manager.

    directory: where switches log. namespace: the name of the present namespace if it is private (see
    `isolation`), else empty. offloads: whether hosts leave checksums and segmentation to their interface;
    None means what the targets allow. tcp: the hosts' TCP. servers: hosts that reach each other without the
    switches. leaves_links: whether `stop` leaves the links of a private namespace to its end, which is
    faster.

    Everything is owned by `record` before it is made. Raises EntrainError (what could not be made, or a
    switch that does not start), and what `check_possible` raises.
    """

    def __init__(
        self,
        topology: Topology,
        record: Record,
        directory: Path,
        *,
        namespace: str = "",
        shaping: Shaping = "htb",
        offloads: bool | None = None,
        tcp: Tcp = DEFAULT_TCP,
        servers: Servers = NO_SERVERS,
        leaves_links: bool = True,
        log_level: str = "warn",
    ) -> None:
        targets = {switch.target for switch in topology.switches}
        self.topology = topology
        self.directory = directory
        self.offloads = targets == {"softswitch"} if offloads is None else offloads
        self.tcp = tcp
        self.servers = servers
        self.shaping = shaping
        self._record = record
        self._namespace = namespace
        self._leaves_links = leaves_links and bool(namespace)
        self._log_level = log_level
        self._links: list[Resource] = []
        self._children: dict[subprocess.Popen[bytes], Child] = {}
        self._watched: list[Child] = []
        self._relays: list[Relay] = []
        self._queues: Queues | None = None
        self._counters: Counters | None = None
        self.net = _empty_mininet()
        self.agents: dict[str, str] = {}
        """The gRPC addresses of hosts' agents, by host, while they run."""
        self.panel: Panel | None = None
        """The emulated optical circuit switch, while the network runs, if the topology has one."""

    # -- life cycle

    def __enter__(self) -> Network:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Create everything and wait until all switches serve. Call it in the main thread."""
        check_possible(self.topology, self.shaping)
        self._check_names_are_free()
        for host in self.topology.hosts:
            self.net.addHost(host.name, cls=MininetHost, ip=f"{host.ip}/{host.prefix_len}", mac=host.mac)
        self._make_links()
        ports = thrift_ports(self.topology.switches)
        for switch in self.topology.switches:
            self.net.addSwitch(
                switch.name,
                cls=NODES[switch.target],
                switch=switch,
                record=self._record,
                directory=self.directory,
                log_level=self._log_level,
                thrift_port=ports[switch.name],
            )
        self._tell_mininet()
        for node in self.switches.values():
            node.start()
        self._configure_hosts()  # while the switches are starting
        wait_ready(self.switches.values())
        processes = {host.name: self.net[host.name].pid for host in self.topology.hosts}
        self._queues = Queues(self.topology, processes, self._relays)
        self._counters = Counters(self.topology)
        self.net.built = True

    def stop(self) -> None:
        """End every process in the network and remove it. Safe to call twice, and after a failed start."""
        if self._queues is not None:
            self._queues.close()
            self._queues = None
        if self._counters is not None:
            self._counters.close()
            self._counters = None
        self.end(list(self._children))
        for stranger in inhabitants(host.pid for host in self.net.hosts):  # that a user left on a host
            records.remove(records.process(stranger))
        for node in self.switches.values():  # all at once; `stop` waits for one
            node.ask_to_end()
        for node in self.switches.values():
            node.stop()
            node.terminate()
        for host in self.net.hosts:
            host.terminate()
        for relay in self._relays:
            relay.child.end()
        self._relays.clear()
        if not self._leaves_links:  # a private namespace removes its interfaces all at once
            for link in reversed(self._links):
                self._record.release(link)
        self._links.clear()
        self.net = _empty_mininet()
        if self.panel is not None:
            self.panel.release()
            self.panel = None

    # -- what is in it

    @property
    def switches(self) -> Mapping[str, SwitchNode]:
        """The switch nodes by name."""
        return {node.name: node for node in self.net.switches}

    def check(self) -> None:
        """Raise EntrainError, with the end of the log, if a switch, relay or watched process has ended."""
        for node in self.switches.values():
            node.check()
        for relay in self._relays:
            relay.child.check()
        for child in self._watched:
            child.check()

    @contextlib.contextmanager
    def watching(self, children: Sequence[Child]) -> Iterator[None]:
        """Make `check` also watch `children`, in this context."""
        self._watched += children
        try:
            yield
        finally:
            self._watched = [child for child in self._watched if child not in children]

    @contextlib.contextmanager
    def serving(
        self, record: Record, commands: Iterable[tuple[str, Sequence[str], Path]], *, vital: bool = True
    ) -> Iterator[None]:
        """Run processes of the network, each given as its name in messages, its command and its log.

        They start at the same time, and say when they are ready. `check` then finds one that has ended, if
        they are `vital`.
        Raises EntrainError, with the end of its log, for one that does not start.
        """
        with contextlib.ExitStack() as stack:
            children = []
            for what, command, log in commands:
                children.append(launch(record, what, command, log=log, tells=True))
                stack.callback(children[-1].end)
            for child in children:
                child.wait_ready(READY_TIMEOUT_S)
            with self.watching(children if vital else ()):
                yield

    def popen(self, host: str, command: Sequence[str], log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start `command` on `host`, owned by the record. Append its output to `log`, or discard it."""
        inside = ["mnexec", "-a", str(self.net[host].pid), *command]
        child = launch(self._record, f"{command[0]} on host {host}", inside, log=log, death="KILL")
        self._children[child.process] = child
        return child.process

    def end(self, processes: Iterable[subprocess.Popen[bytes]]) -> None:
        """End processes that `popen` started, and drop them from the record."""
        for process in processes:
            self._children.pop(process).end()

    def run(self, host: str, command: Sequence[str], *, timeout_s: float = 30.0) -> str:
        """Run `command` on `host` and return its output. Raises EntrainError with its error output."""
        return _run_in(self.net[host].pid, command, timeout_s=timeout_s)

    def relayed(self) -> Passed:
        """Return what the relays of delayed links have done so far; without netem, each such link has one."""
        return relays.passed(self._relays)

    def queues(self) -> list[Queue]:
        """Return the queues of interfaces and relays. A controller reads those in the switches."""
        assert self._queues is not None, "the network runs"
        return self._queues.read()

    def counters(self) -> dict[tuple[str, int], PortCounters]:
        """Return what the interfaces of the switches' ports have counted, by switch and port."""
        assert self._counters is not None, "the network runs"
        return self._counters.read()

    def fabric_ports(self) -> Iterator[FabricPort]:
        """Yield both directions of every link between switches."""
        for switch in self.topology.switches:
            for port in switch.ports:
                if port.peer in self.topology.switch_by_name:
                    interface = switch.interface(port.number)
                    link = switch.link(port.number)
                    ifindex = socket.if_nametoindex(interface)
                    yield FabricPort(switch.name, port.number, port.peer, interface, ifindex, link)

    # -- making it

    def _check_names_are_free(self) -> None:
        wanted = {switch.interface(port.number) for switch in self.topology.switches for port in switch.ports}
        wanted |= {
            _panel_interface(port) for port in (self.topology.ocs.plug_by_port if self.topology.ocs else ())
        }
        taken = sorted(wanted & {name for _, name in socket.if_nameindex()})
        if taken:
            raise EntrainError(
                f"interface {taken[0]} exists already ({len(taken)} of {len(wanted)} do): another network "
                f"with these names is up; `entrain down` ends it, `entrain clean` removes what a crash left"
            )

    def _make_links(self) -> None:
        make, up, shape = [], [], []
        relayed: list[tuple[Link, tuple[str, str], list[tuple[str, list[str]]]]] = []
        plugs = self.topology.ocs.port_of if self.topology.ocs is not None else {}
        for link in self.topology.links:
            if (link.a, link.a_port) in plugs:
                continue
            (a, a_pid), (b, b_pid) = self._end_of(link.a, link.a_port), self._end_of(link.b, link.b_port)
            if a_pid is not None and b_pid is not None:
                raise BadInput(f"link {link.a}-{link.b}: joins two hosts; a link has a switch at one end")
            if a_pid is not None:  # the end that stays in this namespace comes first
                (a, a_pid), (b, b_pid) = (b, b_pid), (a, a_pid)
            self._links.append(self._record.own(Resource("link", a, netns=self._namespace)))
            long, there = f"mtu {link.mtu}", f"mtu {link.mtu}"
            if b_pid is not None:
                host = next(host for host in self.topology.hosts if host.interface == b)
                there = f"mtu {host.mtu} netns {b_pid} address {host.mac}"
                long = f"mtu {host.mtu}"  # what the host would not take is too long for its link
            if is_relayed(self.topology, link):
                inner = relays.inner_ends(a)
                self._links.append(self._record.own(Resource("link", inner[1], netns=self._namespace)))
                make.append(f"link add {a} {long} type veth peer name {inner[0]} {long}")
                make.append(f"link add {inner[1]} {long} type veth peer name {b} {there}")
                up += [f"link set {each} up" for each in inner]
                inside = [] if b_pid is None else ["nsenter", f"--net=/proc/{b_pid}/ns/net"]
                relayed.append((link, inner, [(a, []), (b, inside)]))
            else:
                make.append(f"link add {a} {long} type veth peer name {b} {there}")
            for end in (a, b) if b_pid is None else (a,):
                up.append(f"link set {end} gso_max_size {gso_max_bytes(link.rate_mbps, link.mtu)} up")
                shape += tc_commands(end, without_relay(self.topology, link), self.shaping)
        for plug in self.topology.ocs.plugs if self.topology.ocs is not None else ():
            end, far = self._end_of(plug.switch, plug.port)[0], _panel_interface(plug.ocs_port)
            self._links.append(self._record.own(Resource("link", end, netns=self._namespace)))
            make.append(f"link add {end} mtu {plug.mtu} type veth peer name {far} mtu {plug.mtu}")
            largest = gso_max_bytes(plug.rate_mbps, plug.mtu)
            up += [f"link set {each} gso_max_size {largest} up" for each in (end, far)]
            # The far end is light: it has no queue, and its sender has shaped what it sends.
            shape += tc_commands(end, plug, self.shaping)
        make += self._inside_servers()
        _batch("ip", make)
        for line in up:
            _disable_ipv6(line.split()[2])
        _batch("ip", up)
        if not self.offloads:
            ends = [
                switch.interface(port.number) for switch in self.topology.switches for port in switch.ports
            ]
            _run(["sh", "-ec", "\n".join(map(_without_offloads, ends))])
        _batch("tc", shape)
        for link, inner, outer in relayed:
            for end, inside in outer:
                relays.steer(link, end, inside)
            self._relays.append(relays.start(self._record, link, inner, self.directory))
        for relay in self._relays:
            relay.child.wait_ready(relays.READY_TIMEOUT_S)
        if (ocs := self.topology.ocs) is not None:
            self.panel = Panel(
                {port: socket.if_nametoindex(_panel_interface(port)) for port in ocs.plug_by_port},
                self.topology.circuits,
                switching_ms=ocs.settings.switching_ms,
            )

    def _inside_servers(self) -> Iterator[str]:
        """Yield the lines for `ip` that make the links inside servers; they end with the namespaces."""
        for names in self.servers.hosts:
            for a, b in combinations(names, 2):
                ends = [
                    f"{interface(self.servers, host, peer)} netns {self.net[host].pid} "
                    f"mtu {self.topology.host_by_name[host].mtu}"
                    for host, peer in ((a, b), (b, a))
                ]
                yield f"link add {ends[0]} type veth peer name {ends[1]}"

    def _end_of(self, node: str, port: int) -> tuple[str, int | None]:
        """Interface at one end of a link, and the process in whose namespace it lives (None: this one)."""
        if (host := self.topology.host_by_name.get(node)) is not None:
            return host.interface, self.net[node].pid
        return self.topology.switch_by_name[node].interface(port), None

    def _tell_mininet(self) -> None:
        for link in self.topology.links:
            ends = []
            for name, port in ((link.a, link.a_port), (link.b, link.b_port)):
                interface = _ReadyInterface(
                    self._end_of(name, port)[0], node=self.net[name], port=port, moveIntfFn=lambda *_: None
                )
                if (host := self.topology.host_by_name.get(name)) is not None:
                    interface.ip, interface.prefixLen, interface.mac = host.ip, str(host.prefix_len), host.mac
                ends.append(interface)
            self.net.links.append(_ReadyLink(*ends))

    def _configure_hosts(self) -> None:
        link_of = {name: link for link in self.topology.links for name in (link.a, link.b)}

        def configure(host: Host) -> None:
            _run_in(self.net[host.name].pid, ["sh", "-e", "-c", self._host_script(host, link_of[host.name])])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(configure, self.topology.hosts))

    def _route_options(self, host: Host) -> list[str]:
        if self.tcp.rto_min_ms is None:
            return []
        subnet = ipaddress.IPv4Interface(f"{host.ip}/{host.prefix_len}").network
        route = f"{subnet} dev {host.interface} proto kernel scope link src {host.ip}"
        return [f"route change {route} {self._rto_min}"]

    @property
    def _rto_min(self) -> str:
        return "" if self.tcp.rto_min_ms is None else f"rto_min {self.tcp.rto_min_ms:g}ms"

    def _host_script(self, host: Host, link: Link) -> str:
        """Return a host's set-up: address, no IPv6, shaped link, and offloads as its switches allow."""
        sysctls = {"ipv6/conf/all/disable_ipv6": "1"}
        if self.tcp.congestion_control is not None:
            sysctls["ipv4/tcp_congestion_control"] = self.tcp.congestion_control
        if self.tcp.slow_start_after_idle is not None:
            sysctls["ipv4/tcp_slow_start_after_idle"] = str(int(self.tcp.slow_start_after_idle))
        if (size := self.tcp.receive_buffer_bytes) is not None:
            sysctls["ipv4/tcp_rmem"] = f"{min(4096, size)} {min(131072, size)} {size}"
        inside, inside_shape = setup(
            self.servers,
            host,
            [self.topology.host_by_name[name] for name in self.servers.neighbours(host.name)],
            self.shaping,
            self._rto_min,
        )
        lines = [
            *(
                f"[ ! -e /proc/sys/net/{key} ] || echo {value} > /proc/sys/net/{key}"
                for key, value in sysctls.items()
            ),
            "ip -batch - <<END",
            "link set lo up",
            f"addr add {host.ip}/{host.prefix_len} dev {host.interface}",
            f"link set {host.interface} gso_max_size {gso_max_bytes(link.rate_mbps, link.mtu)} up",
            *self._route_options(host),
            *inside,
            "END",
        ]
        if not self.offloads:
            lines.append(_without_offloads(host.interface))
        outgoing = replace(
            without_relay(self.topology, link), queue_packets=self.tcp.queue_packets or link.queue_packets
        )
        if shape := [*tc_commands(host.interface, outgoing, self.shaping), *inside_shape]:
            lines += ["tc -batch - <<END", *shape, "END"]
        return "\n".join(lines)


def check_possible(topology: Topology, shaping: Shaping = "htb") -> None:
    """Check that this machine can emulate `topology`, without creating anything.

    Raises EntrainError without the right to, BadInput for a target that does not run here and for an MTU too
    large for a link, MissingTool for a target that is not installed, and for links that need what this kernel
    lacks.
    """
    if os.geteuid() != 0:
        raise EntrainError("a network needs namespaces and interfaces: run as root")
    for target in sorted({switch.target for switch in topology.switches}):
        if target not in NODES:
            raise BadInput(f"target {target}: does not run in an emulation; use {' or '.join(NODES)}")
        NODES[target].require()
    if topology.ocs is not None and topology.ocs.settings.driver != "emulated":
        raise BadInput(
            f'[ocs], driver: "{topology.ocs.settings.driver}" is for real switches; an emulated network '
            f'has an emulated optical circuit switch: driver = "emulated"'
        )
    if problems := list(too_long(topology)):
        raise BadInput("\n".join(problems))
    check_qdiscs(shaping)
    check_impairments(topology, shaping)


def _panel_interface(port: int) -> str:
    """Name of the interface of a port of the emulated optical circuit switch."""
    return f"ocs-eth{port}"


def _empty_mininet() -> Any:
    """Return an empty Mininet without its `init`, which changes sysctls permanently. Raise our own limits."""
    Mininet.inited = True
    soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    limits.setrlimit(limits.RLIMIT_NOFILE, (max(soft, min(16384, hard)), hard))
    return Mininet(controller=None, build=False)


def _batch(tool: str, lines: Sequence[str]) -> None:
    """Run `ip -batch` or `tc -batch`. Raises EntrainError with the line that failed."""
    if not lines:
        return
    done = subprocess.run(
        [tool, "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
    )
    if done.returncode:
        complaint, _, position = done.stderr.strip().rpartition("Command failed -:")
        line = lines[int(position) - 1] if position.isdigit() else lines[0]
        raise EntrainError(f"`{tool} {line}` failed: {complaint.strip() or done.stderr.strip()}")


def _run(command: Sequence[str], *, timeout_s: float = 30.0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise EntrainError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _run_in(pid: int, command: Sequence[str], *, timeout_s: float = 30.0) -> str:
    return _run(["mnexec", "-a", str(pid), *command], timeout_s=timeout_s)


def _without_offloads(interface: str) -> str:
    """Return the line for `sh` that disables what a switch such as BMv2 cannot take."""
    return f"ethtool -K {interface} {' '.join(f'{feature} off' for feature in LOSSY_FEATURES)} >/dev/null"


def _disable_ipv6(interface: str) -> None:
    """Disable IPv6, since the kernel's router solicitations would be traffic in the fabric."""
    switch = Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
    if switch.exists():
        switch.write_text("1", encoding="utf-8")
