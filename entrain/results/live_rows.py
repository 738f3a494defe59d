"""The figures of live experiments as rows: those of each seed, and those over all seeds.

A row's policy is the series that the figure is of (`values.series_of`): a congestion control, a policy, or on
a cluster the strategy. Figures with `_least` and `_most` are the ends of a range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from entrain.fluid import BOUNDS, has_bounds, mean_jct_s
from entrain.results.gains import gains
from entrain.results.measured import Live
from entrain.results.names import label
from entrain.results.remedies import cell
from entrain.results.values import (
    RunResult,
    fairness,
    marks_shifted,
    over_ideal_shifted,
    scheduler,
    strategy,
    summarized,
)
from entrain.run.cross import NAME as CROSS
from machine.interval import Interval, interval, relative
from machine.origin import Origin
from machine.rows import Row, joined

SENDING = 0.1
"""A job counts as sending in a bin if it has at least this fraction of the fullest bin's throughput."""
DCTCP = "dctcp"


@dataclass(frozen=True)
class _Of:
    """Makes rows of one series."""

    live: Live
    policy: str
    routing: str = ""
    parameters: str = ""

    def row(self, figure: str, value: float, *, job: str = "", half: float | None = None, n: int = 1) -> Row:
        return Row(
            self.live.name,
            "live",
            self.parameters,
            self.policy,
            self.routing,
            "",
            job,
            figure,
            None,
            float(value),
            half,
            n,
        )

    def seeds(self, figure: str, by_seed: Mapping[int, float], job: str = "") -> Iterator[Row]:
        """Yield the value of each seed, and the mean over them."""
        for seed, value in by_seed.items():
            yield replace(self.row(figure, value, job=job), seed=seed)
        yield self.mean(figure, interval(list(by_seed.values())), len(by_seed), job)

    def mean(self, figure: str, known: Interval, n: int, job: str = "", times: float = 1.0) -> Row:
        half = None if known.half is None else times * known.half
        return self.row(figure, times * known.mean, job=job, half=half, n=n)

    def span(self, figure: str, values: Iterable[float | None]) -> Iterator[Row]:
        """Yield both ends of the range of the known values."""
        known = [value for value in values if value is not None]
        if known:
            yield self.row(f"{figure}_least", min(known))
            yield self.row(f"{figure}_most", max(known))

    def against(self, other: str) -> _Of:
        return replace(self, parameters=joined({"against": other}))


def rows(live: Live, base: Live | None = None) -> list[Row]:
    """Return all rows of an experiment, with what measured each.

    Iteration times are also compared with those of `base`, the same jobs under better conditions.
    """
    origins = {name: [run.origin for run in runs] for name, runs in live.runs.items()}
    made = [*_rates(live)]
    for name, runs in live.runs.items():
        of = _Of(live, name)
        made += [*_common(of, runs), *_completion(of), *_scheduling(of, runs), *_stays(of, runs)]
        made += [*_mltcp(of, runs), *_shared(of, runs[0])]
    made += [*_changes(live), *_fluid(live), *_gains(live), *_shifts(live), *_remedies(live)]
    if base is not None:
        made += _against_base(live, base)
    command = f"entrain run experiments/{live.name}.toml"
    anything = [trial.origin for trial in live.trials] or [
        run.origin for runs in live.runs.values() for run in runs
    ]
    return [row.measured(_last(origins.get(row.policy) or anything), command) for row in dict.fromkeys(made)]


def _last(origins: Sequence[Origin | None]) -> Origin | None:
    known = [origin for origin in origins if origin is not None]
    return max(known, key=lambda origin: origin.ended, default=None)


def _common(of: _Of, runs: Sequence[RunResult]) -> Iterator[Row]:
    yield of.row("runs", len(runs))
    yield from of.span("cpu_percent", (100 * run.overhead["processor_busy"] for run in runs))


def _completion(of: _Of) -> Iterator[Row]:
    """Yield completion and iteration times, and the goodput of the cross traffic."""
    live, name = of.live, of.policy
    yield from of.seeds("mean_jct_s", live.mean_jct_s(name))
    every = live.jct_s(name)
    yield of.row("min_jct_s", min(every))
    yield of.row("max_jct_s", max(every))
    yield of.row("p99_jct_s", float(np.percentile(every, 99)))
    for model in live.models:
        yield from of.seeds("iteration_ms", live.iteration_ms(name, model), model)
    cross = {
        run.combination.seed: run.overhead["cross_mbps"]
        for run in live.runs[name]
        if "cross_mbps" in run.overhead
    }
    if cross:
        yield from of.seeds("cross_mbps", cross)


def _changes(live: Live) -> Iterator[Row]:
    """Yield the changes of completion times and training speeds from each series to each other."""
    for name in live.runs:
        for other in live.runs:
            if name == other:
                continue
            of, n = _Of(live, name).against(other), len(live.runs[name])
            change = relative(live.mean_jct_s(other), live.mean_jct_s(name))
            yield of.mean("mean_jct_change_percent", change, n, times=100)
            if other == live.best_tcp:
                yield _Of(live, name).mean("mean_jct_to_best_tcp_percent", change, n, times=100)
            for model in live.models:
                ours, theirs = (live.iteration_ms(each, model) for each in (name, other))
                faster = relative(ours, theirs)
                yield of.mean("speed_change_percent", faster, n, model, times=100)
                yield of.row("speed_ratio", 1 + faster.mean, job=model, half=faster.half, n=n)
            for key in ("jrt_s", "jwt_s"):
                stays = [
                    {
                        run.combination.seed: fmean(getattr(stay, key) for stay in run.stays.stays)
                        for run in live.runs[each]
                        if run.stays
                    }
                    for each in (other, name)
                ]
                if all(stays):
                    yield of.mean(f"mean_{key[:3]}_change_percent", relative(*stays), n, times=100)


def _against_base(live: Live, base: Live) -> Iterator[Row]:
    """Yield iteration times and training speeds relative to those of another experiment, by model."""
    for name in live.runs.keys() & base.runs.keys():
        of, n = _Of(live, name), len(live.runs[name])
        for model in live.models:
            ours, theirs = live.iteration_ms(name, model), base.iteration_ms(name, model)
            longer, faster = relative(theirs, ours), relative(ours, theirs)
            yield of.row("iteration_to_base", 1 + longer.mean, job=model, half=longer.half, n=n)
            yield of.mean("speed_to_base_percent", faster, n, model, times=100)


def _fluid(live: Live) -> Iterator[Row]:
    """Yield the mean completion times of the same jobs as fluid, where they have bounds."""
    if live.experiment is None or not has_bounds(live.experiment):
        return
    seeds = sorted({run.combination.seed for runs in live.runs.values() for run in runs})
    best = live.best_tcp
    for key, name in BOUNDS.items():
        bound = {seed: mean_jct_s(live.experiment, seed, key) for seed in seeds}
        yield from _Of(live, name).seeds("mean_jct_s", bound)
        if best is not None:
            change = relative(live.mean_jct_s(best), bound)
            yield _Of(live, name).mean("mean_jct_to_best_tcp_percent", change, len(seeds), times=100)


def _scheduling(of: _Of, runs: Sequence[RunResult]) -> Iterator[Row]:
    """Yield what scheduling costs, over the hosts of all runs."""
    hosts = [host for run in runs for host in run.scheduling]
    if not hosts:
        return
    yield of.row("hosts", len(next(run.scheduling for run in runs if run.scheduling)))
    for kind in ("negotiation", "decision"):
        samples = [getattr(host, f"{kind}_ms") for host in hosts]
        for percentile in (50, 90, 99):
            delays = [float(np.percentile(each, percentile)) for each in samples if each]
            yield from of.span(f"{kind}_p{percentile}_ms", delays)
    shares = (None if host.cpu_share is None else 100 * host.cpu_share for host in hosts)
    yield from of.span("agent_cpu_percent", shares)
    rates = [[host.carrier_mbps for host in run.scheduling] for run in runs]
    known = [[rate for rate in each if rate is not None] for each in rates]
    whole = (sum(some) for some, each in zip(known, rates, strict=True) if each and len(some) == len(each))
    yield from of.span("carriers_mbps", whole)
    links = [100 * host.carrier_share for host in hosts if host.carrier_share is not None]
    if links:
        yield of.row("carrier_share_percent", max(links))


def _stays(of: _Of, runs: Sequence[RunResult]) -> Iterator[Row]:
    """Yield how jobs on a cluster waited and ran."""
    stayed = of.live.stays(of.policy)
    if not stayed:
        return
    for key in ("jrt_s", "jwt_s", "jct_s"):
        times = [getattr(stay, key) for stay in stayed]
        yield of.row(f"stay_mean_{key}", fmean(times))
        yield of.row(f"stay_p99_{key}", float(np.percentile(times, 99)))
    yield of.row("most_flows_on_a_link", max(run.max_flows_per_link_all for run in runs))
    failed = [run.stays.failed_attempts for run in runs if run.stays]
    yield of.row("fragmentation_gpu", sum(each.get("gpus", 0) for each in failed))
    yield of.row("fragmentation_network", sum(each.get("network", 0) for each in failed))
    yield of.row("circuits_changed", sum(run.stays.circuits_changed for run in runs if run.stays))
    if over_alone := [value for run in runs for value in run.over_alone]:
        yield of.row("p99_to_alone", float(np.percentile(over_alone, 99)))


def _mltcp(of: _Of, runs: Sequence[RunResult]) -> Iterator[Row]:
    """Yield how far jobs moved apart, and what MLTCP gains over its plain control."""
    live, name = of.live, of.policy
    if (settled := live.settled(name)) is not None:
        yield of.row("settled_over_ideal", settled.over_ideal)
        yield of.row("settled_iterations", settled.iterations)
    yield of.row("converged", live.converged(name))
    if (at := live.converged_at(name)) is not None:
        yield of.row("converged_at", at)
    if all(job.ideal_ms for run in runs for job in run.jobs):
        yield of.row("slowest_progress", min(fairness(run).slowest for run in runs))
    if (lost := live.lost_or_marked(name)) is not None:
        yield of.row("lost_or_marked_segments", lost)
    plain = live.plain_of(name)
    if plain is None:
        return
    before = live.settled(plain)
    if settled is not None and before is not None:
        yield of.row("mean_plain_to_mltcp", before.iteration_ms_mean / settled.iteration_ms_mean)
        yield of.row("p99_plain_to_mltcp", before.iteration_ms_p99 / settled.iteration_ms_p99)
    lost_plain = live.lost_or_marked(plain)
    if lost and lost_plain is not None:
        yield of.row("lost_plain_to_mltcp", lost_plain / lost)


def _throughput(run: RunResult) -> dict[str, Sequence[float]]:
    """Return Mbit/s per bin by job, on the busiest link of a run; {} without samples."""
    links: dict[str, dict[str, Sequence[float]]] = {}
    for each in run.timeline.throughput:
        links.setdefault(each.link, {})[each.job] = each.mbps
    return max(links.values(), key=lambda jobs: sum(map(sum, jobs.values())), default={})


def _overlap(jobs: Sequence[Sequence[float]]) -> float | None:
    """Return the fraction of the bins with a sending job in which another job also sends."""
    bins = list(zip(*jobs, strict=True))
    least = SENDING * max(map(sum, bins), default=0.0)
    sending = [sum(mbps > least for mbps in each) for each in bins]
    busy = sum(number > 0 for number in sending)
    return sum(number > 1 for number in sending) / busy if busy else None


def _shared(of: _Of, run: RunResult) -> Iterator[Row]:
    """Yield how the first run's busiest link was shared: by two jobs, or with a TCP flow."""
    jobs = _throughput(run)
    overlap = _overlap(list(jobs.values()))
    if overlap is not None:
        yield of.row("overlap_percent", 100 * overlap)
    on = [place for place, mbps in enumerate(jobs.get(CROSS, ())) if mbps]
    if on:
        during = {job: fmean(mbps[min(on) : max(on) + 1]) for job, mbps in jobs.items()}
        tcp, total = during[CROSS], sum(during.values())
        yield of.row("tcp_flow_mbps", tcp)
        yield of.row("job_mbps", total - tcp)
        yield of.row("tcp_share_percent", 100 * tcp / total)


def _gains(live: Live) -> Iterator[Row]:
    """Yield each job's iteration times when links are shared fairly and unfairly, and its score."""
    runs = [run for runs in live.runs.values() for run in runs]
    if live.experiment is None:
        return
    for each in gains(live.experiment, runs):
        for name, value in (("fair", each.fair_ms), ("unfair", each.unfair_ms)):
            yield _Of(live, name).row("iteration_ms", value, job=each.job)
        yield _Of(live, "unfair").row("gain", each.gain, job=each.job)
        if each.score is not None:
            yield _Of(live, "unfair").row("score", each.score, job=each.job)


def _shifts(live: Live) -> Iterator[Row]:
    """Yield each run's iteration times, and how Cassini's jobs were shifted and kept to it."""
    runs = [run for runs in live.runs.values() for run in runs]
    if live.experiment is None or not any(run.paced.score is not None for run in runs):
        return
    for group in summarized(runs):
        alike = [run for run in runs if run.combination.seed == group.runs[0].combination.seed]
        of = _Of(live, label(live.experiment, group.runs[0], alike))
        by_figure: dict[tuple[str, str], dict[int, float]] = {}
        for run in group.runs:
            for figure, job, value in _shifted(run):
                by_figure.setdefault((figure, job), {})[run.combination.seed] = value
        for (figure, job), by_seed in by_figure.items():
            yield from of.seeds(figure, by_seed, job)
    for plain, shifted in live.shifted():
        marks = [mean for run in live.runs[shifted] if (mean := marks_shifted(run)) is not None]
        if marks:
            jobs = [job for run in live.runs[plain] for job in run.jobs]
            without = fmean(job.summary.marks_per_iteration or 0.0 for job in jobs)
            yield _Of(live, plain).row("marks_plain", without)
            yield _Of(live, plain).row("marks_once_shifted", fmean(marks))
        before, after = live.communication_ms(plain), live.communication_ms(shifted)
        for name, value in before.items():
            yield _Of(live, shifted).row("communication_gain", value / after[name], job=name)


def _shifted(run: RunResult) -> Iterator[tuple[str, str, float]]:
    """Yield figure, job (empty: all) and value of a run that shifts jobs, or that is compared with one."""
    over = []
    for job in run.jobs:
        mean = fmean(job.summary.iteration_ms)
        over.append(mean / job.ideal_ms)
        yield "iteration_ms", job.name, mean
        yield "alone_ms", job.name, job.ideal_ms
    meet = _overlap([mbps[len(mbps) // 2 :] for mbps in _throughput(run).values()])
    paced = run.paced
    figures: dict[str, float | None] = {
        "mean_to_alone": fmean(over),
        "marks_per_iteration": fmean(job.summary.marks_per_iteration or 0.0 for job in run.jobs),
        "overlap_late_percent": None if meet is None else 100 * meet,
        "score": paced.score,
        "shifted_to_alone": over_ideal_shifted(run),
        "drift_p99_ms": paced.drift_ms_p99,
        "corrections": None if paced.score is None else paced.corrections,
        "corrections_per_minute": paced.adjustments_per_minute,
        "waited_percent": None if paced.waited is None else 100 * paced.waited,
        "marks_shifted": marks_shifted(run),
    }
    yield from ((figure, "", value) for figure, value in figures.items() if value is not None)
    yield from (("shift_ms", name, shift) for name, shift in paced.shifts_ms.items())


def _remedies(live: Live) -> Iterator[Row]:
    """Yield iteration times over those alone, by load, routing and policy."""
    runs = [run for runs in live.runs.values() for run in runs]
    if live.experiment is None or live.experiment.cluster is not None:
        return
    if len({(strategy(run.combination), run.combination.load) for run in runs}) < 2:
        return
    groups = [(group.runs[0].combination, cell(group.runs)) for group in summarized(runs)]
    dctcp = {
        (which.load, strategy(which)): known.mean for which, known in groups if scheduler(which) == DCTCP
    }
    for which, known in groups:
        parameters = joined({"load": which.load} if which.load else {})
        of = _Of(live, scheduler(which), strategy(which), parameters)
        yield of.row("mean_to_alone", known.mean)
        yield of.row("p99_to_alone", known.p99)
        yield of.row("marks_per_iteration", known.marks or 0.0)
        if (which.load, strategy(which)) in dctcp:
            yield of.row("gain_over_dctcp", dctcp[which.load, strategy(which)] / known.mean)


def _rates(live: Live) -> Iterator[Row]:
    """Yield the errors of slot rates, by control, slot length and number of flows."""
    for result in live.trials:
        figures = result.figures
        parameters = joined({"slot_ms": float(figures.slot_ms), "flows": figures.flows})
        of = _Of(live, figures.control, parameters=parameters)
        yield of.row("rate_error_mean_percent", 100 * figures.rate_error_mean)
        yield of.row("rate_error_p99_percent", 100 * figures.rate_error_p99)
        yield of.row("within_bound_percent", 100 * figures.within_bound)
        if figures.boundary_delay_ms_p99 is not None:
            yield of.row("boundary_delay_p99_ms", figures.boundary_delay_ms_p99)
        if figures.host_cpu is not None:
            yield of.row("host_cpu_percent", 100 * figures.host_cpu)
