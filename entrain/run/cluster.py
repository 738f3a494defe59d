"""Run a cluster's jobs: each waits in the queue, starts in the hosts that it is given, and ends.

Every run of an experiment has the same jobs with the same arrivals; the strategy decides where they run, and
how switches route them. After each run, every job that has not been measured in such a place yet runs once
more, alone in the network and with source routing, which leaves it no flow that meets another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import psutil

from controlplane.admission import Admission, Step
from controlplane.cluster import ClusterSetup
from controlplane.controller import Controller
from controlplane.ledger import LEDGER, Entry, Ledger
from entrain.bound import bound_ms
from entrain.cluster import Arrival, ClusterPlan, host
from entrain.experiment import Combination, Experiment
from entrain.live_cluster import CIRCUITS, circuits_of
from entrain.policies import policies
from entrain.policies.policy import JobOnHosts, Session
from entrain.results.cluster import Stay, Stays
from entrain.results.values import JobResult, RunResult
from entrain.run.contention import attribute, contention, per_job
from entrain.run.emulation import ecn_threshold
from entrain.run.live import Training
from entrain.run.queues import QueueUse, QueueWatch
from entrain.run.runner import (
    Report,
    RunFailed,
    Running,
    netns,
    owners,
    rank_failure,
    restored_windows,
    route,
    run_of,
    share,
)
from machine.errors import EntrainError
from machine.origin import here
from machine.packages import run_module
from machine.patience import patience
from machine.process import Child, give_way, launch
from machine.processors import Use
from ocs.crossbar import Change
from schedulers.placement.cluster import Placement
from schedulers.placement.stages import Cause
from workloads.jobs import JobSpec
from workloads.launch import ends
from workloads.records import Records, read_records, summarize
from workloads.strategies import strategies

POLL_S = 0.02
"""How often jobs are looked at, and so how late one may start."""

READY_TIMEOUT_S = patience(90.0)
"""How long the launcher of ranks may take to import everything on a busy machine."""

JOBS_PART = 0.8
"""The part of a run's progress until all jobs have ended; the rest is for measuring jobs alone, whose number
is not known before."""

Kind = tuple[object, ...]
"""What makes two jobs run alike when alone: what they compute and send, and how their ranks lie."""


def networks(experiment: Experiment) -> Iterator[Experiment]:
    """Yield an experiment's parts that need a network of their own, in order.

    rECMP has more spines, and under OCS-vClos links pass an optical circuit switch.
    """
    plan = experiment.cluster
    if plan is None:
        yield experiment
        return
    target = experiment.target
    groups: dict[object, list[str]] = {}
    for strategy in plan.table.strategy:
        groups.setdefault((plan.cluster(strategy), strategies()[strategy].ocs), []).append(strategy)
    for names in groups.values():
        table = plan.table.model_copy(update={"strategy": tuple(names)})
        yield replace(
            experiment,
            topology=plan.topology(names[0], experiment.topology.name, target),
            cluster=replace(plan, table=table),
        )


def run_all(
    running: Running, report: Report, todo: Collection[Combination], finished: Sequence[RunResult] = ()
) -> Iterator[RunResult]:
    """Run those combinations of the experiment that are in `todo`. Raises RunFailed.

    `finished` are earlier runs: what they measured of single jobs is not measured again.
    """
    experiment = running.experiment
    plan = _plan(experiment)
    alone: dict[tuple[int, Kind], float] = {}
    for run in finished:
        seed = run.combination.seed
        arrivals = {arrival.name: arrival for arrival in plan.arrivals(seed)}
        for job in run.jobs:
            if job.alone_ms is not None:
                alone[seed, _kind(plan, arrivals[job.name], job.hosts)] = job.alone_ms
    with _launcher(running) as launcher, _giving_way():
        mine = [combination for combination in experiment.combinations() if combination in todo]
        for place, combination in enumerate(mine):
            one = _Run(
                running, combination, launcher, share(report, place / len(mine), (place + 1) / len(mine))
            )
            yield one.with_alone(one.go(), alone)


def _plan(experiment: Experiment) -> ClusterPlan:
    assert experiment.cluster is not None, "only experiments on a cluster come here"
    return experiment.cluster


def _kind(plan: ClusterPlan, arrival: Arrival, hosts: Sequence[str]) -> Kind:
    """Return the job's kind: its ranks' leaves and servers count by the order in which they first appear."""
    size, per_leaf = plan.table.gpus_per_server, plan.table.servers_per_leaf
    servers = [(int(name[1:]) - 1) // size for name in hosts]
    order = {server: place for place, server in enumerate(dict.fromkeys(servers))}
    leaves = {leaf: place for place, leaf in enumerate(dict.fromkeys(each // per_leaf for each in servers))}
    lie = tuple((leaves[each // per_leaf], order[each]) for each in servers)
    return arrival.model, arrival.collective, lie


@dataclass(frozen=True)
class _Launcher:
    """The process whose children the ranks of all jobs are."""

    child: Child
    orders: int

    def start(self, spec: JobSpec) -> None:
        """Start all ranks of a job."""
        path = spec.output.parent / f"{spec.name}.json"
        path.write_text(spec.model_dump_json(), encoding="utf-8")
        os.write(self.orders, f"{path}\n".encode())


@contextlib.contextmanager
def _giving_way() -> Iterator[None]:
    """Let the controller give way to ranks: in a real cluster it has a machine of its own."""
    end = give_way()
    try:
        yield
    finally:
        end()


@contextlib.contextmanager
def _launcher(running: Running) -> Iterator[_Launcher]:
    orders = running.directory / "orders"
    os.mkfifo(orders)
    command = [*run_module("workloads"), "serve", "--orders", str(orders)]
    log = running.directory / "ranks.log"
    child = launch(running.record, "the launcher of ranks", command, log=log, tells=True)
    try:
        child.wait_ready(READY_TIMEOUT_S)
        descriptor = os.open(orders, os.O_WRONLY)
        try:
            yield _Launcher(child, descriptor)
        finally:
            os.close(descriptor)
    finally:
        child.end()
        orders.unlink()


class _Run:
    """One run of an experiment on a cluster."""

    def __init__(
        self, running: Running, combination: Combination, launcher: _Launcher, report: Report
    ) -> None:
        assert combination.strategy is not None, "runs on a cluster have a strategy"
        parts = (combination.strategy, combination.policy, combination.control, combination.seed)
        self.name = "-".join(str(part) for part in parts if part is not None)
        self._running, self._combination, self._launcher = running, combination, launcher
        jobs = JOBS_PART if running.experiment.alone_iterations else 1.0
        self._report, self._report_alone = share(report, 0.0, jobs), share(report, jobs, 1.0)
        self._plan = _plan(running.experiment)
        self._table = self._plan.table
        self._arrivals = self._plan.arrivals(combination.seed)
        self._setup = ClusterSetup(
            self._plan.cluster(combination.strategy),
            strategies()[combination.strategy],
            self._table.queue,
            self._table.backfill,
        )
        self._numbers = {arrival.name: number for number, arrival in enumerate(self._arrivals)}
        self._specs: dict[int, JobSpec] = {}  # of jobs that run
        self._entries: dict[int, Entry] = {}  # of jobs that have started
        self._reserved_s: dict[str, float] = {}
        self._admission_s: list[float] = []
        self._origin_s = 0.0
        self._failed_attempts: Mapping[Cause, int] = {}
        self._session = Session()
        self._slot_ms: float | None = None
        self._queues: tuple[QueueUse, ...] = ()

    def go(self) -> RunResult:
        """Run all jobs. Raises RunFailed."""
        running, combination = self._running, self._combination
        self._directory = running.directory / self.name
        self._directory.mkdir()
        lost_before, repeated_before = running.monitor.lost, running.monitor.repeated
        restored_before = restored_windows(running)
        running.monitor.collect()
        run = run_of(running, combination, self._directory, self._known_jobs(), self._in_slots)
        with policies()[combination.policy].running(run) as self._session:
            processor, began = psutil.cpu_times(), time.monotonic()
            origin_ns = running.loop.run(self._attend())
            wall_s, use = time.monotonic() - began, Use.since(processor)
            told = self._session.report()
        bursts = running.monitor.collect()
        if lost := running.monitor.lost - lost_before:
            raise RunFailed(
                f"{self.name}: the link monitor lost {lost} bursts because its buffer was full; "
                f"its counts are wrong"
            )
        self._report(f"{self.name}: reading records", 1.0)
        found = read_records(self._directory / "records")
        uses, strangers = attribute(bursts, running.links, owners(found))
        overhead = {
            "bring_up_s": running.bring_up_s,
            "admission_s_mean": fmean(self._admission_s),
            "run_s": wall_s,
            **use.figures(),
            "bursts": len(bursts),
            "unattributed_bytes": sum(burst.bytes for burst in strangers),
            "repeated_bytes": running.monitor.repeated - repeated_before,
            "windows_restored": restored_windows(running) - restored_before,
        }
        jobs, stays = self._results(found, per_job(uses), origin_ns)
        overhead["workers_cpu_s"] = sum(job.summary.cpu_s for job in jobs)
        overhead["agents_cpu_s"] = sum(host.cpu_s for host in told.scheduling)
        return RunResult(
            combination,
            running.experiment.target,
            jobs,
            tuple(contention(uses, running.links.values())),
            overhead,
            learned=told.learned,
            scheduling=told.scheduling,
            policy_report=told.values,
            stays=stays,
            origin=here(),
            queues=self._queues,
        )

    def _known_jobs(self) -> Iterator[JobOnHosts]:
        """Yield the jobs as a policy knows them before they have hosts."""
        tables = self._running.experiment.tables
        for arrival in self._arrivals:
            yield JobOnHosts(arrival.name, (), self._running.marks[arrival.name], tables)

    @contextlib.contextmanager
    def _in_slots(self, slot_ms: float) -> Iterator[None]:
        """Within, the controller of jobs tells switches the present slot; only it is connected to them."""
        self._slot_ms = slot_ms
        try:
            yield
        finally:
            self._slot_ms = None

    # -- jobs

    async def _attend(self) -> int:
        """Let all jobs arrive, wait, run and end. Return when the first arrived, CLOCK_MONOTONIC in ns."""
        experiment, total = self._running.experiment, len(self._arrivals)
        waiting, ended = deque(self._arrivals), 0
        panel = self._running.network.panel
        await self._wire()
        await self._running.live.disconnect()
        with (
            contextlib.closing(Ledger(self._directory / LEDGER, self._setup.cluster)) as ledger,
            contextlib.ExitStack() as shown,
        ):
            async with Controller(
                replace(experiment.topology, slot_ms=self._slot_ms),
                self._combination.routing,
                ecn_threshold_packets=ecn_threshold(experiment.topology, experiment.network),
                cluster=self._setup,
                ledger=ledger,
                circuits=circuits_of(experiment.topology, self._setup, panel, self._directory / CIRCUITS),
                on_step=self._told,
                queues=self._running.network.queues,
            ) as controller:
                admission = controller.admission
                assert admission is not None, "the controller of a cluster admits jobs"
                shown.enter_context(self._running.live.showing(controller))
                origin_ns, self._origin_s = time.monotonic_ns(), time.time()
                deadline = time.monotonic() + experiment.timeout_s
                queues = QueueWatch(await controller.read_queues(), self._running.network.queues)
                while ended < total:
                    queues.look()
                    now_s = (time.monotonic_ns() - origin_ns) / 1e9
                    while waiting and waiting[0].arrival_s <= now_s:
                        await self._submit(admission, waiting.popleft())
                    for number in self._done():
                        await admission.end(self._arrivals[number].name)
                        ended += 1
                    if admission.problem:
                        raise RunFailed(f"{self.name}: {admission.problem}")
                    self._check(deadline)
                    queued = total - len(waiting) - len(self._entries)
                    what = f"{ended} of {total} jobs ended, {len(self._specs)} run, {queued} wait"
                    self._report(f"{self.name}: {what}", ended / total)
                    await asyncio.sleep(POLL_S)
                self._failed_attempts = admission.failed_attempts
                self._queues = queues.used(await controller.read_queues())
                await controller.forget_clocks()
        return origin_ns

    async def _submit(self, admission: Admission, arrival: Arrival) -> None:
        deadline_s = None if arrival.deadline_s is None else arrival.deadline_s + self._origin_s
        await admission.submit(arrival.request, arrival.duration_s, deadline_s)

    def _told(self, entry: Entry, step: Step) -> None:
        """Start the ranks of a job that has just got its network."""
        if step == "reserved":
            self._reserved_s[entry.name] = time.monotonic()
        if step != "ready":
            return
        self._admission_s.append(time.monotonic() - self._reserved_s[entry.name])
        number = self._numbers[entry.name]
        self._entries[number] = entry
        arrival = self._arrivals[number]
        iterations = self._plan.iterations(arrival)
        spec = self._session.job(
            self._spec(number, arrival, self._hosts(number), self._directory, iterations)
        )
        self._specs[number] = spec
        job = Training(spec, self._hosts(number), self._bound_ms(arrival, self._hosts(number)), "bound")
        self._running.live.jobs = [*self._running.live.jobs, job]
        self._launcher.start(spec)

    def _done(self) -> list[int]:
        """Return the jobs whose ranks have all ended. Raises RunFailed if one has failed."""
        live = self._running.live
        done = [number for number, spec in self._specs.items() if len(ends(spec)) == len(spec.hosts)]
        for number in done:
            spec = self._specs.pop(number)
            live.jobs = [job for job in live.jobs if job.spec is not spec]
            self._raise_if_failed(spec, self._hosts(number))
        return done

    def _placement(self, number: int) -> Placement:
        placement = self._entries[number].placement
        assert placement is not None, "a job that has started has a placement"
        return placement

    def _hosts(self, number: int) -> tuple[str, ...]:
        return tuple(map(host, self._placement(number).gpus))

    def _check(self, deadline: float) -> None:
        """Raise RunFailed if the network or the launcher has failed, or the time is over."""
        try:
            self._running.network.check()
            self._launcher.child.check()
        except EntrainError as error:
            raise RunFailed(f"{self.name}: {error}") from error
        if time.monotonic() > deadline:
            names = ", ".join(spec.name for spec in self._specs.values())
            raise RunFailed(
                f"{self.name}: not all jobs ended within {self._running.experiment.timeout_s:g} s; "
                f"these run: {names or 'none'}; raise [experiment], timeout_s, or give fewer jobs"
            )
        self._running.monitor.poll()

    def _raise_if_failed(self, spec: JobSpec, hosts: Sequence[str]) -> None:
        if problem := rank_failure(spec, hosts):
            raise RunFailed(f"{self.name}: job {spec.name} {problem}{self._launcher.child.log_end()}")

    def _spec(
        self, number: int, arrival: Arrival, hosts: Sequence[str], output: Path, iterations: int
    ) -> JobSpec:
        running = self._running
        addresses = [running.experiment.topology.host_by_name[name].ip for name in hosts]
        return self._plan.spec(number, arrival, addresses).model_copy(
            update={
                "rendezvous": output / "rendezvous" / arrival.name,
                "output": output / "records",
                "iterations": iterations,
                "seed": self._combination.seed,
                "congestion_control": self._combination.control,
                "mark": running.marks[arrival.name],
                "netns": tuple(netns(running, name) for name in hosts),
            }
        )

    # -- results

    def _results(
        self, found: Records, most: Mapping[str, int], origin_ns: int
    ) -> tuple[tuple[JobResult, ...], Stays]:
        summaries = {summary.job: summary for summary in summarize(found)}
        last_ns: dict[str, int] = {}
        for each in found.iterations:
            last_ns[each.job] = max(each.end_ns, last_ns.get(each.job, 0))
        jobs, stays = [], []
        for number, arrival in enumerate(self._arrivals):
            entry, summary, hosts = self._entries[number], summaries[arrival.name], self._hosts(number)
            if summary.error or summary.jct_s is None:
                why = summary.error or "not all ranks finished their iterations"
                raise RunFailed(f"{self.name}: job {arrival.name}: {why}")
            bound = self._bound_ms(arrival, hosts)
            jobs.append(JobResult(arrival.name, hosts, summary, bound, most.get(arrival.name, 0)))
            assert entry.start_s is not None, "a job that has started has a start"
            start_s = entry.start_s - self._origin_s
            end_s = (last_ns[arrival.name] - origin_ns) / 1e9
            waiting = tuple(
                replace(each, from_s=each.from_s - self._origin_s, to_s=each.to_s - self._origin_s)
                for each in entry.waited
            )
            stays.append(
                Stay(self._placement(number), arrival.arrival_s, start_s, end_s, entry.changed, waiting)
            )
        return tuple(jobs), Stays(tuple(stays), dict(self._failed_attempts))

    def _bound_ms(self, arrival: Arrival, hosts: Sequence[str]) -> float:
        topology, servers = self._running.experiment.topology, self._plan.servers
        spec = self._plan.spec(0, arrival, [topology.host_by_name[name].ip for name in hosts])
        of = {name: number for number, names in enumerate(servers.hosts) for name in names}
        rates = [self._table.rate_mbps] * len(hosts)
        return bound_ms(spec, rates, [of[name] for name in hosts], servers.rate_mbps)

    # -- alone

    def with_alone(self, result: RunResult, known: dict[tuple[int, Kind], float]) -> RunResult:
        """Return the result with each job's time alone, measured unless it is known. Raises RunFailed."""
        iterations = self._running.experiment.alone_iterations
        if not iterations:
            return result
        seed = self._combination.seed
        arrivals = {arrival.name: arrival for arrival in self._arrivals}
        kinds = {job.name: (seed, _kind(self._plan, arrivals[job.name], job.hosts)) for job in result.jobs}
        missing = {kinds[job.name]: job for job in result.jobs if kinds[job.name] not in known}
        if missing:
            self._running.loop.run(self._for_one())
        for place, (kind, job) in enumerate(missing.items()):
            self._report_alone(
                f"{self.name}: {job.name} alone, {place} of {len(missing)}", place / len(missing)
            )
            known[kind] = self._measure_alone(arrivals[job.name], job.hosts, iterations)
        return replace(
            result, jobs=tuple(replace(job, alone_ms=known[kinds[job.name]]) for job in result.jobs)
        )

    async def _for_one(self) -> None:
        """Wire the network as at first, and let everybody reach everybody by source routing."""
        running, combination = self._running, replace(self._combination, routing="source", strategy=None)
        await self._wire()
        await route(running.experiment, running.pipeline, combination, running.live)

    async def _wire(self) -> None:
        """Make the circuits of the network's first wiring, and no others."""
        if (panel := self._running.network.panel) is not None:
            there, wanted = (await panel.read()).circuits, self._running.experiment.topology.circuits
            await panel.apply(Change(there - wanted, wanted - there))

    def _measure_alone(self, arrival: Arrival, hosts: Sequence[str], iterations: int) -> float:
        output = self._directory / f"alone-{arrival.name}"
        output.mkdir()
        spec = self._spec(0, arrival, hosts, output, iterations)
        deadline = time.monotonic() + self._running.experiment.timeout_s
        self._launcher.start(spec)
        while len(ends(spec)) < len(spec.hosts):
            self._check(deadline)
            self._running.wait(POLL_S)
        self._raise_if_failed(spec, hosts)
        (summary,) = summarize(read_records(spec.output))
        return median(summary.iteration_ms)
