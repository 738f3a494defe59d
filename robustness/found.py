"""What a campaign of mutated input counts."""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

SHOWN = 20
"""How many different accidents are told; all are counted."""


@dataclass
class Found:
    """What was tried, and what came of it."""

    tried: int = 0
    refused: int = 0
    accidents: int = 0
    seconds: float = 0.0
    what: list[str] = field(default_factory=list)
    _seen: set[tuple[str, ...]] = field(default_factory=set)

    def accident(self, what: str) -> None:
        """Count an accident."""
        self.accidents += 1
        where = tuple(what.strip().splitlines()[-3:])
        if len(self.what) < SHOWN and where not in self._seen:
            self._seen.add(where)
            self.what.append(what)

    @contextlib.contextmanager
    def trying(self, what: Callable[[], str], *refusals: type[BaseException]) -> Iterator[None]:
        """Within, one input is tried. Exceptions other than `refusals` are accidents."""
        self.tried += 1
        try:
            yield
        except refusals:
            self.refused += 1
        except Exception:
            self.accident(f"{what()}\n{traceback.format_exc(limit=-4)}")


def of_tests(module: str) -> Any:
    """Return a module of the tests, whose types nobody checks."""
    return importlib.import_module(f"tests.{module}")
