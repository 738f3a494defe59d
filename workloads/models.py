"""Bytes and computation time per iteration of each model, from the papers.

A megabyte of the vision models and of BERT is 2^20 bytes: VGG16 has 138,357,544 parameters of 4 bytes, which
the papers call 528 MB. `compute_ms` is the part of an iteration in which the network idles, at the batch size
named. Where a paper gives the times of the iteration and of its communication, it is their difference. The
sources:

* [slots] the slot scheduler's section VI-A: bytes of VGG19, VGG16, ResNet50, GPT-2.
* [cassini] table 4.2: model sizes; table 3.1: iteration times of compatible jobs; table 4.3: communication
  times without contention; figure 4.3: VGG16, 141 of 255 ms are computation.
* [vclos] section 4.2: flows of an all-to-all carry "tens of megabytes", and all-to-all takes 25.8 % of an
  iteration.
* [pollux] `bert_placements.csv` of adaptdl's traces: 0.455 s a step at batch 4 on one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

MB = 1_000_000
MIB = 1 << 20


@dataclass(frozen=True)
class Model:
    """One model: what an iteration sends and how long it computes.

    `bytes` are those of the gradients, or of one rank's buffer for all its peers in an all-to-all.
    """

    name: str
    bytes: int
    compute_ms: float
    collective: str
    source: str


_MODELS = (
    Model("vgg16", 528 * MIB, 141.0, "ring", "bytes [slots]; compute [cassini] figure 4.3: 141 of 255 ms"),
    Model(
        "vgg19",
        549 * MIB,
        161.0,
        "ring",
        "bytes [slots]; compute [cassini], batch 1400: 329 (3.1) - 168 ms (4.3)",
    ),
    Model(
        "resnet50",
        98 * MIB,
        110.0,
        "ring",
        "bytes [slots]; compute [cassini], batch 1600: 165 (3.1) - 55 ms (4.3)",
    ),
    Model(
        "resnet101",
        170 * MIB,
        209.0,
        "ring",
        "bytes: 44,549,160 parameters of 4 bytes; no paper gives its computation: ResNet50's times "
        "7.8 / 4.1, the GFLOPs of both",
    ),
    Model(
        "wideresnet101",
        243 * MIB,
        135.0,
        "ring",
        "bytes [cassini] 4.2; compute, batch 800: 273 (3.1) - 138 ms (4.3)",
    ),
    Model("bert", 450 * MIB, 455.0, "ring", "bytes [cassini] 4.2; compute [pollux] at batch 4 on one GPU"),
    Model(
        "gpt2",
        1200 * MB,
        455.0,
        "ring",
        "bytes [slots]; no paper gives its computation time: BERT's is used",
    ),
    Model(
        "dlrm",
        890 * MIB,
        701.0,
        "all-to-all",
        "bytes [cassini] 4.2, the smallest; compute [cassini] 3.1: two jobs take 1301 ms sharing and 1001 ms "
        "interleaved, so 300 ms are communication",
    ),
    Model(
        "moe",
        160 * MB,
        32.0,
        "all-to-all",
        "bytes [vclos] 4.2: tens of MB a flow, here 20 MB to each of 8 ranks; compute [vclos] 4.2: "
        "all-to-all is 25.8 % of the time, at the 100 Gbit/s of 8.1",
    ),
    Model("mlp", 4 * 1_126_410, 0.0, "ddp", "really trained: torch_models.py"),
    Model("cnn", 4 * 283_786, 0.0, "ddp", "really trained: torch_models.py"),
    Model("tiny-gpt", 4 * 417_344, 0.0, "ddp", "really trained: torch_models.py"),
)

MODELS: dict[str, Model] = {model.name: model for model in _MODELS}
