"""The registry of strategies: what places a job, and how its flows are routed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from schedulers.placement.cluster import Cluster, Placement, Request, State
from schedulers.placement.stages import Cause, apart, ocs_vclos, unreserved, vclos

StrategyRouting = Literal["ecmp", "balanced-ecmp", "least-loaded", "source", "single-switch"]
"""By hash; each flow over the uplink with the fewest flows when it starts; each GPU over the uplink that its
flows find least used when its job starts; by the source's port; one switch for all."""


class Place(Protocol):
    """Find a placement in a state, or say what is missing."""

    def __call__(
        self, state: State, request: Request, *, locality: bool = True, solver: bool = False
    ) -> Placement | Cause: ...


@dataclass(frozen=True)
class Strategy:
    """One strategy.

    `isolated`: no two jobs share a link. `priorities`: where they do, the job whose communication holds up
    the most computation goes first. `ocs`: circuits are made. `locality`: a job that fits into one
    server gets GPUs of one, others get whole servers. `solver`: HiGHS instead of the search.
    """

    name: str
    routing: StrategyRouting
    places: Place
    isolated: bool = False
    priorities: bool = False
    ocs: bool = False
    locality: bool = True
    solver: bool = False
    links: Callable[[Cluster], Cluster] = lambda cluster: cluster

    @property
    def live(self) -> bool:
        """Whether a network can run it: switches route by hash or by source, and rank no jobs."""
        return self.routing in ("ecmp", "source") and not self.priorities

    def cluster(self, cluster: Cluster) -> Cluster:
        """Return the cluster that the strategy runs on. Raises ValueError where it lacks what that needs."""
        if self.ocs and not cluster.ocs:
            raise ValueError(f"ocs: is false, and {self.name} makes circuits; set ocs = true")
        return self.links(cluster)

    def place(self, state: State, request: Request) -> Placement | Cause:
        """Return the job's placement in this state, or what it would have to wait for."""
        return self.places(state, request, locality=self.locality, solver=self.solver)

    def refusal(self, idle: State, request: Request) -> str | None:
        """Return why the job could never start, with the remedy; None if it can on the `idle` cluster."""
        found = self.place(idle, request)
        if isinstance(found, Placement):
            return None
        total = int(idle.gpus.sum())
        if request.gpus > total:
            return f"{request.gpus} is more than the {total} GPUs of the cluster; ask for fewer"
        if found == "gpus":
            return f"no {request.gpus} GPUs are on working servers as locality asks for; ask for fewer"
        return (
            f"no virtual Clos for {request.gpus} GPUs and {request.pattern} fits even the idle cluster; ask "
            f"for another number of GPUs, or choose another strategy"
        )


def _half_as_many_again(cluster: Cluster) -> Cluster:
    """The cluster with 50 % more links, by more spines. Source: vClos, 8.1, rECMP."""
    return replace(cluster, spines=-(-cluster.spines * 3 // 2))


STRATEGIES: dict[str, Strategy] = {
    each.name: each
    for each in (
        Strategy("ecmp", "ecmp", unreserved),
        Strategy("balanced-ecmp", "balanced-ecmp", unreserved),
        Strategy("recmp", "ecmp", unreserved, links=_half_as_many_again),
        Strategy("source", "source", unreserved),
        Strategy("least-loaded", "least-loaded", unreserved),
        Strategy("crux", "least-loaded", unreserved, priorities=True),
        Strategy("crux-ecmp", "ecmp", unreserved, priorities=True),
        Strategy("best", "single-switch", unreserved),
        Strategy("apart", "ecmp", apart),
        Strategy("ocs-relaxed", "source", ocs_vclos, isolated=True, ocs=True, locality=False),
        Strategy("vclos", "source", vclos, isolated=True),
        Strategy("ocs-vclos", "source", ocs_vclos, isolated=True, ocs=True),
    )
}
"""By the name that a user types. Sources: vClos, 8.1, 9.3 and table 5. `least-loaded` is not the paper's;
`apart` is of the flow-scheduling paper's testbed, VI-A;
`crux` and `crux-ecmp` follow Crux (Cao et al., SIGCOMM 2024)."""
