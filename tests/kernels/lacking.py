"""Take something from the kernel, and see that `doctor` and `up` name it and leave nothing: JSON on stdout.

Only for guests: what is taken last is not given back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.kernels.left import left

MODPROBE = Path("/proc/1/root/etc/modprobe.d/lacking.conf")
LOCKDOWN = Path("/sys/kernel/security/lockdown")
TOPOLOGY = '[topology]\nkind = "leaf-spine"\nleaves = 2\nspines = 1\nhosts_per_leaf = 1\n'


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, capture_output=True)


def without_module(name: str) -> None:
    """Unload a module, and keep the kernel from loading it again."""
    run("modprobe", "--remove", name)
    MODPROBE.write_text(f"install {name} /bin/false\n")


CASES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "BTF": (
        lambda: run("mount", "-t", "tmpfs", "none", "/sys/kernel/btf"),
        lambda: run("umount", "/sys/kernel/btf"),
    ),
    "BPF JIT": (
        lambda: run("sysctl", "net.core.bpf_jit_enable=0"),
        lambda: run("sysctl", "net.core.bpf_jit_enable=1"),
    ),
    "qdisc htb": (lambda: without_module("sch_htb"), MODPROBE.unlink),
    "veth": (lambda: without_module("veth"), MODPROBE.unlink),
    "locked down": (lambda: LOCKDOWN.write_text("confidentiality"), lambda: None),
}
"""By what the messages must name: what takes it from the kernel, and what gives it back."""


HARMLESS = ("locked down",)
"""What some kernels do without: Linux 6.1 locked down loads every program."""


def entrain(*arguments: str) -> tuple[int, str]:
    """Return the exit status of a command, and what it printed in one line."""
    command = [sys.executable, "-m", "entrain.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def main() -> None:
    """Try all cases."""
    if not LOCKDOWN.parent.exists() or not LOCKDOWN.exists():
        run("mount", "-t", "securityfs", "none", "/sys/kernel/security")
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        topology = Path(directory) / "lacking.toml"
        topology.write_text(TOPOLOGY)
        for name, (take, give_back) in CASES.items():
            take()
            faults = []
            for command in (["doctor"], ["up", str(topology)]):
                status, said = entrain(*command)
                works = status == 0 and name in HARMLESS
                if "Traceback" in said or not (works or (status != 0 and name in said)):
                    faults.append(f"{command[0]}: exit status {status}: {said[-1500:]}")
            entrain("down")
            faults += left()
            give_back()
            found[name] = faults
            print(name, faults, file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
