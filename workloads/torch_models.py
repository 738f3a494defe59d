"""Small models for actual training, with data sets that derive from a seed.

`models.MODELS` has the sizes of their gradients, because it works without PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

Tensor = Any
Module = Any

CLASSES = 10
SAMPLES = 4096
_TOKENS, _CONTEXT, _WIDTH, _HEADS, _LAYERS = 64, 32, 128, 4, 2


class Task(NamedTuple):
    """A model, its optimizer, and the data set: inputs and targets, one row a sample."""

    model: Module
    optimizer: Callable[[Any], Any]
    inputs: Tensor
    targets: Tensor
    batch: int

    def loss(self, model: Module, rows: Tensor) -> Tensor:
        """Return the mean cross entropy of some samples."""
        outputs = model(self.inputs[rows])
        return nn.functional.cross_entropy(outputs.flatten(0, -2), self.targets[rows].flatten())


def make_task(name: str, seed: int) -> Task:
    """Return the task of a model, by its name. It is the same on every rank with the same seed."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    return _TASKS[name](generator)


def _mlp(generator: Any) -> Task:
    """Return a task that classifies points of ten clouds in 64 dimensions."""
    model = nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)
    )
    inputs, targets = _clouds((64,), noise=3.0, generator=generator)
    return Task(model, _sgd, inputs, targets, batch=32)


def _cnn(generator: Any) -> Task:
    """Return a task that classifies ten noisy images of 16 x 16 pixels."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 16, 256), nn.ReLU(), nn.Linear(256, CLASSES),
    )  # fmt: skip
    inputs, targets = _clouds((1, 16, 16), noise=1.0, generator=generator)
    return Task(model, _sgd, inputs, targets, batch=16)


def _clouds(shape: tuple[int, ...], noise: float, generator: Any) -> tuple[Tensor, Tensor]:
    centres = torch.randn(CLASSES, *shape, generator=generator)
    targets = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    return centres[targets] + noise * torch.randn(SAMPLES, *shape, generator=generator), targets


def _tiny_gpt(generator: Any) -> Task:
    """Return a task that predicts the next token of a text whose tokens have four successors each."""
    successors = torch.randint(_TOKENS, (_TOKENS, 4), generator=generator)
    text = [torch.randint(_TOKENS, (SAMPLES,), generator=generator)]
    for _ in range(_CONTEXT):
        choice = torch.randint(4, (SAMPLES,), generator=generator)
        text.append(successors[text[-1], choice])
    tokens = torch.stack(text, dim=1)
    return Task(_TinyGPT(), _adam, tokens[:, :-1], tokens[:, 1:], batch=8)


class _Block(nn.Module):  # type: ignore[misc]
    """Causal self-attention and a perceptron, each behind a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_perceptron = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.query_key_value = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.mix = nn.Linear(_WIDTH, _WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )
        self.register_buffer("mask", torch.ones(_CONTEXT, _CONTEXT).tril() == 0)

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.shape[0]
        query, key, value = (
            part.view(rows, _CONTEXT, _HEADS, -1).transpose(1, 2)
            for part in self.query_key_value(self.before_attention(hidden)).chunk(3, dim=-1)
        )
        weights = query @ key.transpose(-1, -2) / (_WIDTH // _HEADS) ** 0.5
        weights = weights.masked_fill(self.mask, float("-inf")).softmax(-1)
        hidden = hidden + self.mix((weights @ value).transpose(1, 2).reshape(rows, _CONTEXT, _WIDTH))
        return hidden + self.perceptron(self.before_perceptron(hidden))


class _TinyGPT(nn.Module):  # type: ignore[misc]
    """GPT-2's structure, two layers of 128."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(_TOKENS, _WIDTH), nn.Embedding(_CONTEXT, _WIDTH)
        self.blocks = nn.Sequential(*(_Block() for _ in range(_LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _TOKENS))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.tokens(tokens) + self.places.weight))


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def _adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=2e-3)


_TASKS: dict[str, Callable[[Any], Task]] = {"mlp": _mlp, "cnn": _cnn, "tiny-gpt": _tiny_gpt}
