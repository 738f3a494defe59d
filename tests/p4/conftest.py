"""Runs each packet test on every target: `start("name")` gives the program on the present one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.p4.kinds import KINDS, launch, program
from tests.p4.targets import Target

Start = Callable[[str], Target]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Longer differential runs; known where this folder is given to pytest."""
    parser.addoption("--packets", type=int, help="packets per program in the differential test")
    parser.addoption("--seed", type=int, default=1, help="seed of the differential test")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of target."""
    return str(request.param)


@pytest.fixture(scope="module")
def start(kind: str) -> Iterator[Start]:
    """Starts a program on the present target, once per module; everything ends with the module."""
    running: dict[str, Target] = {}

    def start(name: str) -> Target:
        if name not in running:
            running[name] = launch(kind, program(name))
        return running[name]

    try:
        yield start
    finally:
        for target in running.values():
            target.close()
