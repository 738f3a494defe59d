"""MLTCP congestion controls: registering them, parameters per job, what they have learned.

A flow takes part when it chooses one of `VARIANTS` (TCP_CONGESTION) and its socket mark (SO_MARK) is the
number of a job that has parameters. Bytes and iterations are counted per job and network namespace, over all
such flows.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ebpf import Codec, Map, Object, TypedMap
from ebpf.struct_ops import compile_control
from hostbpf import SOURCES
from machine.errors import BadInput
from machine.state import own_directory

VARIANTS = ("mltcp_reno", "mltcp_cubic", "mltcp_dctcp")
PLAIN = ("bpf_reno", "bpf_cubic", "bpf_dctcp")  # the same controls in eBPF without MLTCP

_UNIT = 1024  # of slope and intercept in the kernel
_SCALE_DECREASE = 1
_CLOCK_MONOTONIC_COARSE = 6  # time.h; the module time has no name for it


@dataclass(frozen=True)
class Params:
    """What a job wants: F(r) = slope * r + intercept, r = min(1, bytes sent in this iteration / total_bytes).

    `total_bytes` is per iteration, over all flows of the job in one network namespace; an iteration begins
    after a gap between acknowledgements longer than `gap_ms`, which lies above the longest round trip and
    retransmission stall and below the computing phase. None: learned over the first iterations.
    `scale_decrease` divides the variant's multiplicative decrease by F too. Raises BadInput for values that
    the kernel side cannot hold.
    """

    slope: float = 1.75
    intercept: float = 0.25
    total_bytes: int | None = None
    gap_ms: float | None = None
    scale_decrease: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.slope <= 8:
            raise BadInput(f"slope {self.slope}: must be between 0 and 8")
        if not 0 < self.intercept <= 8:
            raise BadInput(f"intercept {self.intercept}: must be above 0 (a flow must grow) and at most 8")
        if self.total_bytes is not None and not 0 < self.total_bytes <= 1 << 40:
            raise BadInput(f"total_bytes {self.total_bytes}: must be between 1 and 2^40")
        if self.gap_ms is not None and not 0 < self.gap_ms <= 3_600_000:
            raise BadInput(f"gap_ms {self.gap_ms}: must be above 0 and at most an hour")

    def raw(self) -> _RawParams:
        """As the kernel side has it."""
        return _RawParams(
            round(self.slope * _UNIT),
            max(1, round(self.intercept * _UNIT)),
            self.total_bytes or 0,
            round((self.gap_ms or 0) * 1e6),
            _SCALE_DECREASE if self.scale_decrease else 0,
        )

    @classmethod
    def of(cls, raw: _RawParams) -> Params:
        """From what the kernel side has."""
        return cls(
            raw.slope / _UNIT,
            raw.intercept / _UNIT,
            raw.total_bytes or None,
            raw.gap_ns / 1e6 if raw.gap_ns else None,
            bool(raw.flags & _SCALE_DECREASE),
        )


class _RawParams(NamedTuple):
    slope: int
    intercept: int
    total_bytes: int
    gap_ns: int
    flags: int


class JobKey(NamedTuple):
    """A job's number (its flows' socket mark) on one host (its network namespace's cookie)."""

    job: int
    netns: int


class JobState(NamedTuple):
    """What the kernel side knows of a job on one host; times are CLOCK_MONOTONIC nanoseconds.

    `total_bytes` and `gap_ns` are what was learned (0: not yet, or given by the parameters).
    """

    last_ack_ns: int
    iteration_ns: int
    bytes: int
    last_bytes: int
    total_bytes: int
    gap_ns: int
    longest_gap_ns: int
    shortest_gap_ns: int
    iteration: int
    samples: int
    misfits: int
    relearned: int


_INT = Codec("=I", int)
_RAW_PARAMS = Codec("=IIQQI", _RawParams)
_JOB_KEY = Codec("=IxxxxQ", JobKey)
_JOB_STATE = Codec("=8Q4I", JobState)
_COUNT = Codec("=Q", int)
SHARED = ("mltcp_params", "mltcp_jobs", "restored_windows")
"""The maps that all controls have in common, and that other processes find pinned."""


class Jobs:
    """Parameters and states of jobs: a view of the controls' maps."""

    def __init__(self, params: Map, states: Map, restored: Map) -> None:
        self._params = TypedMap(params, _INT, _RAW_PARAMS)
        self.states = TypedMap(states, _JOB_KEY, _JOB_STATE)
        self.restored = restored

    @classmethod
    @contextlib.contextmanager
    def pinned(cls, directory: Path) -> Iterator[Jobs]:
        """Those that another process registered with this `directory`."""
        with contextlib.ExitStack() as stack:
            maps = []
            for name in SHARED:
                maps.append(Map.open_pinned(directory / name))
                stack.callback(os.close, maps[-1].fd)
            yield cls(*maps)

    def params(self) -> dict[int, Params]:
        """The parameters in force, by job."""
        return {job: Params.of(raw) for job, raw in self._params.items()}

    def set_params(self, job: int, params: Params) -> None:
        """Let flows with socket mark `job` take part, from their next acknowledgement on, as `params` say."""
        if not 0 <= job < 1 << 32:
            raise BadInput(f"job {job}: the number must fit 32 bits")
        self._params[job] = params.raw()

    def restored_windows(self) -> int:
        """How many windows of all controls, those of slots too, had to be restored (`window.h`)."""
        return TypedMap(self.restored, _INT, _COUNT)[0]

    def remove(self, job: int) -> None:
        """Let the flows of `job` grow as the plain variant does, and forget what was learned."""
        self._params.pop(job, None)
        for key in [key for key in self.states if key.job == job]:
            self.states.pop(key, None)


def jiffies_per_second() -> int:
    """The kernel's HZ: its coarse clocks advance once per jiffy (clock_getres(2)).

    The kernel's configuration says it too, but not every kernel shows it.
    """
    return round(1 / time.clock_getres(_CLOCK_MONOTONIC_COARSE))


@contextlib.contextmanager
def registered(
    params: Mapping[int, Params] | None = None, *, directory: Path | None = None
) -> Iterator[Jobs]:
    """Within, sockets of this machine can choose `VARIANTS` and `PLAIN` (the kernel's list is global).

    The registrations end with the process, however it ends; sockets that have a control keep it. A second
    process that tries gets an EbpfError with errno EEXIST. With `directory`, in a BPF file system and owned
    by the caller's record, the maps are pinned there for `Jobs.pinned`.
    """
    with contextlib.ExitStack() as stack:
        first: Object | None = None
        objects = []
        for variant in ("reno", "cubic", "dctcp"):
            obj = stack.enter_context(Object.open(compile_control(SOURCES / f"mltcp_{variant}.bpf.c")))
            if variant == "cubic":
                obj.set_rodata("hz", struct.pack("=I", jiffies_per_second()))
            if first is not None:
                for name in SHARED:
                    obj.reuse_map(name, first.maps[name])
            obj.load()
            obj.check_record("mltcp_params", _RAW_PARAMS)
            obj.check_record("mltcp_job_key", _JOB_KEY)
            obj.check_record("mltcp_job", _JOB_STATE)
            first = first or obj
            objects.append(obj)
        assert first is not None
        jobs = Jobs(*(first.maps[name] for name in SHARED))
        for job, each in (params or {}).items():
            jobs.set_params(job, each)
        for obj, names in zip(objects, zip(VARIANTS, PLAIN, strict=True), strict=True):
            for name in names:
                stack.enter_context(obj.register(name))
        if directory is not None:
            own_directory(directory, 0o700)
            for name in SHARED:
                (directory / name).unlink(missing_ok=True)  # registration is exclusive: its owner is dead
                first.maps[name].pin(directory / name)
        yield jobs
