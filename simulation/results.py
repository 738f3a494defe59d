"""Results of simulated experiments, as values and as JSON. Only this module knows the keys of summary.json.

A sweep keeps one `Result` per point. A `Summary` has one row per point, with its parameters and its figures.
In summary.json, the two are in one table per row, and `parameters` names the parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
from pydantic import BeforeValidator, ConfigDict, TypeAdapter, with_config

from machine.errors import BadInput
from machine.origin import Origin
from simulation.detail import Columns, FlowTimes, LinkUsage

Number = int | float
_WHOLE = ConfigDict(extra="forbid")
"""Reading fails if a key is unknown."""


@with_config(_WHOLE)
@dataclass(frozen=True)
class Parameters:
    """The parameters of a point that an experiment varies or that it is about.

    None: the experiment has no such parameter. `LABELS` has their names in tables and plots.
    """

    policy: str
    models: str | None = None
    model: str | None = None
    group: str | None = None
    """The jobs that share a link."""
    sending_percent: Number | None = None
    """How much of its period a job sends, alone in the network."""
    routing: str | None = None
    gbps: Number | None = None
    length_of: str | None = None
    bytes_per_unit: Number | None = None
    scale: str | None = None
    """The divisors of iterations and of arrival times."""
    eta_ms: Number | None = None
    theta_max: Number | None = None
    gap_ms: Number | None = None
    delta: Number | None = None
    domain: int | None = None
    """Number of neighbouring servers on which a job is placed."""
    iterations: int | None = None
    slot_ms: Number | None = None
    cross: Number | None = None
    flows: int | None = None
    horizon: int | None = None
    gpus: int | None = None
    gpus_per_leaf: int | None = None
    gpus_per_server: int | None = None
    spines: int | None = None
    gap_s: Number | None = None
    """Mean time between arrivals (vClos' λ)."""
    order: str | None = None
    sharing: str | None = None
    sizes: str | None = None
    """The distribution of the jobs' sizes."""
    workload: int | None = None
    """Its number, where the authors published several."""
    communication: Number | None = None
    """Part of a job's time that it communicates, %; None: drawn for each job."""
    arrivals: str | None = None
    load_percent: Number | None = None

    def given(self) -> dict[str, Any]:
        """Return the parameters that the experiment has, by name."""
        return _given(self)


LABELS = {
    "policy": "policy",
    "models": "models of the jobs",
    "model": "congestion control",
    "group": "group of jobs",
    "sending_percent": "sending (% of a period)",
    "routing": "routing",
    "gbps": "link rate (Gbit/s)",
    "eta_ms": "observation interval η (ms)",
    "theta_max": "maximum occupancy ratio θ_max",
    "gap_ms": "mean time between arrivals (ms)",
    "delta": "maximum parameter servers per job, Δ",
    "domain": "servers among which a job is placed",
    "slot_ms": "slot length τ (ms)",
    "gpus_per_server": "GPUs per server",
    "gap_s": "mean time between arrivals λ (s)",
    "order": "order of the queue",
    "sharing": "share of a link",
    "sizes": "sizes of jobs",
    "workload": "workload",
    "communication": "communication (% of a job's time)",
    "spines": "spines",
    "arrivals": "arrivals",
    "load_percent": "load (%)",
    "scale": "divisors: iterations / arrival times",
    "flows": "flows",
    "horizon": "horizon (slots)",
}
"""Names of parameters in tables and plots, with their units."""


@with_config(_WHOLE)
@dataclass(frozen=True)
class Settings:
    """Other parameters, if they are the same for all points of an experiment. None: they differ, or it has no
    such parameter."""

    trace: str | None = None
    iteration_scale: Number | None = None
    """Divisor of iterations."""
    arrival_scale: Number | None = None
    """Divisor of arrival times."""
    jobs: int | None = None
    servers: int | None = None
    window_s: Number | None = None
    """Time within which jobs arrive."""
    nic_gbps: Number | None = None
    server_gbps: Number | None = None
    """Rate between the GPUs of a server."""
    tenants: int | None = None
    duration_s: Number | None = None
    """Mean running time of a job alone."""
    rounds: int | None = None
    timeline_ms: int | None = None
    draws: int | None = None
    """How often the workload was drawn; figures are of all draws together."""
    flow_times: bool | None = None
    usage_s: Number | None = None


_SETTINGS = tuple(each.name for each in fields(Settings))
_OF_ALL = ("experiment", "limit", "seed")


def parameters(point: Mapping[str, Any]) -> Parameters:
    """Return the parameters that distinguish a point from the others of its experiment."""
    return Parameters(**{k: v for k, v in point.items() if k not in _SETTINGS and k not in _OF_ALL})


def settings(points: Sequence[Mapping[str, Any]]) -> Settings:
    """Return the settings that are the same for all `points`."""
    first = {k: v for k, v in points[0].items() if k in _SETTINGS}
    return Settings(**{k: v for k, v in first.items() if all(point.get(k) == v for point in points)})


@with_config(_WHOLE)
@dataclass(frozen=True)
class Decision:
    """Decision times of a policy, µs."""

    mean_us: float
    p90_us: float
    p99_us: float
    max_us: float
    count: int
    percentiles_us: tuple[float, ...] | None = None
    """Percentiles 0 to 100."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Decision:
        """Return statistics of at least one decision time."""
        values = np.array(seconds) * 1e6
        p90, p99 = (float(np.percentile(values, percent)) for percent in (90, 99))
        return cls(float(values.mean()), p90, p99, float(values.max()), len(values))


@with_config(_WHOLE)
@dataclass(frozen=True)
class Completion:
    """Completion times of jobs (JCT) and coflows (CCT) over a network, s."""

    total_jct_s: float
    mean_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    lower_bound_s: float
    """Total JCT if each job were alone in the network."""
    within_10_s: float
    """Fraction of the jobs with a JCT below 10 s."""
    bound_within_10_s: float
    """The same if each job were alone in the network."""
    events: int
    decision: Annotated[Decision | None, BeforeValidator(lambda each: each or None)]
    """None: the policy makes no decisions. Earlier versions wrote {}."""
    mean_cct_s: float | None = None
    p95_cct_s: float | None = None
    flows: int | None = None
    network_bytes: float | None = None
    competitive_ratio: float | None = None
    """Total completion time over its lower bound (Parrot, theorem 4)."""
    competitive_bound: float | None = None
    """The theorem's bound on it."""
    draws_jct_s: tuple[float, ...] | None = None
    """Mean JCT of each draw of the workload."""
    mean_queued_s: float | None = None
    """Mean time from a job's arrival until it starts."""

    @property
    def to_bound(self) -> float:
        """Total JCT over its lower bound."""
        return self.total_jct_s / self.lower_bound_s

    @property
    def mean_alone_s(self) -> float:
        """Mean JCT if each job were alone in the network."""
        return self.mean_jct_s / self.to_bound


@with_config(_WHOLE)
@dataclass(frozen=True)
class Iterations:
    """Iteration times over all jobs, s."""

    settled_after: int | None
    """Number of iterations before all jobs stay near the best period; None: they do not."""
    mean_iteration_s: float
    p99_iteration_s: float
    max_iteration_s: float
    best_iteration_s: float
    """Lower bound on the period in which all jobs complete an iteration."""
    mean_to_best: float
    lost_or_marked: float | None = None
    """Fraction of the packets."""


@with_config(_WHOLE)
@dataclass(frozen=True)
class Unfairness:
    """Iteration times of a group of jobs, s. Lists have one value per job."""

    score: float
    """Cassini's score of the group."""
    mean_iteration_s: float
    p99_iteration_s: float
    max_iteration_s: float
    iterations_s: tuple[float, ...]
    """Mean iteration times."""
    settled_after: int | None
    """Number of iterations before all jobs stay near their time alone; None: they do not."""
    first_gbit_s: tuple[float, ...]
    """Rates in the first iteration, Gbit/s."""
    to_alone: tuple[float, ...]
    """Mean iteration times over those alone."""
    marks_per_iteration: float
    """Marked packets of a job."""


@with_config(_WHOLE)
@dataclass(frozen=True)
class Latency:
    """Decision times alone."""

    decision: Decision


@with_config(_WHOLE)
@dataclass(frozen=True)
class ClusterTimes:
    """Times of jobs that queued for a cluster, s: from arrival (JCT), from start (JRT), until start (JWT).

    A job's slowdown is its JRT over what it takes with links of its own.
    """

    total_jct_s: float
    mean_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    mean_jrt_s: float
    p99_jrt_s: float
    mean_jwt_s: float
    p99_jwt_s: float
    mean_slowdown: float
    p99_slowdown: float
    max_slowdown: float
    lower_bound_s: float
    """Total JCT if each job were alone."""
    stability_s: float
    """Mean standard deviation of the JCT of jobs of one size."""
    stability_jrt_s: float
    """The same of JRT."""
    fragmentation_gpu: int
    """Attempts to place a job that failed for want of GPUs."""
    fragmentation_network: int
    """The same for want of links between GPUs that would have sufficed."""
    offered_load: float
    """Part of the GPUs that would be in use if no job waited."""
    busy: float
    """Part of the GPUs that were held, until the last job ended."""
    shared: int
    """Jobs that used links which others may use, too."""
    circuits_changed: int
    events: int


@with_config(_WHOLE)
@dataclass(frozen=True)
class ModelTimes:
    """Iterations of all jobs of a model: how many, their times (s), the mean of the times over those alone,
    and the marked packets of each."""

    model: str
    iterations: int
    mean_iteration_s: float
    p99_iteration_s: float
    to_alone: float
    marks_per_iteration: float


@with_config(_WHOLE)
@dataclass(frozen=True)
class Placed:
    """Placements of jobs, where each change of the jobs' places counts every job that then has GPUs."""

    jobs: int
    sharing: int
    """Of these, how many crossed a link that another job crossed."""
    paced: int
    """How many Cassini gave a pace."""
    shifted: int
    """How many it delayed for that."""


@with_config(_WHOLE)
@dataclass(frozen=True)
class TrainingTimes:
    """Iteration times of all jobs in a shared cluster, s, until the next iteration begins."""

    mean_iteration_s: float
    p99_iteration_s: float
    max_iteration_s: float
    mean_to_alone: float
    """Iteration times over those with the same GPUs and a network of its own."""
    p99_to_alone: float
    marks_per_iteration: float
    percentiles_s: tuple[float, ...]
    """Percentiles 0 to 100 of iteration times."""
    mean_jct_s: float
    p99_jct_s: float
    restarts: int
    """How often jobs got other GPUs."""
    score: float | None
    """Mean of Cassini's scores of the placements; None without Cassini."""
    adjustments_per_minute: float
    """How often others waited for a job because it had drifted, per minute that a job runs."""
    waited: float
    """The part of their time that jobs wait for their pace."""
    by_model: tuple[ModelTimes, ...]
    placed: Placed | None = None
    """None: computed by a version that did not count them."""


@with_config(_WHOLE)
@dataclass(frozen=True)
class Snapshot:
    """Jobs that share a link. Lists have one value per job."""

    score: float
    shifts_s: tuple[float, ...]
    communication_s: tuple[float, ...]
    """Mean time in Up phases."""
    iterations_s: tuple[float, ...]
    marks_per_iteration: float
    adjustments: int
    waited: float
    """The part of their time that jobs wait for their pace."""


@with_config(_WHOLE)
@dataclass(frozen=True)
class Collisions:
    """How many flows share a link when each GPU sends one."""

    flows: tuple[float, ...]
    """Part of the flows whose most used link has 1, 2, ... 8 flows, and more."""
    mean_flows: float
    draws: int


@with_config(_WHOLE)
@dataclass(frozen=True)
class Remedy:
    """What jobs reach under one routing and policy. Times are over those alone in the network; of iterations,
    those after the first quarter."""

    mean_to_alone: float
    p99_to_alone: float
    slowest_to_alone: float
    """Mean iteration of a placement's slowest job."""
    mean_jct_s: float
    jct_to_alone: float
    marks_per_iteration: float
    """Marked segments, per job and iteration."""
    jobs_on_a_link: int
    """The most jobs that cross a link between switches."""
    score: float
    """What Cassini says of the jobs beforehand, under this routing."""


@with_config(_WHOLE)
@dataclass(frozen=True)
class Trained:
    """Times of jobs that trained on a cluster whose scheduler moved them, s."""

    mean_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    makespan_s: float
    """When the last job ended."""
    mean_restarts: float
    mean_waiting_s: float
    """Time without a GPU."""
    published_jct_s: float | None = None
    """The mean JCT that the authors' simulator reports."""


Figures = (
    Completion
    | Iterations
    | Unfairness
    | Latency
    | ClusterTimes
    | TrainingTimes
    | Snapshot
    | Collisions
    | Remedy
    | Trained
)
F = TypeVar("F", bound=Figures)


@dataclass(frozen=True)
class JobTimes:
    """The times of a job, s."""

    job: str
    arrival_s: float
    jct_s: float
    waiting_s: float
    """Time in which it had bytes to send, but sent none."""
    lower_bound_s: float
    """JCT alone in the network."""


@dataclass(frozen=True)
class CoflowTimes:
    """The times of a coflow, s, and its bytes."""

    coflow: str
    arrival_s: float
    cct_s: float
    bytes: float


@dataclass(frozen=True)
class Timeline:
    """Jobs over time: mean rates in bins of `bin_s` (Gbit/s, jobs by bins), and the durations of their
    iterations (s, jobs by iterations)."""

    bin_s: float
    gbit_s: tuple[tuple[float, ...], ...]
    iterations_s: tuple[tuple[float, ...], ...]

    def rates(self) -> Iterator[Columns]:
        """Yield columns with one row per bin for each job, by name. A bin's time is its start."""
        for job, rates in enumerate(self.gbit_s):
            times = [round(n * self.bin_s, 9) for n in range(len(rates))]
            yield {"job": [str(job)] * len(rates), "time_s": times, "gbit_s": rates}

    def iterations(self) -> Iterator[Columns]:
        """Yield columns with one row per iteration for each job, by name."""
        for job, times in enumerate(self.iterations_s):
            numbers = range(len(times))
            yield {"job": [str(job)] * len(times), "iteration": numbers, "iteration_s": times}


@dataclass(frozen=True)
class Result:
    """What the run of a point reports."""

    figures: Figures
    jobs: tuple[JobTimes, ...] = ()
    coflows: tuple[CoflowTimes, ...] = ()
    flow_times: FlowTimes | None = None
    """On request."""
    usage: LinkUsage | None = None
    """On request."""
    timeline: Timeline | None = None
    """If the experiment is about it."""


RESULT = TypeAdapter(Result)
"""Writes a `Result` as JSON, and reads it back."""


@dataclass(frozen=True)
class Row(Generic[F]):
    """A point of a summary."""

    at: Parameters
    figures: F


@dataclass(frozen=True)
class Summary:
    """The results of an experiment."""

    experiment: str
    title: str
    seed: int
    limit: int | None
    settings: Settings
    paper: Mapping[str, str]
    """The paper's value, by claim."""
    points: tuple[Row[Figures], ...]
    origin: Origin | None = None
    """None: computed by a version that did not record it."""

    def rows(self, kind: type[F]) -> list[Row[F]]:
        """Return its points, whose figures are of this `kind`."""
        return [Row(row.at, row.figures) for row in self.points if isinstance(row.figures, kind)]

    @property
    def parameters(self) -> list[str]:
        """The names of its points' parameters; some points may lack some of them."""
        return list(dict.fromkeys(name for row in self.points for name in row.at.given()))

    def varied(self, names: Iterable[str] | None = None) -> list[str]:
        """Return the parameters, of `names` or of all, in which its points differ."""
        names = self.parameters if names is None else names
        return [name for name in names if len({str(getattr(row.at, name)) for row in self.points}) > 1]

    def document(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        content = {
            "experiment": self.experiment,
            "title": self.title,
            "seed": self.seed,
            "limit": self.limit,
            "settings": _given(self.settings),
            "paper": dict(self.paper),
            "origin": None if self.origin is None else asdict(self.origin),
            "parameters": self.parameters,
            "points": [{**row.at.given(), **figures_by_name(row.figures)} for row in self.points],
        }
        if self.experiment == "parrot-jct":
            totals: dict[str, dict[str, float]] = {}
            for row in self.rows(Completion):
                at_speed = totals.setdefault(str(row.at.gbps), {})
                at_speed[row.at.policy] = row.figures.total_jct_s
                at_speed["lower_bound"] = row.figures.lower_bound_s
            content["total_jct_s"] = totals
        return content


_FIGURES: TypeAdapter[Figures] = TypeAdapter(Figures)


def figures_by_name(figures: Figures) -> dict[str, Any]:
    """Return figures as in summary.json, without those that its experiment does not have."""
    found: dict[str, Any] = _FIGURES.dump_python(figures, mode="json", exclude_defaults=True)
    return found


def read_summary(path: Path) -> Summary:
    """Read a summary.json. Raises BadInput if it is not one of this version."""
    try:
        content = json.loads(path.read_bytes())
        names = content["parameters"]
        points = tuple(
            Row(
                TypeAdapter(Parameters).validate_python({k: v for k, v in row.items() if k in names}),
                _FIGURES.validate_python({k: v for k, v in row.items() if k not in names}),
            )
            for row in content["points"]
        )
        return Summary(
            content["experiment"],
            content["title"],
            content["seed"],
            content["limit"],
            TypeAdapter(Settings).validate_python(content["settings"]),
            content["paper"],
            points,
            TypeAdapter(Origin | None).validate_python(content.get("origin")),
        )
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path}: not written by this version; run the experiment again, with another --out"
        ) from error


def _given(values: Parameters | Settings) -> dict[str, Any]:
    return {k: v for k, v in vars(values).items() if v is not None}
