"""Addresses that servers listen at."""

from __future__ import annotations

import os
from pathlib import Path

from machine.errors import BadInput

PORT_MAX = 65535
_PATH_MOST = 107
"""Bytes of a Unix socket's path (unix(7))."""


def check_socket(path: Path, option: str = "") -> None:
    """Raise BadInput if `path` is too long for a Unix socket. The error names `option`, which gave it."""
    if (length := len(os.fsencode(path))) > _PATH_MOST:
        raise BadInput(
            f"{f'{option} unix:{path}'.strip()}: has {length} bytes, and the path of a Unix socket at most "
            f"{_PATH_MOST}; choose a shorter directory (ENTRAIN_RUN, --out) or shorter names"
        )


def check_address(address: str, option: str = "") -> None:
    """Raise BadInput unless `address` is `unix:PATH` for a path that a socket can have, or HOST:PORT with a
    port that exists.

    gRPC itself takes the port modulo 2^16. The error names `option`, which gave the address.
    """
    if address.startswith("unix:") and address != "unix:":
        check_socket(Path(address.removeprefix("unix:")), option)
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        name = f"{option} {address}".strip()
        raise BadInput(f"{name}: must be unix:PATH, or HOST:PORT with a port from 0 to {PORT_MAX}")
