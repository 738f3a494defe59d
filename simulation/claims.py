"""Our values for the papers' claims of the form "ONE against OTHER", from a summary."""

from __future__ import annotations

import re
from typing import Any

from simulation.results import Row, Summary

_TIMES = {"JRT": "mean_jrt_s", "JWT": "mean_jwt_s", "JCT": "mean_jct_s"}
_CLAIM = re.compile(r"(?:(JRT|JWT|JCT), )?([\w-]+) against ([\w-]+)(?:, (\d+) Gbit/s)?")


def here(claim: str, summary: Summary) -> str | None:
    """Return by how much the first policy's mean time differs from the other's; a range over several points.

    None: the claim has another form, or one of the two was not run.
    """
    if (parts := _CLAIM.fullmatch(claim)) is None:
        return None
    time, one, other, gbps = parts.groups()
    rows: dict[str, dict[tuple[Any, ...], Row[Any]]] = {one: {}, other: {}}
    for row in summary.points:
        at = row.at.given()
        name = at.pop("policy")
        if name in rows and gbps in (None, f"{at.get('gbps'):g}" if at.get("gbps") else None):
            rows[name][tuple(at.items())] = row
    figure = _TIMES[time or "JCT"]
    pairs = [(row.figures, rows[other][at].figures) for at, row in rows[one].items() if at in rows[other]]
    changes = [
        100.0 * (getattr(ours, figure) / getattr(theirs, figure) - 1.0)
        for ours, theirs in pairs
        if getattr(theirs, figure, 0.0)
    ]
    if not changes:
        return None
    low, high = min(changes), max(changes)
    return f"{low:+.1f} %" if len(changes) == 1 else f"{low:+.1f} to {high:+.1f} %"
