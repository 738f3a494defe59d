"""Programs behind a gate at clsact, which stand in for tcx links on older kernels, end as these do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebpf import Object, in_netns
from ebpf.gate import Gate
from machine.record import RECORDS, Record, Resource, clean_stale
from tests.ebpf.test_tc import udp_arrives

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[2]
NETNS = f"tgate{os.getpid()}"


@pytest.fixture
def netns(tmp_path: Path) -> Iterator[str]:
    with Record("test-gate", records=tmp_path / "records") as record:
        record.own(Resource("netns", NETNS))
        subprocess.run(["ip", "netns", "add", NETNS], check=True)
        subprocess.run(["ip", "-n", NETNS, "link", "set", "lo", "up"], check=True)
        yield NETNS


@pytest.fixture
def basic(compiled: Callable[[str], Path]) -> Iterator[Object]:
    with Object.open(compiled("basic")) as loaded:
        loaded.load()
        yield loaded


def at_loopback(netns: str) -> str:
    """The qdiscs and filters of the namespace's loopback, empty without any."""
    shown = ""
    for what in (["qdisc", "show"], ["filter", "show"]):
        for direction in ("ingress", "egress") if what[0] == "filter" else (None,):
            command = ["tc", "-n", netns, *what, "dev", "lo", *([direction] if direction else [])]
            shown += subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return shown.replace("qdisc noqueue 0: root refcnt 2 \n", "")


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_a_program_runs_until_its_gate_is_closed_and_nothing_is_left(
    netns: str, basic: Object, direction: str
) -> None:
    gate = Gate(basic.programs["drop"].fd, 1, direction, netns)  # type: ignore[arg-type]
    assert not udp_arrives(netns)
    gate.close()
    gate.close()
    assert udp_arrives(netns)
    assert at_loopback(netns) == ""


def test_gates_of_one_hook_stand_in_order_and_end_apart(netns: str, basic: Object) -> None:
    first = Gate(basic.programs["drop"].fd, 1, "ingress", netns)
    second = Gate(basic.programs["count"].fd, 1, "ingress", netns)
    other = Gate(basic.programs["drop"].fd, 1, "egress", netns)
    first.close()
    assert not udp_arrives(netns)  # egress
    other.close()
    assert udp_arrives(netns)
    second.close()
    assert at_loopback(netns) == ""


def test_a_clsact_of_others_stays(netns: str, basic: Object) -> None:
    subprocess.run(["tc", "-n", netns, "qdisc", "add", "dev", "lo", "clsact"], check=True)
    Gate(basic.programs["drop"].fd, 1, "ingress", netns).close()
    assert at_loopback(netns).startswith("qdisc clsact")


def test_the_program_ends_with_a_killed_process_and_the_next_start_removes_the_gate(
    netns: str, compiled: Callable[[str], Path]
) -> None:
    script = (
        "from pathlib import Path\n"
        "from ebpf import Object\n"
        "from ebpf.gate import Gate\n"
        f"obj = Object.open(Path({str(compiled('basic'))!r})); obj.load()\n"
        f"gate = Gate(obj.programs['drop'].fd, 1, 'ingress', {netns!r})\n"
        "print('stands', flush=True); input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"stands\n"
    assert not udp_arrives(netns)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert udp_arrives(netns)  # no longer by the program
    assert "gate" in at_loopback(netns)
    assert {each.kind for each in clean_stale(RECORDS)} >= {"filter", "qdisc"}
    assert in_netns(netns, lambda: at_loopback(netns)) == ""
