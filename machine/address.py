"""Addresses that servers listen at."""

from __future__ import annotations

from machine.errors import BadInput

PORT_MAX = 65535


def check_address(address: str, option: str = "") -> None:
    """Raise BadInput unless `address` is `unix:PATH`, or HOST:PORT with a port that exists.

    gRPC itself takes the port modulo 2^16. The error names `option`, which gave the address.
    """
    if address.startswith("unix:") and address != "unix:":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        name = f"{option} {address}".strip()
        raise BadInput(f"{name}: must be unix:PATH, or HOST:PORT with a port from 0 to {PORT_MAX}")
