"""Agent and controller as systemd runs them: they say when they are ready, and read their files again."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from entrain.commands.controller import command as controller
from hostbpf.command import main
from hostbpf.rates.enforcers import choose
from machine.errors import BadInput
from wire.progress import DIRECTORY, ROOM

pytestmark = pytest.mark.sockets
ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "packaging"


@dataclass
class Service:
    """A process with a supervisor that listens."""

    process: subprocess.Popen[str]
    notified: socket.socket

    def reload(self) -> None:
        """Do what ExecReload does."""
        self.process.send_signal(signal.SIGHUP)

    def wait_ready(self) -> None:
        assert self.notified.recv(100) == b"READY=1"

    def line(self, *, error: bool = False) -> str:
        stream = self.process.stderr if error else self.process.stdout
        assert stream is not None
        return stream.readline()


@contextlib.contextmanager
def started(directory: Path, *command: str) -> Iterator[Service]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(directory / "notify"))
        notified.settimeout(60)
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(directory / "notify"),
            "ENTRAIN_RUN": str(directory / "run"),
            "PYTHONPATH": f"{directory}:{ROOT}",
        }
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield Service(process, notified)
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.mark.slow
def test_controller_needs_neither_root_nor_mininet_and_reads_its_topology_again(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    shutil.copy(ROOT / "experiments" / "vclos-cluster.toml", file)
    command = [
        sys.executable,
        "-m",
        "entrain.cli",
        "controller",
        str(file),
        "--state",
        str(tmp_path / "state"),
    ]
    missing = tmp_path / "mininet.py"  # the package only recommends it
    missing.write_text("raise ModuleNotFoundError('Mininet is not installed here', name='mininet')")
    if os.geteuid() == 0:
        tmp_path.chmod(0o777)
        command = ["setpriv", "--bounding-set=-all", "--no-new-privs", *command]
    with started(tmp_path, *command) as service:
        service.wait_ready()
        while "primary" not in service.line():
            pass
        good = file.read_text()
        file.write_text("broken =")
        service.reload()
        while "not reloaded" not in (line := service.line(error=True)):
            assert line, "it ended"
        file.write_text(good)
        service.reload()
        service.wait_ready()


def _settings(file: Path, slot_ms: int) -> None:
    file.write_text(f'interface = "lo"\nlisten = "unix:{file.parent}/agent.sock"\nslot_ms = {slot_ms}\n')


CAPABILITIES = next(
    line.partition("=")[2].split()
    for line in (UNITS / "entrain-agent@.service").read_text().splitlines()
    if line.startswith("CapabilityBoundingSet=")
)


@pytest.mark.root
def test_agent_needs_its_unit_s_capabilities_only_and_reads_its_options_again(tmp_path: Path) -> None:
    import grpc

    from hostbpf.rpc import agent_pb2 as pb
    from hostbpf.rpc.agent_pb2_grpc import HostStub

    file = tmp_path / "agent.toml"
    _settings(file, 60)
    kept = ",".join(["-all", *("+" + name.removeprefix("CAP_").lower() for name in CAPABILITIES)])
    agent = f"exec setpriv --bounding-set={kept} {sys.executable} -m hostbpf --config {file}"
    command = ["unshare", "--net", "sh", "-c", f"ip link set lo up && {agent}"]
    with started(tmp_path, *command) as service:
        service.wait_ready()
        assert service.line().startswith("ready")
        _settings(file, 30)
        service.reload()
        service.wait_ready()
        with grpc.insecure_channel(f"unix:{tmp_path}/agent.sock") as channel:
            status = HostStub(channel).GetStatus(pb.GetStatusRequest())
        assert status.slot_ns == 30_000_000
        assert status.enforcer == str(choose()), "it finds the same in the kernel"
        for wrong in ("slot_msec = 20", "slot_ms = 0"):
            file.write_text(f'interface = "lo"\n{wrong}\n')
            service.reload()
            message = service.line(error=True)
            assert "not reloaded" in message and wrong.partition(" ")[0] in message


EXPOSURE = {"entrain-agent@.service": 35, "entrain-controller.service": 20}
"""The most that `systemd-analyze security` may find, in tenths; 100 is a service without any restriction."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (systemd)")
@pytest.mark.parametrize("unit", sorted(EXPOSURE))
def test_systemd_knows_each_line_of_a_unit_and_finds_little_exposed(unit: str, tmp_path: Path) -> None:
    text = (UNITS / unit).read_text()
    program = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert program is not None
    file = tmp_path / unit.replace("@", "@lo")  # an instance
    file.write_text(text.replace(program[1], "/bin/true"))
    for mount in UNITS.glob("*.mount"):
        shutil.copy(mount, tmp_path)
    verified = subprocess.run(
        ["systemd-analyze", "verify", file], capture_output=True, text=True, check=False
    )
    assert unit.partition("@")[0].removesuffix(".service") not in verified.stderr, verified.stderr
    limits = ["security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE[unit]}", str(file)]
    found = subprocess.run(["systemd-analyze", *limits], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_progress_has_the_room_that_entrain_itself_gives_it() -> None:
    lines = (UNITS / "run-entrain-progress.mount").read_text().splitlines()
    assert f"Where={DIRECTORY}" in lines
    assert f"Options={ROOM},nosuid,nodev,noexec" in lines
    assert "Requires=run-entrain-progress.mount" in (UNITS / "entrain-agent@.service").read_text()


@pytest.mark.parametrize(("step", "left"), [("remove", 3), ("purge", 0)])
def test_a_purge_leaves_no_settings_and_no_keys(step: str, left: int, tmp_path: Path) -> None:
    script = (UNITS / "build-deb").read_text().partition("DEBIAN/postrm\" <<'SCRIPT'\n")[2]
    script = script.partition("\nSCRIPT\n")[0].replace("/run/systemd/system", "/nowhere")
    for path in ("etc/entrain/certs/ca.key", "etc/entrain/cluster.toml", "var/lib/entrain/jobs.sqlite"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for directory in ("/etc/", "/var/"):
        script = script.replace(directory, f"'{tmp_path}'{directory}")
    subprocess.run(["sh", "-c", script, "_", step], check=True)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == left


@pytest.mark.parametrize("unit", sorted(EXPOSURE))
def test_a_service_has_bounds_of_its_own(unit: str) -> None:
    keys = {line.partition("=")[0] for line in (UNITS / unit).read_text().splitlines()}
    assert {"MemoryHigh", "MemoryMax", "TasksMax", "LimitNOFILE", "PrivateDevices"} <= keys


@pytest.mark.parametrize("unit", sorted(EXPOSURE))
def test_a_reload_checks_what_the_service_would_be_started_with(unit: str) -> None:
    lines = (UNITS / unit).read_text().splitlines()
    start, *reload = (line.partition("=")[2] for line in lines if re.match(r"Exec(Start|Reload)=", line))
    assert reload == [f"{start} --check", "/bin/kill -HUP $MAINPID"]


def check(*arguments: str | Path) -> None:
    """Run `entrain-agent --check`."""
    main.main(["--check", "--interface", "lo", *map(str, arguments)], standalone_mode=False)


def test_configuration_of_the_package_is_valid() -> None:
    check("--config", UNITS / "agent.toml")


WRONG = {
    "slot_msec = 20": "slot_msec",
    "slot_ms = 0": "slot_ms 0.0: must be positive",
    "slot_ms = nan": "slot_ms nan: must be positive",
    "schedule = true": "--link-mbps: missing",
    "link_mbps = -1": "--link-mbps -1: must be positive",
    'link_mbps = 1\nschedule = true\nscheduler = "none"': "slot scheduler 'none' is unknown",
    'link_mbps = 1\nschedule = true\nloads = "emulated"': "--paths: missing",
    'listen = "10.0.0.1"': "--listen 10.0.0.1: must be unix:PATH, or HOST:PORT",
    'listen = "10.0.0.1:1"\ncertificates = ["nowhere", "h1"]': "`entrain certs` makes certificates",
    "metrics_port = 70000": "70000 is not in the range",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_in_a_configuration_is_found_without_an_agent(text: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(text + "\n")
    with pytest.raises((BadInput, click.ClickException)) as refused:
        check("--config", file)
    assert WRONG[text] in str(refused.value)


def test_a_wrong_topology_is_found_without_a_controller(tmp_path: Path) -> None:
    file, state = tmp_path / "cluster.toml", tmp_path / "state"
    text = (ROOT / "experiments" / "vclos-cluster.toml").read_text(encoding="utf-8")
    arguments = [str(file), "--state", str(state), "--check"]
    file.write_text(text)
    controller.main(arguments, standalone_mode=False)
    file.write_text(text.replace("[cluster]", "[cluster]\nsize = 4"))
    with pytest.raises(BadInput, match=r"cluster\.toml: .*size"):
        controller.main(arguments, standalone_mode=False)
    assert not state.exists(), "it changes nothing"
