"""The process behind `entrain up`: it runs a network and its controller until it is told to stop.

It reports to its parent with one line of JSON on a pipe, `{"ready": ...}` or `{"error": ...}`. The parent
then exits, and this process goes on as a daemon. Its record owns everything that it creates. It stops at
`entrain down` or at a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from controlplane.client import NETWORKS, SOCKET
from controlplane.cluster import ClusterSetup
from controlplane.controller import OWNERS, Controller, serving
from controlplane.ledger import LEDGER, Ledger
from controlplane.roles import Access, load_access
from controlplane.routing import Routing
from controlplane.store import Store
from controlplane.topology import Target, Topology
from ebpf.namespaces import in_netns
from entrain.experiment import NetworkTable, load_emulated
from entrain.live_cluster import CIRCUITS, circuits_of, load_setup, servers_of
from entrain.run.controller import make_directory
from entrain.run.emulation import ecn_threshold, keep, losing, network_of
from entrain.run.training import Trainings
from machine.errors import BadInput, EntrainError
from machine.limits import limits_named
from machine.record import Record
from machine.signals import ending_once
from mininet_topos.isolation import private_namespace
from mininet_topos.network import NO_SERVERS, Network
from mininet_topos.servers import Servers

LOG = "controller.log"
"""Name of the log in the network's directory."""
NO_OPTIONS = NetworkTable()
RESTART_WINDOW_S = 60.0
"""Period over which a switch's restarts are counted."""
RESTARTS = 3
"""A switch that ends more often than this within the period is not restarted."""


def hold(
    topology: Topology,
    routing: Routing,
    tell: Any,
    setup: ClusterSetup | None = None,
    servers: Servers = NO_SERVERS,
    access: Access = OWNERS,
    options: NetworkTable = NO_OPTIONS,
) -> None:
    """Bring `topology` up, report to `tell`, and keep it up until a Shutdown request or a signal.

    With a `setup` it admits jobs, and routes as its strategy does. Hosts of one of `servers` also have links
    to each other. `access` says who may use the controller's API, and `options` how the network is emulated.
    """
    began = time.monotonic()
    directory = NETWORKS / topology.name
    with ending_once() as ignore_signals, Record(f"up-{topology.name}") as record:
        make_directory(directory, record)
        keep(options, directory)
        with (
            Path("/proc/thread-self/ns/net").open(encoding="utf-8") as home,
            private_namespace(record) as namespace,
        ):
            outside = functools.partial(in_netns, home.fileno())
            network = network_of(topology, options, record, directory, namespace=namespace, servers=servers)
            with network, losing(topology, options):
                asyncio.run(
                    _serve(
                        network,
                        topology,
                        options,
                        routing,
                        namespace,
                        directory,
                        tell,
                        began,
                        setup,
                        access,
                        outside,
                    )
                )
                ignore_signals()


async def _serve(
    network: Network,
    topology: Topology,
    options: NetworkTable,
    routing: Routing,
    namespace: str,
    directory: Path,
    tell: Any,
    began: float,
    setup: ClusterSetup | None,
    access: Access,
    outside: Callable[[Callable[[], int]], int],
) -> None:
    log = (directory / LOG).open("a", buffering=1, encoding="utf-8")

    def on_event(what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {what}", file=log)

    store = Store(directory / "state.sqlite")
    ledger = None if setup is None else Ledger(directory / LEDGER, setup.cluster)
    loop = asyncio.get_running_loop()
    async with Controller(
        topology,
        routing,
        namespace=namespace,
        store=store,
        ecn_threshold_packets=ecn_threshold(topology, options),
        on_event=on_event,
        cluster=setup,
        ledger=ledger,
        circuits=circuits_of(topology, setup, network.panel, directory / CIRCUITS),
        host_processes={host.name: network.net[host.name].pid for host in topology.hosts},
        access=access,
        queues=network.queues,
        counters=network.counters,
        training=Trainings(topology, directory),
    ) as controller:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, controller.stopped.set)
        async with serving(controller, directory / SOCKET, controller.access, outside):
            for stream in (1, 2):  # the parent exits now, so later output goes to the log
                os.dup2(log.fileno(), stream)
            with _restarting(network, controller.note):
                seconds = time.monotonic() - began
                tell({"ready": {"seconds": seconds, "process_id": os.getpid(), "namespace": namespace}})
                await controller.stopped.wait()


@contextlib.contextmanager
def _restarting(network: Network, on_event: Any) -> Iterator[None]:
    """Restart each switch whose process ends. The controller then restores its state."""
    loop = asyncio.get_running_loop()
    handles: dict[str, int] = {}
    ended: dict[str, list[float]] = {}

    def watch(name: str) -> None:
        pid = network.switches[name].process_id
        assert pid is not None
        handles[name] = os.pidfd_open(pid)
        loop.add_reader(handles[name], again, name)

    def unwatch(name: str) -> None:
        handle = handles.pop(name)
        loop.remove_reader(handle)
        os.close(handle)

    def again(name: str) -> None:
        unwatch(name)
        node = network.switches[name]
        try:
            node.check()
        except EntrainError as error:
            on_event(str(error))
        recent = [at for at in ended.get(name, []) if at > time.monotonic() - RESTART_WINDOW_S]
        ended[name] = [*recent, time.monotonic()]
        if len(recent) >= RESTARTS:
            on_event(f"{name}: ended {len(recent) + 1} times in {RESTART_WINDOW_S:g} s; not restarted")
            return
        node.stop()
        try:
            node.start()
        except EntrainError as error:
            on_event(str(error))
            return
        watch(name)

    for name in network.switches:
        watch(name)
    try:
        yield
    finally:
        for name in list(handles):
            unwatch(name)


def main(arguments: list[str]) -> int:
    """Run the network in FILE. Arguments: `FILE TARGET|- ROUTING DESCRIPTOR`; reports go to DESCRIPTOR."""
    file, target, routing, descriptor = arguments
    pipe = open(int(descriptor), "w", encoding="utf-8")  # noqa: PTH123, SIM115 (a descriptor, closed after the report)

    def tell(message: dict[str, Any]) -> None:
        if not pipe.closed:
            pipe.write(json.dumps(message) + "\n")
            pipe.close()

    try:
        with limits_named():
            topology, options, _ = load_emulated(Path(file))
            if target != "-":
                wanted: Target = target  # type: ignore[assignment]
                topology = topology.with_target(wanted)
            setup = load_setup(Path(file), topology)
            if setup is not None:
                routing = setup.strategy.routing
            servers, access = servers_of(Path(file), topology), load_access(Path(file), topology)
            hold(topology, routing, tell, setup, servers, access, options)  # type: ignore[arg-type]
    except EntrainError as error:
        tell({"error": str(error), "bad_input": isinstance(error, BadInput)})
        return 1
    except (KeyboardInterrupt, SystemExit):
        tell({"error": "interrupted"})
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
