"""The entry point of `entrain-agent`: by way of `entrain`, which makes a wheel's other packages known."""

from __future__ import annotations

from hostbpf.__main__ import run

__all__ = ["run"]
