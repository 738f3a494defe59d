"""Sweeps on clusters whose parts were started separately: a scheduler and two workers, one on each host."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from machine.record import Record, Resource

ROOT = Path(__file__).resolve().parents[2]
SWEEP = [sys.executable, "-m", "entrain.cli", "simulate", "cassini-unfairness", "--policy", "fair", "--json"]


@dataclass(frozen=True)
class Hosts:
    """Hosts on one network, each a namespace. Host 0 has the scheduler, the others are workers."""

    names: tuple[str, ...]
    directory: Path

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"10.77.0.{host + 1}"

    def start(
        self, host: int, *command: str, variables: Mapping[str, str], stdout: int | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on a host. Its output goes to the host's log."""
        with self._log(host).open("a") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], *command],
                env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
                stdout=stdout or log,
                stderr=log,
                text=True,
            )

    def said(self, host: int) -> str:
        """Return what the commands of a host have written."""
        return self._log(host).read_text() if self._log(host).exists() else ""

    def _log(self, host: int) -> Path:
        return self.directory / f"host{host}.log"

    def die(self, host: int) -> None:
        """Kill all processes of a host."""
        while pids := subprocess.check_output(["ip", "netns", "pids", self.names[host]], text=True).split():
            for pid in map(int, pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` holds."""
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, "\n".join(map(self.said, range(len(self.names))))
            time.sleep(0.05)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    names = tuple(f"te{host}-{os.getpid()}" for host in range(3))
    # Not pytest's directory: Ray puts sockets below it, whose paths may have 107 characters.
    found = Hosts(names, Path(tempfile.mkdtemp(prefix="te")))

    def ip(host: int, command: str) -> None:
        subprocess.run(["ip", "-n", names[host], *command.split()], check=True)

    with Record("test-engines", records=found.directory / "records") as record:
        for name in names:
            record.own(Resource("netns", name))
            subprocess.run(["ip", "netns", "add", name], check=True)
        ip(0, "link add eth0 type bridge")
        for host in (1, 2):
            ip(0, f"link add port{host} master eth0 type veth peer name eth0 netns {names[host]}")
            ip(0, f"link set port{host} up")
        for host in range(3):
            ip(host, f"addr add {found.address(host)}/24 dev eth0")
            ip(host, "link set eth0 up")
            ip(host, "link set lo up")
        try:
            yield found
        finally:
            for host in range(3):
                found.die(host)
    shutil.rmtree(found.directory)


def ray(hosts: Hosts) -> dict[str, str]:
    """Start a Ray cluster that requires a token. Return the variables that tell a sweep of it."""
    token = hosts.directory / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    address = f"{hosts.address(0)}:6379"
    for host in range(3):
        role = [f"--address={address}", "--num-cpus=1"]
        if host == 0:
            role = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false"]
        (hosts.directory / str(host)).mkdir()
        place = [f"--node-ip-address={hosts.address(host)}", f"--temp-dir={hosts.directory / str(host)}"]
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", *role, *place]
        hosts.start(host, *command, "--object-store-memory=100000000", variables=variables)
        hosts.until(lambda host=host: "Ray runtime started" in hosts.said(host))  # type: ignore[misc]
    return {**variables, "RAY_ADDRESS": address}


def dask(hosts: Hosts) -> dict[str, str]:
    """Start a Dask cluster. Return the variables that tell a sweep of it."""
    address = f"tcp://{hosts.address(0)}:8786"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    hosts.start(0, *command, "--host", address, variables={})
    for host in (1, 2):
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
        place = ["--local-directory", str(hosts.directory), "--no-dashboard"]
        hosts.start(host, *command, *place, variables={})
    hosts.until(lambda: hosts.said(0).count("Register worker") == 2)
    return {"DASK_SCHEDULER_ADDRESS": address}


CLUSTERS = {"ray": ray, "dask": dask}


def installed(engine: str) -> None:
    library = "distributed" if engine == "dask" else engine
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("engine", CLUSTERS)
def test_a_cluster_gives_the_same_results_though_a_worker_dies(
    engine: str, hosts: Hosts, tmp_path: Path
) -> None:
    installed(engine)
    variables = CLUSTERS[engine](hosts)
    command = [*SWEEP, "--engine", engine, "--out", str(tmp_path)]
    sweep = hosts.start(0, *command, variables=variables, stdout=subprocess.PIPE)
    hosts.until(lambda: list(tmp_path.glob("points/*.json")) or sweep.poll() is not None)
    hosts.die(1)
    there, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, hosts.said(0)
    here = subprocess.run(SWEEP, check=True, capture_output=True, text=True, cwd=ROOT)
    assert points(there) == points(here.stdout)


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    """Dask's; Ray tries for minutes."""
    installed("dask")
    variables = {
        "DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:1",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s",
    }
    done = subprocess.run(
        [*SWEEP, "--engine", "dask"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "no cluster answers at DASK_SCHEDULER_ADDRESS=tcp://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def points(summary: str) -> list[dict[str, Any]]:
    """Return the figures of a sweep, without what depends on the machine's clock."""
    found = json.loads(summary)["points"]
    for each in found:
        each.pop("decision", None)
    assert isinstance(found, list)
    return found
