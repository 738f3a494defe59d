"""Kernels of Debian's packages: found, downloaded and unpacked, not installed."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from machine.errors import EntrainError

RELEASES = ("bookworm", "trixie")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel. `version` is what `uname -r` says, such as `6.1.0-56-amd64`."""

    version: str
    package: str
    """The package's version, such as `6.1.192-2`."""
    image: Path


class Archive:
    """Debian's archive, with lists and packages in a directory of ours: apt's own stay as they are."""

    def __init__(self, directory: Path, architecture: str) -> None:
        """Fetch the lists of packages. Raises EntrainError."""
        self._directory = directory
        self._architecture = architecture
        for each in ("lists/partial", "cache/archives/partial"):
            (directory / each).mkdir(parents=True, exist_ok=True)
        (directory / "status").touch()
        places = [(mirror(), suite) for name in RELEASES for suite in (name, f"{name}-backports")]
        if security := _repository("Debian-Security"):
            places += [(security, f"{name}-security") for name in RELEASES]
        options = f"[arch={architecture} signed-by={KEYRING}]"
        sources = "".join(f"deb {options} {address} {suite} main\n" for address, suite in places)
        (directory / "sources.list").write_text(sources)
        self._apt("apt-get", "update")

    def _apt(self, command: str, *arguments: str, cwd: Path | None = None) -> str:
        options = {
            "Dir::Etc::SourceList": self._directory / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State": self._directory,
            "Dir::State::status": self._directory / "status",
            "Dir::Cache": self._directory / "cache",
            "APT::Architecture": self._architecture,
            "APT::Sandbox::User": "root",
        }
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        done = subprocess.run(
            [command, *flags, *arguments], capture_output=True, text=True, check=False, cwd=cwd
        )
        if done.returncode:
            raise EntrainError(f"{command} {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout

    def _candidate(self, package: str) -> str:
        """Return the version of a package that would be downloaded; empty if there is none."""
        found = re.search(r"Candidate: (\S+)", self._apt("apt-cache", "policy", package))
        return found[1] if found else ""

    def newest(self, series: str) -> list[str]:
        """Return the newest kernel of a series, such as 6.12, of each Debian release that has one."""
        pattern = rf"linux-image-({re.escape(series)}\.[\d.]+([+-][\w.]+)?-{self._architecture})"
        names = self._apt("apt-cache", "pkgnames", f"linux-image-{series}.").split()
        versions = [found[1] for name in names if (found := re.fullmatch(pattern, name))]
        newest = {}
        for version in sorted(versions, key=lambda text: [int(each) for each in re.findall(r"\d+", text)]):
            release = re.search(r"\+deb\d+", version)
            newest[release and release[0]] = version
        if not newest:
            raise EntrainError(f"kernel {series}: {' and '.join(RELEASES)} have none")
        return list(newest.values())

    def unpack(self, version: str, directory: Path) -> Kernel:
        """Download and unpack a kernel into `directory`/`version`, unless that is done."""
        root, done = directory / version, directory / f"{version}.package"
        if not done.exists():
            root.mkdir(parents=True, exist_ok=True)
            parts = {f"linux-{part}-{version}": "" for part in ("image", "binary", "modules")}
            parts = {name: found for name in parts if (found := self._candidate(name))}
            self._apt("apt-get", "download", *parts, cwd=root)
            for package in root.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, root], check=True)
                package.unlink()
            if not (root / "lib").exists():  # where vng looks for modules
                (root / "lib").symlink_to("usr/lib")
            done.write_text(next(iter(parts.values())))
        image = next(path for path in root.rglob("vmlinuz*") if path.is_file())
        return Kernel(version, done.read_text(), image)


def mirror() -> str:
    """Return the address from which apt has Debian's packages on this machine. Raises EntrainError."""
    found = _repository("Debian")
    if found is None:
        raise EntrainError(
            "apt knows no archive of Debian here: add one to its sources, and run apt-get update"
        )
    return found


def _repository(label: str) -> str | None:
    command = ["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = (line.partition(" ") for line in listed.splitlines())
    return next((address for name, _, address in found if name == label), None)
