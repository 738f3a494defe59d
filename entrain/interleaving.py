"""`entrain simulate cassini-score`: how well the jobs of a file fit together, and their shifts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from machine.terminal import plain_table
from schedulers.cassini.affinity import Interleaving, Shared, interleave
from schedulers.cassini.fit import curve
from workloads.profiles import GBPS, read_profiles


def document(path: Path, threshold: float, seed: int) -> dict[str, Any]:
    """Return what `entrain simulate cassini-score --json` prints. Raises BadInput for a wrong file."""
    file = read_profiles(path)
    found = interleave(file.profiles, file.links, threshold=threshold, seed=seed)
    return {
        "threshold": threshold,
        "seed": seed,
        "score": found.score,
        "jobs": [
            {
                "name": job.name,
                "period_ms": job.period_ms,
                "circle_period_ms": 1e3 * found.profiles[job.name].period,
                "shift_ms": 1e3 * found.shifts[job.name],
                "reason": found.reasons.get(job.name),
            }
            for job in file.job
        ],
        "links": [_link(shared, found) for shared in found.links],
    }


def _link(shared: Shared, found: Interleaving) -> dict[str, Any]:
    link = shared.link
    steps = curve(
        [found.profiles[job] for job in link.jobs], [found.shifts[job] for job in link.jobs], shared.perimeter
    )
    ends = [*(begin for begin, _ in steps[1:]), shared.perimeter]
    return {
        "name": link.name,
        "capacity_gbps": link.capacity / GBPS,
        "jobs": list(link.jobs),
        "score": shared.score,
        "shifted_score": shared.shifted,
        "perimeter_ms": 1e3 * shared.perimeter,
        "demand": [
            {"start_ms": 1e3 * begin, "end_ms": 1e3 * end, "gbps": rate / GBPS}
            for (begin, rate), end in zip(steps, ends, strict=True)
        ],
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the content of a document as tables."""
    jobs = plain_table("job", "period ms", "on circle ms", "shift ms", text=1)
    for job in result["jobs"]:
        jobs.add_row(job["name"], *(f"{job[k]:.6g}" for k in ("period_ms", "circle_period_ms", "shift_ms")))
    links = plain_table("link", "jobs", "score", "shifted", "circle ms", text=1)
    for link in result["links"]:
        figures = (f"{link['score']:.3f}", f"{link['shifted_score']:.3f}", f"{link['perimeter_ms']:.6g}")
        links.add_row(link["name"], str(len(link["jobs"])), *figures)
    console.print(jobs)
    console.print(links)
    for reason in dict.fromkeys(job["reason"] for job in result["jobs"] if job["reason"]):
        names = ", ".join(job["name"] for job in result["jobs"] if job["reason"] == reason)
        console.print(f"not shifted: {names}: {reason}", highlight=False, soft_wrap=True)
