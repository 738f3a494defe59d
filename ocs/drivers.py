"""What an `[ocs]` table means: a driver, and a manager of circuits with it."""

from __future__ import annotations

from pathlib import Path

from machine.errors import BadInput
from ocs.audit import AuditLog
from ocs.driver import Driver
from ocs.manager import CircuitManager
from ocs.scpi import ScpiDriver
from ocs.settings import OcsTable
from ocs.tl1 import Tl1Driver


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


def open_manager(table: OcsTable, ports: int, audit: Path, panel: Driver | None = None) -> CircuitManager:
    """Return the manager of a switch with `ports` ports, which logs to the file `audit`.

    An emulated switch is given as `panel` (`mininet_topos.network.Network.panel`); any other is reached over
    TCP. Raises BadInput as `remote_driver` does, and EntrainError if the log cannot be opened.
    """
    driver = remote_driver(table, ports) if panel is None else panel
    return CircuitManager(table.crossbar(ports), driver, AuditLog(audit), attempts=table.attempts)
