"""Mininet's classes that ours build on. Importing it raises MissingTool where Mininet is missing."""

from __future__ import annotations

from machine.errors import MissingTool

try:
    from mininet.link import Intf, Link
    from mininet.net import Mininet
    from mininet.node import Host, Switch
except ModuleNotFoundError as error:
    raise MissingTool(
        "Mininet's Python module is missing, and emulated networks need it: apt-get install mininet, and "
        "make the virtual environment from /usr/bin/python3 with --system-site-packages"
    ) from error

__all__ = ["Host", "Intf", "Link", "Mininet", "Switch"]
