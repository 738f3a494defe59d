"""Tables of results on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from entrain.experiment import Experiment
from entrain.results import queues
from entrain.results.gains import MEETING, Gain, gains
from entrain.results.values import (
    CONVERGED,
    HELD,
    LEARNING,
    SETTLED_LEAST,
    SHIFTED,
    WINDOW,
    RunResult,
    best_tcp_jct_s,
    document,
    fairness,
    losses_equal,
    marks_shifted,
    over_ideal_shifted,
    strategy,
    summarized,
)

LEGEND = """mean, p99: iteration time over all iterations. flows: largest number of
simultaneous flows on one fabric link, as measured: of the job in one step of
its collective, and of all jobs. ECN marks: marked segments per iteration"""

WIDTH = 80
"""Columns that the tables fit into."""
BUSY_LIMIT = 0.9
"""Above this CPU utilisation, the CPUs rather than the emulated links may have limited the runs."""
STOLEN_LIMIT = 0.01
"""Above this part of the CPUs' time, what a virtual machine's host has taken may have delayed the runs."""


def label(run: RunResult, runs: Sequence[RunResult]) -> str:
    """Return the parameters that distinguish `run` from the other runs."""
    combination = run.combination
    parts: list[str] = []
    if combination.load is not None:
        parts.append(f"{combination.load:g} %")
    if len({strategy(other.combination) for other in runs}) > 1:
        parts.append(strategy(combination))
    if len({other.combination.policy for other in runs}) > 1:
        parts.append(combination.policy)
    if len({other.combination.control for other in runs}) > 1:
        parts.append(str(combination.control))
    if len({other.combination.seed for other in runs}) > 1:
        parts.append(f"seed {combination.seed}")
    return ", ".join(parts) or strategy(combination)


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
    marked = any(job.summary.marks for run in runs for job in run.jobs)
    marks = ("ECN\nmarks",) if marked else ()
    for heading in ("mean\nms", "p99\nms", "×\nideal", "JCT\ns", "flows:\njob", "\nall", *marks):
        result.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        for job in run.jobs:
            first = job is run.jobs[0]
            result.add_row(
                label(run, runs) if first else "",
                job.name,
                job.summary.collective,
                f"{job.mean_ms:.1f}",
                f"{job.summary.iteration_ms_p99:.1f}",
                f"{job.ratio_to_ideal:.2f}",
                f"{job.summary.jct_s:.2f}",
                str(job.max_flows_per_link),
                str(run.max_flows_per_link_all) if first else "",
                *([f"{job.summary.marks_per_iteration:.4g}"] if marked else []),
                end_section=job is run.jobs[-1],
            )
    return result


COMPLETION_LEGEND = """JCT: job completion time (s) over the jobs of all seeds. vs. TCP: change of
the mean from the best plain TCP (policy none)"""


def completion(runs: Sequence[RunResult]) -> Table:
    """Return a table of completion times (figure 8 and table I of the flow-scheduling paper).

    One row per routing, policy and congestion control, over all seeds, compared with the best plain TCP.
    """
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("routing", "policy", "control"):
        result.add_column(heading)
    for heading in ("JCT\nmean", "\nmin", "\nmax", "\np99", "vs.\nTCP"):
        result.add_column(heading, justify="right", no_wrap=True)
    for group in summarized(runs):
        which = group.runs[0].combination
        best = best_tcp_jct_s(runs, which.load)
        load = "" if which.load is None else f"{which.load:g} %, "
        result.add_row(
            *(f"{load}{strategy(which)}", which.policy, str(which.control or "")),
            *(f"{value:.2f}" for value in group.completion.document().values()),
            f"{group.completion.mean / best - 1:+.1%}" if best else "-",
        )
    return result


SETTLING_LEGEND = f"""settled: n iterations from iteration {LEARNING} on: mean over ideal, mean over
the links' bound, p99 over ideal (-: fewer than {SETTLED_LEAST}). converged: number of runs
in which every job stays within {CONVERGED - 1:.0%} of ideal until the end, in each {WINDOW}
consecutive iterations and for at least {HELD}; at: median of the iteration where
that begins.
Whole run: progress of the slowest job (1: unhindered), Jain's index (1: even)"""


def settling(runs: Sequence[RunResult]) -> Table:
    """Return a table of how runs settled: one row per policy and congestion control."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    result.add_column("policy")
    result.add_column("control")
    headings = ("settled\n× ideal", "\n× bound", "\np99", "\nn", "con-\nverged", "\nat", "slowest", "Jain")
    for heading in headings:
        result.add_column(heading, justify="right", no_wrap=True)
    routings = len({strategy(run.combination) for run in runs})
    for group in summarized(runs):
        which = group.runs[0].combination
        load = "" if which.load is None else f"{which.load:g} %, "
        at = [each for each in group.converged_at if each is not None]
        even = [fairness(run) for run in group.runs]
        figures = group.settled
        result.add_row(
            load + (f"{strategy(which)}, {which.policy}" if routings > 1 else which.policy),
            str(which.control),
            f"{figures.over_ideal:.3f}" if figures else "-",
            f"{figures.over_bound:.3f}" if figures else "-",
            f"{figures.over_ideal_p99:.3f}" if figures else "-",
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


def shifting(runs: Sequence[RunResult]) -> Table:
    """Return a table of how policy cassini shifted jobs: one row per run."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    result.add_column("run", overflow="fold")
    for heading in SHIFTING_HEADINGS:
        result.add_column(heading.replace(" ", "\n"), justify="right")
    for run in runs:
        if run.paced.score is not None:
            result.add_row(label(run, runs), *shifting_cells(run))
    return result


SHIFTING_HEADINGS = ("score", "shift, ms", "× ideal", "drift, ms", "corr.", "/ min", "waits", "marks")


def shifting_cells(run: RunResult) -> list[str]:
    """Return a row of that table, under SHIFTING_HEADINGS."""
    paced = run.paced

    def cell(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return [
        cell(paced.score, ".2f"),
        ", ".join(f"{job} {shift:.0f}" for job, shift in paced.shifts_ms.items()) or "-",
        cell(over_ideal_shifted(run), ".3f"),
        cell(paced.drift_ms_p99, ".1f"),
        str(paced.corrections),
        cell(paced.adjustments_per_minute, ".1f"),
        "-" if paced.waited is None else f"{100 * paced.waited:.1f} %",
        cell(marks_shifted(run), ".4g"),
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


CLUSTER_LEGEND = """JRT, JWT, JCT: running, waiting and completion time of the jobs, all seeds.
alone: iteration time over the same job's alone, p99. flows: largest number of
simultaneous flows on one fabric link, of all jobs. waits: failed attempts to
place a job for want of GPUs, and of links. circuits: made in the run"""


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
            label(run, runs),
            *(
                f"{values[f'{key}_s_{part}']:.3g}"
                for key in ("jrt", "jwt", "jct")
                for part in ("mean", "p99")
            ),
            "-" if alone is None else f"{alone:.2f}",
            *(str(each) for each in (run.max_flows_per_link_all, causes["gpu"], causes["network"])),
            str(values["circuits_changed"]),
        )
    return result


def all_tables(experiment: Experiment, runs: Sequence[RunResult]) -> Iterator[tuple[Table, str]]:
    """Yield all tables that apply to `runs`, with their legends."""
    if experiment.cluster is not None:
        yield cluster(experiment, runs), CLUSTER_LEGEND
        if experiment.policy != ("none",):
            yield completion(runs), COMPLETION_LEGEND
        return
    yield table(experiment, runs), LEGEND
    if len(experiment.jobs) > 1 and len(summarized(runs)) > 1:
        yield completion(runs), COMPLETION_LEGEND
    if experiment.controls:
        yield settling(runs), SETTLING_LEGEND
    if any(run.paced.score is not None for run in runs):
        yield shifting(runs), SHIFTING_LEGEND
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
