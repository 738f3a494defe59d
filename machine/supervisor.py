"""What a service tells the supervisor that started it: systemd's sd_notify(3)."""

from __future__ import annotations

import os
import socket


def supervised() -> bool:
    """Whether a supervisor wants to be told. SIGHUP then means to read the configuration again.

    Without one, SIGHUP comes from a terminal that closes, and ends the process.
    """
    return bool(os.environ.get("NOTIFY_SOCKET"))


def notify(state: str) -> None:
    """Tell the supervisor, if there is one, such as `READY=1` or `STATUS=…`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract name
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(state.encode(), address)
