"""What is told before a network starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from entrain.run.starting import prepared, start
from machine.errors import MissingTool

ROOT = Path(__file__).resolve().parents[3]


def test_without_mininet_nothing_starts_and_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(sys.modules, "mininet.link", None)
    monkeypatch.delitem(sys.modules, "mininet_topos.base", raising=False)
    with pytest.raises(MissingTool, match="apt-get install mininet"):
        start(prepared(ROOT / "experiments/two-switches.toml"))
