"""Policy `mltcp`: each congestion control's MLTCP variant, which learns the jobs' iterations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from entrain.policies.policy import Plan, Policy, Run, Session
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
"""The MLTCP variant of a congestion control of the kernel's, or of its copy in eBPF."""


class MltcpTable(Strict):
    """The `[mltcp]` table: every job's `hostbpf.mltcp.Params`. A job's own `[job.mltcp]` replaces single keys
    of it."""

    slope: Annotated[float, Field(ge=0, le=8, allow_inf_nan=False, strict=False)] = 1.75
    intercept: Annotated[float, Field(gt=0, le=8, allow_inf_nan=False, strict=False)] = 0.25
    total_bytes: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    gap_ms: Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False, strict=False)] | None = None
    scale_decrease: bool = False


class Learning(Session):
    """The jobs of a run, as MLTCP knows them."""

    def __init__(self, run: Run, known: Jobs) -> None:
        self._run, self._known = run, known

    def report(self) -> Report:
        """What MLTCP found out on each host that sent with it."""
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
    """Within, MLTCP has each job's parameters; afterwards it has forgotten the jobs."""
    if run.mltcp is None:
        yield Session()
        return
    for job in run.jobs:
        run.mltcp.set_params(job.mark, parameters(job.tables[NAME]))
    try:
        yield Learning(run, run.mltcp)
    finally:
        for job in run.jobs:
            run.mltcp.remove(job.mark)


def parameters(table: Any) -> Params:
    """A job's parameters, from its merged table."""
    return Params(**MltcpTable.model_validate(table).model_dump())


class Mltcp(Policy):
    """Each congestion control's MLTCP variant."""

    label = "MLTCP"
    table = MltcpTable
    per_job = True

    def check(self, plan: Plan, table: Any) -> None:
        """There has to be a variant."""
        if not set(plan.controls) & set(VARIANT):
            raise BadInput(
                f"[experiment], congestion_control: policy mltcp needs one of {', '.join(VARIANT)}"
            )

    def controls(self, chosen: Sequence[str]) -> tuple[str | None, ...]:
        """The variants; reno and bpf_reno have the same."""
        return tuple(dict.fromkeys(VARIANT[each] for each in chosen if each in VARIANT))

    def series(self, control: str | None) -> str | None:
        """The variant's name says all."""
        return control

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Within, MLTCP knows the jobs."""
        with learning(run) as session:
            yield session
