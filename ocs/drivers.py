"""Which driver an `[ocs]` table means."""

from __future__ import annotations

from collections.abc import Callable

from machine.errors import BadInput
from machine.plugins import extended
from ocs.driver import Driver
from ocs.scpi import ScpiDriver
from ocs.settings import GROUP, OcsTable
from ocs.tl1 import Tl1Driver

Maker = Callable[[OcsTable, int], Driver]
"""What an entry point names: a function of the `[ocs]` table and the number of ports that are plugged in."""


def remote_driver(table: OcsTable, ports: int) -> Driver:
    """Return the driver of a switch that is reached over TCP, of which `ports` ports are plugged in.

    It connects when it is first used. Raises BadInput if the switch is emulated, or for a password file that
    cannot be read.
    """
    match table.driver:
        case "tl1":
            assert table.address is not None
            return Tl1Driver(
                table.address,
                ports,
                names=table.port_names,
                user=table.user,
                password=table.password(),
                group=table.group,
                timeout_s=table.timeout_s,
            )
        case "scpi":
            assert table.address is not None
            return ScpiDriver(table.address, ports, timeout_s=table.timeout_s)
        case "emulated":
            raise BadInput(
                '[ocs], driver: "emulated" exists in an emulated network only; give "tl1" or "scpi"'
            )
        case other:
            makers: dict[str, Maker] = extended(GROUP, {})
            return makers[other](table, ports)
