"""The traffic of a training iteration, with the dependencies between its flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from machine.errors import BadInput
from schedulers.compiled import Ints
from schedulers.slots.roles import Role
from simulation.jobs import Coflow, Compute, Job, Task


@dataclass(frozen=True, eq=False)
class Pipelined(Coflow):
    """A coflow whose flows follow one another. `role` (F,) is each flow's role. `upstream` (F,) is the
    parameter server's group of an aggregation or broadcast flow, or the row of a ring flow's predecessor.
    `chunk` is a ring's lag in bytes, or how many bytes of each flow a parameter server sums up before it
    sends them back (0: it sends back each byte at once).

    Rows are in upstream order: aggregation before broadcast, each sorted by group; ring flows in ring order.
    """

    role: Ints
    upstream: Ints
    chunk: float = 0.0

    def upstream_rows(self) -> Ints:
        """Return the rows that each flow follows (F, 2): the first row and the one after the last."""
        rows = np.zeros((len(self.role), 2), np.int64)
        followed = {Role.AGGREGATION: Role.BROADCAST, Role.BROADCAST: Role.AGGREGATION}
        for role, other in followed.items():
            mine, theirs = np.flatnonzero(self.role == role), np.flatnonzero(self.role == other)
            if len(theirs):
                groups, own = self.upstream[theirs], self.upstream[mine]
                rows[mine, 0] = theirs[0] + np.searchsorted(groups, own, "left")
                rows[mine, 1] = theirs[0] + np.searchsorted(groups, own, "right")
        ring = self.role == Role.RING
        rows[ring] = self.upstream[ring, None] + [0, 1]
        return rows


def parameter_server(
    workers: Sequence[int], servers: Sequence[int], model_bytes: float, parts: int | None = None
) -> Pipelined | None:
    """Return the push and pull of one iteration: each worker and server exchange model / servers bytes each
    way, in so many equal `parts` (None: byte by byte).

    Flows within a host are left out. Returns None if no flow crosses the network. Raises BadInput without
    workers or servers.
    """
    if not workers or not servers:
        raise BadInput("a parameter-server job needs at least one worker and one server")
    part = model_bytes / len(servers)
    rows = [(w, s, Role.AGGREGATION, g) for g, s in enumerate(servers) for w in workers if w != s]
    rows += [(s, w, Role.BROADCAST, g) for g, s in enumerate(servers) for w in workers if w != s]
    return _pipelined(rows, part, part / parts if parts else 0.0)


def ring(members: Sequence[int], model_bytes: float) -> Pipelined | None:
    """Return the ring all-reduce of one iteration: a flow of 2 (n - 1) / n of the model from each host to the
    next.

    Neighbours on one host send nothing over the network. Returns None if all members are on one host.
    """
    hosts = [h for i, h in enumerate(members) if h != members[i - 1]]
    n = len(hosts)
    if n < 2:
        return None
    size = 2.0 * (len(members) - 1) / len(members) * model_bytes
    rows = [(h, hosts[(i + 1) % n], Role.RING, (i - 1) % n) for i, h in enumerate(hosts)]
    return _pipelined(rows, size, model_bytes / len(members))


def _pipelined(rows: list[tuple[int, int, Role, int]], size: float, chunk: float) -> Pipelined | None:
    if not rows:
        return None
    src, dst, role, upstream = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Pipelined(src, dst, np.full(len(rows), size), role, upstream, chunk)


def ring_steps(members: Sequence[int], model_bytes: float) -> list[Coflow]:
    """Return the ring all-reduce for coflow schedulers: 2 (n - 1) coflows that follow one another."""
    whole = ring(members, model_bytes)
    if whole is None:
        return []
    steps = 2 * (len(members) - 1)
    return [Coflow(whole.src, whole.dst, whole.size / steps)] * steps


def ring_flows(members: Sequence[int], model_bytes: float) -> list[Coflow]:
    """Return the ring all-reduce as one coflow per flow, each starting when its predecessor is complete."""
    whole = ring(members, model_bytes)
    if whole is None:
        return []
    return [
        Coflow(whole.src[i : i + 1], whole.dst[i : i + 1], whole.size[i : i + 1])
        for i in range(len(whole.src))
    ]


def push_pull(workers: Sequence[int], servers: Sequence[int], model_bytes: float) -> list[Coflow]:
    """Return a parameter-server iteration as two coflows: all pushes, then all pulls."""
    whole = parameter_server(workers, servers, model_bytes)
    if whole is None:
        return []
    push = whole.role == Role.AGGREGATION
    return [Coflow(whole.src[m], whole.dst[m], whole.size[m]) for m in (push, ~push)]


def in_parts(
    ident: str, arrival: float, compute_s: float, pipelined: Pipelined | None, parts: int, iterations: int
) -> Job:
    """Return a parameter-server job for coflow schedulers: each of the equal `parts` of an iteration is a
    coflow of pushes and, once a server has all of these, one of pulls, which do not wait for later pushes.
    """
    if pipelined is None:
        return training_job(ident, arrival, compute_s, [], iterations)
    pushed = pipelined.role == Role.AGGREGATION
    push, pull = (
        Coflow(pipelined.src[mine], pipelined.dst[mine], pipelined.size[mine] / parts)
        for mine in (pushed, ~pushed)
    )
    pushes = [Task(push, (i,)) for i in range(parts)]  # task 0 computes
    pulls = [Task(pull, (1 + i, parts + i) if i else (1,)) for i in range(parts)]
    return Job(ident, arrival, (Task(Compute(compute_s)), *pushes, *pulls), iterations)


def training_job(
    ident: str, arrival: float, compute_s: float, coflows: Sequence[Coflow | None], iterations: int
) -> Job:
    """Return a job that computes and then sends its coflows one after another, `iterations` times."""
    works: list[Compute | Coflow] = [Compute(compute_s), *(c for c in coflows if c is not None)]
    tasks = tuple(Task(work, (i - 1,) if i else ()) for i, work in enumerate(works))
    return Job(ident, arrival, tasks, iterations)
