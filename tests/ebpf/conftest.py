"""Objects compiled once per session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ebpf import compile_bpf

SOURCES = Path(__file__).parent / "bpf"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The object of a source in tests/ebpf/bpf, by name."""
    directory = tmp_path_factory.mktemp("bpf")

    def build(name: str) -> Path:
        output = directory / f"{name}.bpf.o"
        if not output.exists():
            compile_bpf(SOURCES / f"{name}.bpf.c", output)
        return output

    return build
