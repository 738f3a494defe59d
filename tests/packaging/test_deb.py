"""The Debian package in a fresh root: `make deb` and `apt-get install debootstrap` first. Takes minutes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = sorted((ROOT / "build").glob("entrain_*.deb"))
DEPENDS = "python3,libbpf1,iproute2,procps,systemd"

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not BUILT, reason="needs build/entrain_*.deb: make deb"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs debootstrap"),
]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a minimal Debian 12 without a compiler, with the package installed."""
    root = tmp_path_factory.mktemp("debian")
    bootstrap = ["debootstrap", "--variant=minbase", f"--include={DEPENDS}", "bookworm", str(root)]
    subprocess.run(bootstrap, check=True, capture_output=True)
    shutil.copy(BUILT[-1], root / "entrain.deb")
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
    for unit in (ROOT / "packaging").glob("*.service"):
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
