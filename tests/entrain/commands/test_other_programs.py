"""The commands around a running network whose switches run another P4 program than entrain's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from machine.patience import patience

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / "tests/p4/programs/build"
NAME = f"cp{os.getpid() % 10000}"
TOPOLOGY = """
[[switch]]
name = "s1"
[[host]]
name = "h1"
[[host]]
name = "h2"
[[link]]
a = "s1"
b = "h1"
[[link]]
a = "s1"
b = "h2"
"""
REMEDY = "entrain's program has: `entrain deploy --target softswitch --program fabric`"
SEND = """
import itertools, socket, sys
count = int(sys.argv[1])
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
    wire.bind(("h1-eth0", 0))
    command = bytes([1, 3]) + (5).to_bytes(16, "big") + bytes(1016)
    for _ in range(count) if count else itertools.count():
        wire.send(bytes.fromhex("0200000000020200000000019c00") + command)
"""
"""Frames for index 3 of the program `state`, which sends each back to where it came from."""


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "entrain.cli", *arguments, "--network", NAME]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def entrain(*arguments: str, status: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command on the network; its exit status must be `status`."""
    process = start(*arguments)
    out, error = process.communicate(stdin, timeout=patience(120))
    assert process.returncode == status, out + error
    return subprocess.CompletedProcess(arguments, status, out, error)


def entrain_json(*arguments: str) -> Any:
    return json.loads(entrain(*arguments, "--json").stdout)


def deploy(program: str) -> Any:
    """Set a program of the tests."""
    files = (
        "--program",
        str(PROGRAMS / f"{program}.json"),
        "--p4info",
        str(PROGRAMS / f"{program}.p4info.txtpb"),
    )
    return entrain_json("deploy", "--target", "softswitch", *files)


def watched(condition: Callable[[Any], bool]) -> Any:
    """Watch the network until a snapshot fulfils a condition; return the snapshot."""
    with start("watch", "--json", "--interval-ms", "100") as watching:
        assert watching.stdout is not None
        for line in watching.stdout:
            if condition(snapshot := json.loads(line)):
                watching.terminate()
                return snapshot
    raise AssertionError("the network ended")


def sent(snapshot: Any) -> dict[str, float]:
    """Return what each link carries, in Mbit/s."""
    return {link["name"]: link["measured_mbps"] for link in snapshot["links"]}


def sending(count: int = 0) -> subprocess.Popen[str]:
    """Send so many frames from h1, or send until it is ended."""
    command = ["exec", "--network", NAME, "h1", sys.executable, "-c", SEND, str(count)]
    return subprocess.Popen([sys.executable, "-m", "entrain.cli", *command], cwd=ROOT, text=True)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A network called NAME that is up; yields its file."""
    file = tmp_path_factory.mktemp("up") / f"{NAME}.toml"
    file.write_text(TOPOLOGY)
    subprocess.run([sys.executable, "-m", "entrain.cli", "up", str(file)], cwd=ROOT, check=True)
    try:
        yield file
    finally:
        entrain("down")


@pytest.mark.parametrize("program", ["state", "hash"])
def test_each_command_does_what_it_can_and_names_what_it_cannot(network: Path, program: str) -> None:
    deploy(program)
    assert entrain_json("deploy", "--target", "softswitch")["switches"][0]["pipeline_set"] is False
    noted = "state is not the fabric's program" in entrain("deploy", "--target", "softswitch").stdout
    assert noted == (program == "state"), "the other one has no tables"
    lacking = f"the switches run {program}, which has no load tables; {REMEDY}"
    loads = entrain("loads").stdout.splitlines()
    assert loads == ["nothing is sent on any of 2 ports", lacking]
    reading = entrain_json("loads")
    assert reading["lacking"] == lacking and [port["measured_mbps"] for port in reading["ports"]] == [0, 0]
    drops = entrain("drops").stdout.splitlines()
    assert drops == [
        "no queue has been full",
        f"the switches run {program}, which has no counters of drops; {REMEDY}",
    ]
    assert "lacking" in entrain_json("drops")
    snapshot = json.loads(entrain("watch", "--json", "--once").stdout.splitlines()[-1])
    assert (snapshot["program"], snapshot["problem"], snapshot["lacking"]) == (program, "", lacking)
    assert sent(snapshot) == dict.fromkeys(["s1->h1", "s1->h2", "h1->s1", "h2->s1"], 0.0)
    again = [sys.executable, "-m", "entrain.cli", "up", str(network)]
    up = subprocess.run(again, cwd=ROOT, text=True, capture_output=True, check=True)
    assert f"is already up, and its switches run {program}" in up.stdout


def test_the_remedy_that_is_named_brings_everything_back(network: Path) -> None:
    deploy("state")
    remedy = entrain("drops").stdout.partition("`entrain ")[2].partition("`")[0]
    entrain(*remedy.split())
    ping = ["exec", "--network", NAME, "h1", "ping", "-c", "1", "-W", "5", "10.1.2.2"]
    subprocess.run([sys.executable, "-m", "entrain.cli", *ping], cwd=ROOT, check=True, capture_output=True)
    assert "lacking" not in entrain_json("loads") and "s1" in entrain_json("drops")["switches"]


def test_links_are_measured_whatever_the_program_is(network: Path) -> None:
    deploy("state")
    sender = sending()
    try:
        carried = sent(watched(lambda snapshot: all(sent(snapshot)[link] for link in ("h1->s1", "s1->h1"))))
        assert carried["s1->h2"] == carried["h2->s1"] == 0
        ports = {port["port"]: port["measured_mbps"] for port in entrain_json("loads")["ports"]}
        assert ports[1] > 0 and ports[2] == 0
    finally:
        sender.terminate()
        sender.wait(patience(60))


def test_a_routing_is_refused_where_it_has_no_effect(network: Path) -> None:
    deploy("hash")
    refused = entrain("deploy", "--target", "softswitch", "--routing", "source", status=2).stderr
    assert "--routing source: hash is not the fabric's program" in refused


@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="needs tcpdump (apt-get install tcpdump)")
def test_packets_are_captured_whatever_the_program_is(network: Path) -> None:
    deploy("state")
    sender = sending()
    try:
        for where in ("h1", "s1-h1"):
            assert "1 packet captured" in entrain("capture", where, "--count", "1").stderr
    finally:
        sender.terminate()
        sender.wait(patience(60))
    assert "no such link or host" in entrain("capture", "h9", status=2).stderr


def test_counters_of_every_kind_are_read(network: Path) -> None:
    deploy("hash")
    assert "has no counters and no registers" in entrain("counter", "s1", "port_out", status=2).stderr
    entrain("deploy", "--target", "softswitch", "--program", "fabric")
    deploy("state")
    assert "its table has none" in entrain("counter", "s1", "direct").stdout
    assert sending(10).wait(patience(60)) == 0
    [cell] = entrain_json("counter", "s1", "both")
    assert (cell["index"], cell["packets"], cell["kind"]) == (3, 10, "counter")
    assert entrain("counter", "s1", "both").stdout.split()[:3] == ["index", "packets", "bytes"]
    assert entrain("counter", "s1", "wide").stdout.split()[-2:] == ["3", "50"]
    unknown = entrain("counter", "s1", "port_out", status=2).stderr
    assert "known are" in unknown and "TheIngress.direct" in unknown


@pytest.mark.slow
def test_a_shell_on_a_switch_without_p4info_says_why_it_knows_no_table() -> None:
    program = str(PROGRAMS / "state.json")
    line = [sys.executable, "-m", "softswitch", program, "--grpc-server-addr", "127.0.0.1:0"]
    with subprocess.Popen(line, cwd=ROOT, text=True, stdout=subprocess.PIPE) as switch:
        assert switch.stdout is not None
        address = switch.stdout.readline().split()[1].removeprefix("grpc=")
        command = [sys.executable, "-m", "entrain.cli", "shell", "0", "--address", address]
        shell = subprocess.run(
            command, cwd=ROOT, text=True, input="tables\n", capture_output=True, check=True
        )
        switch.terminate()
    assert "the switch has no P4Info, so no table is known here" in shell.stderr


INSERT = """
entry = table_entry["TheIngress.counted"](action="TheIngress.mark")
entry.match["hdr.command.index"] = "3"
entry.action["value"] = "1"
entry.insert()
"""
READ = 'print("HAS", len(list(table_entry["TheIngress.counted"].read())))\n'


@pytest.mark.slow
def test_entries_that_a_shell_writes_stay_as_it_says(network: Path) -> None:
    entrain("deploy", "--target", "softswitch", "--program", "fabric")
    restored = entrain("shell", "s1", "--write", stdin="\n").stderr
    assert "note: the controller restores the tables that it fills when this shell ends" in restored
    deploy("state")
    kept = entrain("shell", "s1", "--write", stdin=INSERT).stderr
    assert "note: s1 runs state, which the controller does not fill: what you write stays" in kept
    watched(lambda snapshot: snapshot["switches"][0]["status"] == "ready")  # the controller has it again
    assert "HAS 1" in entrain("shell", "s1", stdin=READ).stdout
    assert sending(10).wait(patience(60)) == 0
    [cell] = entrain_json("counter", "s1", "direct")
    assert (cell["packets"], cell["entry"]) == (10, "counted index=0x3")
    assert entrain("counter", "s1", "direct").stdout.split()[:3] == ["entry", "packets", "bytes"]
