"""The 13 models of Cassini's evaluation (table 4.2) and what they send in an iteration.

The thesis gives sizes, batches and few traffic patterns. design/schedulers.md says how the rest was put
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from schedulers.cassini.profile import Phase, Profile
from simulation.topology import GBIT

Pattern = Literal["ring", "all-to-all"]

MIB = 2.0**20
NIC_GBPS = 42.0
"""What a job sends at when it has the network to itself: twice what two jobs get of a link (figure 3.1)."""


@dataclass(frozen=True)
class Burst:
    """An Up phase: it begins after `after` of the iteration's computation and sends `mib` MiB, and
    `mib_per_sample` for each sample, at `gbps`. `reduces`: a ring of n workers sends 2 (n - 1) / n of
    that."""

    after: float
    mib: float = 0.0
    mib_per_sample: float = 0.0
    gbps: float = NIC_GBPS
    reduces: bool = False


@dataclass(frozen=True)
class Model:
    """A model: its computation per sample (ms), the batches per GPU that are drawn, and its Up phases.

    Batches are those that the thesis names; without any, the middle of table 4.2's range.
    """

    name: str
    sample_ms: float
    batches: tuple[int, ...]
    bursts: tuple[Burst, ...]
    pattern: Pattern = "ring"
    least: int = 1
    """GPUs that it needs."""

    @lru_cache(maxsize=4096)  # noqa: B019 (models live as long as the program)
    def profile(self, batch: int, workers: int) -> Profile:
        """Return what each of `workers` GPUs does with a `batch` of its own. One GPU sends nothing."""
        compute = batch * self.sample_ms / 1e3
        phases: list[Phase] = []
        now = 0.0
        for burst in self.bursts:
            phases.append(Phase((burst.after - now) * compute, 0.0))
            now = burst.after
            factor = 2.0 * (workers - 1) / workers if burst.reduces else 1.0
            sent = factor * (burst.mib + burst.mib_per_sample * batch) * MIB
            rate = burst.gbps * GBIT
            phases.append(Phase(sent / rate, rate if workers > 1 else 0.0))
        if now < 1.0:
            phases.append(Phase((1.0 - now) * compute, 0.0))
        return Profile(tuple(phase for phase in phases if phase.seconds > 0.0))


def _data_parallel(
    name: str, mib: float, sample_ms: float, batches: tuple[int, ...], gbps: float = NIC_GBPS
) -> Model:
    return Model(name, sample_ms, batches, (Burst(1.0, mib, gbps=gbps, reduces=True),))


BERT_MS = 22.0 / 8.0
"""BERT's computation per sample, ms. Other language models' is in proportion to their size."""

DATA_PARALLEL = (
    _data_parallel("VGG11", 507, 62 / 1400, (1156,)),
    _data_parallel("VGG16", 528, 126 / 1400, (1200, 1400, 1700)),
    _data_parallel("VGG19", 549, 161 / 1400, (1024, 1200, 1400)),
    _data_parallel("WideResNet101", 243, 135 / 800, (800,), 22.2),
    _data_parallel("ResNet50", 98, 105.5 / 1600, (1600,), 20.9),
    _data_parallel("BERT", 450, BERT_MS, (8,)),
    _data_parallel("RoBERTa", 800, BERT_MS * 800 / 450, (12,)),
    _data_parallel("CamemBERT", 266, BERT_MS * 266 / 450, (20,)),
    _data_parallel("XLM", 1116, BERT_MS * 1116 / 450, (18,)),
)
_GPT3_MS = BERT_MS * 1952 / 450
_LOADING = 0.15
"""The part of GPT-3's iteration in which it loads data and sends next to nothing."""

MODEL_PARALLEL = (
    Model("GPT1", BERT_MS * 650 / 450, (56,), (Burst(1.0, 650, reduces=True),), least=2),
    Model(
        "GPT2",
        BERT_MS * 1623 / 450,
        (24, 70),
        (*(Burst(0.11 * n, mib_per_sample=1.0) for n in (1, 2, 3)), Burst(1.0, 294, reduces=True)),
        least=2,
    ),
    Model(
        "GPT3",
        _LOADING * _GPT3_MS,
        (32,),
        (Burst(1.0, mib_per_sample=(1.0 - _LOADING) * _GPT3_MS / 1e3 * 25 * GBIT / MIB, gbps=25.0),),
        least=2,
    ),
    Model(
        "DLRM",
        0.701,
        (1000,),
        (Burst(1.0, mib_per_sample=300e-6 * NIC_GBPS * GBIT / MIB),),
        pattern="all-to-all",
        least=2,
    ),
)
MODELS = {model.name: model for model in (*DATA_PARALLEL, *MODEL_PARALLEL)}
