"""Try what entrain can do here: load its real programs, attach them to interfaces, and send packets.

`python -m entrain.attempts NAME...` prints one line of JSON for each feature. `entrain.features` runs it in
an unnamed network namespace, so interfaces and programs end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ebpf import EbpfError, in_netns
from hostbpf.clock import SlotClock
from machine.errors import EntrainError, MissingTool
from machine.packages import run_module
from machine.patience import patience
from machine.record import RECORDS, Record, Resource
from machine.state import locked, own_directory
from wire.flow import Flow

T = TypeVar("T")

PATIENCE_S = patience(3.0)
"""How long packets may take to have an effect."""
START_S = patience(30.0)
"""How long a process may take to start."""
HERE, THERE = "192.0.2.1", "192.0.2.2"
"""The addresses of the two hosts."""
BYTES = 10_000
RATES_MBPS = (100.0,) * 30

_SLOT_MS = 200.0
_PORT = 9
_TAKEN = "its congestion controls are registered by another process"
_NO_NETEM = "this kernel lacks the qdisc netem (CONFIG_NET_SCH_NETEM)"


@dataclass(frozen=True)
class Bench:
    """What attempts share. `other` is the process id behind the other host's network namespace."""

    other: int
    record: Record
    directory: Path

    def there(self, call: Callable[[], T]) -> T:
        """Run `call` on the other host."""
        return in_netns(f"/proc/{self.other}/ns/net", call)

    @contextlib.contextmanager
    def hosts(self) -> Iterator[tuple[int, int]]:
        """Join this host and the other by `probe0` and `probe1`; yield their indices."""
        with _link("probe0", f"name probe1 netns {self.other}"):
            yield self.up()

    def up(self) -> tuple[int, int]:
        """Give `probe0` and `probe1` their addresses; return their indices."""
        there = self.there(lambda: _up("probe1", f"{THERE}/24"))
        return _up("probe0", f"{HERE}/24"), there

    @contextlib.contextmanager
    def connection(self, control: str = "reno", mark: int = 0) -> Iterator[tuple[Flow, Callable[[], None]]]:
        """Connect to the other host by TCP; yield the flow, and what sends some bytes and receives them."""
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(self.there(lambda: socket.create_server((THERE, 0))))
            sender = stack.enter_context(socket.socket())
            sender.settimeout(PATIENCE_S)
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
            sender.connect(listener.getsockname())
            receiver = stack.enter_context(listener.accept()[0])
            receiver.settimeout(PATIENCE_S)

            def send() -> None:
                sender.sendall(bytes(BYTES))
                received = 0
                while received < BYTES:
                    received += len(receiver.recv(BYTES))

            yield Flow.of(sender), send


def _switch(bench: Bench) -> str:
    """Bring up a switch with the fabric program, and send packets from one of its hosts to another."""
    from controlplane.network import Host, Link, Switch, build
    from machine.process import launch

    hosts = [Host(f"h{n}", f"10.1.1.{n}", 24, f"02:00:00:00:00:0{n}", "s1", n) for n in (1, 2)]
    links = [Link("s1", each.leaf_port, each.name, 0, 1000, 100) for each in hosts]
    topology = build("doctor", [Switch("s1", "leaf", 1, 9559, "softswitch")], hosts, links)
    (switch,) = topology.switches
    ports = [switch.interface(port.number) for port in switch.ports]
    far, near = hosts
    with contextlib.ExitStack() as stack:
        for host, port, place in zip(hosts, ports, (f" netns {bench.other}", ""), strict=True):
            stack.enter_context(_link(port, f"name {host.interface} address {host.mac}{place}"))
        bench.there(lambda: _up(far.interface, f"{far.ip}/24"))
        _up(near.interface, f"{near.ip}/24")
        command = [*run_module("softswitch"), "--no-p4", "--device-id", "1", "--log-console"]
        command += ["--grpc-server-addr", switch.grpc_address]
        for number, port in enumerate(ports, 1):
            command += ["-i", f"{number}@{port}"]
        log = bench.directory / "switch.log"
        child = launch(bench.record, "softswitch", command, log=log, death="KILL", tells=True)
        stack.callback(child.end)
        from controlplane.fabric import Fabric  # takes as long as the switch to start
        from controlplane.pipeline import Pipeline
        from controlplane.routing import desired_state

        pipeline, state = Pipeline.load(), desired_state(topology)
        child.wait_ready(START_S)

        async def converge() -> None:
            async with Fabric(topology, pipeline) as fabric:
                await fabric.apply(state)

        asyncio.run(converge())
        _arrives(stack.enter_context(bench.there(_datagrams)), stack.enter_context(_datagrams(near.ip)))
        return _how(ports[0])


def _mltcp(bench: Bench) -> str:
    """Send with each of MLTCP's congestion controls."""
    from ebpf.struct_ops import kernel_has_links
    from hostbpf.mltcp import VARIANTS, Params, registered

    with contextlib.ExitStack() as stack:
        stack.enter_context(bench.hosts())
        jobs = _registered(stack, lambda: registered({1: Params()}))
        for control in VARIANTS:
            with bench.connection(control, mark=1) as (_, send):
                send()
            if jobs is not None:
                _until(lambda: bool(jobs.states), f"{control} was not called for a packet")
                jobs.states.raw.clear()
    if jobs is None:
        return _TAKEN
    return "" if kernel_has_links() else "registered without a link, which Linux 6.4 has"


def _slots(bench: Bench) -> str:
    """Pace a flow by slots, announce it, and receive the other host's answer."""
    from hostbpf.carriers.carriers import Feedback, attached
    from hostbpf.flow import netns_cookie
    from hostbpf.rates.enforcers import choose
    from hostbpf.rates.schedules import Schedules, pacing_registered
    from hostbpf.rates.waits import explained

    answers: list[Feedback] = []
    with contextlib.ExitStack() as stack:
        here, there = stack.enter_context(bench.hosts())
        schedules = _registered(stack, pacing_registered)
        cookie, clock = netns_cookie() if schedules is not None else 0, SlotClock.shared(_SLOT_MS)
        carriers = stack.enter_context(attached(here, clock, schedules=schedules, cookie=cookie))
        stack.enter_context(attached(there, clock, netns=f"/proc/{bench.other}/ns/net"))
        stack.enter_context(explained(here))
        ring = stack.enter_context(contextlib.closing(carriers.feedback(answers.append)))
        flow, send = stack.enter_context(bench.connection("slot_cubic"))
        Schedules(carriers.schedules, clock, netns=cookie).set(flow, clock.slot(), RATES_MBPS)
        carriers.announce(flow)

        def answered() -> bool:
            send()
            ring.poll(10)
            return bool(answers)

        _until(answered, "no carrier was answered")
        return _joined(_how("probe0"), choose().reason, _TAKEN if schedules is None else "")


def _parrot(bench: Bench) -> str:
    """Give rates to a flow that paces itself and to one that does not, as agents do for a coordinator."""
    from hostbpf.flow import netns_cookie
    from hostbpf.rates.enforcers import choose, enforcing
    from hostbpf.rates.schedules import Schedules, pacing_registered

    with contextlib.ExitStack() as stack:
        here, _ = stack.enter_context(bench.hosts())
        schedules = _registered(stack, pacing_registered)
        if schedules is None:
            return _TAKEN
        cookie, clock = netns_cookie(), SlotClock.shared(_SLOT_MS)
        enforcing_here = enforcing("probe0", here, clock, schedules, bench.record, cookie=cookie)
        enforcers = stack.enter_context(enforcing_here)
        rates = Schedules(schedules, clock, netns=cookie, link_mbps=1000, enforcement=enforcers)
        for control in ("slot_cubic", "reno") if choose().other is not None else ("slot_cubic",):
            flow, send = stack.enter_context(bench.connection(control))
            rates.set(flow, clock.slot(), RATES_MBPS, silence=True, quiet=True)
            send()
        return _joined(_how("probe0"), choose().reason)


def _counting(bench: Bench) -> str:
    from hostbpf.counting import counting

    with (
        bench.hosts() as (here, _),
        counting(here, 2.0, progress=bench.directory) as counter,
        bench.connection() as (_, send),
    ):

        def counted() -> bool:
            send()
            return any(each.sent for each in counter.take().flows.values())

        _until(counted, "packets were sent, and none was counted")
        return _how("probe0")


def _monitor(bench: Bench) -> str:
    from mininet_topos.linkmonitor import LinkMonitor
    from mininet_topos.network import FabricPort

    with (
        bench.hosts() as (here, _),
        LinkMonitor([FabricPort("s1", 1, "s2", "probe0", here, "s1->s2")]) as monitor,
        bench.connection() as (_, send),
    ):

        def seen() -> bool:
            send()
            return bool(monitor.collect())

        _until(seen, "packets were sent, and none was seen")
        return _how("probe0")


def _loss(bench: Bench) -> str:
    from mininet_topos.links import has_netem
    from mininet_topos.loss import lossy

    with bench.hosts() as (here, _), lossy([here], 1.0) as loss, _datagrams() as sender:

        def lost() -> bool:
            sender.sendto(b"packet", (THERE, _PORT))
            return loss.count().lost > 0

        _until(lost, "packets were sent, and none was lost")
        return _joined(_how("probe0"), "" if has_netem() else f"but not `loss` of a link: {_NO_NETEM}")


def _delay(bench: Bench) -> str:
    from controlplane.network import Link
    from mininet_topos import relays
    from mininet_topos.links import has_netem

    if has_netem():
        with bench.hosts(), bench.connection() as (_, send):
            _run("tc qdisc add dev probe0 root netem delay 1ms")
            send()
        return "by netem"
    with (
        _link("probe2", "name probe0"),
        _link("probe3", f"name probe1 netns {bench.other}"),
        contextlib.ExitStack() as stack,
    ):
        bench.up()
        link = Link("a", 1, "b", 1, 100, 100, delay_ms=1)
        relay = relays.start(bench.record, link, ("probe2", "probe3"), bench.directory)
        stack.callback(relay.child.end)
        relay.child.wait_ready(START_S)
        sender = stack.enter_context(_datagrams())

        def passed() -> bool:
            sender.sendto(b"packet", (THERE, _PORT))
            return relays.passed([relay]).frames > 1  # the question for an address, and its answer

        _until(passed, "packets were sent, and the relay passed none on")
    return _joined("by relays", _NO_NETEM)


ATTEMPTS: dict[str, Callable[[Bench], str]] = {
    "P4 switch": _switch,
    "MLTCP": _mltcp,
    "slots": _slots,
    "Parrot": _parrot,
    "counting": _counting,
    "link monitor": _monitor,
    "loss": _loss,
    "delay": _delay,
}
"""By feature, what tries it. It returns how the feature works, and raises what is wrong otherwise."""


# -- what attempts share


def _run(line: str) -> None:
    try:
        done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingTool(f"{line.split()[0]}: {error.strerror}") from error
    if done.returncode:
        raise EntrainError(f"`{line}`: {done.stderr.strip()}")


@contextlib.contextmanager
def _link(name: str, peer: str) -> Iterator[None]:
    """Make a pair of interfaces: `name`, which is up, and what `peer` says."""
    try:
        _run(f"ip link add name {name} type veth peer {peer}")
    except EntrainError as error:
        raise MissingTool(f"no pair of interfaces can be made (CONFIG_VETH): {error}") from error
    try:
        _run(f"ip link set dev {name} up")
        yield
    finally:
        _run(f"ip link del dev {name}")


def _up(interface: str, address: str) -> int:
    _run(f"ip addr add {address} dev {interface}")
    _run(f"ip link set dev {interface} up")
    return socket.if_nametoindex(interface)


def _datagrams(address: str = "") -> socket.socket:
    result = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    result.bind((address, _PORT))
    result.setblocking(False)
    return result


def _arrives(sender: socket.socket, receiver: socket.socket) -> None:
    """Send packets until one arrives. Raises EntrainError if none does."""

    def arrived() -> bool:
        sender.sendto(b"packet", receiver.getsockname())
        with contextlib.suppress(BlockingIOError):
            return bool(receiver.recv(100))
        return False

    _until(arrived, "packets were sent, and none arrived")


def _until(holds: Callable[[], bool], problem: str) -> None:
    """Wait until `holds` returns True. Raises EntrainError with the `problem` if it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise EntrainError(f"{problem} within {PATIENCE_S:g} s")
        time.sleep(0.005)


def _registered(
    stack: contextlib.ExitStack, registering: Callable[[], contextlib.AbstractContextManager[T]]
) -> T | None:
    """Register congestion controls until `stack` ends; return None if another process has them.

    An agent that starts meanwhile waits for the lock, because it could not join this registration.
    """
    from hostbpf.controls import LOCK

    stack.enter_context(locked(own_directory(RECORDS) / LOCK))
    try:
        return stack.enter_context(registering())
    except EbpfError as error:
        if error.errno != errno.EEXIST:
            raise
        return None


def _how(interface: str) -> str:
    """Return how programs are attached to an interface, if not by tcx."""
    done = subprocess.run(["tc", "qdisc", "show", "dev", interface], capture_output=True, check=False)
    return "by clsact" if b"clsact" in done.stdout else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


@contextlib.contextmanager
def _other_host() -> Iterator[int]:
    """Make a network namespace, and yield the id of a process in it. Both end when this process does."""
    command = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        yield other.pid
        other.stdin.close()


def main(names: Sequence[str]) -> None:
    """Try the features `names`, one after the other."""
    with Record("doctor") as record, _other_host() as other:
        directory = record.path.with_suffix("")
        record.own(Resource("path", str(directory)))
        directory.mkdir()
        _run("ip link set dev lo up")  # P4Runtime is served there
        bench = Bench(other, record, directory)
        for name in names:
            try:
                answer = {"how": ATTEMPTS[name](bench)}
            except Exception as error:  # whatever it is, the other features are tried
                answer = {"why": str(error) or repr(error)}
            print(json.dumps({"name": name, **answer}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
