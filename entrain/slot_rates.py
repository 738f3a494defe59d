"""Experiments of kind `slot-rates`: flows that must follow a new random rate in every slot, on one host."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from rich.table import Table

from hostbpf.slots import PACED, pacing_registered
from hostbpf.trial import FlowSlot, Trial, run_trial
from machine.errors import BadInput
from machine.toml import Strict, check, read_toml

SHOWN = 60
"""Slots in the picture."""


class TrialTable(Strict):
    """A `[[trial]]` table."""

    slot_ms: Annotated[float, Field(ge=1, le=10_000, strict=False)]
    flows: Annotated[int, Field(ge=1, le=1000)] = 1
    slots: Annotated[int, Field(ge=10, le=100_000)] = 100
    link_mbps: Annotated[float, Field(gt=0, le=100_000, strict=False)] = 1000.0
    lowest: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.02
    control: str = "slot_cubic"
    gso_segments: Annotated[int, Field(ge=1, le=64)] = 2


class ExperimentTable(Strict):
    """The `[experiment]` table."""

    name: str
    kind: Literal["slot-rates"]
    seed: Annotated[int, Field(ge=0)] = 1


class SlotRatesFile(Strict):
    """A whole file."""

    experiment: ExperimentTable
    trial: Annotated[tuple[TrialTable, ...], Field(min_length=1, strict=False)]


@dataclass(frozen=True)
class TrialResult:
    """One trial and what came of it."""

    trial: Trial
    slots: tuple[FlowSlot, ...]

    def figures(self) -> dict[str, Any]:
        """As in results.json: errors relative to what was wanted in the slot."""
        errors = [each.error for each in self.slots]
        delays = [each.first_packet_ms for each in self.slots if each.first_packet_ms is not None]
        return {
            "slot_ms": self.trial.slot_ms,
            "flows": self.trial.flows,
            "link_mbps": self.trial.link_mbps,
            "control": self.trial.control,
            "seed": self.trial.seed,
            "rate_error_mean": float(np.mean(errors)),
            "rate_error_p99": float(np.percentile(errors, 99)),
            "within_bound": float(np.mean([each.within_bound for each in self.slots])),
            "boundary_delay_ms_median": float(np.median(delays)),
            "boundary_delay_ms_p99": float(np.percentile(delays, 99)),
        }


def is_slot_rates(path: Path) -> bool:
    """Whether the file says that it is of this kind."""
    table = read_toml(path).get("experiment")
    return isinstance(table, dict) and table.get("kind") == "slot-rates"


def load(path: Path, seed: int | None = None) -> tuple[str, list[Trial]]:
    """The name and the trials of a file. Raises BadInput that names the file, the key and the remedy."""
    file = check(SlotRatesFile, read_toml(path), str(path))
    chosen = file.experiment.seed if seed is None else seed
    for number, table in enumerate(file.trial):
        if table.control not in PACED:
            raise BadInput(
                f"{path}: trial {number}, control: {table.control!r} obeys no schedule; "
                f"take {' or '.join(PACED)}"
            )
    return file.experiment.name, [Trial(**table.model_dump(), seed=chosen) for table in file.trial]


def run(trials: Sequence[Trial], report: Callable[[str, float], None]) -> list[TrialResult]:
    """Run all trials, one after the other."""
    results = []
    with pacing_registered() as schedules:
        for number, trial in enumerate(trials):
            report(f"{trial.flows} flows, slots of {trial.slot_ms:g} ms", number / len(trials))
            results.append(TrialResult(trial, tuple(run_trial(trial, schedules))))
    return results


def document(name: str, results: Sequence[TrialResult]) -> dict[str, Any]:
    """`results.json`."""
    return {"experiment": name, "runs": [{"policy": "slots", **each.figures()} for each in results]}


def table(name: str, results: Sequence[TrialResult]) -> Table:
    """A line for each trial."""
    shown = Table(title=name)
    for heading in (
        "slot\nms",
        "flows",
        "link\nMbit/s",
        "error\nmean %",
        "error\np99 %",
        "within\nbound %",
        "boundary\nms, p99",
    ):
        shown.add_column(heading, justify="right")
    for result in results:
        figures = result.figures()
        shown.add_row(
            f"{figures['slot_ms']:g}",
            str(figures["flows"]),
            f"{figures['link_mbps']:g}",
            f"{100 * figures['rate_error_mean']:.2f}",
            f"{100 * figures['rate_error_p99']:.2f}",
            f"{100 * figures['within_bound']:.1f}",
            f"{figures['boundary_delay_ms_p99']:.3f}",
        )
    return shown


def write(directory: Path, name: str, results: Sequence[TrialResult]) -> None:
    """`results.json`, `slots.csv` and `results.png` in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(document(name, results), indent=2) + "\n")
    with (directory / "slots.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["slot_ms", "flows", "flow", "slot", "wanted_bytes", "sent_bytes", "first_packet_ms"])
        for result in results:
            for each in result.slots:
                row = [each.flow, each.slot, round(each.wanted), each.sent, each.first_packet_ms]
                writer.writerow([result.trial.slot_ms, result.trial.flows, *row])
    _plot(directory / "results.png", name, results)


def _plot(path: Path, name: str, results: Sequence[TrialResult]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        len(results), 1, figsize=(10, 2.4 * len(results)), layout="constrained", squeeze=False
    )
    figure.suptitle(f"{name}: wanted and measured rate of one flow, a new random rate in every slot")
    for place, result in zip(axes[:, 0], results, strict=True):
        slots = [each for each in result.slots if each.flow == 0][:SHOWN]
        scale = 8 / result.trial.slot_ms / 1e3  # bytes in a slot to Mbit/s
        times = [each.slot * result.trial.slot_ms for each in slots]
        place.step(
            times, [each.wanted * scale for each in slots], where="post", color="black", label="wanted"
        )
        place.step(
            times, [each.sent * scale for each in slots], where="post", color="#d1605e", ls="--", label="sent"
        )
        figures = result.figures()
        place.set_title(
            f"slots of {result.trial.slot_ms:g} ms, {result.trial.flows} flow(s): mean error "
            f"{100 * figures['rate_error_mean']:.2f} %, p99 {100 * figures['rate_error_p99']:.2f} %",
            fontsize=9,
        )
        place.set_ylabel("Mbit/s")
        place.grid(alpha=0.3)
    axes[0, 0].legend(loc="upper right")
    axes[-1, 0].set_xlabel("time (ms)")
    figure.savefig(path, dpi=120)
    plt.close(figure)
