"""Run an experiment: bring up one network, and run each combination of routing, policy and seed in it.

The network is brought up once. Between runs, only the switches' tables are rewritten, by the same controller
code that `entrain deploy` uses. The run's record owns every resource before it is created.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType

import psutil

from controlplane.fabric import Applied
from controlplane.pipeline import Pipeline
from controlplane.routing import FabricPolicy, desired_state
from controlplane.tenants import cluster_state
from controlplane.topology import Topology
from entrain.bound import bound_ms
from entrain.experiment import VCLOS, Combination, Experiment, Job
from entrain.policies import policies
from entrain.policies.policy import InSlots, JobOnHosts, Run, Session
from entrain.policies.reports import Report as PolicyReport
from entrain.reserved import reserved
from entrain.results.values import JobResult, RunResult, Timeline
from entrain.run.contention import attribute, contention, per_job
from entrain.run.cross import NAME as CROSS
from entrain.run.cross import Cross, CrossFlow, crossing
from entrain.run.emulation import check_control, ecn_threshold, losing, network_of
from entrain.run.live import Live, Training
from entrain.run.plan import alone_seconds, run_seconds
from entrain.run.queues import QueueUse, QueueWatch
from entrain.run.samples import Sampler, sampling
from hostbpf.controls import controls, others, registered
from hostbpf.flow import netns_cookie
from hostbpf.mltcp import PLAIN, VARIANTS, Jobs
from hostbpf.rates.schedules import PACED
from machine.errors import BadInput, EntrainError
from machine.origin import here
from machine.packages import run_module
from machine.patience import patience
from machine.process import Child, describe, launch
from machine.processors import Use, awake
from machine.record import Record
from mininet_topos.linkmonitor import Burst, LinkMonitor
from mininet_topos.network import NO_SERVERS, FabricPort, Network, check_possible
from mininet_topos.relays import Passed
from wire.flow import Flow
from workloads.jobs import JobSpec
from workloads.launch import to_blame
from workloads.records import Records, read_records, summarize

POLL_S = 0.1
"""How often a run's switches, jobs and link monitor are checked."""

READY_TIMEOUT_S = patience(90.0)
"""How long jobs may take to connect. On a busy machine, importing PyTorch alone takes half a minute."""

Report = Callable[[str, float], None]
"""Called with the current activity and the completed fraction (0 to 1)."""


class RunFailed(EntrainError):
    """A run failed. The message names the run and the cause."""


@dataclass(frozen=True)
class Running:
    """A network that is up, with its controller's pipeline and its link monitor."""

    experiment: Experiment
    network: Network
    monitor: LinkMonitor
    pipeline: Pipeline
    loop: asyncio.Runner
    bring_up_s: float
    directory: Path
    record: Record
    marks: Mapping[str, int]
    """The jobs' socket marks, by job. MLTCP identifies a job by its mark."""
    mltcp: Jobs | None = None
    ports: tuple[FabricPort, ...] = field(default=())
    live: Live = field(kw_only=True)
    """What those see who watch the run."""

    @property
    def links(self) -> dict[int, str]:
        """The names of the fabric's links, one per direction, by interface index."""
        return {port.ifindex: port.link for port in self.ports}

    def wait(self, seconds: float) -> None:
        """Wait, and meanwhile answer those who watch the run."""
        self.loop.run(asyncio.sleep(seconds))


def check_machine(experiment: Experiment) -> None:
    """Check that this machine can run the experiment, without creating anything.

    Raises the errors of `mininet_topos.network.check_possible`, and BadInput for a congestion control that
    this kernel lacks.
    """
    check_possible(experiment.topology, experiment.network.shaping)
    check_control(f"{experiment.source}: [network]", experiment.network.congestion_control)
    ours = (*PLAIN, *VARIANTS, *PACED, *others())
    for name in experiment.controls:
        check_control(f"{experiment.source}: [experiment]", name, ours)


@contextlib.contextmanager
def bring_up(
    experiment: Experiment,
    record: Record,
    directory: Path,
    namespace: str,
    report: Report,
    *,
    last: bool = True,
) -> Iterator[Running]:
    """Bring up the experiment's network in the current namespace, with tables for the first run.

    Unless it is the `last` one in the namespace, its links are removed at the end.
    """
    began = time.monotonic()
    network = network_of(
        experiment.topology,
        experiment.network,
        record,
        directory,
        namespace=namespace,
        servers=experiment.cluster.servers if experiment.cluster else NO_SERVERS,
        leaves_links=last,
    )
    report(f"bringing up {_size(experiment.topology)}", 0.0)
    with (
        network,
        _controls(experiment, record) as mltcp,
        asyncio.Runner() as loop,
        contextlib.ExitStack() as stack,
        awake(),
    ):  # one loop for all runs: gRPC stays bound to the first loop it sees
        pipeline = Pipeline.load()
        report("setting the switches", 0.0)
        live = stack.enter_context(_live(experiment, network, namespace, record, loop))
        loop.run(route(experiment, pipeline, next(experiment.combinations()), live))
        ports = tuple(network.fabric_ports())
        with (
            losing(experiment.topology, experiment.network),
            LinkMonitor(ports, gap_ms=experiment.gap_ms) as monitor,
        ):
            took = time.monotonic() - began
            marks = _marks(_names(experiment), netns_cookie())
            yield Running(
                experiment,
                network,
                monitor,
                pipeline,
                loop,
                took,
                directory,
                record,
                marks,
                mltcp,
                ports,
                live=live,
            )


@contextlib.contextmanager
def _live(
    experiment: Experiment, network: Network, namespace: str, record: Record, loop: asyncio.Runner
) -> Iterator[Live]:
    """Let others watch the run."""
    processes = {host.name: network.net[host.name].pid for host in experiment.topology.hosts}
    live = Live(experiment.name, experiment.topology, namespace, processes, network.agents, network.queues)
    loop.run(live.open(record))
    try:
        yield live
    finally:
        loop.run(live.close())


@contextlib.contextmanager
def _controls(experiment: Experiment, record: Record) -> Iterator[Jobs | None]:
    """Register entrain's eBPF congestion controls if the experiment uses one, and those of plugins."""
    ours = {*VARIANTS, *PLAIN, *PACED}
    used = {combination.control or "" for combination in experiment.combinations()}
    with registered(used):
        if used & ours:
            with controls(record) as found:
                yield found.jobs
        else:
            yield None


def run_all(
    running: Running, report: Report, todo: Collection[Combination], finished: Sequence[RunResult] = ()
) -> Iterator[RunResult]:
    """Run those combinations of the experiment that are in `todo`, one after the other. Raises RunFailed.

    `finished` are earlier runs: what they measured of single jobs is not measured again.
    """
    experiment = running.experiment
    known = {run.combination: run for run in finished}
    total = sum(_expected_s(experiment, step) for step in _steps(experiment, todo, known))
    done_s = 0.0
    measured: dict[str, float] = {}
    for step in _steps(experiment, todo, known):
        combination, previous = step
        until_s = done_s + _expected_s(experiment, step)
        begin = (done_s + _alone_s(experiment, step)) / total
        if previous is None:
            measured = run_alone(running, combination, share(report, done_s / total, begin))
        elif previous in known:
            measured = {job.name: job.alone_ms for job in known[previous].jobs if job.alone_ms is not None}
        yield run_one(running, combination, share(report, begin, until_s / total), measured)
        done_s = until_s


_Step = tuple[Combination, Combination | None]
"""A run, and the one before from which it takes what jobs need alone; None: that is measured first."""


def _steps(
    experiment: Experiment, todo: Collection[Combination], known: Collection[Combination]
) -> Iterator[_Step]:
    """Yield the runs in order. Those that differ by their seeds only share what jobs need alone."""
    last: Combination | None = None
    for combination in experiment.combinations():
        if combination in todo:
            alike = last is not None and replace(last, seed=combination.seed) == combination
            yield combination, last if alike else None
            last = combination
        elif combination in known:
            last = combination


def _alone_s(experiment: Experiment, step: _Step) -> float:
    """Return how long measuring jobs alone takes at least before a run."""
    combination, previous = step
    return alone_seconds(experiment, combination) if previous is None else 0.0


def _expected_s(experiment: Experiment, step: _Step) -> float:
    """Return how long a run takes at least, with what is measured before."""
    return run_seconds(experiment, step[0]) + _alone_s(experiment, step)


def share(report: Report, begin: float, end: float) -> Report:
    """Return a report of a part of the work: that from `begin` to `end` (0 to 1)."""
    return lambda what, part: report(what, begin + (end - begin) * part)


def run_alone(running: Running, combination: Combination, report: Report) -> dict[str, float]:
    """Return each job's median iteration time alone in the network, in ms; none without `alone_iterations`.

    Of identical jobs, only one is measured.
    """
    experiment = running.experiment
    if not experiment.alone_iterations:
        return {}
    kinds = len({experiment.kind(job) for job in experiment.jobs})
    measured: dict[object, float] = {}
    found = {}
    for job in experiment.jobs:
        changes = {"iterations": experiment.alone_iterations, "start_ms": 0.0}
        spec = job.spec.model_copy(update=changes)
        what = experiment.kind(replace(job, spec=spec))
        if what not in measured:
            only = replace(experiment, jobs=(replace(job, spec=spec),), start_spread_ms=0.0, sample_ms=None)
            part = share(report, len(measured) / kinds, (len(measured) + 1) / kinds)
            (result,) = run_one(
                replace(running, experiment=only), combination, part, name=f"alone-{job.name}"
            ).jobs
            measured[what] = median(result.summary.iteration_ms)
        found[job.name] = measured[what]
    return found


def run_one(
    running: Running,
    combination: Combination,
    report: Report,
    alone: Mapping[str, float] = MappingProxyType({}),
    *,
    name: str = "",
) -> RunResult:
    """Run one combination: write tables, run jobs, collect results. Raises RunFailed with the cause.

    `alone` is the result of `run_alone`; `name` distinguishes runs of the same combination.
    """
    running = replace(running, experiment=running.experiment.at(combination.load))
    parts = (
        name or None,
        combination.strategy or combination.routing,
        combination.policy,
        combination.control,
        combination.load and f"load{combination.load:g}",
        combination.seed,
    )
    name = "-".join(str(part) for part in parts if part is not None)
    report(f"{name}: writing tables", 0.0)
    began = time.monotonic()
    applied = running.loop.run(route(running.experiment, running.pipeline, combination, running.live))
    table_s = time.monotonic() - began
    output = running.directory / name
    output.mkdir()
    lost_before, repeated_before = running.monitor.lost, running.monitor.repeated
    running.monitor.collect()
    relayed_before = running.network.relayed()
    refused_before = running.loop.run(running.live.refused())
    queues = QueueWatch(running.loop.run(running.live.queues()), running.network.queues)
    restored_before = restored_windows(running)
    began = time.monotonic()
    with (
        policies()[combination.policy].running(
            run_of(running, combination, output, _jobs_on_hosts(running))
        ) as session,
        _sampling(running) as sampler,
        crossing(running.network, running.experiment, combination.seed, output / "cross.log") as cross,
    ):
        processor = _run_jobs(
            running, name, combination, session, output, report, sampler, cross, alone, queues
        )
        report(f"{name}: reading records", 1.0)
        told = session.report()
        _Watch(running, name, ()).check()  # an agent that has just died has reported nothing
        wall_s = time.monotonic() - began
        use = Use.since(processor)
        relayed = running.network.relayed().since(relayed_before)
        refused = running.loop.run(running.live.refused()) - refused_before
        queued = queues.used(running.loop.run(running.live.queues()))
        found = read_records(output / "records")
        crossed = cross.started if cross else []
        timeline = _timeline(running, found, crossed, sampler) if sampler else Timeline()
    bursts, repeated = running.monitor.collect(), running.monitor.repeated - repeated_before
    if lost := running.monitor.lost - lost_before:
        raise RunFailed(
            f"{name}: the link monitor lost {lost} bursts because its buffer was full; its counts are wrong"
        )
    return _result(
        running,
        combination,
        found,
        bursts,
        alone,
        timeline,
        told,
        crossed,
        queued,
        {
            "bring_up_s": running.bring_up_s,
            "table_write_s": table_s,
            "table_updates": sum(each.written for each in applied),
            "run_s": wall_s,
            **use.figures(),
            **_relays(relayed),
            "repeated_bytes": repeated,
            "carriers_refused": refused,
            "windows_restored": restored_windows(running) - restored_before,
            **({"cross_mbps": cross.goodput_mbps} if cross and cross.goodput_mbps is not None else {}),
        },
    )


async def route(
    experiment: Experiment, pipeline: Pipeline, combination: Combination, live: Live
) -> list[Applied]:
    """Set all switches' tables for a combination. Only entries that differ are written."""
    topology = experiment.topology
    threshold = ecn_threshold(topology, experiment.network)
    policy = FabricPolicy(combination.routing, ecn_threshold_packets=threshold)
    if combination.strategy == VCLOS and experiment.cluster is None:
        state = cluster_state(topology, policy, reserved(topology, experiment.jobs))
    else:
        state = desired_state(topology, policy)
    fabric = await live.connect(pipeline, combination.routing)
    return await fabric.apply(state)


# -- jobs


def _run_jobs(
    running: Running,
    name: str,
    combination: Combination,
    session: Session,
    output: Path,
    report: Report,
    sampler: Sampler | None,
    cross: Cross | None,
    alone: Mapping[str, float],
    queues: QueueWatch,
) -> object:
    """Start all jobs at the same time, and wait until they have ended. `alone` is the result of `run_alone`.

    Return the CPU times at the jobs' start. Raises RunFailed.
    """
    go = output / "go"
    jobs_told = (_spec(running, job, combination, output, go) for job in running.experiment.jobs)
    specs = [session.job(spec) for spec in jobs_told]
    with contextlib.ExitStack() as started:
        jobs = [
            started.enter_context(_launched(running, job, spec, output))
            for job, spec in zip(running.experiment.jobs, specs, strict=True)
        ]
        watch = _Watch(running, name, jobs)
        report(f"{name}: {len(specs)} jobs connect", 0.0)
        watch.until(lambda: all(_ready(spec).exists() for spec in specs), READY_TIMEOUT_S, "connect")
        running.monitor.collect()  # discard the traffic of connecting, which belongs to no step
        trained = [
            _training(running.experiment, job, spec, alone.get(job.name))
            for job, spec in zip(running.experiment.jobs, specs, strict=True)
        ]
        running.live.jobs = trained
        running.live.note(f"{name}: jobs start")
        written = go.with_suffix(".new")
        processor = psutil.cpu_times()
        begin_ns = time.monotonic_ns() + 50_000_000
        written.write_text(str(begin_ns), encoding="utf-8")
        written.rename(go)
        if cross is not None:
            cross.start(begin_ns)
        progress = _Progress(trained)

        def ended() -> bool:
            queues.look()
            if sampler is not None:
                sampler.look()
            if cross is not None:
                cross.look()
            report(f"{name}: {progress.text()}", progress.part())
            return all(job.ended for job in jobs)

        watch.until(ended, running.experiment.timeout_s, "finish its iterations")
        running.live.note(f"{name}: all jobs have ended")
    return processor


def _training(experiment: Experiment, job: Job, spec: JobSpec, alone_ms: float | None) -> Training:
    if alone_ms is not None:
        return Training(spec, job.hosts, alone_ms, "alone")
    bound = bound_ms(spec, experiment.rates_mbps(job), mtu=experiment.topology.mtu)
    return Training(spec, job.hosts, bound, "bound")


@dataclass(frozen=True)
class _Launched:
    """A job's launcher (the parent of its ranks), and the names of the ranks' hosts."""

    spec: JobSpec
    hosts: tuple[str, ...]
    launcher: Child

    @property
    def ended(self) -> bool:
        return self.launcher.process.poll() is not None

    def check(self) -> None:
        """Raise EntrainError if the job has failed. The message names the rank, its host and the reason."""
        if status := self.launcher.process.poll():
            problem = rank_failure(self.spec, self.hosts)
            raise self.launcher.failure(problem or describe(status))


def rank_failure(spec: JobSpec, hosts: Sequence[str]) -> str | None:
    """Return which rank made the job fail, on which host, and why; None if no rank has failed."""
    if (end := to_blame(spec)) is None:
        return None
    rank, status = end
    reason = None
    if status > 0:
        with contextlib.suppress(BadInput):
            ends = read_records(spec.records(rank)).ends
            reason = next((f"failed: {end.error}" for end in ends if end.error), None)
    return f"failed: rank {rank} on host {hosts[rank]} {reason or describe(status)}"


@contextlib.contextmanager
def _launched(running: Running, job: Job, spec: JobSpec, output: Path) -> Iterator[_Launched]:
    """Start all ranks of a job. On exit, stop those that still run."""
    description, log = output / f"{spec.name}.json", output / f"{spec.name}.log"
    description.write_text(spec.model_dump_json(), encoding="utf-8")
    command = [*run_module("workloads"), "launch", "--job", str(description)]
    launcher = launch(running.record, f"job {spec.name}", command, log=log)
    try:
        yield _Launched(spec, job.hosts, launcher)
    finally:
        launcher.end()


def _spec(running: Running, job: Job, combination: Combination, output: Path, go: Path) -> JobSpec:
    """Return the job's specification for this run, as its workers read it."""
    namespaces = tuple(netns(running, host) for host in job.hosts)
    rendezvous = output / "rendezvous" / job.name
    rendezvous.mkdir(parents=True)
    return job.spec.model_copy(
        update={
            "rendezvous": rendezvous,
            "output": output / "records",
            "go": go,
            "seed": combination.seed,
            "start_ms": job.spec.start_ms + running.experiment.start_offset_ms(combination.seed, job),
            "congestion_control": combination.control,
            "mark": running.marks[job.name],
            "netns": namespaces,
        }
    )


def _ready(spec: JobSpec) -> Path:
    return spec.rendezvous / f"{spec.name}.ready"


@dataclass(frozen=True)
class _Watch:
    """Watches a run: fails it, with the reason, if a switch, an agent or a job fails."""

    running: Running
    name: str
    jobs: Sequence[_Launched]

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                slow = next((job for job in self.jobs if not job.ended), self.jobs[0])
                failure = slow.launcher.failure(f"did not {what} within {timeout_s:g} s")
                raise RunFailed(f"{self.name}: {failure}")
            self.running.monitor.poll()
            self.running.wait(POLL_S)
        self.check()

    def check(self) -> None:
        """Raise RunFailed if a switch, an agent or a job has failed."""
        try:
            self.running.network.check()
            for job in self.jobs:
                job.check()
        except EntrainError as error:
            raise RunFailed(f"{self.name}: {error}") from error


class _Progress:
    """Tells how many iterations the first rank of each job has recorded."""

    def __init__(self, jobs: Sequence[Training]) -> None:
        self._jobs = jobs

    def part(self) -> float:
        """Return the fraction of all iterations that is done (0 to 1)."""
        return sum(job.done for job in self._jobs) / sum(job.spec.iterations for job in self._jobs)

    def text(self) -> str:
        """Read new records, and return each job's progress."""
        for job in self._jobs:
            job.look()
        return ", ".join(f"{job.spec.name} {job.done}/{job.spec.iterations}" for job in self._jobs)


# -- results


def _result(
    running: Running,
    combination: Combination,
    found: Records,
    bursts: Sequence[Burst],
    alone: Mapping[str, float],
    timeline: Timeline,
    told: PolicyReport,
    cross: Sequence[CrossFlow],
    queues: tuple[QueueUse, ...],
    overhead: dict[str, float],
) -> RunResult:
    experiment = running.experiment
    crossed = {flow.on(experiment.topology): CROSS for flow in cross}
    uses, strangers = attribute(bursts, running.links, {**owners(found), **crossed})
    most = per_job(uses)
    summaries = {summary.job: summary for summary in summarize(found)}
    jobs = []
    for job in experiment.jobs:
        summary = summaries[job.name]
        if summary.error or summary.jct_s is None:
            raise RunFailed(f"job {job.name}: {summary.error or 'not all ranks finished their iterations'}")
        bound = bound_ms(job.spec, experiment.rates_mbps(job), mtu=experiment.topology.mtu)
        jobs.append(
            JobResult(job.name, job.hosts, summary, bound, most.get(job.name, 0), alone.get(job.name))
        )
    return RunResult(
        combination,
        experiment.target,
        tuple(jobs),
        tuple(contention(uses, running.links.values())),
        {
            **overhead,
            "bursts": len(bursts),
            "unattributed_bytes": sum(burst.bytes for burst in strangers),
            "workers_cpu_s": sum(summary.cpu_s for summary in summaries.values()),
            "agents_cpu_s": sum(host.cpu_s for host in told.scheduling),
            "cross_flows": len(cross),
        },
        timeline,
        told.learned,
        told.scheduling,
        told.values,
        told.paced,
        origin=here(),
        queues=queues,
    )


def restored_windows(running: Running) -> int:
    """Return how many windows entrain's controls have restored so far; 0 if the experiment uses none."""
    return running.mltcp.restored_windows() if running.mltcp else 0


def _relays(passed: Passed) -> dict[str, int | float]:
    """Return what relays have done in a run, or nothing if no link has one."""
    if not passed.relays:
        return {}
    return {
        "relays": passed.relays,
        "relays_cpu_s": passed.cpu_s,
        "relays_dropped": passed.dropped,
        "relays_late_ms_p99": passed.late_ms_p99 or 0.0,
    }


def owners(found: Records) -> dict[Flow, str]:
    """Return, by flow, the job that sent it."""
    return {Flow(flow.src_ip, flow.src_port, flow.dst_ip, flow.dst_port): flow.job for flow in found.flows}


def _names(experiment: Experiment) -> list[str]:
    """Return the names of all jobs; on a cluster, of those that arrive under any seed."""
    if (plan := experiment.cluster) is None:
        return [job.name for job in experiment.jobs]
    return list(dict.fromkeys(job.name for seed in experiment.seeds for job in plan.arrivals(seed)))


def _marks(names: Sequence[str], cookie: int) -> dict[str, int]:
    """Return a socket mark for each job that no other run on this machine uses.

    MLTCP's parameters are shared by the whole machine. `cookie` is unique to a network namespace.
    """
    first = cookie % (1 << 21) << 10
    return {name: first + index for index, name in enumerate(names, 1)}


def _jobs_on_hosts(running: Running) -> Iterator[JobOnHosts]:
    for job in running.experiment.jobs:
        yield JobOnHosts(job.name, job.hosts, running.marks[job.name], job.tables)


def run_of(
    running: Running,
    combination: Combination,
    output: Path,
    jobs: Iterable[JobOnHosts],
    in_slots: InSlots | None = None,
) -> Run:
    """Return the run of `jobs` as its policy sees it. By default `in_slots` tells the run's own switches."""
    return Run(
        routing="vclos" if combination.strategy == VCLOS else combination.routing,
        control=combination.control,
        table=running.experiment.tables.get(combination.policy, {}),
        jobs=tuple(jobs),
        network=running.network,
        record=running.record,
        directory=output,
        in_slots=in_slots or functools.partial(_in_slots, running),
        mltcp=running.mltcp,
    )


@contextlib.contextmanager
def _in_slots(running: Running, slot_ms: float) -> Iterator[None]:
    within = contextlib.AsyncExitStack()
    running.loop.run(within.enter_async_context(running.live.in_slots(slot_ms)))
    try:
        yield
    finally:
        running.loop.run(within.aclose())


@contextlib.contextmanager
def _sampling(running: Running) -> Iterator[Sampler | None]:
    experiment = running.experiment
    if experiment.sample_ms is None:
        yield None
        return
    hosts = {host: netns(running, host) for job in experiment.jobs for host in job.hosts}
    with sampling(experiment.sample_ms, running.ports, hosts) as sampler:
        yield sampler


def _timeline(running: Running, found: Records, cross: Sequence[CrossFlow], sampler: Sampler) -> Timeline:
    """Return the samples from the start of the first iteration to the end of the last."""
    begin = min(each.start_ns for each in found.iterations)
    end = max(each.end_ns for each in found.iterations)
    senders = {**owners(found), **{flow.on(running.experiment.topology): CROSS for flow in cross}}
    return Timeline(sampler.throughput(senders, begin, end), sampler.windows(senders, begin))


def netns(running: Running, host: str) -> str:
    return f"/proc/{running.network.net[host].pid}/ns/net"


def _size(topology: Topology) -> str:
    return f"{len(topology.switches)} switches and {len(topology.hosts)} hosts"
