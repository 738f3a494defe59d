"""Tables of results on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from entrain.experiment import Experiment
from entrain.results import queues
from entrain.results.gains import MEETING, Gain, gains
from entrain.results.names import ideal_word, label
from entrain.results.values import (
    CONVERGED,
    HELD,
    LEARNING,
    SHIFTED,
    WINDOW,
    Compared,
    RunResult,
    compared,
    document,
    fairness,
    losses_equal,
    marks_shifted,
    over_ideal_shifted,
    summarized,
)
from machine.interval import Interval, percentile

WIDTH = 80
"""Columns that the tables fit into."""
BUSY_LIMIT = 0.9
"""Above this CPU utilisation, the CPUs rather than the emulated links may have limited the runs."""
STOLEN_LIMIT = 0.01
"""Above this part of the CPUs' time, what a virtual machine's host has taken may have delayed the runs."""


def table(experiment: Experiment, runs: Sequence[RunResult]) -> Table:
    """Return a table with one row per job and run. It fits 80 columns."""
    result = Table(
        title=f"{experiment.name} on {experiment.target}",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in ("run", "job", "collective"):
        result.add_column(heading, overflow="fold")
    marked, long = _marked(runs), _long(runs)
    headings = ("mean\nms", *(["p99\nms"] if long else []), f"×\n{ideal_word(runs)}", "JCT\ns")
    for heading in (*headings, "flows:\njob", "\nall", *(["ECN\nmarks"] if marked else [])):
        result.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        for job in run.jobs:
            first = job is run.jobs[0]
            result.add_row(
                label(experiment, run, runs) if first else "",
                job.name,
                job.summary.collective,
                f"{job.mean_ms:.1f}",
                *([_cell(percentile(job.summary.iteration_ms, 99), ".1f")] if long else []),
                f"{job.ratio_to_ideal:.2f}",
                f"{job.summary.jct_s:.2f}",
                str(job.max_flows_per_link),
                str(run.max_flows_per_link_all) if first else "",
                *([f"{job.summary.marks_per_iteration:.4g}"] if marked else []),
                end_section=job is run.jobs[-1],
            )
    return result


def legend(runs: Sequence[RunResult]) -> str:
    """Return what the columns of `table` mean."""
    word = ideal_word(runs)
    means = {
        "bound": "the computed bound: its hosts' links are all that slows the job",
        "alone": "the job's time alone in the network, as measured",
        "ideal": "the time alone: measured, or else the computed bound",
    }[word]
    parts = [
        f"mean{', p99' if _long(runs) else ''}: iteration time over all iterations",
        f"× {word}: mean over {means}",
        "JCT: job completion time",
        "flows: largest number of simultaneous flows on one fabric link, as measured: of the job in one "
        "step of its collective, and of all jobs",
        *(["ECN marks: marked segments per iteration"] if _marked(runs) else []),
    ]
    return fill(". ".join(parts), WIDTH)


def _marked(runs: Sequence[RunResult]) -> bool:
    return any(job.summary.marks for run in runs for job in run.jobs)


def _long(runs: Sequence[RunResult]) -> bool:
    """Return whether a job has enough iterations for a 99th percentile."""
    times = (job.summary.iteration_ms for run in runs for job in run.jobs)
    return any(percentile(each, 99) is not None for each in times)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def completion(experiment: Experiment, runs: Sequence[RunResult]) -> Table:
    """Return a table of completion times (figure 8 and table I of the flow-scheduling paper).

    One row per routing, policy and congestion control, over all seeds; if jobs differ, one for each job and
    one for all together. The last column compares them with the baseline.
    """
    rows = [
        (one, job, _times(experiment, one, job))
        for one in compared(experiment, runs)
        for job in jobs_of(experiment, one)
    ]
    firsts = [one.group.runs[0] for one, _, _ in rows]
    several = any(len(times) > 1 for _, _, times in rows)
    many = any(percentile(times, 99) is not None for _, _, times in rows)
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    result.add_column("run", overflow="fold")
    result.add_column("job", overflow="fold")
    extremes = ["\nmin", "\nmax"] if several else []
    for heading in ("JCT s\nmean", *extremes, *(["\np99"] if many else [])):
        result.add_column(heading, justify="right", no_wrap=True)
    result.add_column("change", justify="right", no_wrap=True)
    before: Compared | None = None
    for one, job, times in rows:
        if one is not before and before is not None and not experiment.alike:
            result.add_section()
        change = one.change(job)
        result.add_row(
            label(experiment, one.group.runs[0], firsts) if one is not before else "",
            job or together(experiment, one),
            f"{fmean(times):.2f}",
            *([f"{min(times):.2f}", f"{max(times):.2f}"] if several else []),
            *([_cell(percentile(times, 99), ".2f")] if many else []),
            "baseline" if one.is_baseline else "-" if change is None else change.percent(),
        )
        before = one
    return result


def jobs_of(experiment: Experiment, one: Compared) -> list[str | None]:
    """Return what is compared of a group: single jobs if they differ, and all together (None)."""
    if experiment.alike or experiment.cluster is not None:
        return [None]
    return [*(job.name for job in one.group.runs[0].jobs), None]


def _times(experiment: Experiment, one: Compared, job: str | None) -> Sequence[float]:
    """Return completion times (s): of one job, those of its seeds; of all together, their sums by seed if the
    jobs differ, else those of every job."""
    if job is None and (experiment.alike or experiment.cluster is not None):
        return one.group.completion.jct_s
    return list(one.group.jct_s(job).values())


def by_seed(experiment: Experiment, one: Compared, job: str | None) -> list[float]:
    """Return the same by seed, as means over jobs that are alike."""
    times = one.group.jct_s(job).values()
    summed = job is not None or not (experiment.alike or experiment.cluster is not None)
    return list(times) if summed else [time / len(one.group.runs[0].jobs) for time in times]


def together(experiment: Experiment, one: Compared) -> str:
    """Return what `by_seed` is of, for all jobs together."""
    number = len(one.group.runs[0].jobs)
    if experiment.cluster is not None:
        return f"mean of {number}"
    if not experiment.alike:
        return f"sum of {number}"
    return one.group.runs[0].jobs[0].name if number == 1 else f"each of {number}"


def completion_legend(experiment: Experiment, runs: Sequence[RunResult]) -> str:
    """Return what the columns of `completion` mean, and what the baseline is."""
    if experiment.alike:
        what = ", over the jobs of all seeds, which are alike"
    elif experiment.cluster is not None:
        what = ", over the jobs of all seeds, which differ in length"
    else:
        what = "; jobs differ, so that they are summed and not averaged"
    baselines = {one.baseline.which: one.baseline for one in compared(experiment, runs) if one.baseline}
    firsts = [one.group.runs[0] for one in compared(experiment, runs)]
    names = [label(experiment, group.runs[0], firsts) for group in baselines.values()]
    seeds = len({run.combination.seed for run in runs})
    spread = " ± half of its 95 % confidence interval" if seeds > 1 else ""
    change = f"change: of the mean, from the baseline ({'; '.join(names)}){spread}"
    return fill(f"JCT: job completion time{what}" + (f". {change}" if names else ""), WIDTH)


def outcome(experiment: Experiment, runs: Sequence[RunResult]) -> Iterator[str]:
    """Yield in words how completion times differ from the baseline's.

    The last line is of all jobs together; if jobs differ, one for each of them comes before. Nothing is
    yielded of a single combination.
    """
    rows = compared(experiment, runs)
    for load in dict.fromkeys(one.group.which.load for one in rows):
        others = [one for one in rows if one.group.which.load == load and not one.is_baseline]
        if not others or (baseline := others[0].baseline) is None:
            continue
        firsts = [one.group.runs[0] for one in rows]
        names = [label(experiment, one.group.runs[0], firsts, in_words=True) for one in others]
        against = label(experiment, baseline.runs[0], firsts, in_words=True)
        jobs = jobs_of(experiment, others[0])
        for job in jobs if load is None else [None]:
            changes = [_change(name, one.change(job)) for name, one in zip(names, others, strict=True)]
            whose = job or ("all jobs together" if len(runs[0].jobs) > 1 else "completion time")
            yield f"{whose}: {', '.join(changes)} against {against}"


def _change(name: str, change: Interval | None) -> str:
    if change is None:
        return f"{name} not comparable (no seed in common)"
    chance = "" if change.clear or change.half is None else " (within the spread)"
    return f"{name} {100 * change.mean:+.0f} %{chance}"


SETTLING_LEGEND = f"""settled: n iterations from iteration {LEARNING} on: mean over ideal, mean over
the links' bound, p99 over ideal (-: too few). converged: number of runs
in which every job stays within {CONVERGED - 1:.0%} of ideal until the end, in each {WINDOW}
consecutive iterations and for at least {HELD}; at: median of the iteration where
that begins.
Whole run: progress of the slowest job (1: unhindered), Jain's index (1: even)"""


def settling(experiment: Experiment, runs: Sequence[RunResult]) -> Table:
    """Return a table of how runs settled: one row per policy and congestion control."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    result.add_column("run", overflow="fold")
    headings = ("settled\n× ideal", "\n× bound", "\np99", "\nn", "con-\nverged", "\nat", "slowest", "Jain")
    for heading in headings:
        result.add_column(heading, justify="right", no_wrap=True)
    firsts = [group.runs[0] for group in summarized(runs)]
    for group in summarized(runs):
        at = [each for each in group.converged_at if each is not None]
        even = [fairness(run) for run in group.runs]
        figures = group.settled
        result.add_row(
            label(experiment, group.runs[0], firsts),
            f"{figures.over_ideal:.3f}" if figures else "-",
            f"{figures.over_bound:.3f}" if figures else "-",
            f"{figures.over_ideal_p99:.3f}" if figures and figures.has_p99 else "-",
            str(figures.iterations) if figures else "-",
            f"{len(at)}/{len(group.runs)}",
            f"{median(at):g}" if at else "-",
            f"{min(each.slowest for each in even):.2f}",
            f"{fmean(each.jain for each in even):.3f}",
        )
    return result


SHIFTING_LEGEND = f"""score: how well jobs fit on the links that they share (1: no phases collide).
shift: by how much a job was delayed. × ideal: iteration time over the ideal,
from iteration {SHIFTED} after the shift on. drift: how much later than its pace an
iteration could start, p99. corr.: how often drift was corrected, and per job
and minute. waits: part of its time that a job waits for its pace. marks: ECN
marks per iteration from then on"""


def shifting(experiment: Experiment, runs: Sequence[RunResult]) -> Table:
    """Return a table of how policy cassini shifted jobs: one row per run."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    result.add_column("run", overflow="fold")
    for heading in SHIFTING_HEADINGS:
        result.add_column(heading.replace(" ", "\n"), justify="right")
    for run in runs:
        if run.paced.score is not None:
            result.add_row(label(experiment, run, runs), *shifting_cells(run))
    return result


SHIFTING_HEADINGS = ("score", "shift, ms", "× ideal", "drift, ms", "corr.", "/ min", "waits", "marks")


def shifting_cells(run: RunResult) -> list[str]:
    """Return a row of that table, under SHIFTING_HEADINGS."""
    paced = run.paced

    return [
        _cell(paced.score, ".2f"),
        ", ".join(f"{job} {shift:.0f}" for job, shift in paced.shifts_ms.items()) or "-",
        _cell(over_ideal_shifted(run), ".3f"),
        _cell(paced.drift_ms_p99, ".1f"),
        str(paced.corrections),
        _cell(paced.adjustments_per_minute, ".1f"),
        "-" if paced.waited is None else f"{100 * paced.waited:.1f} %",
        _cell(marks_shifted(run), ".4g"),
    ]


UNFAIR_LEGEND = f"""score: how well the job fits with those that share its links (1: no phases
collide). fair, unfair: mean iteration time under policies none and unfair,
without the first {MEETING:.0%} of iterations. gain: fair / unfair"""


def unfairness(found: Sequence[Gain]) -> Table:
    """Return a table of each job's gain beside its score (table 3.1 of the Cassini and MLTCP thesis)."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    result.add_column("job", overflow="fold")
    for heading in ("score", "fair\nms", "unfair\nms", "gain"):
        result.add_column(heading, justify="right", no_wrap=True)
    for each in found:
        score = "-" if each.score is None else f"{each.score:.2f}"
        result.add_row(each.job, score, f"{each.fair_ms:.1f}", f"{each.unfair_ms:.1f}", f"{each.gain:.2f}")
    return result


CLUSTER_LEGEND = """JRT, JWT, JCT: running, waiting and completion time, means over all jobs of a
run, which differ in length. alone: iteration time over the same job's alone,
p99. -: a p99 of fewer than 100. flows: largest number of simultaneous flows
on one fabric link, of all jobs. waits: failed attempts to place a job for want
of GPUs, and of links. circuits: made in the run"""


def cluster(experiment: Experiment, runs: Sequence[RunResult]) -> Table:
    """Return a table with one row per run on a cluster (table 4 of the vClos paper)."""
    result = Table(
        title=f"{experiment.name} on {experiment.target}",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    result.add_column("run", no_wrap=True)
    headings = ("JRT s\nmean", "\np99", "JWT s\nmean", "\np99", "JCT s\nmean", "\np99")
    for heading in (*headings, "alone\np99", "flows", "waits:\nGPUs", "\nlinks", "cir-\ncuits"):
        result.add_column(heading, justify="right", no_wrap=True)
    for run, values in zip(runs, document(experiment, runs)["runs"], strict=True):
        alone, causes = values["over_alone_p99"], values["fragmentation"]
        result.add_row(
            label(experiment, run, runs),
            *(
                _cell(values[f"{key}_s_{part}"], ".3g")
                for key in ("jrt", "jwt", "jct")
                for part in ("mean", "p99")
            ),
            _cell(alone, ".2f"),
            *(str(each) for each in (run.max_flows_per_link_all, causes["gpu"], causes["network"])),
            str(values["circuits_changed"]),
        )
    return result


def all_tables(experiment: Experiment, runs: Sequence[RunResult]) -> Iterator[tuple[Table, str]]:
    """Yield all tables that apply to `runs`, with their legends."""
    if experiment.cluster is not None:
        yield cluster(experiment, runs), CLUSTER_LEGEND
    else:
        yield table(experiment, runs), legend(runs)
    if len(summarized(runs)) > 1:
        yield completion(experiment, runs), completion_legend(experiment, runs)
    if experiment.cluster is not None:
        return
    if experiment.controls:
        yield settling(experiment, runs), SETTLING_LEGEND
    if any(run.paced.score is not None for run in runs):
        yield shifting(experiment, runs), SHIFTING_LEGEND
    if found := gains(experiment, runs):
        yield unfairness(found), UNFAIR_LEGEND


def show(experiment: Experiment, runs: Sequence[RunResult], console: Console) -> None:
    """Print all tables that apply to `runs`, with their legends.

    On a narrower terminal their lines run over its edge: squeezed, columns of words would have two letters.
    """
    width = console.width
    for each, legend in all_tables(experiment, runs):
        console.width = max(width, WIDTH)
        console.print(each)
        console.width = width
        console.print(legend)
    if said := queues.sentence(runs):
        console.print(said, highlight=False)
    if width < WIDTH:
        console.print(f"note: these tables need {WIDTH} columns, and this terminal has {width}")


def remarks(runs: Sequence[RunResult]) -> Iterable[str]:
    """Yield remarks that limit the meaning of the results."""
    busiest = max(run.overhead["processor_busy"] for run in runs)
    if busiest > BUSY_LIMIT:
        yield (
            f"CPU saturation inflated these times (CPUs {busiest:.0%} busy); "
            f"use lower rates (rate_mbps), or a machine with more cores"
        )
    stolen = max(run.overhead.get("processor_stolen", 0.0) for run in runs)
    if stolen > STOLEN_LIMIT:
        yield (
            f"this machine's own host gave up to {stolen:.1%} of the CPUs' time to others, so packets and "
            "timers were late; repeat the runs at another time"
        )
    if restored := max(run.overhead.get("windows_restored", 0) for run in runs):
        yield (
            f"the kernel skipped up to {restored} decisions of congestion controls in a run, and packets "
            "left in bursts: some kernels run no eBPF in the context of process 1; keep the runs on one "
            "processor (taskset -c 0 entrain run ...), if that has time for them"
        )
    if (equal := losses_equal(runs)) is not None:
        yield (
            "training losses are bit-identical in all runs of a seed"
            if equal
            else "training losses differ between runs of a seed: the network affected the training"
        )
    if relayed := [run.overhead for run in runs if run.overhead.get("relays")]:
        cost = max(each["relays_cpu_s"] / each["run_s"] for each in relayed)
        late = max(each["relays_late_ms_p99"] for each in relayed)
        yield (
            f"this kernel has no netem: {relayed[0]['relays']} relay process(es) delayed packets, for up to "
            f"{cost:.0%} of a CPU; 99 % of the packets left within {late:.2f} ms of their time"
        )
    if any(run.overhead["unattributed_bytes"] for run in runs):
        yield "some traffic on the fabric links belongs to no job; see overhead.unattributed_bytes"
