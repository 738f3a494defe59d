"""The `[ocs]` table of a topology or an experiment: its optical circuit switch, and how to reach it.

    [ocs]
    driver = "tl1"
    address = "10.0.0.5:3082"
    user = "admin"
    password_file = "/etc/entrain/ocs-password"
    port_names = ["1.1.1", "1.1.2", "1.1.3", "1.1.4"]

docs/placement.md describes each key.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from machine.address import check_address
from machine.errors import BadInput
from machine.plugins import extended
from machine.toml import Strict, matching, one_of
from ocs.crossbar import PORT_LOSS_DB, SWITCHING_MS, Crossbar
from ocs.manager import ATTEMPTS

GROUP = "entrain.ocs_drivers"
"""Entry points at which other distributions register drivers: see `ocs.drivers.Maker`."""

Number = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]
Seconds = Annotated[float, Field(gt=0, le=600, allow_inf_nan=False, strict=False)]
Word = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_.-]*", "must consist of letters, digits, _, . and -")]
PortKey = Annotated[str, matching(r"[1-9][0-9]{0,5}", "must be the number of a port, from 1")]

_KEYS: dict[str, set[str]] = {
    "emulated": set(),
    "tl1": {"address", "timeout_s", "attempts", "user", "password_file", "group", "port_names"},
    "scpi": {"address", "timeout_s", "attempts"},
}
"""The keys that not every driver has, by driver. Those of other distributions may have all of them."""


class OcsTable(Strict):
    """The `[ocs]` table. `port_names` has what the switch calls port 1, port 2 and so on."""

    driver: Annotated[str, one_of(lambda: extended(GROUP, _KEYS))] = "emulated"
    switching_ms: Number = SWITCHING_MS
    port_loss_db: Number = PORT_LOSS_DB
    loss_db: dict[PortKey, Number] = Field(default_factory=dict)
    budget_db: Number | None = None
    address: str | None = None
    timeout_s: Seconds = 5.0
    attempts: Annotated[int, Field(ge=1, le=10)] = ATTEMPTS
    user: Word | None = None
    password_file: str | None = None
    group: Word = "entrain"
    port_names: Annotated[tuple[Word, ...], Field(strict=False)] = ()

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is None:
            return None
        try:
            check_address(address)
        except BadInput:
            raise ValueError("must be HOST:PORT") from None
        if address.startswith("unix:"):
            raise ValueError("must be HOST:PORT")
        return address

    @field_validator("port_names")
    @classmethod
    def _are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name, count in Counter(names).items():
            if count > 1:
                raise ValueError(f"has {name} {count} times; name each port once")
        return names

    @model_validator(mode="after")
    def _fits_the_driver(self) -> OcsTable:
        every = set().union(*_KEYS.values())
        keys_of = _KEYS.get(self.driver, every)
        for key in sorted((self.model_fields_set & every) - keys_of):
            drivers = " or ".join(f'"{name}"' for name, keys in _KEYS.items() if key in keys)
            raise ValueError(f'{key}: is for driver = {drivers}, not "{self.driver}"; remove it')
        if self.driver in PORTS and self.address is None:
            raise ValueError(
                f'address: driver = "{self.driver}" needs it, as in "10.0.0.5:{PORTS[self.driver]}"'
            )
        if (self.user is None) != (self.password_file is None):
            raise ValueError("user, password_file: give both, or neither if the switch asks for no login")
        return self

    def crossbar(self, ports: int) -> Crossbar:
        """Return the model of this switch, of which `ports` ports are plugged in.

        Raises ValueError if `loss_db` names another port, or `port_names` does not name each.
        """
        loss_db = {int(port): loss for port, loss in self.loss_db.items()}
        if beyond := sorted(port for port in loss_db if port > ports):
            raise ValueError(f"[ocs], loss_db, {beyond[0]}: ports 1 to {ports} are plugged in; remove it")
        if self.port_names and len(self.port_names) < ports:
            raise ValueError(
                f"[ocs], port_names: names {len(self.port_names)} ports, and {ports} are plugged in; name all"
            )
        budget_db = math.inf if self.budget_db is None else self.budget_db
        return Crossbar(ports, self.switching_ms, loss_db, budget_db, self.port_loss_db)

    def password(self) -> str:
        """Return the password in `password_file`, without white space around it. Raises BadInput."""
        if self.password_file is None:
            return ""
        try:
            return Path(self.password_file).read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"[ocs], password_file: {self.password_file} cannot be read ({error})") from error


PORTS: dict[str, int] = {"tl1": 3082, "scpi": 5025}
"""The TCP port on which switches listen, by driver: TL1 in raw mode, and SCPI."""
