"""Each example in examples/ works as docs/extend.md says."""

from __future__ import annotations

import asyncio
import json
import runpy
import shutil
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import entrain as api
from controlplane.topology import load_topology
from ocs.crossbar import Change, Circuit
from ocs.driver import Refused
from schedulers.slots.host import SlotScheduler
from schedulers.slots.roles import Role
from tests.examples.installed import EXAMPLES, entrain, environment


def module(example: str, name: str) -> dict[str, Any]:
    path = EXAMPLES / example / name
    return runpy.run_path(str(path / "__init__.py" if path.is_dir() else path.with_suffix(".py")))


def test_the_scheduler_lets_the_largest_job_decide_first() -> None:
    ours, theirs = module("scheduler", "largest_first")["LargestFirst"](), SlotScheduler()
    left, link, draw = np.array([1e4, 1e7]), np.full(2, 1.25e7), np.zeros(2)
    role = np.full(2, Role.RING)
    small, large = ours.ranks(left, link, draw, role)
    assert large < small
    small, large = theirs.ranks(left, link, draw, role)
    assert small < large


def test_the_scheduler_runs_in_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results differ from those of entrain's own order, so it was this object that decided."""
    monkeypatch.chdir(EXAMPLES / "scheduler")
    monkeypatch.setenv("PYTHONPATH", "")
    api.plugin("slot_schedulers", "largest-first", "largest_first:LargestFirst")
    found = api.simulate("slots-jct", policy=["slots", "largest-first"], limit=6, workers=1).rows("points")
    times = {each["policy"]: each["total_jct_s"] for each in found if each["domain"] == 10}
    assert times["largest-first"] != times["slots"]


@pytest.mark.root
def test_the_scheduler_runs_in_the_agents_of_a_network(tmp_path: Path) -> None:
    env = environment(tmp_path / "site", "scheduler")
    done = entrain(
        env, "run", str(EXAMPLES / "scheduler/experiment.toml"), "--only", "policy=slots", "--json"
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["policy"] == "slots"
    assert all(host["counts"].get("decisions") for host in run["scheduling"])


def test_an_unknown_scheduler_is_told_with_the_known_ones(tmp_path: Path) -> None:
    """The example's file names a scheduler that is not installed here."""
    done = entrain(environment(tmp_path), "run", str(EXAMPLES / "scheduler/experiment.toml"), "--dry-run")
    assert done.returncode == 2
    assert "[slots], scheduler: must be" in done.stderr


@pytest.mark.root
def test_the_congestion_control_is_there_while_an_experiment_runs(tmp_path: Path) -> None:
    env = environment(tmp_path / "site", "congestion_control")
    file = str(EXAMPLES / "congestion_control/experiment.toml")
    done = entrain(env, "run", file, "--only", "congestion_control=gentle", "--json")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["congestion_control"] == "gentle"
    assert "gentle" not in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


def test_the_star_sums_up_what_all_ranks_have() -> None:
    star = module("collective", "star")["star"]
    program = star(4, None)
    buffers = np.arange(1.0, 5.0)
    for step in program.steps:
        before = buffers.copy()
        for each in step:
            buffers[each.dst] = before[each.src] + (buffers[each.dst] if each.reduce else 0.0)
    assert buffers.tolist() == [10.0] * 4


@pytest.mark.root
def test_the_collective_and_the_topology_run(tmp_path: Path) -> None:
    """Ranks check the sums of what they have received."""
    env = environment(tmp_path / "site", "collective")
    for example in ("collective", "topology"):
        done = entrain(env, "run", str(EXAMPLES / example / "experiment.toml"), "--json")
        assert done.returncode == 0, done.stderr
        (run,) = json.loads(done.stdout)["runs"]
        assert all(job["iterations"] == 4 for job in run["jobs"])


def test_the_topology_has_two_ways_around() -> None:
    topology = load_topology(EXAMPLES / "topology/ring.toml")
    assert [len(topology.fabric_ports_of(switch.name)) for switch in topology.switches] == [2, 2, 2]


class Panel(BaseHTTPRequestHandler):
    """A switch with the API that the example's driver speaks."""

    circuits: set[tuple[int, int]]

    def _answer(self, content: object, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def _wanted(self) -> set[tuple[int, int]]:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        return {(one, other) for one, other in json.loads(body)}

    def do_GET(self) -> None:
        self._answer({"circuits": sorted(self.circuits), "failed": [8]})

    def do_PUT(self) -> None:
        wanted = self._wanted()
        if any(port > 8 for pair in wanted for port in pair):
            self._answer("no such port", 400)
            return
        self.circuits |= wanted
        self._answer(None)

    def do_DELETE(self) -> None:
        self.circuits.difference_update(self._wanted())
        self._answer(None)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def panel() -> Any:
    Panel.circuits = {(1, 5)}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Panel)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_ocs_driver_is_used_by_its_name(tmp_path: Path, panel: str) -> None:
    env = environment(tmp_path / "site", "ocs_driver")
    file = tmp_path / "topology.toml"
    file.write_text((EXAMPLES / "ocs_driver/topology.toml").read_text().replace("127.0.0.1:8080", panel))
    done = entrain(env, "ocs", str(file), "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [each["ports"] for each in shown["circuits"]] == [[1, 5]]
    assert [each["port"] for each in shown["failed"]] == [8]


async def _changed(panel: str, change: Change) -> Any:
    driver = module("ocs_driver", "rest_driver")["RestDriver"](panel, 5.0)
    await driver.apply(change)
    return await driver.read()


def test_the_ocs_driver_changes_circuits_and_says_what_is_refused(panel: str) -> None:
    change = Change(remove=frozenset({Circuit(1, 5)}), add=frozenset({Circuit(2, 6)}))
    assert asyncio.run(_changed(panel, change)).circuits == {Circuit(2, 6)}
    with pytest.raises(Refused, match="no such port"):
        asyncio.run(_changed(panel, Change(add=frozenset({Circuit(3, 9)}))))


def test_the_change_of_the_p4_program_still_fits(tmp_path: Path) -> None:
    """Its lines are found in the program as it is now, and a second call begins with that program again."""
    for _ in range(2):
        program = module("p4", "count_marks")["change"](tmp_path / "p4")
        text = (program.parent / "egress.p4").read_text()
        assert text.count("marked") == 2


@pytest.mark.p4c
def test_the_changed_program_has_the_counter_and_the_register(tmp_path: Path) -> None:
    config, p4info = module("p4", "count_marks")["build"](tmp_path)
    names = [each["name"] for each in json.loads(config.read_text())["counter_arrays"]]
    assert "FabricEgress.marked" in names
    assert "FabricEgress.marked" in p4info.read_text()
    assert "FabricEgress.longest" in p4info.read_text()


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")))
def test_a_distribution_of_the_examples_says_what_it_adds(example: str) -> None:
    table = tomllib.loads((EXAMPLES / example / "pyproject.toml").read_text())["project"]
    for entries in table["entry-points"].values():
        for target in entries.values():
            name, _, thing = target.partition(":")
            assert thing in module(example, name)


@pytest.mark.root
@pytest.mark.p4c
@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="needs p4c-bm2-ss on PATH")
def test_a_network_runs_the_changed_program(tmp_path: Path) -> None:
    config, p4info = module("p4", "count_marks")["build"](tmp_path)
    text = '[topology]\nkind = "dumbbell"\nname = "marks"\nhosts_per_side = 1\n'
    with api.up(text + "host_rate_mbps = 100\nbottleneck_rate_mbps = 20\n") as network:
        with pytest.raises(api.BadInput, match="no counter or register of this name"):
            network.counter("left", "marked")
        network.deploy(program=config, p4info=p4info)
        assert network.counter("left", "marked") == network.register("left", "longest") == {}
        h1, h2 = network.host("h1"), network.host("h2")
        with h2.running("iperf3", "-s", "-1"):
            h1.run("sysctl", "-q", "net.ipv4.tcp_ecn=1")
            h2.run("sysctl", "-q", "net.ipv4.tcp_ecn=1")
            wait_for_port(h2, 5201)
            h1.run("iperf3", "-c", h2.address, "-t", "1")
        assert sum(packets for packets, _ in network.counter("left", "marked").values()) > 0
        assert network.register("left", "longest").keys() == network.counter("left", "marked").keys()


def wait_for_port(host: Any, port: int) -> None:
    """Wait until something listens on a TCP port of a host."""
    host.run("timeout", "20", "sh", "-c", f"until ss -Hltn sport = :{port} | grep -q .; do sleep 0.05; done")
