"""What installed distributions add to a registry of ours, by entry points.

A distribution names its objects in its metadata (`[project.entry-points."GROUP"]` of pyproject.toml); it need
not be imported by anybody, and entrain need not know it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from machine.errors import EntrainError

T = TypeVar("T")


def extended(group: str, ours: Mapping[str, T]) -> dict[str, T]:
    """`ours` and what distributions have registered in `group`, by name; ours come first.

    Raises EntrainError, with the distribution, for an object that cannot be imported and for a name that
    is taken.
    """
    return {**ours, **_registered(group, tuple(ours))}


@functools.cache
def _registered(group: str, taken: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        whose = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
        what = f"{whose} registers {entry.name!r} in {group}"
        if entry.name in (*taken, *found):
            raise EntrainError(f"{what}, which is there already; rename it, or uninstall {whose}")
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            raise EntrainError(f"{what}, but {entry.value} cannot be loaded: {error}") from error
    return found
