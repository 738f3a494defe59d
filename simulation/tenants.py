"""Seeded workloads of a GPU cluster with the distributions of vClos' evaluation, and a reader of its traces.

What the paper leaves open is taken from the authors' public simulator (github.com/nothepeople/RapidNetSim),
which states no licence: entrain has none of its files, only distributions measured from them and parameters
that they state.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from machine.errors import BadInput
from schedulers.compiled import Floats, Ints
from simulation.tenancy import Tenant
from simulation.traces import Place

SMALL = (
    *(0.25, 0.23, 0.16, 0.10, 0.07, 0.04),  # VGG16 at batch sizes 4 to 96
    *(0.04, 0.05, 0.04, 0.03, 0.02),  # ResNet50 at 16 to 128
    *(0.05, 0.05, 0.04, 0.02),  # ResNet101 at 16 to 96
    *(0.12, 0.08),  # BERT at 16 and 32
)
"""Share of communication that computation does not hide, by model and batch size, as the authors' simulator
(commit 890901b) has it from their testbed."""

MOE = 0.258 + 0.0737 + 0.0158 + 0.0002
"""The same of a model of 600 billion parameters: all-to-all, allreduce, all-gather and reduce-scatter. The
paper (4.2) names the first."""

TRACE, SCALED = "trace", "trace, scaled"
"""Sizes that are a trace's: with its durations and arrivals, or with scaled durations and drawn arrivals."""

POWERS = (4, 8, 16, 32)
TPU = (64, 128, 192, 256, 384, 512)
TPU_SHARES = (0.34, 0.175, 0.007, 0.117, 0.001, 0.27)
"""Shares of TPU v4 slices by number of chips, as the authors' simulator (890901b) has them; 512 and more
count as 512. The other 9 % are spread evenly over `POWERS`, for which its numbers contradict each other."""


@dataclass(frozen=True)
class Sample:
    """Job sizes in GPUs and the durations that go with them: s if there are arrivals, or else in any unit."""

    gpus: Ints
    durations: Floats
    arrivals: Floats | None = None
    """Ascending, s; None: to be drawn."""


def helios_like(count: int, random: np.random.Generator) -> Sample:
    """Draw sizes and durations as in the authors' request sequence of 1,574 jobs, whose sizes are Helios'.

    72 % of its jobs have a server of 8 GPUs, 19 % less, and 9 % from 16 to 256 in multiples of 8, about
    evenly. Its durations are even from 500 to 2,000.
    """
    small = random.choice([1, 2, 4, 8], count, p=np.array([227, 54, 23, 1132]) / 1436)
    large = 8 * random.integers(2, 33, count)
    gpus = np.where(random.random(count) < 138 / 1574, large, small)
    return Sample(gpus.astype(np.int64), random.uniform(500.0, 2000.0, count))


def powers_of_two(count: int, random: np.random.Generator) -> Sample:
    """Draw sizes with Helios' counts as the authors' simulator (62e552a) has them: powers of two only."""
    counts = np.array([11136, 829, 1109, 4257, 400, 925, 76, 80, 13])
    gpus = random.choice(2 ** np.arange(len(counts)), count, p=counts / counts.sum())
    return Sample(gpus.astype(np.int64), random.uniform(500.0, 2000.0, count))


def tpu_like(count: int, random: np.random.Generator) -> Sample:
    """Draw sizes as of slices of TPU v4. Source: vClos, 9.8."""
    rest = (1.0 - sum(TPU_SHARES)) / len(POWERS)
    gpus = random.choice([*POWERS, *TPU], count, p=[*[rest] * len(POWERS), *TPU_SHARES])
    return Sample(gpus.astype(np.int64), random.uniform(500.0, 2000.0, count))


def testbed_like(count: int, random: np.random.Generator) -> Sample:
    """Draw sizes as on vClos' testbed: 2, 4, 8 or 16. Source: vClos, 8.1."""
    return Sample(random.choice([2, 4, 8, 16], count), random.uniform(500.0, 2000.0, count))


SIZES = {"helios": helios_like, "powers": powers_of_two, "tpu": tpu_like, "testbed": testbed_like}


def read_requests(path: Path) -> Sample:
    """Read the authors' request sequence, a list of (arrival, duration, GPUs), or their elastic trace, lines
    of arrival, GPUs and duration, all in seconds. Arrivals are from the first one on. Raises BadInput naming
    file, line and remedy."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error})") from error
    if text.lstrip().startswith("["):
        try:
            rows = [(1, [str(field) for field in row]) for row in ast.literal_eval(text.strip())]
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise BadInput(f"{path}: is no list of (arrival, duration, GPUs): {error}") from None
        columns = ("arrival", "duration", "GPUs")
    else:
        rows = [(n, line.split()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        columns = ("arrival", "GPUs", "duration")
    if not rows:
        raise BadInput(f"{path}: has no jobs; give at least one")
    gpus, durations, arrivals = [], [], []
    for line, row in rows:
        place = Place(path, line)
        if len(row) != 3:
            raise place.error(len(row), f"has {len(row)} fields", f"give {', '.join(columns)}")
        fields = dict(zip(columns, row, strict=True))
        arrivals.append(place.number("arrival", fields["arrival"]))
        gpus.append(place.integer("GPUs", fields["GPUs"], low=1))
        durations.append(place.number("duration", fields["duration"], exclusive=True))
    order = np.argsort(arrivals, kind="stable")
    since = np.array(arrivals)[order]
    return Sample(np.array(gpus)[order], np.array(durations)[order], since - since[0])


def tenants(
    sample: Sample, gap_s: float, mean_duration_s: float, *, seed: int = 0, split: bool = False
) -> list[Tenant]:
    """Return jobs with the sizes of `sample`, and its arrivals and durations if it has arrivals.

    Otherwise its durations are scaled to a mean of `mean_duration_s`, and arrivals are a Poisson process with
    a mean gap of `gap_s` (the paper's λ). Half of the jobs whose size is
    a power of two run halving-doubling, and three tenths a large model's all-to-all; the others run
    hierarchical rings. So does the authors' simulator (890901b); with `split` the three collectives have
    equal shares, as on the testbed (8.1).
    """
    if sample.arrivals is None and (gap_s <= 0 or mean_duration_s <= 0):
        raise BadInput(f"a mean gap of {gap_s} s and a duration of {mean_duration_s} s must be positive")
    random = np.random.default_rng((seed, 1))
    count = len(sample.gpus)
    if sample.arrivals is None:
        arrivals = np.cumsum(random.exponential(gap_s, count))
        durations = sample.durations * mean_duration_s / sample.durations.mean()
    else:
        arrivals, durations = sample.arrivals, sample.durations
    drawn = random.random(count)
    small = random.choice(SMALL, count)
    limits = (1 / 3, 2 / 3) if split else (0.5, 0.7)
    made = []
    for number, (gpus, arrival, duration, value, share) in enumerate(
        zip(sample.gpus.tolist(), arrivals, durations, drawn, small, strict=True)
    ):
        power = gpus & (gpus - 1) == 0
        if power and value < limits[0]:
            pattern = "halving-doubling"
        elif value < limits[1] or not power:
            pattern = "hierarchical-ring"
        else:
            pattern, share = "all-to-all", MOE
        made.append(Tenant(f"j{number}", gpus, float(arrival), float(duration), float(share), pattern))
    return made


def sized(name: str, count: int, trace: Path | None, seed: int) -> Sample:
    """Return `count` jobs' sizes: of the trace, repeated as needed, or drawn by the distribution's name.

    If the name is TRACE, return the first `count` jobs of the trace as they are (0: all).
    """
    if trace is None:
        return SIZES[name](count, np.random.default_rng((seed, 0)))
    whole = read_requests(trace)
    if name == TRACE:
        own = slice(count or None)
        assert whole.arrivals is not None
        return Sample(whole.gpus[own], whole.durations[own], whole.arrivals[own])
    which = np.arange(count) % len(whole.gpus)
    return Sample(whole.gpus[which], whole.durations[which])


def by_size(tenants: Sequence[Tenant], times: Floats) -> float:
    """Return the mean over job sizes of the standard deviation of `times`, jobs weighted equally. Source:
    vClos, 9.3 (stability: the same job should take the same time)."""
    gpus = np.array([t.gpus for t in tenants])
    spread = sum(float(times[gpus == size].std()) * int((gpus == size).sum()) for size in np.unique(gpus))
    return spread / len(gpus)
