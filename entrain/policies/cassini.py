"""Policy `cassini`: jobs that share links start their iterations at different times (Cassini, chapter 4)."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import grpc
from pydantic import Field

from entrain.bound import MBPS, payload_part, profile_of
from entrain.policies.mltcp import learning
from entrain.policies.policy import Policy, Run, Session, Working
from entrain.policies.reports import Paced, Report
from entrain.profiling import Counting, Measured, measured
from entrain.shared_links import shared_links, slowest_mbps
from hostbpf.rpc import agent_pb2 as pb
from hostbpf.rpc.agent_pb2_grpc import HostStub
from machine.errors import EntrainError
from machine.interval import percentile
from machine.patience import patience
from machine.tls import open_channel
from machine.toml import Strict
from mininet_topos.agents import agents
from schedulers.cassini.affinity import THRESHOLD
from schedulers.cassini.pace import Kind, moves
from schedulers.cassini.plan import BOUND, SLACK, Grid, later, plan, refit, stretched, warm_up
from schedulers.cassini.profile import Profile
from wire.flow import Flow
from workloads.collectives import DDP
from workloads.connections import flows_of
from workloads.jobs import JobSpec
from workloads.records import read_records

POLL_S = 0.1
"""How often the agents are asked."""
TIMEOUT_S = patience(2.0)
"""How long an agent may take to answer."""
CLOCKS = 50
"""Answers by the fastest of which a host's clock is compared."""
BIN_MS = 10.0
"""Width of the bins in which agents count what jobs send: on emulated hosts, all share the processors."""
REFINED = range(3, 9)
"""How many iterations of each job are compared with its period: so many at least, and the latest ones."""
PATIENT = 4
"""How many times as many iterations as `measured` may pass until a job has a profile."""
NEAR = 0.01
"""Periods that are off by less stay, as a fraction."""
LONGER = 1.25
"""By what factor periods grow at most beyond those that profiles ask for."""


class CassiniTable(Strict):
    """The `[cassini]` table."""

    threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=False)] = THRESHOLD
    drift_bound: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False, strict=False)] = BOUND
    slack: Annotated[float, Field(ge=0, le=0.2, allow_inf_nan=False, strict=False)] = SLACK
    measured: Annotated[int, Field(ge=1)] = 5
    profiles: Literal["defined", "measured"] = "defined"


@dataclass
class AgentOf:
    """The agent of one host, and how the host's clock compares with ours."""

    name: str
    stub: Any
    answers: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=CLOCKS))
    """Round trip times, s, and by how much the host's clock was ahead of ours, s."""
    silent: str = ""
    """Why it does not answer."""

    @property
    def ahead_s(self) -> float:
        """By how much its clock is ahead of ours: as its fastest answer says, which is off by half of the
        time that it took (Cristian's algorithm)."""
        return min(self.answers)[1]

    def ask(self) -> list[Any]:
        """Return what its processes do."""
        began = time.monotonic()
        try:
            found = self.stub.ListStarts(pb.ListStartsRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            self.silent = str(error.details() if isinstance(error, grpc.Call) else error)
            return []
        ended = time.monotonic()
        self.silent = ""
        self.answers.append((ended - began, found.now_ns / 1e9 - (began + ended) / 2))
        return list(found.processes)


@dataclass(frozen=True)
class _Seen:
    """A job that runs: how many iterations all its ranks have begun, when the last of these started (s, by
    our clock), and how long recent ones took from the start of their last rank on, s, by their number."""

    starts: int
    started: float
    lasted: Mapping[int, float]
    drifts: Mapping[int, float]
    """How much later than its pace says each of these started, s."""

    def drift(self, after: int) -> float:
        """Return the last drift, s; 0 if no iteration has begun after the one of number `after`."""
        last = max(self.drifts, default=0)
        return self.drifts[last] if last > after else 0.0


def lasted(starts: Iterable[Any]) -> dict[int, float]:
    """Return how long a job's iterations took (s), by number, from what its ranks told at each next start
    (`pb.Start`).

    That is the time of the rank that had started last. The others waited for it: a new pace had reached it
    first.
    """
    found: dict[int, float] = {}
    for each in sorted(starts, key=lambda each: each.number):
        took = each.lasted_ms / 1e3
        found[each.number] = min(found.get(each.number, took), took)
    return found


class Pacing(Working):
    """Sets the paces of a run's jobs, and changes them when a job comes or goes.

    Agents are told a pace only when it changes: without this session, jobs run on at theirs.
    """

    def __init__(self, run: Run, addresses: Mapping[str, str], progress: Path, inner: Session) -> None:
        super().__init__("cassini")
        self._run, self._progress, self._inner = run, progress, inner
        self._addresses = addresses
        self._counting: Counting | None = None  # while some job's profile is measured
        self._counted = contextlib.ExitStack()
        self._table = CassiniTable.model_validate(run.table)
        self._specs: dict[str, JobSpec] = {}
        self._hosts_of = {job.name: job.hosts for job in run.jobs}
        self._channels = {host: open_channel(grpc, address) for host, address in addresses.items()}
        self._hosts = {host: AgentOf(host, HostStub(channel)) for host, channel in self._channels.items()}
        self._solved_for: frozenset[str] = frozenset()
        self._profiles: dict[str, Profile] = {}  # alone in the network
        self._wanted: dict[str, int] = {}  # iterations that a job must have begun, if more than `measured`
        self._flows: dict[str, tuple[Flow, ...]] = {}
        self._grids: dict[str, Grid] = {}
        self._groups: tuple[tuple[str, ...], ...] = ()
        self._periods: dict[str, float] = {}  # as solved, s
        self._solved_at: dict[str, int] = {}  # the iteration of each job that was the last then
        self._since: dict[str, int] = {}  # the iteration of each job after which its present pace holds
        self._adjusted = 0
        self._first_paced: dict[str, int] = {}
        self.solved = 0
        self._score: float | None = None
        self.shifts: dict[str, float] = {}  # by job, when it got its first pace, s
        self.events: list[str] = []

    def job(self, spec: JobSpec) -> JobSpec:
        """Let the job publish its progress."""
        self._specs[spec.name] = self._inner.job(spec).model_copy(update={"progress": self._progress})
        if self._is_measured(spec) and self._counting is None:
            self._counting = self._counted.enter_context(Counting(self._addresses, bin_ms=BIN_MS))
        return self._specs[spec.name]

    def _is_measured(self, spec: JobSpec) -> bool:
        return self._table.profiles == "measured" or spec.collective == DDP

    def end(self) -> None:
        """Tell agents nothing any more. Jobs run on at their paces."""
        super().end()
        self._counted.close()
        for channel in self._channels.values():
            channel.close()

    # -- what it does all the time

    def work(self) -> None:
        """Look what the jobs do, and pace them."""
        while not self._stop.wait(POLL_S):
            seen = self._look()
            present = frozenset(seen) | {job for job in self._solved_for if self._is_unseen(job)}
            ready = all(
                each.starts > self._wanted.get(job, self._table.measured) for job, each in seen.items()
            )
            if present != self._solved_for:
                if ready:
                    try:
                        self._solve(seen)
                    except (EntrainError, ValueError) as error:  # jobs run on as they are
                        self._say(f"not delayed: {error}")
            elif self._grids:
                self._keep(seen)

    def _is_unseen(self, job: str) -> bool:
        """Whether no agent can say if the job runs: then it is thought to run on."""
        return all(self._hosts[name].silent for name in self._hosts_of[job])

    def _look(self) -> dict[str, _Seen]:
        """Return the jobs that run, by name."""
        ranks: dict[str, list[tuple[AgentOf, Any]]] = {}
        for host in self._hosts.values():
            was_silent = host.silent
            for process in host.ask():
                if process.starts and process.job in self._specs:
                    ranks.setdefault(process.job, []).append((host, process))
            if host.silent and not was_silent:
                self._say(
                    f"the agent of {host.name} does not answer: the drift of its jobs is not corrected any "
                    f"more ({host.silent})"
                )
        found = {}
        for job, some in ranks.items():
            recent = [each for _, process in some for each in process.recent]
            drifts: dict[int, float] = {}
            for each in recent:
                drifts[each.number] = max(drifts.get(each.number, 0.0), each.drift_ms / 1e3)
            found[job] = _Seen(
                min(process.starts for _, process in some),
                max(process.started_ns / 1e9 - host.ahead_s for host, process in some),
                lasted(recent),
                drifts,
            )
        return found

    def _solve(self, seen: Mapping[str, _Seen]) -> None:
        """Find paces for the jobs that run, and send them."""
        self._solved_for = frozenset(seen)
        if self._take_profiles(seen):
            self._solved_for = frozenset()
            return
        profiles = {job: self._profiles[job] for job in self._specs if job in seen and job in self._profiles}
        topology, routing = self._run.network.topology, self._run.routing
        links = shared_links(topology, routing, {job: self._flows[job] for job in profiles})
        found = plan(
            profiles,
            links,
            {job: seen[job].started for job in profiles},
            threshold=self._table.threshold,
            slack=self._table.slack,
            bound=self._table.drift_bound,
        )
        self.solved += 1
        if self._score is None:
            self._score = found.score
        for job, shift in found.shifts.items():
            self.shifts.setdefault(job, shift)
        for reason in dict.fromkeys(found.reasons.values()):
            names = ", ".join(job for job, why in found.reasons.items() if why == reason)
            self._say(f"not delayed: {names}: {reason}")
        for job in self._grids.keys() - found.grids.keys():
            if job in seen:
                self._clear(job)
        self._grids = dict(found.grids)
        self._groups = found.groups
        self._periods = {job: grid.period for job, grid in self._grids.items()}
        self._solved_at = {job: seen[job].starts for job in self._grids}
        for job in self._grids:
            self._first_paced.setdefault(job, seen[job].starts - 1)
            self._send(job, seen[job])
        if found.grids:
            shifts = ", ".join(f"{job} {1e3 * shift:.0f} ms" for job, shift in found.shifts.items())
            self._say(f"score {found.score:.3f}; delayed: {shifts}")

    def _keep(self, seen: Mapping[str, _Seen]) -> None:
        """Correct drift: if a job is late, the grids of all that it may meet move by as much.

        So these wait for as long as it is late. By itself, it would wait for the rest of its period.
        """
        for group in self._groups:
            if not seen.keys() >= set(group):  # one cannot be moved with the others
                continue
            # The first start after a pace was sent may still be by the one before.
            drifts = {job: seen[job].drift(after=self._since[job] + 1) for job in group}
            job, late = max(drifts.items(), key=lambda each: each[1])
            if moves(late, self._table.drift_bound * self._grids[job].period):
                self._move(later(self._of(group), late), seen)
                self._adjusted += 1
                continue
            self._refine(group, seen)

    def _refine(self, group: Sequence[str], seen: Mapping[str, _Seen]) -> None:
        """Fit the periods of a group to how long its iterations take; all by one factor."""
        factors = []
        for job in group:
            times = [s for number, s in seen[job].lasted.items() if number > self._solved_at[job] + 2]
            if len(times) < REFINED.start:
                return
            lasts = median(times[-REFINED.stop :])
            factors.append(
                refit(self._profiles[job].period, self._periods[job] / (1.0 + self._table.slack), lasts)
            )
        # A much longer time is not a wrong profile, but something else that goes on.
        factor = min(max(factors), LONGER)
        change = factor * self._periods[group[0]] / self._grids[group[0]].period
        if abs(change - 1.0) > NEAR:
            self._move(stretched(self._of(group), time.monotonic(), change), seen)
            self._say(f"periods of {', '.join(group)} changed by {change - 1.0:+.2%}")

    def _of(self, group: Sequence[str]) -> dict[str, Grid]:
        return {job: self._grids[job] for job in group}

    def _move(self, grids: Mapping[str, Grid], seen: Mapping[str, _Seen]) -> None:
        self._grids.update(grids)
        for job in grids:
            self._send(job, seen[job])

    def _send(self, job: str, seen: _Seen) -> None:
        self._since[job] = seen.starts
        grid = self._grids[job]
        period_ns = round(grid.period * 1e9)
        for name in self._hosts_of[job]:
            host = self._hosts[name]
            if host.silent or not host.answers:
                continue
            pace = pb.Pace(
                anchor_ns=round((grid.anchor + host.ahead_s) * 1e9),
                period_ns=period_ns,
                bound_ns=round(self._table.drift_bound * period_ns),
            )
            self._call(host, "SetPace", pb.SetPaceRequest(job=job, pace=pace))

    def _clear(self, job: str) -> None:
        for name in self._hosts_of[job]:
            self._call(self._hosts[name], "ClearPace", pb.ClearPaceRequest(job=job))

    def _call(self, host: AgentOf, method: str, request: Any) -> None:
        try:
            getattr(host.stub, method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            reason = error.details() if isinstance(error, grpc.Call) else error
            self._say(f"the agent of {host.name} cannot be told: {reason}")

    def _take_profiles(self, jobs: Mapping[str, _Seen]) -> bool:
        """Take the profiles and the flows of jobs that have none yet. Return whether to wait for one more
        iteration, because too few were measured."""
        found = self._measured()
        again = False
        for job in jobs:
            if job in self._profiles:
                continue
            spec = self._specs[job]
            self._flows[job] = found[job].flows if job in found else flows_of(spec)
            profile = found[job].profile if job in found and self._is_measured(spec) else None
            if profile is not None:
                rate = min(self._rates_mbps(job)) * MBPS
                self._profiles[job] = profile.at_rate(rate * payload_part(self._run.network.topology.mtu))
            elif spec.collective == DDP:  # it has no definition
                why = found[job].estimate.verdict if job in found else "it sends nothing"
                if why == "too short" and jobs[job].starts < PATIENT * self._table.measured:
                    self._wanted[job] = jobs[job].starts
                    again = True
                else:
                    self._say(f"{job} has no profile: {why}")
            else:
                self._profiles[job] = profile_of(
                    spec, self._rates_mbps(job), mtu=self._run.network.topology.mtu
                )
        if self._specs.keys() <= self._profiles.keys():
            self._counted.close()  # counting takes processor time
            self._counting = None
        return again

    def _measured(self) -> Mapping[str, Measured]:
        if self._counting is None:
            return {}
        names = {job.mark: job.name for job in self._run.jobs}
        try:
            counts = self._counting.counts()
            return measured(self._run.network.topology, self._run.routing, counts, names)
        except EntrainError as error:
            self._say(f"profiles are not measured: {error}")
            return {}

    def _rates_mbps(self, job: str) -> list[float]:
        """At most how fast a job's ranks can send, alone in the network."""
        topology = self._run.network.topology
        links = shared_links(topology, self._run.routing, {job: self._flows[job]})
        slowest = slowest_mbps(links, job)
        return [min(topology.host_rates_mbps[host], slowest) for host in self._hosts_of[job]]

    def _say(self, text: str) -> None:
        self.events.append(text)

    def report(self) -> Report:
        """Return the shifts, and how the jobs kept to them."""
        self.end()
        inner = self._inner.report()
        starts = [
            each for each in read_records(self._run.directory / "records").iterations if each.pace is not None
        ]
        kept = [each for each in starts if each.pace != Kind.SHIFTED.name.lower()]
        drifts = [max(0, each.drift_ns) / 1e6 for each in kept]
        corrected = {
            (each.job, each.iteration) for each in starts if each.pace == Kind.CORRECTED.name.lower()
        }
        corrections = self._adjusted + len(corrected)
        lasted = sum(each.end_ns - each.start_ns for each in kept)
        first = [each.end_ns - each.start_ns for each in kept if each.rank == 0]
        return Report(
            learned=inner.learned,
            paced=Paced(
                score=self._score,
                shifts_ms={job: 1e3 * shift for job, shift in self.shifts.items()},
                drift_ms_p99=percentile(drifts, 99),
                corrections=corrections,
                adjustments_per_minute=corrections * 60e9 / sum(first) if first else None,
                waited=sum(each.waited_ns for each in kept) / lasted if lasted else None,
                periods_ms={job: 1e3 * grid.period for job, grid in self._grids.items()},
                solved=self.solved,
                since=self._first_paced,
                events=tuple(self.events),
            ),
        )


class Cassini(Policy):
    """Jobs keep the congestion control of the file; an MLTCP variant among these runs like any other."""

    label = "Cassini"
    table = CassiniTable

    def series(self, control: str | None) -> str:
        """Return the policy's name with the control's; an eBPF copy has that of the kernel's original."""
        return f"cassini {(control or '').removeprefix('bpf_')}".strip()

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[Session]:
        """Run an agent on every host. Jobs publish their progress in the run's directory."""
        progress = run.directory / "progress"
        progress.mkdir()
        warm_up()
        with (
            learning(run) as inner,
            agents(run.network, run.record, run.directory, progress=progress, vital=False) as addresses,
        ):
            session = Pacing(run, addresses, progress, inner)
            with session.working():
                yield session
