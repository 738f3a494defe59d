"""A switch as a process with real interfaces: veth pairs in a namespace, raw sockets at their far ends.

softswitch and simple_switch_grpc take the same arguments, so one class serves both. What has left is known by
fences (targets.py), never by time: a fence that comes back at every port that was sent to says that the
switch has taken in all that was sent before; then one to every port says that all of it has left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ebpf.namespaces import in_netns
from machine.record import Record, Resource, process
from tests.p4.bmv2 import BINARY, Controller, end
from tests.p4.runtime import TIMEOUT_S, Runtime
from tests.p4.targets import CPU_PORT, PORTS, Batch, Injected, Output, Program, Target

DEVICE = 1
MTU = 9500
COMMANDS = {"softswitch": [sys.executable, "-m", "softswitch"], "simple_switch_grpc": [BINARY]}
_PACKET_AUXDATA, _SOL_PACKET = 8, 263
_TP_STATUS_VLAN_VALID, _TP_STATUS_VLAN_TPID_VALID = 0x10, 0x40
_names = itertools.count(1)
_elections = itertools.count(1)


class Wire:
    """The far end of a port: what is written here enters the switch, what left it can be read."""

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
        self._socket.bind((interface, 0))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, packet: bytes) -> None:
        """Send a frame; raises OSError where the kernel takes none of this size."""
        self._socket.send(packet)

    def receive(self) -> bytes | None:
        """The next frame that came out of the switch, or None for one of our own."""
        data, ancillary, _, address = self._socket.recvmsg(1 << 16, 64)
        if address[2] == socket.PACKET_OUTGOING:
            return None
        for level, kind, content in ancillary:
            if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
                status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", content)
                if status & _TP_STATUS_VLAN_VALID:  # the kernel has taken the tag out of the frame
                    known = tpid if status & _TP_STATUS_VLAN_TPID_VALID else 0x8100
                    data = data[:12] + struct.pack("!HH", known, tci) + data[12:]
        return data

    def close(self) -> None:
        self._socket.close()


class LiveSwitch:
    """The process, its namespace and its interfaces. One switch serves one program after the other."""

    def __init__(self, command: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="entrain-live-")
        self.address = f"unix:{self._scratch.name}/control"
        self._command = COMMANDS[command]
        self.netns = f"p4t-{os.getpid()}-{next(_names)}"
        self._record = Record(self.netns)
        self.wires: dict[int, Wire] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = Path(self._scratch.name) / "log"

    def start(self) -> None:
        """Make the namespace and the interfaces, and start the process in it."""
        self._record.own(Resource("netns", self.netns))
        subprocess.run(["ip", "netns", "add", self.netns], check=True)
        commands = ["link set lo up"]
        for port in PORTS:
            commands += [f"link add port{port} mtu {MTU} type veth peer name wire{port} mtu {MTU}"]
            commands += [f"link set {end}{port} arp off up" for end in ("port", "wire")]
        quiet = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6"
        self._inside("sh", "-c", quiet)
        subprocess.run(
            ["ip", "-n", self.netns, "-batch", "-"], input="\n".join(commands).encode(), check=True
        )
        self.wires = in_netns(self.netns, lambda: {port: Wire(f"wire{port}") for port in PORTS})
        command = ["ip", "netns", "exec", self.netns, *self._command, "--no-p4", "--device-id", str(DEVICE)]
        for port in PORTS:
            command += ["-i", f"{port}@port{port}"]
        command += ["--", "--grpc-server-addr", self.address, "--cpu-port", str(CPU_PORT)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path.cwd())
        self._record.own(process(self._process.pid))

    def _inside(self, *command: str) -> None:
        subprocess.run(["ip", "netns", "exec", self.netns, *command], check=True)

    def close(self) -> None:
        """End the process and remove everything."""
        for wire in self.wires.values():
            wire.close()
        if self._process is not None:
            end(self._process)
        self._record.close()
        self._scratch.cleanup()


class Live(Target):
    """A program on a running switch."""

    kind = "live"

    def __init__(self, program: Program, switch: LiveSwitch, rounds: int = 1) -> None:
        """`rounds`: how often a packet may pass through the switch before it has left."""
        super().__init__(program)
        self._switch = switch
        self._rounds = rounds

    def start(self) -> None:
        self.client = Runtime(
            self._switch.address, self.program.p4info, device_id=DEVICE, election_id=next(_elections)
        )
        try:
            self.client.connect()
            self.client.set_pipeline(self.program.json.read_bytes())
        except Exception as error:
            error.add_note(f"the switch's log ends:\n{self._switch.log.read_text()[-2000:]}")
            raise
        self._controller = Controller(self.client)

    def close(self) -> None:
        if hasattr(self, "client"):
            self.client.close()

    def _pass_fences(self, fences: Sequence[tuple[int, int]], outputs: list[Output]) -> None:
        """Send fences (source, port) and read until all are back; what else comes is output."""
        awaited: dict[int, set[bytes]] = {}
        for source, port in fences:
            token = self.token()
            awaited.setdefault(port, set()).add(token)
            self._inject(source, self.program.fence(source, port, token))
        to_controller = awaited.pop(CPU_PORT, set())
        while any(awaited.values()):
            ready, _, _ = select.select(list(self._switch.wires.values()), [], [], TIMEOUT_S)
            assert ready, f"fences did not come back: {awaited}"
            for port, wire in self._switch.wires.items():
                packet = wire.receive() if wire in ready else None
                if packet is None or b"entrain-fence" in packet[-17:]:
                    awaited.get(port, set()).discard((packet or b"")[-17:])
                else:
                    outputs.append((port, packet))
        for token in to_controller:
            outputs += [(CPU_PORT, packet) for packet in self._controller.receive_until(token)]

    def _inject(self, port: int, packet: bytes) -> None:
        if port == CPU_PORT:
            self._controller.send(packet)
        else:
            self._switch.wires[port].send(packet)

    def flood(self, packets: dict[int, bytes], count: int) -> int:
        """Send `count` copies of each packet at its port, all ports at once, each from another processor.

        Returns how many packets came out. Windows of 64 keep the kernel's receive queues from overflowing.
        """
        processors = sorted(os.sched_getaffinity(0))
        passed = dict.fromkeys(packets, 0)

        def work(number: int, port: int) -> None:
            os.sched_setaffinity(0, {processors[number % len(processors)]})
            wire = self._switch.wires[port]
            for first in range(0, count, 64):
                window = min(64, count - first)
                for _ in range(window):
                    wire.send(packets[port])
                back = 0
                while back < window and select.select([wire], [], [], 1.0)[0]:  # a second only for lost ones
                    back += wire.receive() is not None
                passed[port] += back

        workers = [threading.Thread(target=work, args=each) for each in enumerate(packets)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(passed.values())

    @contextlib.contextmanager
    def sending(self, port: int, packet: bytes) -> Iterator[list[bytes]]:
        """Within, copies of `packet` pass one by one; gives the list of what comes out of `port`."""
        outputs: list[bytes] = []
        done, wire = threading.Event(), self._switch.wires[port]

        def work() -> None:
            while not done.is_set():
                wire.send(packet)
                while select.select([wire], [], [], TIMEOUT_S)[0]:
                    output = wire.receive()
                    if output is not None:
                        outputs.append(output)
                        break
                else:
                    outputs.append(b"nothing came")
                    return

        worker = threading.Thread(target=work)
        worker.start()
        try:
            yield outputs
        finally:
            done.set()
            worker.join()

    def send_batch(self, packets: Sequence[Injected]) -> Batch:
        batch = Batch([])
        for port, packet in packets:
            outputs: list[Output] = []
            self._inject(port, packet)
            self._pass_fences([(port, port if port != CPU_PORT else PORTS[0])], outputs)
            for _ in range(self._rounds):
                self._pass_fences([(CPU_PORT, out) for out in (*PORTS, CPU_PORT)], outputs)
            batch.outputs.append(sorted(output for output in outputs if output[0] != CPU_PORT))
            batch.controller += [data for out, data in outputs if out == CPU_PORT]
        return batch


@contextlib.contextmanager
def live_switch(command: str) -> Iterator[Callable[[Program], Target]]:
    """A switch process; gives a function that puts a program on it."""
    switch = LiveSwitch(command)
    with contextlib.ExitStack() as running:
        running.callback(switch.close)
        switch.start()

        def run(program: Program) -> Target:
            rounds = 4 if program.name == "replicate" else 1
            return running.enter_context(Live(program, switch, rounds))

        yield run
