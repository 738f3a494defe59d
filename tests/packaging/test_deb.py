"""The Debian package in a fresh root: `make test-deb`, after `apt-get install debootstrap`. Takes minutes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.container import booted, cgroup2

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = os.environ.get("ENTRAIN_DEB")
"""The package that is tested: not one that a build of long ago has left, and not in `make test`."""
DEPENDS = "python3,libbpf1,iproute2,procps,systemd"

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(PACKAGE is None, reason="takes minutes: `make test-deb` runs it"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs debootstrap"),
]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a minimal Debian 12 without a compiler, with the package installed."""
    root = tmp_path_factory.mktemp("debian")
    root.chmod(0o755)  # `/` of the services' users
    bootstrap = ["debootstrap", "--variant=minbase", f"--include={DEPENDS}", "bookworm", str(root)]
    subprocess.run(bootstrap, check=True, capture_output=True)
    assert PACKAGE is not None
    shutil.copy(PACKAGE, root / "entrain.deb")
    subprocess.run(["chroot", root, "dpkg", "--install", "/entrain.deb"], check=True, capture_output=True)
    yield root
    shutil.rmtree(root)


def run(root: Path, script: str) -> str:
    """Run a script inside, with /proc and /sys, in namespaces of its own that end with it."""
    mounts = f"mount -t proc proc {root}/proc && mount --rbind /sys {root}/sys"
    inside = f"{mounts} && exec chroot {root} sh -c '{script}'"
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_commands_and_units_are_installed(fresh: Path) -> None:
    assert run(fresh, "entrain --version").startswith("entrain, version ")
    assert "entrain" in run(fresh, "getent passwd entrain")
    for unit in (*(ROOT / "packaging").glob("*.service"), *(ROOT / "packaging").glob("*.mount")):
        assert (fresh / "usr/lib/systemd/system" / unit.name).exists()
    verified = run(fresh, "systemd-analyze verify /usr/lib/systemd/system/entrain-controller.service")
    assert "entrain" not in verified


def test_simulator_works_and_emulation_says_what_is_missing(fresh: Path) -> None:
    profiles = "$(find /usr/lib/entrain -name profiles-40-60.toml)"
    assert "leaf1-spine1" in run(fresh, f"entrain simulate cassini-score --profiles {profiles}")
    experiment = "$(find /usr/lib/entrain -name two-switches.toml)"
    assert "apt-get install mininet" in run(fresh, f"entrain run {experiment}")


def test_agent_runs_without_a_compiler(fresh: Path) -> None:
    agent = "entrain-agent --interface lo --config /etc/entrain/agent.toml --listen unix:/tmp/agent.sock"
    assert "ready grpc=unix:/tmp/agent.sock" in run(fresh, f"ip link set lo up; timeout 60 {agent}")
    assert "Traceback" not in run(fresh, "entrain doctor")


WAIT = 'await() { timeout 30 sh -c "until $1; do sleep 0.1; done" || echo "never: $1"; }; '
"""A shell function that waits until a command succeeds."""
AGENT, CONTROLLER = "entrain-agent@lo", "entrain-controller"


@pytest.fixture
def system(fresh: Path) -> Iterator[Callable[[str], str]]:
    """Boot the system with its own systemd."""
    if cgroup2() is None:
        pytest.skip("needs control groups of version 2")
    with booted(fresh) as run:
        run("ip link set lo up")
        yield lambda script: run(WAIT + script)


def journal(unit: str, line: str, times: int = 1) -> str:
    """Return a command that waits for a line of the journal."""
    return f"await '[ $(journalctl -u {unit} -o cat | grep -c \"{line}\") -ge {times} ]'; "


def test_agent_is_a_service_of_systemd(system: Callable[[str], str]) -> None:
    settings = "/etc/entrain/agent.toml"
    set_rate = f"sed -i 's/^# link_mbps.*/link_mbps = 1000/; s/^# schedule/schedule/' {settings}; "
    status = f"systemctl is-active {AGENT}; systemctl show -P NRestarts {AGENT}; "
    started = system(f"{set_rate} systemctl start {AGENT}; {status}").split()
    taken = "registered by a process" in system(f"journalctl -u {AGENT} -o cat")
    if taken and started != ["active", "0"]:
        pytest.skip("another process of this machine holds the congestion controls")
    assert started == ["active", "0"], system(f"journalctl -u {AGENT} -o cat -n 30")

    again = f"kill -9 $(systemctl show -P MainPID {AGENT}); {journal(AGENT, '^ready', 2)}"
    assert system(again + status).split() == ["active", "1"], "killed, it is started again"

    assert system(f"systemctl reload {AGENT}; {journal(AGENT, '^ready', 3)} {status}").split()[0] == "active"
    wrong = f"echo slot_msec = 20 >> {settings}; "
    told = system(
        f"{wrong} systemctl reload -q {AGENT} || echo failed; {journal(AGENT, 'slot_msec')} {status}"
    )
    assert told.split()[-3:] == ["failed", "active", "1"], "what is wrong changes nothing"

    stopped = system(
        f"systemctl stop {AGENT}; systemctl show -P Result {AGENT}; find /run/entrain/agents -type s"
    )
    assert stopped.split() == ["success"], "it leaves no socket"

    system(f"systemctl start {AGENT}")
    refused = system(f"systemctl show -P SubState,ExecMainStatus {AGENT}")
    assert sorted(refused.split()) == ["2", "failed"], "and is not tried again"
    system(f"sed -i '$d' {settings}")


def test_controller_is_a_service_of_systemd(fresh: Path, system: Callable[[str], str]) -> None:
    shutil.copy(ROOT / "experiments" / "vclos-cluster.toml", fresh / "etc/entrain/cluster.toml")
    status = f"systemctl is-active {CONTROLLER}; systemctl show -P User,NRestarts {CONTROLLER}"
    started = system(f"systemctl start {CONTROLLER}; systemctl reload {CONTROLLER}; {status}")
    told = system(f"journalctl -u {CONTROLLER} -o cat -n 30")
    assert sorted(started.split()) == ["0", "active", "entrain"], started + told
    stopped = system(f"systemctl stop {CONTROLLER}; systemctl show -P Result {CONTROLLER}")
    assert stopped.split() == ["success"]
