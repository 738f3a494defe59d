"""Policy `unfair`: TCP that shares links unfairly, because each job's windows grow at a rate of their own.

Unfairness helps jobs that fit together (Cassini and MLTCP thesis, chapter 3). The thesis changes DCQCN's
timer of rate increase; here the additive increase is multiplied by a factor. MLTCP's F does so: it is the
factor, and does not depend on what a job has sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from entrain.policies.mltcp import Mltcp, in_force
from entrain.policies.policy import Run, Session
from hostbpf.mltcp import Params
from machine.toml import Strict

NAME = "unfair"


class UnfairTable(Strict):
    """The `[unfair]` table, of all jobs. `[job.unfair]` overrides single keys."""

    factor: Annotated[float, Field(ge=0.01, le=8, allow_inf_nan=False, strict=False)] = 1.0
    scale_decrease: bool = True


def parameters(table: Any) -> Params:
    """Return the parameters by which F is always the factor of a job's merged table."""
    checked = UnfairTable.model_validate(table)
    # Of an iteration of one byte all is sent, and with a gap given, nothing is to be learned.
    return Params(0.0, checked.factor, total_bytes=1, gap_ms=1000.0, scale_decrease=checked.scale_decrease)


class Unfair(Mltcp):
    """Each congestion control's MLTCP variant, with a constant gain per job."""

    name = NAME
    label = "unfair TCP"
    table = UnfairTable

    def series(self, control: str | None) -> str | None:
        """Return the name of the variant's original, with the policy's."""
        return f"unfair {(control or '').removeprefix('mltcp_')}"

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Set the jobs' factors."""
        with in_force(run, lambda job: parameters(job.tables[NAME])):
            yield Session()
