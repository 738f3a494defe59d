"""`python -m tests.kernels.fresh RELEASE`: README's first command on a fresh Debian with its own kernel.

RELEASE is bookworm (12) or trixie (13). The guest's disk and output are in build/kernels/fresh. It has this
machine's certificates, so that it reaches the package registries as this machine does. With `--chroot` there
is no guest: the fresh Debian's programs run on this kernel.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click

from machine.errors import EntrainError, MissingTool
from machine.patience import VARIABLE
from machine.signals import ending_once
from tests.kernels import guest
from tests.kernels.debian import RELEASES, mirror

DIRECTORY = guest.ROOT / "build" / "kernels" / "fresh"
PACKAGES = "linux-image-{},systemd-sysv,udev,iproute2,kmod,git,make,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LIMIT_S = 1200.0
DONE = "fresh machine: exit status "
FILES = {
    "etc/systemd/network/any.network": "[Match]\nName=en* eth*\n[Network]\nDHCP=yes\n",
    "etc/systemd/system/fresh.service": (
        "[Unit]\nAfter=network-online.target\nWants=network-online.target\n"
        "[Service]\nType=oneshot\nTimeoutStartSec=infinity\nStandardOutput=tty\nStandardError=tty\n"
        "TTYPath=/dev/ttyS0\nExecStart=-/bin/sh /root/fresh\nExecStopPost=systemctl poweroff --force\n"
        "[Install]\nWantedBy=multi-user.target\n"
    ),
    "etc/fstab": "/dev/vda / ext4 defaults 0 1\n",
    "etc/hostname": "fresh\n",
    "etc/resolv.conf": "nameserver 10.0.2.3\n",  # qemu's
}


def bootstrap(release: str, script: str) -> Path:
    """Make a fresh Debian, with `script` in it, and return its directory."""
    root = DIRECTORY / release / "root"
    shutil.rmtree(root.parent, ignore_errors=True)
    root.mkdir(parents=True)
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    )
    packages = PACKAGES.format(architecture.stdout.strip())
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", release, str(root), mirror()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EntrainError(f"debootstrap {release} failed: {done.stdout[-2000:]}")
    (root / "root/fresh").write_text(script)
    shutil.copy(CERTIFICATES, root / str(CERTIFICATES).lstrip("/"))
    subprocess.run(["git", "clone", "--quiet", "--bare", guest.ROOT, root / "srv/entrain.git"], check=True)
    return root


def image(root: Path) -> None:
    """Make a disk of a fresh Debian, which runs its script and powers off. Remove `root`."""
    for path, text in FILES.items():
        (root / path).write_text(text)
    enabled, masked = ("systemd-networkd", "systemd-networkd-wait-online", "fresh"), ("serial-getty@ttyS0",)
    for action, units in (("enable", enabled), ("mask", masked)):  # a login would take the terminal
        subprocess.run(["systemctl", f"--root={root}", action, *units], check=True, capture_output=True)
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy(root / name, root.parent / name)
    disk = ["mkfs.ext4", "-q", "-d", str(root), str(root.parent / "disk.img"), "20G"]
    subprocess.run(disk, check=True)
    shutil.rmtree(root)


def booting(directory: Path) -> list[str]:
    """Return the command that boots the disk in `directory`."""
    return [
        "qemu-system-x86_64",
        *(("-accel", "kvm", "-cpu", "host") if guest.has_kvm() else ("-accel", "tcg", "-cpu", "max")),
        *("-smp", str(os.cpu_count() or 1), "-m", "6G", "-nographic", "-no-reboot"),
        *("-kernel", str(directory / "vmlinuz"), "-initrd", str(directory / "initrd.img")),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet"),
        *("-drive", f"file={directory / 'disk.img'},format=raw,if=virtio,cache=unsafe"),
        *("-nic", "user,model=virtio-net-pci"),
    ]


def entering(root: Path) -> list[str]:
    """Return the command that runs the script of a fresh Debian on this kernel. Its mounts end with it."""
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    mounts = [f"mount --rbind /{each} {root}/{each}" for each in ("sys", "dev")]
    mounts += [f"mount -t proc proc {root}/proc", f"mount -t tmpfs run {root}/run"]
    inside = " && ".join([*mounts, f"exec chroot {root} sh /root/fresh"])
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside]


def run(command: list[str], directory: Path, limit_s: float) -> int:
    """Run it, and copy what it prints to `directory`/console. Return the script's exit status."""
    with (directory / "console").open("wb") as console, ending_once():
        machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        try:
            machine.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise EntrainError(f"{directory / 'console'}: not done after {limit_s:g} s") from None
        finally:
            if machine.poll() is None:
                machine.send_signal(signal.SIGKILL)
                machine.wait()
    printed = (directory / "console").read_text(errors="replace")
    _, _, status = printed.rpartition(DONE)
    return int(status.split()[0]) if DONE in printed else 1


@click.command()
@click.argument("release", type=click.Choice(RELEASES))
@click.option("--command", default="make run", show_default=True, help="What to run in the clone.")
@click.option("--chroot", is_flag=True, help="No guest: run on this kernel.")
def main(release: str, command: str, chroot: bool) -> None:
    """Run a command in a clone on a fresh Debian; the output is in build/kernels/fresh/RELEASE/console."""
    if shutil.which("debootstrap") is None:
        raise MissingTool("debootstrap not found: ./setup-packages packages-guests.txt")
    slower = 1 if chroot else guest.patience()
    script = (
        f"export HOME=/root PIP_CERT={CERTIFICATES} {VARIABLE}={slower}\n"
        "cd /root && uname -r && git clone --quiet /srv/entrain.git entrain && cd entrain\n"
        f"began=$(date +%s)\n{command}\nstatus=$?\n"
        f'echo "after $(($(date +%s) - began)) s"; ip netns list; echo "{DONE}$status"\n'
    )
    root = bootstrap(release, script)
    if chroot:
        sys.exit(run(entering(root), root.parent, LIMIT_S))
    guest.require()
    image(root)
    sys.exit(run(booting(root.parent), root.parent, LIMIT_S * slower))


if __name__ == "__main__":
    main()
