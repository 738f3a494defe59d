"""`python -m workloads`: run a job's ranks, and report the results."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before numpy is imported: unused threads would slow down the start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from machine.errors import BadInput, EntrainError
from machine.limits import limits_named
from workloads.collectives import DDP, collectives
from workloads.jobs import JobSpec, load_job, parse_job
from workloads.models import MODELS

if TYPE_CHECKING:
    from rich.table import Table

    from workloads.records import Summary


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workloads", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    worker = commands.add_parser("worker", help="run one rank of a job on this host")
    worker.add_argument("--job", type=Path, required=True, metavar="JOB.json", help="the job's file")
    worker.add_argument("--rank", type=int, required=True, help="number of the rank, from 0")

    launch = commands.add_parser(
        "launch", help="run all ranks of one or more jobs, each in the job's network namespaces"
    )
    launch.add_argument(
        "--job",
        type=Path,
        required=True,
        metavar="JOB.json",
        action="append",
        dest="jobs",
        help="a job's file; repeat it for several jobs",
    )
    launch.add_argument("--json", action="store_true", help="print JSON")

    serve = commands.add_parser("serve", help="run the jobs whose files are named in a pipe, as they come")
    serve.add_argument("--orders", type=Path, required=True, metavar="PIPE", help="a named pipe")

    local = commands.add_parser("local", help="run a job on loopback addresses, without a network")
    what = local.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--job", type=Path, metavar="JOB.json", help="the job's file; its addresses are not used"
    )
    what.add_argument("--model", choices=sorted(MODELS), help="a model, which sets bytes and computation")
    what.add_argument("--bytes", type=int, help="bytes per iteration")
    local.add_argument(
        "--collective",
        choices=sorted((*collectives(), DDP)),
        help="default: the model's; ring with --bytes",
    )
    local.add_argument("--ranks", type=int, help="number of ranks; default: the job's hosts, or 4")
    local.add_argument("--iterations", type=int, help="number of iterations")
    local.add_argument("--scale", type=float, help="divide the model's bytes by this")
    local.add_argument("--compute-ms", type=float, help="computation per iteration, ms")
    local.add_argument("--out", type=Path, metavar="DIR", help="keep the records in this directory")
    local.add_argument("--json", action="store_true", help="print JSON")

    summarize = commands.add_parser(
        "summarize", help="print iteration and completion times from a directory of records"
    )
    summarize.add_argument("directory", type=Path, metavar="DIR", help="the directory of records")
    summarize.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line. Return the exit status: 0 (success), 1 (failure) or 2 (bad input)."""
    arguments = _parser().parse_args(argv)
    try:
        with limits_named():
            return _command(arguments)
    except EntrainError as error:
        print(f"workloads: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1


def _command(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "worker":
            return _worker(arguments)
        case "launch":
            return _launch([load_job(path) for path in arguments.jobs], as_json=arguments.json)
        case "serve":
            from workloads.launch import serve

            serve(arguments.orders)
            return 0
        case "local":
            return _local(arguments)
        case _:
            return _summarize({arguments.directory}, as_json=arguments.json)


def _worker(arguments: argparse.Namespace) -> int:
    from workloads.engine import Terminated, run_rank

    job = load_job(arguments.job)
    if not 0 <= arguments.rank < len(job.hosts):
        raise BadInput(f"--rank: {arguments.rank} is not one of the job's ranks, 0 to {len(job.hosts) - 1}")
    try:
        run_rank(job, arguments.rank)
    except EntrainError as error:
        print(f"workloads: job {job.name}, rank {arguments.rank}: {error}", file=sys.stderr)
        return 128 + signal.SIGTERM if isinstance(error, Terminated) else 1
    return 0


def _launch(jobs: list[JobSpec], *, as_json: bool) -> int:
    from workloads.launch import launch

    status = launch(jobs)
    failed = any(code for ranks in status.values() for code in ranks.values())
    _summarize({job.output for job in jobs}, as_json=as_json)
    return 1 if failed else 0


def _local(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="entrain-local-") as scratch:
        data = _local_job(arguments, Path(scratch))
        return _launch([parse_job(data, str(arguments.job or "command line"))], as_json=arguments.json)


def _local_job(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    data: dict[str, Any] = {"name": "local", "collective": "ring" if arguments.bytes else ""}
    if arguments.job:
        try:
            data = json.loads(arguments.job.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:  # also what is no UTF-8
            raise BadInput(f"{arguments.job}: {error}") from error
        if not isinstance(data, dict):
            raise BadInput(f"{arguments.job}: not a JSON object")
    ranks = arguments.ranks or len(data.get("hosts", ())) or 4
    given = {
        key: getattr(arguments, key)
        for key in ("model", "bytes", "collective", "iterations", "scale", "compute_ms")
    }
    return {
        **data,
        **{key: value for key, value in given.items() if value is not None},
        "hosts": [f"127.0.{1 + rank // 250}.{1 + rank % 250}" for rank in range(ranks)],
        "netns": [],
        "rendezvous": str(scratch),
        "output": str(arguments.out or scratch / "records"),
    }


def _summarize(directories: set[Path], *, as_json: bool) -> int:
    from workloads.records import read_records, summarize

    summaries = [
        summary for directory in sorted(directories) for summary in summarize(read_records(directory))
    ]
    if as_json:
        print(json.dumps({"jobs": [summary.as_dict() for summary in summaries]}))
    else:
        from rich.console import Console

        Console().print(summary_table(summaries))
    for summary in summaries:
        if summary.error:
            print(f"workloads: job {summary.job}: {summary.error}", file=sys.stderr)
    return 0


def summary_table(summaries: Iterable[Summary]) -> Table:
    """Return a table with two lines per job, so that nothing is cut at 80 columns."""
    from machine.terminal import plain_table

    headings = ("job\ncollective", "ranks\niterations", "iteration ms\np99 ms", "JCT s\nCPU s", "MB sent")
    table = plain_table(*headings, text=1)
    for job in summaries:
        mean, p99 = (_decimal(value, 1) for value in (job.iteration_ms_mean, job.iteration_ms_p99))
        table.add_row(
            f"{job.job}\n{job.collective}",
            f"{job.ranks}\n{len(job.iteration_ms)}",
            f"{mean}\n{p99}",
            f"{_decimal(job.jct_s, 3)}\n{job.cpu_s:.2f}",
            f"{job.bytes / 1e6:.1f}",
        )
    return table


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
