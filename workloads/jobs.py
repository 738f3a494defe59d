"""Job files: the runner writes one JSON file per job, and every rank reads it."""

from __future__ import annotations

import json
import random
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from machine.errors import BadInput
from machine.explain import explained, suggestion
from machine.patience import patience
from machine.toml import NAME
from workloads.collectives import DDP, Options, Program, collectives, program_of
from workloads.models import MODELS

SOURCE_PORTS = range(16384, 32768)
"""Range of source ports: below the kernel's ephemeral ports, and without any port base."""
UNSENT_BYTES = 128 * 1024
"""The default of `JobSpec.unsent_bytes`."""


class JobSpec(BaseModel):
    """A training job with rank i on `hosts[i]`. All paths are on a file system that all ranks share.

    Either `model` (`models.MODELS`), with its bytes divided by `scale`, or `bytes` says how much the job
    sends. For allreduce and parameter servers, these are the bytes of the gradients. For all-to-all, they are
    the bytes of one rank's buffer for all its peers. For a pipeline, they are the bytes from one stage to the
    next in an iteration.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, NAME]
    hosts: Annotated[tuple[IPv4Address, ...], Field(min_length=2)]
    rendezvous: Path
    """Directory for the start barrier; each job needs its own."""
    output: Path
    """Directory for the records, `NAME-rankR.jsonl` each."""

    collective: str = ""
    """Name of the collective; default: the model's."""
    model: str | None = None
    bytes: Annotated[int | None, Field(gt=0)] = None
    scale: Annotated[float, Field(gt=0)] = 1.0
    """Divides the model's bytes."""
    compute_ms: Annotated[float | None, Field(ge=0)] = None
    """Computation per iteration; default: the model's, divided by `compute_scale`; 0 without a model."""
    compute_scale: Annotated[float, Field(gt=0)] = 1.0
    jitter_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Each rank's computation takes longer in each iteration by a random time of at most this."""
    iterations: Annotated[int, Field(ge=1)] = 10
    busy: bool = False
    """Whether to compute by busy waiting instead of sleeping."""
    group: Annotated[int, Field(ge=0)] = 0
    servers: Annotated[int, Field(ge=0)] = 0
    microbatches: Annotated[int, Field(ge=0)] = 0
    parts: Annotated[int, Field(ge=0)] = 0

    barrier: bool = False
    """Whether all ranks end a step before one begins the next, as proofs about steps assume."""
    start_ms: Annotated[float, Field(ge=0)] = 0.0
    """Delay of the first iteration after the start barrier or the time in `go`, ms."""
    go: Path | None = None
    """If set, the ranks wait until this file has one line: the origin of `start_ms`, CLOCK_MONOTONIC in ns.
    They create `ready` in the rendezvous directory when they are ready. This lets several jobs start
    together."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    port_base: Annotated[int, Field(ge=1024, le=65535)] = 7000
    """The port on which every rank listens at its own address. Jobs on the same host need different ports."""
    congestion_control: str | None = None
    """TCP congestion control of the senders; default: the system's."""
    unsent_bytes: Annotated[int, Field(ge=4096, le=2**26)] = UNSENT_BYTES
    """The most that waits in a connection's socket because the kernel has not sent it yet. When half of it is
    left, the kernel wakes the rank. A larger backlog bridges a longer wait for a processor, but delays the
    next step's DSCP, and progress that is published is ahead of the network by as much."""
    mark: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """The mark (SO_MARK) of the job's sockets, by which MLTCP identifies the job. Marks need
    CAP_NET_ADMIN."""
    dtype: Literal["int32", "float32"] = "int32"
    timeout_s: Annotated[float, Field(gt=0)] = patience(30.0)
    """The job fails if a peer takes longer than this to appear, or is silent for this long in a step."""
    progress: Path | None = None
    """Directory in which every rank publishes its progress for the host's scheduler, or None."""
    netns: tuple[str, ...] = ()
    """For `python -m workloads launch`: the network namespace of each rank, as a path such as
    /proc/PID/ns/net."""

    @field_validator("collective", mode="before")
    @classmethod
    def _hyphens(cls, value: object) -> object:
        return value.replace("_", "-") if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _from_model(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("model") in MODELS and not data.get("collective"):
            return {**data, "collective": MODELS[data["model"]].collective}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.model is not None and self.model not in MODELS:
            near = suggestion(self.model, MODELS)
            raise ValueError(f"model: there is no {self.model!r}; {near}")
        if (self.model is None) == (self.bytes is None):
            raise ValueError("bytes: give either a model or bytes, and not both")
        known = (*collectives(), DDP)
        if self.collective not in known:
            near = suggestion(self.collective, known)
            raise ValueError(f"collective: there is no {self.collective!r}; {near}")
        if self.collective == DDP:
            self._trainable()
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError("hosts: an address is listed twice; every rank needs an address of its own")
        if self.port_base in SOURCE_PORTS:
            raise ValueError(
                f"port_base: {self.port_base} is in the range of source ports, "
                f"{SOURCE_PORTS.start} to {SOURCE_PORTS.stop - 1}; choose one below or above"
            )
        if self.netns and len(self.netns) != len(self.hosts):
            raise ValueError(
                f"netns: {len(self.netns)} namespaces for {len(self.hosts)} hosts; give one each, or none"
            )
        program = self.program()  # raises if the number of ranks does not suit the collective
        if self.barrier and (self.collective == DDP or not program.lockstep):
            raise ValueError(
                f"barrier: {self.collective} does not go step by step, or has several parts; leave it out"
            )
        return self

    def _trainable(self) -> None:
        """Raise ValueError for options that a trained model does not support."""
        trained = [name for name, model in MODELS.items() if model.collective == DDP]
        if self.model not in trained:
            raise ValueError(f"model: collective ddp needs a model that can be trained: {', '.join(trained)}")
        if self.scale != 1.0 or self.busy:
            raise ValueError("scale, busy: leave them out; a trained model has its own size and computation")

    @property
    def options(self) -> Options:
        """The parameters of the job's collective."""
        return Options(self.group, self.servers, self.microbatches, self.parts)

    def program(self) -> Program:
        """Return the program of the job's collective."""
        return program_of(self.collective, len(self.hosts), self.options)

    def total_bytes(self) -> int:
        """Return the collective's bytes after scaling, before rounding up to whole elements per unit."""
        if self.bytes is not None:
            return self.bytes
        return max(1, round(MODELS[self.model or ""].bytes / self.scale))

    def compute_s(self) -> float:
        """Return the computation time per iteration in seconds."""
        if self.compute_ms is not None:
            return self.compute_ms / 1e3
        return MODELS[self.model].compute_ms / self.compute_scale / 1e3 if self.model else 0.0

    def compute_ns(self, rank: int, iteration: int) -> int:
        """Return how long a rank computes in an iteration, in ns, with its jitter."""
        extra_ms = random.Random(f"{self.seed}/{self.name}/{rank}/{iteration}").uniform(0, self.jitter_ms)
        return round(self.compute_s() * 1e9 + extra_ms * 1e6)

    @property
    def exits(self) -> Path:
        """The file to which `launch` writes ranks' exit statuses as they end: one line `RANK STATUS` each. A
        negative status is the signal that killed the rank."""
        return self.rendezvous / f"{self.name}.exits"

    def records(self, rank: int) -> Path:
        """Return the file to which a rank writes its records."""
        return self.output / f"{self.name}-rank{rank}.jsonl"


def start_offset(seed: int, job: str, spread: float) -> float:
    """Return the random delay, up to `spread` and in its unit, with which a job of this name starts."""
    return random.Random(f"{seed}/{job}").uniform(0, spread)


def parse_job(data: object, source: str) -> JobSpec:
    """Check the data of `source`. Raises BadInput, which names the source, the key and the remedy."""
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput("\n".join(f"{source}: {line}" for line in explained(JobSpec, data, error))) from error


def load_job(path: Path) -> JobSpec:
    """Read a job file. Raises BadInput if it is missing, not JSON, or invalid."""
    try:
        return parse_job(json.loads(path.read_text(encoding="utf-8-sig")), str(path))
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file") from error
    except (ValueError, RecursionError) as error:  # also what is no UTF-8
        raise BadInput(f"{path}: not JSON: {error}") from error
