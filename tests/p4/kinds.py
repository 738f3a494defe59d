"""The kinds of targets by name, and what each needs."""

from __future__ import annotations

import pytest

from tests.p4.bmv2 import Bmv2
from tests.p4.fabric import FABRIC
from tests.p4.netless import Netless
from tests.p4.targets import PROGRAMS, Program, Target

_CLASSES: dict[str, type[Target]] = {"netless": Netless, "bmv2": Bmv2}

KINDS = [
    pytest.param("netless", marks=pytest.mark.bpf),
    pytest.param("bmv2", marks=pytest.mark.bmv2),
]


def program(name: str) -> Program:
    """The feature program of this name, or the fabric's."""
    return FABRIC if name == "fabric" else PROGRAMS[name]


def launch(kind: str, program: Program) -> Target:
    """Start `program` on a target of this kind; the caller closes it."""
    return _CLASSES[kind](program).__enter__()
