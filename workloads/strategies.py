"""All strategies that place jobs: ours, and those that other distributions register."""

from __future__ import annotations

from dataclasses import replace

from machine.plugins import extended
from schedulers.placement.strategies import STRATEGIES, Strategy

GROUP = "entrain.strategies"
"""Entry point group through which other distributions register strategies."""


def strategies() -> dict[str, Strategy]:
    """Return all strategies by name; one of another distribution has the name of its entry point.

    Raises EntrainError if one cannot be loaded.
    """
    registered = extended(GROUP, STRATEGIES, Strategy)
    return {name: replace(strategy, name=name) for name, strategy in registered.items()}


def live_strategies() -> dict[str, Strategy]:
    """Return the strategies that a network can run. Raises EntrainError as `strategies` does."""
    return {name: strategy for name, strategy in strategies().items() if strategy.live}
