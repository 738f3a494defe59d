"""Experiments of kind `slot-rates`: flows on one host follow a new random rate in each slot."""

from __future__ import annotations

import contextlib
import csv
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, JsonValue, TypeAdapter
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebpf import Map
from ebpf.struct_ops import available_congestion_controls
from entrain.experiment import kind_of
from entrain.results.store import Kind
from entrain.run.plan import selected
from hostbpf.rates.schedules import PACED, pacing_registered
from hostbpf.rates.trial import Outcome, Trial, run_trial
from machine.errors import BadInput
from machine.explain import suggestion
from machine.origin import Origin, here
from machine.palette import style
from machine.toml import Strict, check, read_toml
from machine.whole import whole

SHOWN = 60
"""Number of slots in the plot."""


class Goals(Strict):
    """A `[trial.goals]` table: upper limits for figures of these names; for `within_bound`, a lower one."""

    rate_error_mean: float | None = None
    rate_error_p99: float | None = None
    within_bound: float | None = None
    boundary_delay_ms_p99: float | None = None
    host_cpu: float | None = None


class TrialTable(Strict):
    """A `[[trial]]` table."""

    slot_ms: Annotated[float, Field(ge=1, le=10_000, strict=False)]
    flows: Annotated[int, Field(ge=1, le=1000)] = 1
    slots: Annotated[int, Field(ge=10, le=100_000)] = 100
    link_mbps: Annotated[float, Field(gt=0, le=100_000, strict=False)] = 1000.0
    lowest: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.02
    control: str = "slot_cubic"
    gso_segments: Annotated[int, Field(ge=1, le=64)] = 2
    goals: Goals = Goals()


class ExperimentTable(Strict):
    """The `[experiment]` table."""

    name: str
    kind: Literal["slot-rates"]
    seed: Annotated[int, Field(ge=0)] = 1


class SlotRatesFile(Strict):
    """A whole file."""

    experiment: ExperimentTable
    trial: Annotated[tuple[TrialTable, ...], Field(min_length=1, strict=False)]
    paper: Annotated[tuple[dict[str, JsonValue], ...], Field(strict=False)] = ()
    """Without effect: claims of papers stand in `entrain/results/claims.toml`."""


@dataclass(frozen=True)
class Figures:
    """A trial's figures, as in results.json. docs/results-format.md describes them."""

    slot_ms: float
    flows: int
    link_mbps: float
    control: str
    seed: int
    rate_error_mean: float
    rate_error_p99: float
    rate_error_own_mean: float | None
    rate_error_own_p99: float | None
    off_by_cause: dict[str, int]
    within_bound: float
    boundary_delay_ms_median: float | None
    boundary_delay_ms_p99: float | None
    agent_cpu: float
    host_cpu: float | None


@dataclass(frozen=True)
class TrialResult:
    """One trial, its goals and its outcome."""

    trial: Trial
    goals: Goals
    outcome: Outcome
    origin: Origin | None = None
    """None: measured by a version that did not record it."""

    @property
    def figures(self) -> Figures:
        """Errors relative to the wanted bytes of each slot, delays, and CPU time."""
        slots = self.outcome.slots
        errors = [each.error for each in slots]
        own = [each.error for each in slots if each.cause in (None, "pacing")]
        causes = Counter(each.cause for each in slots if each.cause is not None)
        delays = [ms for each in slots if (ms := self.trial.boundary_delay_ms(each)) is not None]
        kernel = self.outcome.kernel_cpu
        return Figures(
            slot_ms=self.trial.slot_ms,
            flows=self.trial.flows,
            link_mbps=self.trial.link_mbps,
            control=self.trial.control,
            seed=self.trial.seed,
            rate_error_mean=float(np.mean(errors)),
            rate_error_p99=float(np.percentile(errors, 99)),
            rate_error_own_mean=float(np.mean(own)) if own else None,
            rate_error_own_p99=float(np.percentile(own, 99)) if own else None,
            off_by_cause=dict(sorted(causes.items())),
            within_bound=float(np.mean([each.within_bound for each in slots])),
            boundary_delay_ms_median=float(np.median(delays)) if delays else None,
            boundary_delay_ms_p99=float(np.percentile(delays, 99)) if delays else None,
            agent_cpu=self.outcome.agent_cpu,
            host_cpu=None if kernel is None else self.outcome.agent_cpu + kernel,
        )


def is_slot_rates(path: Path) -> bool:
    """Return whether the file's experiment is of this kind. Raises BadInput for an unknown kind."""
    return kind_of(read_toml(path), str(path)) == "slot-rates"


@dataclass(frozen=True)
class SlotRates:
    """A checked experiment of this kind: its name, its trials and their goals."""

    name: str
    trials: tuple[tuple[Trial, Goals], ...]


def _order(rates: SlotRates) -> Callable[[TrialResult], int]:
    places = {trial: place for place, (trial, _) in enumerate(rates.trials)}
    return lambda result: places.get(result.trial, len(places))


KIND = Kind("slot-rates", TypeAdapter(SlotRates), TypeAdapter(TrialResult), _order)


def load(path: Path, seed: int | None = None) -> SlotRates:
    """Load the experiment in a file. Raises BadInput, which names the file, the key and the remedy."""
    file = check(SlotRatesFile, read_toml(path), str(path))
    chosen = file.experiment.seed if seed is None else seed
    known = {*PACED, *available_congestion_controls()}
    for number, table in enumerate(file.trial, 1):
        if table.control not in known:
            raise BadInput(
                f"{path}: [[trial]] {number}, control: this kernel has no {table.control!r}; "
                f"{suggestion(table.control, sorted(known))}"
            )
    trials = (
        (Trial(**table.model_dump(exclude={"goals"}), seed=chosen), table.goals) for table in file.trial
    )
    return SlotRates(file.experiment.name, tuple(trials))


@dataclass(frozen=True)
class Plan:
    """What a run of trials takes."""

    todo: tuple[int, ...]
    """The places of the trials to run."""
    kept: int
    """Number of trials whose results there are already."""
    parts: tuple[dict[str, Any], ...]
    """What distinguishes each trial of `todo` from the others."""
    run_seconds: tuple[float, ...]
    """How long each takes at least: its slots."""

    def document(self) -> dict[str, Any]:
        """Return what `entrain run --dry-run --json` prints."""
        runs = [
            {**part, "seconds_at_least": seconds}
            for part, seconds in zip(self.parts, self.run_seconds, strict=True)
        ]
        return {"runs": runs, "kept": self.kept, "seconds_at_least": sum(self.run_seconds)}


def plan(rates: SlotRates, only: Collection[str] = (), done: Sequence[TrialResult] = ()) -> Plan:
    """Return what running the trials that `only` selects takes, without those in `done`. Raises BadInput."""
    parts = [
        {"trial": number, "control": trial.control, "slot_ms": trial.slot_ms, "flows": trial.flows}
        for number, (trial, _) in enumerate(rates.trials, 1)
    ]
    kept = [result.trial for result in done]
    todo = []
    for place in selected(parts, only):
        trial = rates.trials[place][0]
        if trial in kept:
            kept.remove(trial)  # two trials may be equal
        else:
            todo.append(place)
    seconds = tuple(rates.trials[place][0].slots * rates.trials[place][0].slot_ms / 1e3 for place in todo)
    return Plan(tuple(todo), len(done), tuple(parts[place] for place in todo), seconds)


def run(
    trials: Sequence[tuple[Trial, Goals]], report: Callable[[str, float], None], todo: Sequence[int]
) -> Iterator[tuple[int, TrialResult]]:
    """Run the trials at the places `todo`. Yield each trial's place and result."""
    if not todo:
        return
    with pacing_registered() as schedules:
        for number, place in enumerate(todo):
            trial, goals = trials[place]
            report(f"{trial.flows} flows, slots of {trial.slot_ms:g} ms", number / len(todo))
            yield place, run_one(trial, goals, schedules)


def run_one(trial: Trial, goals: Goals, schedules: Map) -> TrialResult:
    """Run a trial. Measure the eBPF programs' CPU time only if it has a goal: measuring takes CPU time."""
    with program_statistics() if goals.host_cpu is not None else contextlib.nullcontext():
        return TrialResult(trial, goals, run_trial(trial, schedules), here())


@contextlib.contextmanager
def program_statistics() -> Iterator[None]:
    """Let the kernel measure the run time of eBPF programs, if it can."""
    switch = Path("/proc/sys/kernel/bpf_stats_enabled")
    try:
        before = switch.read_text(encoding="utf-8")
        switch.write_text("1", encoding="utf-8")
    except OSError:
        yield
        return
    try:
        yield
    finally:
        switch.write_text(before, encoding="utf-8")


def document(name: str, results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return the content of `results.json`."""
    runs = [
        {"policy": "slots", **asdict(each.figures), "goals": each.goals.model_dump(exclude_none=True)}
        for each in results
    ]
    return {"experiment": name, "runs": runs}


_COLUMNS = (
    ("error\nmean %", "rate_error_mean", 100),
    ("error\np99 %", "rate_error_p99", 100),
    ("without\nmachine's", "rate_error_own_p99", 100),
    ("within\nbound %", "within_bound", 100),
    ("boundary\nms, p99", "boundary_delay_ms_p99", 1),
    ("host\nCPU %", "host_cpu", 100),
)


def table(name: str, results: Sequence[TrialResult]) -> Table:
    """Return a table with one row per trial: figures, and their goals in brackets."""
    shown = Table(title=f"{name} (goals in brackets)", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("control", "slot\nms", "flows", *(heading for heading, _, _ in _COLUMNS)):
        shown.add_column(heading, justify="right")
    for result in results:
        figures, goals = asdict(result.figures), result.goals.model_dump()
        cells = []
        for _, key, scale in _COLUMNS:
            cell = "-" if figures[key] is None else f"{figures[key] * scale:.2f}"
            goal = goals.get(key)
            cells.append(cell if goal is None else f"{cell} ({goal * scale:g})")
        shown.add_row(figures["control"], f"{figures['slot_ms']:g}", str(figures["flows"]), *cells)
    return shown


def write(directory: Path, name: str, results: Sequence[TrialResult]) -> None:
    """Write `results.json` and `slots.csv` to `directory`. Raises OSError if they cannot be written."""
    with whole(directory / "results.json") as draft:
        draft.write_text(json.dumps(document(name, results), indent=2) + "\n", encoding="utf-8")
    with whole(directory / "slots.csv") as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [
                *("control", "slot_ms", "flows", "flow", "slot"),
                *("wanted_bytes", "sent_bytes", "first_packet_ms", "cause"),
            ]
        )
        for result in results:
            for each in result.outcome.slots:
                row = [each.flow, each.slot, round(each.wanted), each.sent, each.first_packet_ms, each.cause]
                writer.writerow([result.trial.control, result.trial.slot_ms, result.trial.flows, *row])


def draw(path: Path, name: str, results: Sequence[TrialResult]) -> None:
    """Plot the wanted and the measured rate of one flow of each trial, as a PNG."""
    from machine.headless import pyplot as plt

    figure, axes = plt.subplots(
        len(results), 1, figsize=(10, 2.4 * len(results)), layout="constrained", squeeze=False
    )
    figure.suptitle(f"Does a flow keep to its rates?\n{name}: one flow, a new random rate in every slot")
    for place, result in zip(axes[:, 0], results, strict=True):
        slots = [each for each in result.outcome.slots if each.flow == 0][:SHOWN]
        scale = 8 / result.trial.slot_ms / 1e3  # bytes in a slot to Mbit/s
        times = [each.slot * result.trial.slot_ms for each in slots]
        place.step(
            times, [each.wanted * scale for each in slots], where="post", color="black", label="wanted"
        )
        place.step(
            times,
            [each.sent * scale for each in slots],
            where="post",
            color=style(result.trial.control).colour,
            ls="--",
            label="sent",
        )
        figures = result.figures
        trial = result.trial
        place.set_title(
            f"{trial.control}, slots of {trial.slot_ms:g} ms, {trial.flows} flow(s): error "
            f"mean {100 * figures.rate_error_mean:.2f} %, p99 {100 * figures.rate_error_p99:.2f} %",
            fontsize=9,
        )
        place.set_ylabel("Mbit/s")
        place.grid(alpha=0.3)
    axes[0, 0].legend(loc="upper right")
    axes[-1, 0].set_xlabel("time (ms)")
    figure.savefig(path, dpi=120)
    plt.close(figure)
