"""A guest with another kernel and this machine's files, which it sees and cannot change (virtme-ng)."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from machine.errors import EntrainError, MissingTool
from machine.patience import VARIABLE
from machine.signals import ending_once
from tests.kernels.debian import Kernel

ROOT = Path(__file__).resolve().parents[2]
SLOWER = 10
"""How many times slower a guest is without KVM, in which qemu translates each instruction."""
BOOT_S = 60.0
MEMORY = "6G"
OPEN_FILES = 65536
"""As on a machine started by systemd; tests with many flows need more than the kernel's own 1024."""

_SHARE = "virtio-9p-pci,fsdev=files,mount_tag=files"
_START = """\
# The files once more, cached, which saves most of the time, below what the guest changes.
set -e
modprobe -a tun overlay
mkdir -p /run/files /run/changes /run/root
mount -t 9p -o ro,version=9p2000.L,trans=virtio,cache=loose,msize=1048576 files /run/files
mount -t tmpfs changes /run/changes
mkdir /run/changes/upper /run/changes/work
mount -t overlay -o lowerdir=/run/files,upperdir=/run/changes/upper,workdir=/run/changes/work root /run/root
mkdir -p /run/root/lib/modules
for each in /proc /sys /dev /lib/modules {results}; do mount --rbind $each /run/root$each; done
mount -t tmpfs run /run/root/run
exec chroot /run/root sh {results}/script
"""


def has_kvm() -> bool:
    """Return whether guests can use this machine's processors directly."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and bool({"vmx", "svm"} & set(flags))


def patience() -> int:
    """Return by how much guests may be slower than this machine."""
    return 1 if has_kvm() else SLOWER


def require() -> None:
    """Raise MissingTool, with the remedy, without what guests need."""
    programs = ("qemu-system-x86_64", "busybox", "vng")
    if missing := [each for each in programs if shutil.which(each, path=_path()) is None]:
        remedy = "./setup-packages packages-guests.txt, make .venv/.dev"
        raise MissingTool(f"{', '.join(missing)} not found: {remedy}")


def _path() -> str:
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


def run(kernel: Kernel, script: str, results: Path, *, limit_s: float) -> str:
    """Boot `kernel`, run a shell script as root in the checkout, and return what the guest printed.

    The script may write to `results`; its other changes are lost. Raises EntrainError if the guest takes
    longer than `limit_s`, times `patience`.
    """
    results.mkdir(parents=True, exist_ok=True)
    environment = {
        "HOME": Path.home(),
        "PATH": _path(),
        VARIABLE: patience(),
        "PYTHONDONTWRITEBYTECODE": 1,
        "PYTHONUNBUFFERED": 1,
    }
    exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in environment.items())
    ready = f"cd {shlex.quote(str(ROOT))}\nip link set lo up\nulimit -n {OPEN_FILES}\n"
    (results / "script").write_text(f"{exports}{ready}{script}\n")
    (results / "start").write_text(_START.format(results=shlex.quote(str(results))))
    share = f"-fsdev local,id=files,path=/,security_model=none,readonly=on,multidevs=remap -device {_SHARE}"
    command = [
        *("vng", "--run", str(kernel.image), "--memory", MEMORY, "--cpus", str(os.cpu_count() or 1)),
        *("--disable-monitor", "--force-9p", *([] if has_kvm() else ["--disable-kvm"])),
        *(f"--qemu-opts={share}", f"--rwdir={results}", "--exec", f"sh {results}/start"),
    ]
    with ending_once():
        guest = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": _path()},
            start_new_session=True,
        )
        try:
            printed, _ = guest.communicate(timeout=(limit_s + BOOT_S) * patience())
        except subprocess.TimeoutExpired:
            raise EntrainError(
                f"kernel {kernel.version}: not done after {limit_s * patience():g} s"
            ) from None
        finally:
            if guest.poll() is None:  # also after a signal
                os.killpg(guest.pid, signal.SIGKILL)
                guest.wait()
    return printed.decode(errors="replace")
