"""A driver for an optical circuit switch that speaks JSON over HTTP.

GET    /state       -> {"circuits": [[1, 5], [2, 7]], "failed": [8]}
PUT    /circuits    [[1, 5]]
DELETE /circuits    [[1, 5]]
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

from machine.errors import BadInput
from ocs.crossbar import Change, Circuit, Reading, join
from ocs.driver import Driver, Refused, Unanswered
from ocs.settings import OcsTable


class RestDriver:
    """The switch at `address`, HOST:PORT."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s

    async def read(self) -> Reading:
        """Return the circuits and the failed ports, from the switch."""
        state = await self._ask("GET", "/state")
        circuits = frozenset(join(one, other) for one, other in state["circuits"])
        return Reading(circuits, frozenset(state["failed"]))

    async def apply(self, change: Change) -> None:
        """Delete circuits, then make others. What is already done, the switch accepts again."""
        for method, circuits in (("DELETE", change.remove), ("PUT", change.add)):
            if circuits:
                await self._ask(method, "/circuits", circuits)

    async def close(self) -> None:
        """Each request has a connection of its own, so there is none to close."""

    async def _ask(self, method: str, path: str, circuits: Iterable[Circuit] = ()) -> Any:
        body = json.dumps([each.ports for each in circuits]).encode() if method != "GET" else None
        request = urllib.request.Request(f"http://{self._address}{path}", data=body, method=method)
        try:
            answer = await asyncio.to_thread(urllib.request.urlopen, request, timeout=self._timeout_s)
            with answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise Refused(f"{self._address} refuses {method} {path}: {error.read().decode()}") from error
        except (OSError, ValueError) as error:
            raise Unanswered(f"{self._address} does not answer {method} {path}: {error}") from error


def driver(table: OcsTable, ports: int) -> Driver:
    """Return the driver that `[ocs]` asks for; `ports` ports of the switch are plugged in."""
    if table.address is None:
        raise BadInput('[ocs], address: driver = "rest" needs it, as in "10.0.0.5:8080"')
    return RestDriver(table.address, table.timeout_s)
