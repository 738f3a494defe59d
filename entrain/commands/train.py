"""`entrain train`: run an unmodified training script, and publish its progress for the host's scheduler."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import click

from machine.errors import BadInput, EntrainError
from machine.packages import ROOT
from machine.process import become
from wire.progress import DIRECTORY_VARIABLE, JOB_VARIABLE, make_directory, progress_directory
from workloads.tcp_counters import CONTROL_VARIABLE, MARK_VARIABLE

HOOK = ROOT / "workloads" / "torch_hook"
CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def environment(
    job: str | None, control: str | None, mark: int | None, progress: Path | None
) -> dict[str, str]:
    """Return the variables that are added to the command's environment."""
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {
        "PYTHONPATH": os.pathsep.join(paths),
        JOB_VARIABLE: job,
        CONTROL_VARIABLE: control,
        MARK_VARIABLE: None if mark is None else str(mark),
        DIRECTORY_VARIABLE: None if progress is None else str(progress.absolute()),
    }
    return {name: value for name, value in given.items() if value}


@click.command(
    short_help="Run a PyTorch script, and publish its progress.",
    context_settings={"ignore_unknown_options": True},
)
@click.option("--job", help="The job's name in progress and reports; default: the script's.")
@click.option(
    "--congestion-control", "control", help="For connections that carry gradients, for example slot_cubic."
)
@click.option(
    "--mark",
    type=click.IntRange(1, 2**32 - 1),
    help="Socket mark of these connections: MLTCP's job number. Needs CAP_NET_ADMIN.",
)
@click.option(
    "--progress",
    type=click.Path(path_type=Path),
    help=f"Where progress is published; default: ${DIRECTORY_VARIABLE}, else /run/entrain/progress.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    job: str | None,
    control: str | None,
    mark: int | None,
    progress: Path | None,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM, and publish the progress of each PyTorch DistributedDataParallel in it.

    \b
    entrain train -- python train.py --epochs 3
    entrain train --job vgg -- torchrun --nproc-per-node 2 train.py
    """
    if control and control not in (there := CONTROLS.read_text(encoding="utf-8").split()):
        raise BadInput(
            f"--congestion-control: {control!r} is not available; use one of {', '.join(there)}; "
            f"slot_reno and slot_cubic are available while entrain-agent runs"
        )
    if mark is not None:
        _check_marks()
    make_directory(progress or progress_directory())
    become(program, {**os.environ, **environment(job, control, mark, progress)}, "; give one after --")


def _check_marks() -> None:
    """Raise EntrainError if this process may not mark sockets."""
    with socket.socket() as trial:
        try:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)
        except OSError as error:
            raise EntrainError(
                f"--mark: sockets cannot be marked ({error.strerror}); run as root or with CAP_NET_ADMIN"
            ) from error
