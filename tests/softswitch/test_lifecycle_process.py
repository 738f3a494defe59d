"""The switch process: its arguments, its end, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from finsy.proto import U128, p4r, p4r_grpc

from machine.patience import patience
from machine.record import RECORDS
from softswitch.__main__ import main
from tests.softswitch.harness import DEVICE, PROGRAM, PROGRAMS, config

FRAME = bytes.fromhex("0200000000010200000000028888") + bytes(range(50))
NAME = f"left{os.getpid()}"
FEATURES = str(PROGRAMS / "features.json")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([], "give PROGRAM.json, or --no-p4"),
        (["--no-p4", "x.json"], "not both"),
        (["missing.json"], "missing.json: No such file or directory"),
        (["--no-p4", "--bogus"], "--bogus"),
        (["--no-p4", "-i", "eth0"], "-i eth0: write PORT@INTERFACE"),
        (["--no-p4", "-i", "1@nowhere0"], "there is no interface nowhere0"),
        (["--no-p4", "-i", "1@lo", "-i", "1@lo"], "port 1 is already taken"),
        (["--no-p4", "-i", "255@lo", "--", "--cpu-port", "255"], "port 255 is already taken"),
        (["--no-p4", "--port-rate", "1@10"], "there is no port 1"),
        (["--no-p4", "--port-rate", "x"], "PORT@MBPS"),
        (["--no-p4", "--grpc-server-addr", "localhost"], "--grpc-server-addr localhost: must be"),
        (["--no-p4", "--grpc-server-addr", "localhost:99999"], "from 0 to 65535"),
        (["--no-p4", "--cpu-port", "512"], "in 1..510"),
        (["--no-p4", "--max-request-mib", "0"], "--max-request-mib 0: it must be in 1..2047"),
        (["--no-p4", "--max-state-mib", "-1"], "--max-state-mib -1: it must be in 1.."),
        (["--no-p4", "--device-id", "x"], "--device-id"),
        (["--no-p4", "-L", "loud"], "--log-level"),
        (["--no-p4", "--log-file", "/nowhere/log"], "/nowhere/log: No such file"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert named in told.err
    assert told.err.count("\n") == 1


def test_a_process_tells_a_wrong_argument_once() -> None:
    """Python prints what is logged before the log is set up."""
    command = [sys.executable, "-m", "softswitch"]
    ended = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1, ended.stderr


class Process:
    """A switch process; `address` is where it serves."""

    def __init__(self, *argv: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "softswitch", *argv, "--", "--grpc-server-addr", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line.startswith("ready grpc="), line + self.popen.communicate(timeout=patience(100))[1]
        self.address = line.split()[1].removeprefix("grpc=")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        self.popen.communicate(timeout=patience(100))
        return self.popen.returncode


@contextmanager
def running(*argv: str) -> Iterator[Process]:
    process = Process(*argv)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.end(signal.SIGKILL)


@pytest.fixture
def pairs() -> Iterator[list[tuple[str, str]]]:
    """Two veth pairs: the switch's end and the far end of each."""
    names = [(f"sl{os.getpid()}{i}a", f"sl{os.getpid()}{i}b") for i in range(2)]
    try:
        for near, far in names:
            subprocess.run(["ip", "link", "add", near, "type", "veth", "peer", "name", far], check=True)
            for end in (near, far):
                subprocess.run(["sysctl", "-qw", f"net.ipv6.conf.{end}.disable_ipv6=1"], check=True)
                subprocess.run(["ip", "link", "set", end, "up"], check=True)
        yield names
    finally:
        for near, _ in names:
            subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)


def leftovers(pairs: list[tuple[str, str]]) -> list[object]:
    """What a switch could leave: qdiscs, filters, settings, records. tcx links end with it."""
    left: list[object] = [sorted(RECORDS.glob(f"softswitch-{NAME}-*"))]
    for near, _ in pairs:
        left.append(Path(f"/proc/sys/net/ipv6/conf/{near}/disable_ipv6").read_text())
        for command in (
            ["tc", "qdisc", "show", "dev", near],
            ["tc", "filter", "show", "dev", near, "ingress"],
        ):
            left.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return left


def interfaces(process: Process) -> set[int]:
    """The interfaces that a process has made: its CPU port, and the loop of its program."""
    cpu = [
        line.split()[1]
        for info in Path(f"/proc/{process.popen.pid}/fdinfo").iterdir()
        for line in info.read_text().splitlines()
        if line.startswith("iff:")
    ]
    loop = f"sw{process.popen.pid:x}-"
    return {index for index, name in socket.if_nameindex() if name in cpu or name.startswith(loop)}


def present(indices: set[int]) -> set[int]:
    return indices & {index for index, _ in socket.if_nameindex()}


@contextmanager
def controlled(address: str) -> Iterator[tuple[Any, Any, Callable[[Any], None]]]:
    """A primary controller with the feature program committed: its stub, its stream, what sends on that."""
    waiting: SimpleQueue[Any] = SimpleQueue()
    request = p4r.StreamMessageRequest()
    request.arbitration.device_id = DEVICE
    request.arbitration.election_id.low = 1
    waiting.put(request)
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        stream = stub.StreamChannel(iter(waiting.get, None), timeout=patience(60))
        assert next(stream).arbitration.status.code == 0
        stub.SetForwardingPipelineConfig(
            p4r.SetForwardingPipelineConfigRequest(
                device_id=DEVICE, election_id=U128.encode(1), action=3, config=config()
            ),
            timeout=patience(60),
        )
        try:
            yield stub, stream, waiting.put
        finally:
            waiting.put(None)


def packet_socket(interface: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.bind((interface, 3))
    return sock


def arrives(
    sender: socket.socket, receiver: socket.socket, frame: bytes = FRAME, timeout_s: float = 30
) -> bool:
    """Whether a frame that is sent arrives."""
    sender.send(frame)
    while select.select([receiver], [], [], timeout_s)[0]:
        if receiver.recv(4096) == frame:
            return True
    return False


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_nothing_is_left(pairs: list[tuple[str, str]], number: int) -> None:
    before = leftovers(pairs)
    ports = ("-i", f"1@{pairs[0][0]}", "-i", f"2@{pairs[1][0]}", "--cpu-port", "255", "--name", NAME)
    with running(FEATURES, *ports) as process:
        assert leftovers(pairs) != before
        made = interfaces(process)
        assert len(made) >= 2
        assert process.end(number) == 0
    assert leftovers(pairs) == before
    assert not present(made)


@pytest.mark.root
def test_a_killed_switch_stops_forwarding_and_the_next_one_takes_over(pairs: list[tuple[str, str]]) -> None:
    before = leftovers(pairs)
    ports = ["-i", f"1@{pairs[0][0]}", "-i", f"2@{pairs[1][0]}"]
    ports += ["--name", NAME, "--device-id", str(DEVICE), "--cpu-port", "255", "--no-p4"]
    made: set[int] = set()
    forward = p4r.TableEntry(
        table_id=next(t.preamble.id for t in config().p4info.tables if t.preamble.alias == "l2")
    )
    forward.match.add(field_id=1).exact.value = FRAME[:6]
    forward.action.action.action_id = next(
        a.preamble.id for a in config().p4info.actions if a.preamble.alias == "to_port"
    )
    forward.action.action.params.add(param_id=1, value=b"\x02")
    with ExitStack() as stack:
        left, right = (stack.enter_context(packet_socket(far)) for _, far in pairs)
        for _ in range(2):
            with running(*ports) as process, controlled(process.address) as (stub, _, _):
                assert not arrives(left, right, timeout_s=0.2)
                stub.Write(
                    p4r.WriteRequest(
                        device_id=DEVICE,
                        election_id=U128.encode(1),
                        updates=[p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=forward))],
                    )
                )
                assert arrives(left, right)
                made |= interfaces(process)
                process.end(signal.SIGKILL)
                assert not arrives(left, right, timeout_s=0.2)
        with running(*ports) as process:  # which also removes what the dead ones could not
            assert process.end() == 0
    assert leftovers(pairs) == before
    assert not present(made)


def ended(*argv: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The outcome of a switch that does not get to serve."""
    return subprocess.run(
        [*prefix, sys.executable, "-m", "softswitch", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(60),
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.root
def test_an_address_in_use_is_told(pairs: list[tuple[str, str]]) -> None:
    with running("--no-p4") as process:
        second = ended("--no-p4", "-i", f"1@{pairs[0][0]}", "--grpc-server-addr", process.address)
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1
    assert f"cannot listen on {process.address}" in second.stderr


@pytest.mark.root
def test_a_program_that_cannot_run_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_bytes(PROGRAM[:1000])
    told = ended(str(broken), "--grpc-server-addr", "127.0.0.1:0")
    assert told.returncode in (1, 2)
    assert told.stdout == ""
    assert told.stderr.startswith(f"softswitch: {broken}: ")
    assert told.stderr.count("\n") == 1


@pytest.mark.root
def test_without_root_it_says_so() -> None:
    nobody = ("setpriv", "--reuid", "65534", "--clear-groups")
    told = ended("--no-p4", "-i", "1@lo", "--grpc-server-addr", "127.0.0.1:0", prefix=nobody)
    assert told.returncode == 1
    assert "root" in told.stderr
    assert told.stderr.count("\n") == 1


@pytest.mark.root
def test_hostile_names_run_like_any_other(tmp_path: Path) -> None:
    """A controller's names bring neither a file of the machine nor code into the switch."""
    secret = tmp_path / "secret"
    secret.write_text("root:swordfish:19000\n")
    log = tmp_path / "log"
    hostile = f'*/ #include "{secret}" /* x"); SEC("tc") int evil(void *skb) {{ return 0; }} //\n'
    names = {"FeaturesIngress.l2", "FeaturesIngress.to_port", "FeaturesIngress.seen"}

    def renamed(node: Any) -> Any:
        if isinstance(node, dict):
            return {renamed(key): renamed(value) for key, value in node.items()}
        if isinstance(node, list):
            return [renamed(item) for item in node]
        return node + hostile if node in names else node

    made = config()
    made.p4_device_config = json.dumps(renamed(json.loads(PROGRAM))).encode()
    for kind in (made.p4info.tables, made.p4info.actions, made.p4info.registers):
        for each in kind:
            if each.preamble.name in names:
                each.preamble.name += hostile
    options = ("--no-p4", "--device-id", str(DEVICE), "--log-file", str(log))
    with running(*options) as process, controlled(process.address) as (stub, _, _):
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=DEVICE, election_id=U128.encode(1), action=3, config=made
        )
        stub.SetForwardingPipelineConfig(request, timeout=patience(60))
        request.config.p4info.tables[0].preamble.name += hostile
        with pytest.raises(grpc.RpcError) as refused:
            stub.SetForwardingPipelineConfig(request, timeout=patience(60))
        assert "swordfish" not in str(refused.value)
        assert process.end() == 0
    assert "swordfish" not in log.read_text()
