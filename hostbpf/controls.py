"""The congestion controls of this machine: registered by whoever comes first, joined by the others.

The kernel's list of congestion controls knows no namespaces, so the agents of several emulated hosts on one
machine share one registration. It is held by the first; its maps are pinned in `DIRECTORY`.
"""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ebpf import EbpfError, Map, Object
from ebpf.struct_ops import compile_control, held
from hostbpf import mltcp
from hostbpf.rates import schedules as slots
from machine.errors import EntrainError, MissingTool
from machine.plugins import extended
from machine.record import RECORDS, SHARED, Record, Resource, is_owned
from machine.state import locked, own_directory

BPF_FS = Path("/sys/fs/bpf")
DIRECTORY = BPF_FS / "entrain"
LOCK = "controls.lock"
GROUP = "entrain.congestion_controls"
"""Entry points at which other distributions register congestion controls: the path of an eBPF program in C,
with a `struct tcp_congestion_ops` that has the name of the entry."""


@dataclass(frozen=True)
class Controls:
    """The maps behind the registered controls."""

    jobs: mltcp.Jobs
    schedules: Map
    own: bool  # whether this process holds the registration


@contextlib.contextmanager
def controls(record: Record, directory: Path = DIRECTORY) -> Iterator[Controls]:
    """Within, this machine has the controls of `hostbpf.mltcp` and `hostbpf.rates.schedules`.

    They stay registered until the last process that uses them ends (before Linux 6.4: the first). What is
    pinned belongs to the records of all.
    Raises EbpfError where they are registered by somebody whose maps are not in `directory`, EntrainError
    where that directory is another user's.
    """
    _mount_bpf_fs(directory)
    pins = Resource("path", str(directory), detail=SHARED)
    with contextlib.ExitStack() as stack:
        with _turn():
            found = _register_or_join(directory, stack)
            # Pins that belong to no record here (another ENTRAIN_RUN) are not ours to remove.
            shares = found.own or is_owned(pins, record.path.parent)
            if shares:
                record.own(pins)
        try:
            yield found
        finally:
            with _turn():
                if shares:
                    record.release(pins)
                    if not directory.exists():  # this was the last user
                        found.schedules.clear()
                stack.close()


def others() -> dict[str, Path]:
    """Return the sources of the congestion controls of other distributions, by name. Raises EntrainError for
    one that cannot be loaded or is none."""
    return extended(GROUP, {}, Path)


@contextlib.contextmanager
def registered(names: Collection[str]) -> Iterator[None]:
    """Within, this machine has those of `names` that come from other distributions; the kernel has the rest.

    Each is compiled once, and removed at the end or with this process. Raises EbpfError if one does not
    compile or load, and EntrainError if the machine already has another of this name.
    """
    with contextlib.ExitStack() as stack:
        for name, source in others().items():
            if name in names:
                stack.enter_context(_registered(name, source))
        yield


@contextlib.contextmanager
def _registered(name: str, source: Path) -> Iterator[None]:
    with Object.open(compile_control(source)) as program:
        program.load()
        if name not in program.maps:
            raise EntrainError(f"{source}: has no struct tcp_congestion_ops that is called {name}; rename it")
        try:
            link = program.register(name)
        except EbpfError as error:
            if error.errno != errno.EEXIST:
                raise
            raise EntrainError(
                f"the congestion control {name} of {source} is already registered on this machine; end the "
                f"run or the process that has it, or give yours another name"
            ) from error
        with link:
            yield


def _register_or_join(directory: Path, stack: contextlib.ExitStack) -> Controls:
    try:
        jobs = stack.enter_context(mltcp.registered(directory=directory))
        pacing = slots.pacing_registered(directory=directory, restored=jobs.restored)
        return Controls(jobs, stack.enter_context(pacing), True)
    except EbpfError as error:
        if error.errno != errno.EEXIST:
            raise
        stack.close()
    if directory.exists():
        own_directory(directory)
    for link in held((*mltcp.VARIANTS, *mltcp.PLAIN, *slots.PACED)):
        stack.enter_context(link)
    try:
        jobs = stack.enter_context(mltcp.Jobs.pinned(directory))
        return Controls(jobs, stack.enter_context(slots.pinned_schedules(directory)), False)
    except EbpfError as error:
        raise EbpfError(
            f"the congestion controls are registered by a process whose maps are not in {directory}, so they "
            f"cannot be joined; end it first: {error}",
            errno=error.errno,
        ) from error


def _turn() -> contextlib.AbstractContextManager[None]:
    """One process at a time: who comes second finds the maps of the first pinned."""
    return locked(own_directory(RECORDS) / LOCK)


def _mount_bpf_fs(directory: Path) -> None:
    if BPF_FS not in directory.parents or BPF_FS.is_mount():
        return
    command = ["mount", "-t", "bpf", "-o", "mode=0700", "bpf", str(BPF_FS)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise MissingTool(f"{BPF_FS}: no BPF file system, and it cannot be mounted: {mounted.stderr.strip()}")
