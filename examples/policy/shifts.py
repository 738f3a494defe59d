"""A policy that delays each job's start by a given time, so that jobs communicate at different times."""

import contextlib
from collections.abc import Iterator, Mapping

from entrain.policies.policy import Policy, Run, Session
from entrain.policies.reports import Report
from machine.toml import Strict
from workloads.jobs import JobSpec


class ShiftTable(Strict):
    """The keys of [shift] and of [job.shift]."""

    by_ms: float = 0.0


class Shifting(Session):
    """One run: changes jobs before they start, and reports to results.json."""

    def __init__(self, by_ms: Mapping[str, float]) -> None:
        self._by_ms = dict(by_ms)

    def job(self, spec: JobSpec) -> JobSpec:
        """Return the job with its delay. Called once per job."""
        return spec.model_copy(update={"start_ms": spec.start_ms + self._by_ms[spec.name]})

    def report(self) -> Report:
        """Return the delays, which become `policy_report`."""
        return Report(values={"by_ms": self._by_ms})


class Shift(Policy):
    """Policy `shift` of experiment files."""

    label = "time shifts"
    table = ShiftTable
    per_job = True

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Apply the delays during a run."""
        tables = {job.name: ShiftTable.model_validate(job.tables["shift"]) for job in run.jobs}
        yield Shifting({name: table.by_ms for name, table in tables.items()})


shift = Shift()
