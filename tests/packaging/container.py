"""systemd as process 1 of a root directory, in namespaces of its own that end with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BOOT = """
set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -t sysfs sysfs "$ROOT/sys"
mount -t cgroup2 cgroup2 "$ROOT/sys/fs/cgroup"
mount -t bpf bpf "$ROOT/sys/fs/bpf"
mount -t tmpfs tmpfs "$ROOT/run"
cd "$ROOT"
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
  chroot "$ROOT" /lib/systemd/systemd --log-target=null multi-user.target
"""
NAMESPACES = ("--pid", "--mount", "--net", "--uts", "--ipc", "--cgroup")
WAIT_S = 60.0


def cgroup2() -> Path | None:
    """Return where the version 2 of control groups is mounted, without which systemd does not start."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


@contextlib.contextmanager
def booted(root: Path) -> Iterator[Callable[[str], str]]:
    """Boot the system in `root`. Yields a function that runs a script inside, and returns what it printed."""
    mount = cgroup2()
    assert mount is not None
    group = mount / f"entrain-test-{os.getpid()}"
    group.mkdir()
    enter = f'echo $$ > {group}/cgroup.procs && exec unshare {" ".join(NAMESPACES)} --fork --kill-child "$@"'
    process = subprocess.Popen(
        ["sh", "-c", enter, "_", "sh", "-c", BOOT],
        env={**os.environ, "ROOT": str(root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = _child(process)

        def run(script: str) -> str:
            inside = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c", script]
            command = ["nsenter", "--target", first, "--all", "--root", "--wd", *inside]
            done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
            return done.stdout + done.stderr

        deadline = time.monotonic() + WAIT_S
        while (state := run("systemctl is-system-running").strip()) not in ("running", "degraded"):
            assert time.monotonic() < deadline, state
            time.sleep(0.1)
        yield run
    finally:
        process.kill()
        process.communicate()
        _remove(group)


def _child(process: subprocess.Popen[str]) -> str:
    """Return the process id of systemd, seen from outside."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return child
        time.sleep(0.05)
    raise AssertionError(f"systemd did not start: {process.communicate()[1] if process.poll() else ''}")


def _remove(group: Path) -> None:
    """Remove a control group and those in it, once their processes have ended."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            for path, _, _ in os.walk(group, topdown=False):
                Path(path).rmdir()
            return
        time.sleep(0.1)
    shutil.rmtree(group, ignore_errors=True)
