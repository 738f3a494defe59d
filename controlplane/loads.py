"""Reads the link load tables with QUERY carriers: a packet-out per port, answered by a packet-in.

Not every target lets P4Runtime read registers. This works on all of them.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

import finsy as fy

from controlplane import constants as p4
from controlplane.fabric import Fabric
from machine.errors import EntrainError
from machine.patience import patience
from wire.slot_header import ETHERTYPE, LANES, Kind, Lane, SlotHeader

ANSWER_TIMEOUT_S = patience(1.0)
TRIES = 3

_ETHERNET_BYTES = 14
_ADDRESSES = bytes(6) + bytes.fromhex("020000000001")  # the packet never leaves the switch
_MINIMUM_FRAME = 60


@dataclass(frozen=True)
class PortLoad:
    """One egress port's load table. Rates are in Mbit/s; `slots` maps slot numbers to planned rates.

    Switches know slot numbers modulo `wire.slot_header.SLOTS`, and so do these; `slot_near` gives them whole.
    """

    switch: str
    port: int
    peer: str
    capacity_mbps: float
    slots: dict[int, float]
    refused: dict[str, int] = field(default_factory=dict)
    """Why, and how often, carriers of the host at this port were refused, by the names of `RefusedReason`."""


class LoadReader:
    """Reads the load tables of a fabric's switches. Create one per fabric."""

    def __init__(self, fabric: Fabric, rate_unit_mbps: float = 1.0) -> None:
        self._fabric = fabric
        self._rate_unit_mbps = rate_unit_mbps
        self._waiting: dict[tuple[str, int], asyncio.Future[SlotHeader]] = {}
        self._numbers = itertools.count(1)
        fabric.on_packet(self._answer)

    async def read(self) -> list[PortLoad]:
        """Return the table of every port of every switch, which run the fabric's program.

        Raises EntrainError if a switch does not answer.
        """
        ports = [(switch, port) for switch in self._fabric.topology.switches for port in switch.ports]
        tables = await asyncio.gather(*(self._table(switch.name, port.number) for switch, port in ports))
        refused = {
            (host.leaf, host.leaf_port): {reason.name: count for reason, count in counts.items()}
            for host, counts in (await self._fabric.refused()).items()
        }
        return [
            PortLoad(
                switch.name,
                port.number,
                port.peer,
                port.rate_mbps,
                slots,
                refused.get((switch.name, port.number), {}),
            )
            for (switch, port), slots in zip(ports, tables, strict=True)
        ]

    async def _table(self, switch: str, port: int) -> dict[int, float]:
        """Return what is planned on a port by slot.

        A carrier reads either epochs or loads. Where a lane has another epoch after its load was read than
        before, it may be that of either slot, so both are read again; a lane that still changes is left out.
        """
        before = await self._query(switch, port, epochs=True)
        for _ in range(TRIES):
            loads = await self._query(switch, port, epochs=False)
            after = await self._query(switch, port, epochs=True)
            slots = {
                epoch * LANES + lane: load * self._rate_unit_mbps
                for lane, (epoch, load, at_first) in enumerate(zip(after, loads, before, strict=True))
                if epoch == at_first and (epoch or load)  # else nothing was ever planned there
            }
            if after == before:
                break
            before = after
        return slots

    async def read_clock(self, switch: str) -> int:
        """Return the time at `switch`, in microseconds of its own clock. Raises EntrainError."""
        port = self._fabric.topology.switch_by_name[switch].ports[0]
        return (await self._ask(switch, port.number, epochs=False)).bytes_received

    async def _query(self, switch: str, port: int, *, epochs: bool) -> tuple[int, ...]:
        """Return the epoch or load of each lane."""
        return tuple(lane.load for lane in (await self._ask(switch, port, epochs=epochs)).lanes)

    async def _ask(self, switch: str, port: int, *, epochs: bool) -> SlotHeader:
        for _ in range(TRIES):
            number = next(self._numbers) & 0xFFFFFFFF
            answer: asyncio.Future[SlotHeader] = asyncio.get_running_loop().create_future()
            self._waiting[switch, number] = answer
            try:
                metadata = {p4.PACKET_OUT_EGRESS_PORT: port, p4.PACKET_OUT_PAD: 0}
                self._fabric.send_packet(switch, query(port, number, epochs=epochs), **metadata)
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return await answer
            except TimeoutError:
                continue
            finally:
                del self._waiting[switch, number]
        raise EntrainError(
            f"{switch}: no answer to {TRIES} QUERY carriers for port {port}; "
            f"does it run the fabric's program, with a CPU port?"
        )

    def _answer(self, switch: str, packet: fy.P4PacketIn) -> None:
        if packet.payload[12:14] != ETHERTYPE.to_bytes(2, "big"):
            return
        try:
            header = SlotHeader.unpack(packet.payload[_ETHERNET_BYTES:])
        except ValueError:
            return
        waiting = self._waiting.get((switch, header.flow))
        if header.kind is Kind.QUERY and waiting is not None and not waiting.done():
            waiting.set_result(header)


def query(port: int, number: int, *, epochs: bool) -> bytes:
    """Return a frame that asks for the loads of egress port `port`, or for the epochs of its slots instead.

    Either comes back as the lanes' loads. The answer has `number` as its flow.
    """
    lanes = (Lane(delta=-1 if epochs else 0),) * LANES
    header = SlotHeader(kind=Kind.QUERY, port=port, flow=number, next_ethertype=0, lanes=lanes)
    frame = _ADDRESSES + ETHERTYPE.to_bytes(2, "big") + header.pack()
    return frame.ljust(_MINIMUM_FRAME, b"\0")
