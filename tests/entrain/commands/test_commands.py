"""The commands around a running network, on real switches: up, deploy, loads, shell, crash, down."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hostbpf.clock import SlotClock
from machine.patience import patience
from machine.record import RECORDS

TARGETS = ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)]
ROOT = Path(__file__).resolve().parents[3]
NAME = f"ct{os.getpid() % 10000}"
OTHER = f"cu{os.getpid() % 10000}"
"""Names of this run's own, so that nothing else that is up is touched: a shared network, and one per test."""

SLOT_MS = 10_000
TOPOLOGY = (
    '[topology]\nkind = "leaf-spine"\nleaves = 2\nspines = 2\nhosts_per_leaf = 2\n' + f"slot_ms = {SLOT_MS}\n"
)


def entrain(*arguments: str, status: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line; its exit status must be `status`."""
    command = [sys.executable, "-m", "entrain.cli", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=patience(120), check=False, input=stdin
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def entrain_json(*arguments: str) -> Any:
    return json.loads(entrain(*arguments, "--json").stdout)


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """The file of a topology that is not up."""
    path = tmp_path / f"{OTHER}.toml"
    path.write_text(TOPOLOGY)
    return path


@pytest.fixture(params=TARGETS, scope="module")
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A network called NAME that is up, on each target in turn; yields the target."""
    path = tmp_path_factory.mktemp("up") / f"{NAME}.toml"
    path.write_text(TOPOLOGY)
    entrain("up", str(path), "--target", request.param)
    try:
        yield request.param
    finally:
        entrain("down", "--network", NAME)


def on_host(host: str, script: str) -> subprocess.Popen[str]:
    """Start a Python script on a host of the network."""
    command = [
        sys.executable,
        "-m",
        "entrain.cli",
        "exec",
        "--network",
        NAME,
        host,
        sys.executable,
        "-c",
        script,
    ]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


ECHO = """
import socket
with socket.create_server(("10.2.1.2", 5000)) as server:
    print("listening", flush=True)
    peer, address = server.accept()
    peer.sendall(peer.recv(100) + address[0].encode())
"""
ASK = """
import socket
with socket.create_connection(("10.2.1.2", 5000), timeout=60) as peer:
    peer.sendall(b"from ")
    print(peer.recv(100).decode())
"""


def talk() -> str:
    """What h1 hears from h3, on the other leaf, over TCP."""
    with on_host("h3", ECHO) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        with on_host("h1", ASK) as client:
            answer, _ = client.communicate(timeout=patience(100))
        server.wait(patience(100))
    return answer.strip()


def until_logged(log: Path, condition: Callable[[str], bool]) -> None:
    """Wait until the text of a log fulfils a condition."""
    deadline = time.monotonic() + patience(100)
    while not condition(text := log.read_text()):
        assert time.monotonic() < deadline, text[-3000:]
        time.sleep(0.05)


def leftovers() -> list[str]:
    """What a network called OTHER, or a dead controller, has left on the machine."""
    spaces = [path.name for path in Path("/run/netns").iterdir()] if Path("/run/netns").exists() else []
    records = [path.name for path in RECORDS.glob(f"up-{OTHER}-*")]
    directories = [path.name for path in (RECORDS / "networks").glob(OTHER)]
    pids = {name.rpartition("-")[2] for name in spaces if name.startswith("entrain-")}
    dead = [f"entrain-{pid}" for pid in pids if not Path(f"/proc/{pid}").exists()]
    return [*records, *directories, *dead]


def controller_pid(name: str = NAME) -> int:
    record = next(RECORDS.glob(f"up-{name}-*.jsonl"))
    return int(record.stem.rpartition("-")[2])


@pytest.mark.root
@pytest.mark.parametrize("routing", ["ecmp", "source"])
def test_hosts_talk_without_any_setting_of_theirs(network: str, routing: str) -> None:
    entrain("deploy", "--target", network, "--network", NAME, "--routing", routing)
    assert talk() == "from 10.1.1.2"


@pytest.mark.root
def test_a_command_runs_on_the_host_that_the_list_names(network: str) -> None:
    hosts = entrain_json("hosts", "--network", NAME)
    assert [(host["name"], host["switch"]) for host in hosts] == [
        ("h1", "leaf1"),
        ("h2", "leaf1"),
        ("h3", "leaf2"),
        ("h4", "leaf2"),
    ]
    for host in hosts:
        shown = entrain(
            "exec", "--network", NAME, host["name"], "ip", "-brief", "address", "show", "up"
        ).stdout
        assert f"{host['interface']}" in shown
        assert f"{host['address']}/" in shown
    assert entrain("exec", "--network", NAME, "h1", "sh", "-c", "exit 7", "--json", status=7).stdout == ""
    for arguments, told in (
        (("h9", "true"), "h9: no such host in network"),
        (("--", "python", "train.py"), "entrain train"),
        (("h1",), "give a command"),
        (("h1", "nonsense-of-ours"), "nonsense-of-ours: no such program"),
    ):
        assert told in entrain("exec", "--network", NAME, *arguments, status=2).stderr


FORGE = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TRANSPARENT, 1)
    sender.bind(("10.1.2.2", 0))  # h2's
    for _ in range(3):
        sender.sendto(b"", ("10.2.1.2", 9))
print(socket.create_connection(("10.2.1.2", 5000), timeout=60).recv(1))
"""


@pytest.mark.root
def test_drops_are_shown_where_they_happened_with_their_reason(network: str) -> None:
    """h1 sends under h2's address, and then in its own name: by then the packets before have been counted."""
    before = entrain_json("drops", "--network", NAME)["switches"]
    with on_host("h3", ECHO.replace("peer.recv(100)", "b'x'")) as server:
        assert server.stdout is not None
        server.stdout.readline()
        with on_host("h1", FORGE) as client:
            client.communicate(timeout=patience(100))
        assert client.returncode == 0
        server.wait(patience(100))
    after = entrain_json("drops", "--network", NAME)["switches"]
    assert after["leaf1"].pop("FORGED_SOURCE") == before["leaf1"].pop("FORGED_SOURCE") + 3
    assert after == before
    assert "FORGED_SOURCE" in entrain("drops", "--network", NAME).stdout


@pytest.mark.root
def test_deploy_is_idempotent_and_changes_only_what_differs(network: str, tmp_path: Path) -> None:
    arguments = ("deploy", "--target", network, "--network", NAME)
    entrain(*arguments, "--routing", "ecmp")
    again = entrain_json(*arguments)
    assert [switch["name"] for switch in again["switches"]] == ["leaf1", "leaf2", "spine1", "spine2"]
    assert all(
        not s["pipeline_set"] and s["inserted"] == s["modified"] == s["deleted"] == 0
        for s in again["switches"]
    )
    changed = entrain_json(*arguments, "--routing", "source")
    assert [switch["inserted"] for switch in changed["switches"]] == [2, 2, 0, 0]
    file = tmp_path / f"{NAME}.toml"
    file.write_text(TOPOLOGY)
    assert entrain_json("up", str(file), "--target", network)["already_up"]
    file.write_text(TOPOLOGY.replace("spines = 2", "spines = 1"))
    assert "another network called" in entrain("up", str(file), status=1).stderr


@pytest.mark.root
def test_loads_are_read_from_every_port(network: str) -> None:
    reading = entrain_json("loads", "--network", NAME)
    ports = {(port["switch"], port["port"]): port for port in reading["ports"]}
    assert len(ports) == 12
    assert ports["leaf1", 3]["peer"] == "spine1"
    assert all(port["capacity_mbps"] == 1000 for port in ports.values())
    shown = entrain("loads", "--network", NAME, "--all").stdout
    assert shown.count("spine1") == 4  # two ports of its own, and one of each leaf


CARRIER = f"""
import socket
from scapy.layers.inet import IP, UDP
from hostbpf.clock import SlotClock
from wire.slot_header import ETHERTYPE, announcement
slot = SlotClock.shared({SLOT_MS}).slot()
data = bytes(IP(src="10.1.1.2", dst="10.2.1.2") / UDP(sport=1, dport=9))
addresses = bytes.fromhex("02000a02010202000a010102")
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
    wire.bind(("h1-eth0", 0))
    for rates in ([70, 0, 5], [-20]):
        wire.send(addresses + ETHERTYPE.to_bytes(2, "big") + announcement(slot, rates).pack() + data)
"""


@pytest.mark.root
def test_what_a_carrier_plans_is_read_on_each_link_of_its_path(network: str) -> None:
    entrain("deploy", "--target", network, "--network", NAME, "--routing", "source")
    with on_host("h1", CARRIER) as sender:
        assert sender.wait(patience(100)) == 0
    path = {("leaf1", 3), ("spine1", 2), ("leaf2", 1)}  # f(1) is the first uplink
    watch = [
        sys.executable,
        "-m",
        "entrain.cli",
        "loads",
        "--network",
        NAME,
        "--watch",
        "--json",
        "--slot-ms",
        str(SLOT_MS),
        "--interval-ms",
    ]
    with subprocess.Popen([*watch, "20"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as reader:
        assert reader.stdout is not None
        for line in reader.stdout:  # until the carriers, which are on their way, have passed the last switch
            loads = {(port["switch"], port["port"]): port["slots"] for port in json.loads(line)["ports"]}
            if 50 in loads.get(("leaf2", 1), {}).values():
                break
        reader.terminate()
    present = SlotClock.shared(SLOT_MS).slot()
    for port, slots in loads.items():
        planned = sorted((int(slot), load) for slot, load in slots.items() if load)
        assert [load for _, load in planned] == ([50, 5] if port in path else [])
        if planned:
            assert planned[1][0] - planned[0][0] == 2
            assert abs(planned[0][0] - present) < 60


GREEDY = CARRIER.replace("([70, 0, 5], [-20])", "([10**6], [-(10**6)])")
FAR = CARRIER.replace("announcement(slot,", "announcement(slot + 10,")


@pytest.mark.root
@pytest.mark.parametrize(("forge", "reason"), [(GREEDY, "LOAD"), (FAR, "SLOT")], ids=["load", "slot"])
def test_a_host_whose_carriers_are_refused_is_shown_and_reported(
    network: str, forge: str, reason: str
) -> None:
    entrain("deploy", "--target", network, "--network", NAME, "--routing", "source")

    def refused() -> dict[str, int]:
        ports = entrain_json("loads", "--network", NAME)["ports"]
        found = {(port["switch"], port["port"]): port["refused"] for port in ports if "refused" in port}
        assert found.keys() <= {("leaf1", 1)}  # nobody else
        return dict(found.get(("leaf1", 1), {}))

    before = refused().get(reason, 0)
    log = RECORDS / "networks" / NAME / "controller.log"
    told = re.compile(rf"h1 at port 1: carriers refused.*{reason}")
    earlier = len(told.findall(log.read_text()))
    with on_host("h1", forge) as sender:
        assert sender.wait(patience(100)) == 0
    until_logged(log, lambda text: len(told.findall(text)) > earlier)
    assert refused()[reason] > before
    assert f"{reason}:" in entrain("loads", "--network", NAME).stdout


@pytest.mark.root
def test_a_killed_switch_is_started_and_set_again(network: str) -> None:
    """Unasked: the test only kills, and then reads from the switch through the controller."""
    entrain("deploy", "--target", network, "--network", NAME)  # whatever an earlier test did
    namespace = f"entrain-up-{NAME}-{controller_pid()}"
    pids = subprocess.check_output(["ip", "netns", "pids", namespace], text=True).split()
    [leaf1] = [pid for pid in pids if b"\0--device-id\x001\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    log = RECORDS / "networks" / NAME / "controller.log"
    before = log.read_text().count("leaf1: ready")
    os.kill(int(leaf1), signal.SIGKILL)
    until_logged(log, lambda text: text.count("leaf1: ready") > before)
    assert log.read_text().count("leaf1: ready") == before + 1
    assert "was killed by SIGKILL" in log.read_text()
    applied = entrain_json("deploy", "--target", network, "--network", NAME)["switches"]
    assert all(switch["inserted"] == switch["modified"] == switch["deleted"] == 0 for switch in applied)
    assert talk() == "from 10.1.1.2"


@pytest.mark.root
def test_a_second_controller_is_told_who_is_primary(network: str, topology: Path) -> None:
    namespace = f"entrain-up-{NAME}-{controller_pid()}"
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "entrain.cli", "deploy"]
    done = subprocess.run(
        [*command, "--target", network, "--topology", str(topology)],
        capture_output=True, text=True, cwd=ROOT, timeout=patience(100), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"another controller is primary: process {controller_pid()}" in done.stderr
    assert "entrain.run.daemon" in done.stderr


@pytest.mark.root
def test_another_target_or_program_than_runs_is_refused(network: str, tmp_path: Path) -> None:
    other = "bmv2" if network == "softswitch" else "softswitch"
    assert f"runs {network}" in entrain("deploy", "--target", other, "--network", NAME, status=2).stderr
    p4info = tmp_path / "p4info.txtpb"
    text = (ROOT / "p4src/build/fabric.p4info.txtpb").read_text(encoding="utf-8")
    p4info.write_text(text.replace('"FabricIngress.route"', '"FabricIngress.path"'))
    program = str(ROOT / "p4src/build/fabric.json")
    files = ("--program", program, "--p4info", str(p4info))
    refused = entrain("deploy", "--target", network, "--network", NAME, *files, status=2)
    assert "it has table FabricIngress.path, the JSON has not" in refused.stderr
    assert entrain_json("deploy", "--target", network, "--network", NAME)["switches"]  # and it runs on


@pytest.mark.root
def test_deploy_says_what_it_did_of_a_program_without_tables_of_ours(network: str) -> None:
    """The second time it sets nothing, and no switch takes longer than all of them together."""
    command = ("deploy", "--target", network, "--network", NAME)
    build = ROOT / "tests/p4/programs/build"
    files = ("--program", str(build / "meter.json"), "--p4info", str(build / "meter.p4info.txtpb"))
    try:
        first, second = (entrain_json(*command, *files) for _ in range(2))
        assert all(switch["pipeline_set"] for switch in first["switches"])
        assert not any(switch["pipeline_set"] or switch["inserted"] for switch in second["switches"])
        for reply in (first, second):
            assert max(switch["seconds"] for switch in reply["switches"]) <= reply["seconds"]
        assert "nothing written" in " ".join(entrain(*command, *files).stdout.split())
    finally:
        fabric = ROOT / "p4src/build"
        own = ("--program", str(fabric / "fabric.json"), "--p4info", str(fabric / "fabric.p4info.txtpb"))
        entrain(*command, *own)
    assert talk() == "from 10.1.1.2"


@pytest.mark.root
def test_another_program_is_deployed_or_the_former_stays(network: str, tmp_path: Path) -> None:
    program, p4info = tmp_path / "other.json", ROOT / "p4src/build/fabric.p4info.txtpb"
    text = (ROOT / "p4src/build/fabric.json").read_text(encoding="utf-8")
    command = ("deploy", "--target", network, "--network", NAME)
    files = ("--program", str(program), "--p4info", str(p4info))
    try:
        program.write_text(text + " ")  # the same program, but not the same bytes
        other = entrain_json(*command, *files)["switches"]
        assert all(switch["pipeline_set"] and switch["inserted"] for switch in other)
        assert talk() == "from 10.1.1.2"
        program.write_text(
            text.replace('"op" : "count"', '"op" : "no_such_primitive"').replace('"count"', '"nope"')
        )
        refused = entrain(*command, *files, status=1).stderr
        assert "refused" in refused
        assert talk() == "from 10.1.1.2"
    finally:
        program.write_text(text)
        entrain(*command, *files)


@pytest.mark.root
def test_down_and_a_crash_leave_nothing(topology: Path) -> None:
    entrain("up", str(topology))
    entrain("down", str(topology))
    assert leftovers() == []
    entrain("up", str(topology))
    os.kill(controller_pid(OTHER), signal.SIGKILL)
    assert leftovers() != []
    removed = entrain_json("clean")["removed"]
    assert {"netns", "process", "path"} <= {resource["kind"] for resource in removed}
    assert leftovers() == []
    assert f"no network '{OTHER}' is up" in entrain("down", "--network", OTHER, status=1).stderr


@pytest.mark.root
def test_a_certificate_opens_the_controller_to_other_machines(
    topology: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    topology.write_text(f'{TOPOLOGY}certificates = "certs"\n[controller]\nlisten = "{where}"\n')
    entrain("certs", str(topology), str(topology.parent / "certs"), "--reader", "eve")
    entrain("up", str(topology))
    try:
        assert "set ENTRAIN_IDENTITY" in entrain("loads", "--network", where, status=2).stderr
        monkeypatch.setenv("ENTRAIN_IDENTITY", str(topology.parent / "certs" / "eve"))
        assert len(entrain_json("loads", "--network", where)["ports"]) == 12
        assert "needs the role operator" in entrain("down", "--network", where, status=1).stderr
        monkeypatch.setenv("ENTRAIN_IDENTITY", str(topology.parent / "certs" / "h1"))
        assert "has no role" in entrain("loads", "--network", where, status=1).stderr
    finally:
        monkeypatch.delenv("ENTRAIN_IDENTITY", raising=False)
        entrain("down", "--network", OTHER)


@pytest.mark.root
def test_an_experiments_network_comes_up_by_the_experiments_file(tmp_path: Path) -> None:
    path = tmp_path / f"{OTHER}.toml"
    job = '[[job]]\nname = "one"\ncollective = "ring"\nbytes = 1000\ncount = 2\n'
    path.write_text(f'[experiment]\nname = "try"\n{TOPOLOGY}{job}')
    try:
        assert entrain_json("up", str(path))["network"] == OTHER
    finally:
        assert entrain_json("down", str(path)) == {"network": OTHER}
    assert leftovers() == []


@pytest.mark.root
def test_up_says_what_source_routing_cannot_give(topology: Path) -> None:
    """It is brought up all the same: hosts that share an uplink can talk."""
    topology.write_text(TOPOLOGY.replace("spines = 2", "spines = 1"))
    try:
        assert "2 hosts and 1 uplinks" in entrain("up", str(topology), "--routing", "source").stderr
    finally:
        entrain("down", "--network", OTHER)


@pytest.mark.root
def test_sigterm_to_the_controller_takes_the_network_down(topology: Path) -> None:
    entrain("up", str(topology))
    pid = controller_pid(OTHER)
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    assert select.select([handle], [], [], 60)[0]
    os.close(handle)
    assert leftovers() == []


@pytest.mark.root
@pytest.mark.parametrize("after_s", [0.2, 1.0, 1.4, 1.8])
def test_an_interrupt_while_coming_up_leaves_nothing(topology: Path, after_s: float) -> None:
    """At whatever stage it comes: while importing, making namespaces, starting or setting switches."""
    command = [sys.executable, "-m", "entrain.cli", "up", str(topology)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        process.send_signal(signal.SIGINT)
        process.wait(patience(100))
    if process.returncode == 0:  # it was faster
        entrain("down", "--network", OTHER)
    assert leftovers() == []


SESSION = """
print("VRFS", len(list(table_entry["FabricIngress.vrf"].read())))
te = table_entry["FabricIngress.vrf"](action="FabricIngress.set_vrf")
te.match["ingress_port"] = "9"
te.action["vrf"] = "7"
te.insert()
def show(what, e): print(what, e.match["ingress_port"].exact.value, e.action["vrf"].value)

for e in table_entry["FabricIngress.vrf"].read(): show("ENTRY", e)

te.action["vrf"] = "8"
te.modify()
for e in table_entry["FabricIngress.vrf"].read(): show("THEN", e)

te.delete()
print("AT THE END", len(list(table_entry["FabricIngress.vrf"].read())))
"""


@pytest.mark.root
@pytest.mark.slow
def test_an_independent_client_reads_and_writes(network: str) -> None:
    """p4runtime-shell drives the switch; then the controller has it again."""
    session = entrain("shell", "leaf1", "--network", NAME, "--write", stdin=SESSION).stdout
    assert "VRFS 4" in session
    assert r"ENTRY b'\t' b'\x07'" in session
    assert r"THEN b'\t' b'\x08'" in session
    assert "AT THE END 4" in session
    reading = entrain(
        "shell", "leaf1", "--network", NAME, stdin='print("VRFS", len(list(table_entry["vrf"].read())))\n'
    )
    assert "only have read access" in reading.stdout + reading.stderr
    unknown = entrain("shell", "leaf9", "--network", NAME, status=2).stderr
    assert "no such switch" in unknown
    assert "leaf1, leaf2, spine1, spine2" in unknown


INSERT = """
te = table_entry["FabricIngress.vrf"](action="FabricIngress.set_vrf")
te.match["ingress_port"] = "9"
te.action["vrf"] = "7"
te.insert()
"""


@pytest.mark.root
@pytest.mark.slow
def test_a_shell_whose_write_was_refused_fails_and_says_why(network: str) -> None:
    reading = entrain("shell", "leaf1", "--network", NAME, status=1, stdin=INSERT).stderr
    assert "the switch refused 1 writes" in reading
    assert "PERMISSION_DENIED" in reading


@pytest.mark.root
@pytest.mark.slow
def test_each_writing_shell_takes_over_and_the_one_before_is_refused(network: str) -> None:
    """However soon they follow one another; and the refused one does not blame itself."""
    with writing_shell() as first, writing_shell() as second:
        # BMv2 makes the first one primary again when the second one ends, so it writes before that.
        _, err = first.communicate(INSERT, timeout=patience(100))
        assert first.returncode == 1
        assert "the switch refused 1 writes" in err
        assert "PERMISSION_DENIED" in err
        assert f"process {first.pid}" not in err
        _, err = second.communicate(f"{INSERT}\nte.delete()\n", timeout=patience(100))
        assert second.returncode == 0, err


@contextlib.contextmanager
def writing_shell() -> Iterator[subprocess.Popen[str]]:
    """A shell that has taken over leaf1 and waits for commands."""
    command = [sys.executable, "-m", "entrain.cli", "shell", "leaf1", "--network", NAME, "--write"]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write('print("READY", 1 + 1)\n')
        shell.stdin.flush()
        while "READY 2" not in (line := shell.stdout.readline()):
            assert line, "the shell ended"
        yield shell


def test_what_cannot_be_deployed_is_said_plainly(topology: Path) -> None:
    assert "needs a switch that runs Stratum" in entrain("deploy", "--target", "tofino", status=1).stderr
    missing = entrain("deploy", "--target", "bmv2", "--program", "x.json", status=2).stderr
    assert "give both or neither" in missing
    assert "no network 'nowhere' is up" in entrain("loads", "--network", "nowhere", status=1).stderr


def test_wrong_files_and_rights_are_told_by_every_command(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(
        '[topology]\nkind = "leaf-spine"\nleaves = 2\nspines = 2\nhosts_per_leaf = 2\nuplink_rate_gbps = 1\n'
    )
    for command in (["up"], ["down"], ["deploy", "--target", "bmv2", "--topology"]):
        message = entrain(*command, str(bad), status=2).stderr
        assert f"{bad}: [topology], uplink_rate_gbps: unknown key; rates are in Mbit/s" in message
    answer = entrain("up", str(bad), "--json", status=2).stdout
    assert "uplink_rate_mbps" in json.loads(answer)["error"]


@pytest.mark.root
def test_a_missing_switch_program_is_named_with_its_remedy(
    topology: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    if shutil.which("simple_switch_grpc"):
        pytest.skip("simple_switch_grpc is where all programs are")
    message = entrain("up", str(topology), "--target", "bmv2", status=1).stderr
    assert "simple_switch_grpc is not on PATH" in message
    assert "softswitch" in message
    assert leftovers() == []


@pytest.mark.root
def test_without_root_nothing_is_begun() -> None:
    nobody = ["setpriv", "--reuid", "65534", "--clear-groups"]
    if subprocess.run([*nobody, "test", "-x", sys.executable, "-a", "-r", ROOT], check=False).returncode:
        pytest.skip("the repository is not readable for other users")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        topology = Path(directory) / f"{OTHER}.toml"
        topology.write_text(TOPOLOGY)
        for command in (["up", str(topology)], ["clean"]):
            line = [*nobody, sys.executable, "-m", "entrain.cli", *command]
            done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
            assert done.returncode == 1
            assert "run as root" in done.stderr


def test_doctor_names_each_need_with_its_remedy() -> None:
    from entrain.doctor import examine

    found = {finding.name: finding for finding in examine()}
    assert {
        "root",
        "veth",
        "BTF",
        "qdisc htb",
        "qdisc bfifo",
        "qdisc tbf",
        "clang",
        "libbpf.so.1",
        "p4c-bm2-ss",
    } <= found.keys()
    for finding in found.values():
        assert finding.purpose
        assert (finding.state == "found") == (finding.remedy == "") == (finding.detail != "")
    done = subprocess.run(
        [sys.executable, "-m", "entrain.cli", "doctor", "--json"], capture_output=True, cwd=ROOT, check=False
    )
    document = json.loads(done.stdout)
    assert (done.returncode == 0) == document["ok"]
    features = {each["name"]: each for each in document["features"]}
    assert document["ok"] == (
        all(f.state == "found" for f in found.values() if f.required)
        and all(each["state"] == "works" for each in features.values() if each["required"])
    )
    assert {"P4 switch", "MLTCP", "slots", "Parrot", "counting", "loss", "delay", "Tofino"} <= features.keys()


def test_doctor_tells_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from entrain.doctor import examine

    monkeypatch.setenv("PATH", str(tmp_path))
    missing = {finding.name: finding for finding in examine() if finding.state == "missing"}
    assert missing["clang"].remedy == "apt-get install clang"
    assert missing["clang"].required
    assert not missing["simple_switch_grpc"].required
