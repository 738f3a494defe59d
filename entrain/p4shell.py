"""Install p4runtime-shell in a virtual environment of its own: its pinned versions conflict with ours.

The environment is created on first use, with /usr/bin/python3, in the user's cache. Several processes may
call `ensure` at the same time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from machine import cache
from machine.errors import EntrainError, MissingTool
from machine.state import locked
from machine.tls import Identity

VERSION = "0.0.6"
REQUIREMENTS = (f"p4runtime-shell=={VERSION}", "protobuf<3.21", "ipython==7.31.1", "jedi==0.17.2")
PYTHON = Path("/usr/bin/python3")
SESSION = Path(__file__).parent / "p4shell_session.py"
_INSTALL_TIMEOUT_S = 300


def ensure(on_install: Callable[[], None] = lambda: None) -> Path:
    """Return the environment's Python; install it if necessary. Raises EntrainError with pip's output."""
    root = cache.directory() / "p4runtime-shell"
    python, marker = root / "venv/bin/python", root / f"ready-{VERSION}"
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / "lock"):
        if not (marker.exists() and python.exists()):
            if not PYTHON.exists():
                raise MissingTool(f"{PYTHON} is missing: apt-get install python3 python3-venv")
            on_install()
            shutil.rmtree(root / "venv", ignore_errors=True)
            _run([str(PYTHON), "-m", "venv", str(root / "venv")], "apt-get install python3-venv")
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, *REQUIREMENTS], "is PyPI reachable?")
            marker.touch()
    return python


def command(
    python: Path, address: str, device_id: int, *, write: bool, identity: Identity | None = None
) -> list[str]:
    """Return the command line of a session: with `write` it becomes primary, or exits with status 1; with an
    `identity` it speaks TLS."""
    line = [str(python), str(SESSION), address, str(device_id), "write" if write else "read"]
    if identity is not None:
        line += map(str, (identity.authority, identity.certificate, identity.key))
    return line


def environment() -> dict[str, str]:
    """Return a session's environment: IPython's files go to the cache, and gRPC uses no proxy."""
    return {
        **os.environ,
        "IPYTHONDIR": str(cache.directory() / "p4runtime-shell/ipython"),
        "no_grpc_proxy": "*",
        "NO_PROXY": "*",
    }


def _run(command: list[str], hint: str) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise EntrainError(f"{' '.join(command)} took longer than {_INSTALL_TIMEOUT_S} s: {hint}") from error
    if done.returncode:
        raise EntrainError(f"{' '.join(command)} failed ({hint}):\n{done.stderr.strip()}")
