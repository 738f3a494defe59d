"""Watching real switches: a network that is up, and a run in progress until it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from scapy.layers.inet import IP
from scapy.utils import rdpcap

from machine.record import RECORDS
from tests.attempts import undisturbed
from tests.browser import BROWSER, browsed, needs_browser

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[3]
NAME = f"wt{os.getpid() % 10000}"
ITERATIONS = 25
TOPOLOGY = """
[topology]
kind = "leaf-spine"
leaves = 2
spines = 1
hosts_per_leaf = 1
host_rate_mbps = 100
uplink_rate_mbps = 100
"""
EXPERIMENT = f"""
[experiment]
name = "{NAME}r"
routing = "source"
policy = "slots"
{TOPOLOGY}
[[job]]
name = "ring"
hosts = ["h1", "h2"]
collective = "ring"
bytes = 1_000_000
compute_ms = 60
iterations = {ITERATIONS}
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "entrain.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def entrain(*arguments: str, status: int = 0) -> str:
    """Run a command; return its output, or its error."""
    process = start(*arguments)
    out, error = process.communicate(timeout=200)
    assert process.returncode == status, out + error
    return out if status == 0 else error


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("up") / f"{NAME}.toml"
    path.write_text(TOPOLOGY)
    entrain("up", str(path))
    try:
        yield NAME
    finally:
        entrain("down", "--network", NAME)


@contextlib.contextmanager
def page_of(network: str) -> Iterator[str]:
    """Serve the page of a network; yields its address."""
    serving = start("watch", "--web", "--network", network, "--listen", "127.0.0.1:0", "--interval-ms", "200")
    try:
        assert serving.stdout is not None
        yield serving.stdout.readline().strip()
    finally:
        serving.terminate()
        serving.communicate(timeout=60)


SEND = """
import socket, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    while True:
        sender.sendto(bytes(1000), ("10.2.1.2", 9))
        time.sleep(0.001)
"""


def test_what_is_sent_is_measured_on_each_link_of_its_path(network: str) -> None:
    watching = start("watch", "--json", "--network", network, "--interval-ms", "200")
    assert watching.stdout is not None
    first: dict[str, Any] = json.loads(watching.stdout.readline())
    assert [switch["status"] for switch in first["switches"]] == ["ready"] * 3
    assert all(switch["tables"] for switch in first["switches"])
    path = {"h1->leaf1", "leaf1->spine1", "spine1->leaf2", "leaf2->h2"}
    used = Counter[str]()
    with start("exec", "--network", network, "h1", sys.executable, "-c", SEND) as sending:
        for line in watching.stdout:
            used.update({link["name"]: link["measured_mbps"] or 0.0 for link in json.loads(line)["links"]})
            if all(used[name] > 20 for name in path):
                break
        sending.terminate()
    watching.terminate()
    watching.communicate(timeout=60)
    on_path = min(used[name] for name in path)
    assert all(mbps < on_path / 10 for name, mbps in used.items() if name not in path), used


@needs_browser
def test_a_browser_shows_what_is_sent(network: str, tmp_path: Path) -> None:
    path = {"h1-&gt;leaf1", "leaf1-&gt;spine1", "spine1-&gt;leaf2", "leaf2-&gt;h2"}

    def links_in_use(page: str) -> set[str]:
        titles = re.findall(r"<title>(\S+): ([\d.]+) of 100 Mbit/s", page)
        return {name for name, mbps in titles if float(mbps) > 1}

    with (
        start("exec", "--network", network, "h1", sys.executable, "-c", SEND) as sending,
        page_of(network) as url,
    ):
        page = undisturbed(
            lambda: browsed(f"{url}?readings=8", Path(tempfile.mkdtemp(dir=tmp_path))),
            lambda page: links_in_use(page) == path,
        )
        sending.terminate()
    assert f"network {NAME}" in page and page.count("ready") >= 3
    assert page.count("<polyline") == 4, "one curve of use for each direction between switches"


def test_loads_show_what_is_used_beside_what_is_planned(network: str) -> None:
    reading = json.loads(entrain("loads", "--network", network, "--json"))
    assert all(port["measured_mbps"] >= 0 for port in reading["ports"])
    assert "measured" in entrain("loads", "--network", network, "--all")


def test_without_a_terminal_the_remedy_is_told(network: str) -> None:
    assert "needs a terminal" in entrain("watch", "--network", network, status=2)


@dataclass(frozen=True)
class Watched:
    """A run that two watched: its result, each reading, what was said at its end, and the page."""

    result: dict[str, Any]
    readings: list[dict[str, Any]]
    said: str
    page: str


def ranks(running: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks of a run's job: what its launcher has forked."""
    found = []
    for each in psutil.Process(running.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "workloads" in each.cmdline() and not each.children():
                found.append(each)
    return found


@contextlib.contextmanager
def held(running: subprocess.Popen[str], iterations: int) -> Iterator[None]:
    """Wait until the job of a run has made so many iterations; within, its ranks stand still."""
    deadline, made = time.monotonic() + 100, 0
    while made < iterations:
        assert running.poll() is None and time.monotonic() < deadline, "the job does not iterate"
        time.sleep(0.02)
        for records in (RECORDS / f"run-{running.pid}").glob("*/records/ring-rank0.jsonl"):
            made = records.read_text().count('"kind": "iteration"')
    stopped = ranks(running)
    assert len(stopped) == 2
    for rank in stopped:
        rank.suspend()
    try:
        yield
    finally:
        for rank in stopped:
            rank.resume()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """The job waits until it is watched, and until the browser has seen it."""
    directory, page = tmp_path_factory.mktemp("run"), ""
    path = directory / "experiment.toml"
    path.write_text(EXPERIMENT)
    with start("run", str(path), "--json") as running, contextlib.ExitStack() as stack:
        assert running.stderr is not None
        for line in running.stderr:
            if "writing tables" in line:
                break
        with held(running, 1):
            watching = start("watch", "--json", "--network", f"{NAME}r", "--interval-ms", "200")
            assert watching.stdout is not None
            first = watching.stdout.readline()
            url = stack.enter_context(page_of(f"{NAME}r")) if BROWSER else ""
        if BROWSER:
            with held(running, ITERATIONS // 2):
                page = browsed(f"{url}?readings=4", directory / "profile")
        out, said = watching.communicate(timeout=200)
        result = running.communicate(timeout=100)[0]
    assert running.returncode == 0
    return Watched(json.loads(result), [json.loads(line) for line in (first + out).splitlines()], said, page)


def test_a_run_is_watched_until_it_ends(run: Watched) -> None:
    assert "has ended: its run is over" in run.said
    (job,) = [job for job in run.readings[-1]["jobs"] if job["name"] == "ring"]
    assert job["iterations"] == ITERATIONS and job["done"] > 0 and job["over_ideal"] > 0.9
    links = [link for one in run.readings for link in one["links"]]
    assert any((link["measured_mbps"] or 0) > 1 for link in links)
    assert any(link["planned_mbps"] for link in links)
    # not in each reading: an agent starts with the run, ends with it, and may be late on a busy machine
    answered = {agent["host"] for one in run.readings for agent in one["agents"] if not agent["problem"]}
    assert answered == {"h1", "h2"}
    (told,) = run.result["runs"]
    assert told["jobs"][0]["iterations"] == ITERATIONS, "watching disturbs nothing"


@needs_browser
def test_a_browser_shows_a_run_beside_another_watcher(run: Watched) -> None:
    assert f"run {NAME}r" in run.page and re.search(rf"\d+/{ITERATIONS}", run.page)
    assert run.page.count("<svg") == 4, "topology, heat map, use over time, phases"
    assert "ring, iteration" in run.page, "its phases"
    assert run.page.count("<polyline") > 4, "beside each of four links' use, what was planned on some"


@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="needs tcpdump (apt-get install tcpdump)")
@pytest.mark.parametrize("where", ["h1", "leaf1-spine1"])
def test_packets_are_captured_where_they_pass(network: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / "packets.pcap"
    with start("capture", where, "--network", network, "--count", "3", "--out", str(file)) as capturing:
        assert capturing.stderr is not None
        for line in capturing.stderr:
            if "listening" in line:
                break
        ping = ("exec", "--network", network, "h1", "ping", "-c", "3", "-i", "0.2", "10.2.1.2")
        entrain(*ping)
        capturing.communicate(timeout=100)
    assert capturing.returncode == 0
    packets = rdpcap(str(file))
    assert len(packets) == 3
    if where != "h1":
        assert {packet[IP].dst for packet in packets if IP in packet} == {"10.2.1.2"}, "one direction alone"


def test_a_link_that_does_not_exist_is_told_with_those_that_do(network: str) -> None:
    if shutil.which("tcpdump") is None:
        pytest.skip("needs tcpdump (apt-get install tcpdump)")
    error = entrain("capture", "leaf9", "--network", network, status=2)
    assert "no such link or host" in error and "leaf1->spine1" in error
