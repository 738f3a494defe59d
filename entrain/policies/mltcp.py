"""Policy `mltcp`: use the MLTCP variant of each congestion control, which learns the jobs' iterations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from entrain.policies.policy import ExperimentSpec, JobOnHosts, Policy, Run, Session
from entrain.policies.reports import Learned, Report
from hostbpf.flow import netns_cookie
from hostbpf.mltcp import PLAIN, VARIANTS, JobKey, Jobs, Params
from machine.errors import BadInput
from machine.toml import Strict

NAME = "mltcp"
VARIANT = {
    **{plain.removeprefix("bpf_"): variant for plain, variant in zip(PLAIN, VARIANTS, strict=True)},
    **dict(zip(PLAIN, VARIANTS, strict=True)),
}
"""The MLTCP variant of each congestion control, and of its eBPF copy."""


class MltcpTable(Strict):
    """The `[mltcp]` table: `hostbpf.mltcp.Params` of all jobs. `[job.mltcp]` overrides single keys."""

    slope: Annotated[float, Field(ge=0, le=8, allow_inf_nan=False, strict=False)] = 1.75
    intercept: Annotated[float, Field(gt=0, le=8, allow_inf_nan=False, strict=False)] = 0.25
    total_bytes: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    gap_ms: Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False, strict=False)] | None = None
    scale_decrease: bool = False


class Learning(Session):
    """MLTCP during one run."""

    def __init__(self, run: Run, known: Jobs) -> None:
        self._run, self._known = run, known

    def report(self) -> Report:
        """Return what MLTCP learned on each host that sent with it."""
        return Report(learned=tuple(self._learned()))

    def _learned(self) -> Iterator[Learned]:
        states = dict(self._known.states.items())
        for job in self._run.jobs:
            for host in job.hosts:
                if state := states.get(JobKey(job.mark, netns_cookie(self._run.netns(host)))):
                    gap_ms = state.gap_ns / 1e6
                    yield Learned(job.name, host, state.iteration, state.total_bytes, gap_ms, state.relearned)


@contextlib.contextmanager
def learning(run: Run) -> Iterator[Session]:
    """Set each job's MLTCP parameters, and remove the jobs at the end."""
    with in_force(run, lambda job: parameters(job.tables[NAME])):
        yield Session() if run.mltcp is None else Learning(run, run.mltcp)


@contextlib.contextmanager
def in_force(run: Run, of: Callable[[JobOnHosts], Params]) -> Iterator[None]:
    """Within, each job has the parameters that `of` returns, if the run has entrain's controls."""
    if run.mltcp is None:
        yield
        return
    for job in run.jobs:
        run.mltcp.set_params(job.mark, of(job))
    try:
        yield
    finally:
        for job in run.jobs:
            run.mltcp.remove(job.mark)


def parameters(table: Any) -> Params:
    """Return a job's parameters from its merged table."""
    return Params(**MltcpTable.model_validate(table).model_dump())


class Mltcp(Policy):
    """Each congestion control's MLTCP variant."""

    name: ClassVar[str] = NAME
    label = "MLTCP"
    table: ClassVar[type[Strict]] = MltcpTable
    per_job = True
    on_clusters = True

    def check(self, experiment: ExperimentSpec, table: Any) -> None:
        """Require at least one congestion control that has an MLTCP variant."""
        if not set(experiment.controls) & set(VARIANT):
            raise BadInput(
                f"[experiment], congestion_control: policy {self.name} needs one of {', '.join(VARIANT)}"
            )

    def controls(self, chosen: Sequence[str]) -> tuple[str | None, ...]:
        """Return the variants of the chosen controls, each once: reno and bpf_reno share one."""
        return tuple(dict.fromkeys(VARIANT[each] for each in chosen if each in VARIANT))

    def series(self, control: str | None) -> str | None:
        """Return the variant's name."""
        return control

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Set the jobs' MLTCP parameters."""
        with learning(run) as session:
            yield session
