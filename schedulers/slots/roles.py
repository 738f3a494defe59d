"""Roles of flows, apart from the scheduler, so that training processes load nothing else."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """What a flow does in its collective, which decides whose progress it follows."""

    FREE = 0
    AGGREGATION = 1
    BROADCAST = 2
    RING = 3
