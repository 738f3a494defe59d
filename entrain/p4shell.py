"""p4runtime-shell in a virtual environment of its own, because its pins fight everybody else's.

It is made on first use, from /usr/bin/python3, under the user's cache; several processes may ask at once.
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

VERSION = "0.0.6"
REQUIREMENTS = (f"p4runtime-shell=={VERSION}", "protobuf<3.21", "ipython==7.31.1", "jedi==0.17.2")
PYTHON = Path("/usr/bin/python3")
SESSION = Path(__file__).parent / "p4shell_session.py"
_INSTALL_TIMEOUT_S = 300


def ensure(on_install: Callable[[], None] = lambda: None) -> Path:
    """The environment's Python, installed if it was not; raises EntrainError with pip's words."""
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


def command(python: Path, address: str, device_id: int, *, write: bool) -> list[str]:
    """The command line of a session on one switch; with `write` it becomes primary or ends with status 1."""
    return [str(python), str(SESSION), address, str(device_id), *(["write"] if write else [])]


def environment() -> dict[str, str]:
    """A session's environment: IPython keeps its files in the cache, gRPC leaves proxies alone."""
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
