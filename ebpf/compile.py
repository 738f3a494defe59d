"""Compiling eBPF C with the system's clang."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
import resource
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ebpf import landlock
from ebpf.errors import CompilerError
from machine import cache
from machine.errors import MissingTool

log = logging.getLogger(__name__)

PROCESSOR_S = 300
"""Processor time that clang may take; the largest programs take a few seconds."""

MEMORY = 4 << 30
"""Bytes of address space that clang may have."""

LARGEST = 256 << 20
"""Bytes of an object."""

_CACHED = 8
"""Number of compiled versions of one program in the cache."""

SHIPPED = "objects"
"""Beside a source in an installed package: the directory of its compiled objects (setup.py)."""

_SYSTEM = tuple(
    Path(path)
    for path in (
        *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"),  # clang's own shared libraries
        *("/usr/include", "/usr/local/include"),
    )
)
"""What clang may read besides its input and its own installation."""

_ARCH = {"x86_64": "x86", "aarch64": "arm64", "riscv64": "riscv", "ppc64le": "powerpc", "s390x": "s390"}


def compile_bpf(
    source: Path,
    output: Path,
    *,
    includes: Sequence[Path] = (),
    defines: Mapping[str, str | int] | None = None,
) -> None:
    """Compile one C file to a BPF object with BTF. `output` is written completely or not at all.

    The compiler is $CLANG, or `clang`. It can open only `source`, `includes`, the system's headers and its
    own files: `#include` of any other file fails, even for root. This needs Landlock. On a kernel without it,
    clang runs with the caller's rights, and the log has a warning. It ends beyond `PROCESSOR_S`, `MEMORY` or
    `LARGEST`.

    Raises MissingTool without clang, and CompilerError with clang's message.
    """
    clang = shutil.which(os.environ.get("CLANG", "clang"))
    if clang is None:
        raise MissingTool("clang not found: install it (Debian: apt-get install clang), or set CLANG")
    system = [f"-I/usr/include/{arch}" for arch in [sysconfig.get_config_var("MULTIARCH")] if arch]
    command = [
        *(clang, "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror=implicit-function-declaration"),
        f"-D__TARGET_ARCH_{_ARCH.get(platform.machine(), platform.machine())}",
        *(f"-D{name}={value}" for name, value in (defines or {}).items()),
        *(f"-I{path.resolve()}" for path in includes),
        # The same object, wherever it is compiled. Clang must find the source by the name that it notes, to
        # copy the lines that the verifier quotes.
        "-fdebug-compilation-dir=.",
        *system,
        *("-c", source.name, "-o", "-"),
    ]

    output.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    run = functools.partial(_run, command, source.parent, descriptor)
    try:
        if landlock.version():
            prefix = Path(clang).resolve().parent.parent
            status, message = landlock.confined(run, [source, *includes, prefix, *_SYSTEM])
        else:
            log.warning("this kernel has no Landlock: clang can read every file that this process can")
            status, message = run()
        if status != 0:
            remedy = _header_remedy(message) or _limit_remedy(status, message, os.fstat(descriptor).st_size)
            raise CompilerError(f"{source}: clang failed\n{message}{remedy}")
        Path(temporary).replace(output)
    finally:
        os.close(descriptor)
        Path(temporary).unlink(missing_ok=True)


def _run(command: Sequence[str], directory: Path, output: int) -> tuple[int, str]:
    """Run a compiler within limits. Return its status, and what it says."""
    with subprocess.Popen(
        command, cwd=directory, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE
    ) as compiler:
        for limit, most in (
            (resource.RLIMIT_CPU, PROCESSOR_S),
            (resource.RLIMIT_AS, MEMORY),
            (resource.RLIMIT_FSIZE, LARGEST),
            (resource.RLIMIT_CORE, 0),
        ):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                _, hard = resource.prlimit(compiler.pid, limit)
                allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(compiler.pid, limit, (allowed, allowed))  # a hard one cannot be caught
        _, said = compiler.communicate(b"")
    return compiler.returncode, said.decode(errors="replace").strip()


def _limit_remedy(status: int, message: str, size: int) -> str:
    """Return what to do about a limit that clang has reached; empty if none."""
    if status == -signal.SIGKILL:
        reached = f"it took more than {PROCESSOR_S} s of processor time"
    elif size >= LARGEST:
        reached = f"the object has more than {LARGEST >> 20} MiB"
    elif "out of memory" in message or "bad_alloc" in message:
        reached = f"it needed more than {MEMORY >> 20} MiB of memory"
    else:
        return ""
    return f"\n{reached}; make the program smaller"


def _header_remedy(message: str) -> str:
    if "'bpf/" in message and "file not found" in message:
        return "\nremedy: install libbpf's headers (Debian: apt-get install libbpf-dev)"
    if "file not found" in message and ("'linux/" in message or "'asm/" in message):
        return "\nremedy: install the kernel's user headers (Debian: apt-get install linux-libc-dev)"
    return ""


def compile_cached(source: Path, *, defines: Mapping[str, str | int] | None = None) -> Path:
    """Return the compiled object of `source`: the one that was shipped with it, else one from a cache.

    The key is the content of `source`, of the headers beside it, and `defines`, so that a shipped object is
    never older than its source. The cache is in $XDG_CACHE_HOME/entrain (default ~/.cache/entrain), for all
    processes of this user. Only what is in neither place is compiled.
    """
    name = _name(source, defines)
    shipped = source.parent / SHIPPED / name
    if shipped.exists():
        return shipped
    output = cache.directory() / name
    if not output.exists():
        compile_bpf(source, output, includes=[source.parent], defines=defines)
        cache.prune(f"{source.stem}-*.o", keep=_CACHED)
    return output


def ship(source: Path, *, defines: Mapping[str, str | int] | None = None) -> Path:
    """Compile `source` to where `compile_cached` will find it on machines without a compiler."""
    output = source.parent / SHIPPED / _name(source, defines)
    compile_bpf(source, output, includes=[source.parent], defines=defines)
    return output


def _name(source: Path, defines: Mapping[str, str | int] | None) -> str:
    digest = hashlib.sha256(repr(sorted((defines or {}).items())).encode())
    for path in [source, *sorted(source.parent.glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{source.stem}-{digest.hexdigest()[:16]}.o"
