"""A plain model of the switch program's link load table (p4src/v1model/load_table.p4)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from wire.slot_header import EPOCHS, LANES, MAX_U32, Kind, SlotHeader


@dataclass
class Cell:
    """What one lane of one link holds."""

    epoch: int = 0
    load: int = 0


@dataclass
class Link:
    """The load table of one link, as design and P4 program define it."""

    capacity: int
    cells: list[Cell] = field(default_factory=lambda: [Cell() for _ in range(LANES)])

    def pass_(self, header: SlotHeader) -> SlotHeader:
        """What a carrier looks like behind this link; updates the table."""
        if header.kind == Kind.FEEDBACK:
            return header
        lanes = []
        for number, (cell, lane) in enumerate(zip(self.cells, header.lanes, strict=True)):
            planned, epoch = 0, header.epoch_in(number)
            if header.kind == Kind.QUERY:
                planned = cell.epoch if lane.delta < 0 else cell.load
            elif (cell.epoch - epoch) % EPOCHS != 1:
                if epoch != cell.epoch:
                    cell.epoch, cell.load = epoch, 0
                cell.load = planned = max(0, min(MAX_U32, cell.load + lane.delta))
            lanes.append(
                lane._replace(
                    load=min(MAX_U32, lane.load + planned),
                    headroom=min(lane.headroom, max(0, self.capacity - planned)),
                )
            )
        return replace(header, lanes=tuple(lanes), hops=min(255, header.hops + 1))
