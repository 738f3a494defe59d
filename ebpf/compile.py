"""Compiling eBPF C with the system's clang."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ebpf.errors import EbpfError
from machine import cache
from machine.errors import MissingTool

_CACHED = 8
"""How many compiled versions of one program are kept."""

_ARCH = {"x86_64": "x86", "aarch64": "arm64", "riscv64": "riscv", "ppc64le": "powerpc", "s390x": "s390"}


def compile_bpf(
    source: Path,
    output: Path,
    *,
    includes: Sequence[Path] = (),
    defines: Mapping[str, str | int] | None = None,
) -> None:
    """Compile one C file to a BPF object with BTF; `output` appears whole or not at all.

    The compiler is $CLANG, or `clang`. Raises MissingTool without it, and EbpfError with its message.
    """
    clang = shutil.which(os.environ.get("CLANG", "clang"))
    if clang is None:
        raise MissingTool("clang not found: install it (Debian: apt-get install clang), or set CLANG")
    output.parent.mkdir(parents=True, exist_ok=True)
    system = [f"-I/usr/include/{arch}" for arch in [sysconfig.get_config_var("MULTIARCH")] if arch]
    descriptor, temporary = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    os.close(descriptor)
    command = [
        *(clang, "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror=implicit-function-declaration"),
        f"-D__TARGET_ARCH_{_ARCH.get(platform.machine(), platform.machine())}",
        *(f"-D{name}={value}" for name, value in (defines or {}).items()),
        *(f"-I{path}" for path in includes),
        *system,
        *("-c", str(source), "-o", temporary),
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise EbpfError(f"{source}: clang failed\n{result.stderr.strip()}{_header_remedy(result.stderr)}")
        Path(temporary).replace(output)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _header_remedy(message: str) -> str:
    if "'bpf/" in message and "file not found" in message:
        return "\nremedy: install libbpf's headers (Debian: apt-get install libbpf-dev)"
    if "file not found" in message and ("'linux/" in message or "'asm/" in message):
        return "\nremedy: install the kernel's user headers (Debian: apt-get install linux-libc-dev)"
    return ""


def compile_cached(source: Path, *, defines: Mapping[str, str | int] | None = None) -> Path:
    """The object of `source`, compiled once for its content, that of the headers beside it, and `defines`.

    It lies in $XDG_CACHE_HOME/entrain (default ~/.cache/entrain), for all processes of this user.
    """
    digest = hashlib.sha256(repr(sorted((defines or {}).items())).encode())
    for path in [source, *sorted(source.parent.glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    output = cache.directory() / f"{source.stem}-{digest.hexdigest()[:16]}.o"
    if not output.exists():
        compile_bpf(source, output, includes=[source.parent], defines=defines)
        cache.prune(f"{source.stem}-*.o", keep=_CACHED)
    return output
