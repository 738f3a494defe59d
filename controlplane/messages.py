"""Jobs, placements and circuits as messages of the API (`api.proto`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from controlplane import api_pb2 as api
from controlplane import requests
from controlplane.admission import Failures, JobStatus
from controlplane.cluster import hosts_by_gpu, port_name
from controlplane.network import Topology
from machine.errors import BadInput
from machine.explain import suggestion
from machine.requests import checked
from schedulers.placement.cluster import Circuit, Placement, Port, Request
from schedulers.placement.queue import Outcome, Waiting


def request_of(
    message: api.JobRequest, now: float, patterns: Collection[str]
) -> tuple[Request, float, float | None]:
    """Return a request, its duration (infinity if unknown) and its deadline, seconds since 1970.

    Raises BadInput as `checked` does, and if the pattern is none of `patterns`.
    """
    asked = checked(requests.Job, message)
    if patterns and asked.pattern and asked.pattern not in patterns:
        raise BadInput(f"pattern: there is no {asked.pattern!r}; {suggestion(asked.pattern, patterns)}")
    return (
        Request(asked.name, asked.gpus, asked.pattern or "ring"),
        math.inf if asked.duration_s is None else asked.duration_s,
        None if asked.deadline_s is None else now + asked.deadline_s,
    )


def job(topology: Topology, status: JobStatus) -> api.Job:
    """Return how a job stands."""
    entry = status.entry
    given, request = entry.job, entry.job.request
    return api.Job(
        name=request.job,
        gpus=request.gpus,
        pattern=request.pattern,
        arrival_s=given.arrival_s,
        duration_s=given.duration_s if math.isfinite(given.duration_s) else None,
        deadline_s=given.deadline_s,
        phase=entry.phase,
        step=status.step or "",
        placement=None if entry.placement is None else placement(topology, entry.placement, entry.vrf),
        start_s=entry.start_s,
        end_s=entry.end_s,
        circuits_changed=entry.changed,
        waiting=None if status.waiting is None else wait(status.waiting),
        waited=map(wait, entry.waited),
        problem=entry.problem,
        owner=entry.owner,
    )


def placement(topology: Topology, given: Placement, vrf: int = 0) -> api.Placement:
    """Return a placement, with the names that the topology has for its parts."""
    hosts = hosts_by_gpu(topology)
    leaves, spines = topology.switches_of("leaf"), topology.switches_of("spine")
    virtual_leaves, virtual_spines = given.shape
    own = sorted(set(given.leaves))
    return api.Placement(
        gpus=given.gpus,
        hosts=[hosts[gpu] for gpu in given.gpus],
        leaves=own,
        spines=given.spines,
        leaf_names=[leaves[leaf].name for leaf in own],
        spine_names=[spines[spine].name for spine in given.spines],
        links=[api.Link(leaf=link.leaf, spine=link.spine, number=link.number) for link in given.links],
        circuits=[circuit(topology, each) for each in given.circuits],
        virtual_leaves=virtual_leaves,
        virtual_spines=virtual_spines,
        stage=given.stage,
        vrf=vrf,
    )


def wait(given: Waiting) -> api.Wait:
    """Return why a job waits or waited."""
    return api.Wait(from_s=given.from_s, to_s=given.to_s, cause=given.cause, behind=given.behind or "")


def plan(topology: Topology, given: Outcome | Waiting, problem: str) -> api.Plan:
    """Return what a job would get, or why it would wait."""
    if isinstance(given, Waiting):
        return api.Plan(waiting=wait(given), problem=problem)
    return api.Plan(
        placement=placement(topology, given.placement), circuits_changed=given.changed, problem=problem
    )


def circuit(topology: Topology, given: Circuit) -> api.Circuit:
    """Return a circuit, with the names of its ports."""
    a, b = (
        api.CircuitPort(kind=port.kind, switch=port.switch, port=port.port, name=port_name(topology, port))
        for port in given
    )
    return api.Circuit(a=a, b=b)


def circuits(
    topology: Topology, joined: Collection[Circuit], owners: Mapping[Circuit, str], failed: Failures
) -> api.Circuits:
    """Return the circuits with their owners, and what has failed."""
    hosts = hosts_by_gpu(topology)
    what: dict[str, str] = {hosts[gpu]: why for gpu, why in failed.gpus.items()}
    what |= {port_name(topology, port): why for port, why in failed.ports.items()}
    return api.Circuits(
        circuits=[
            api.OwnedCircuit(circuit=circuit(topology, each), job=owners.get(each, ""))
            for each in sorted(joined, key=lambda each: tuple(map(_order, each)))
        ],
        failures=[api.Failure(what=name, reason=why) for name, why in what.items()],
    )


def _order(port: Port) -> tuple[str, int, int]:
    return port.kind, port.switch, port.port
