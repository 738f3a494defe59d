"""Plugins: installed distributions add objects to our registries with entry points.

A distribution names its objects in its metadata (`[project.entry-points."GROUP"]` in pyproject.toml). Neither
the user nor entrain needs to import it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from machine.errors import EntrainError

T = TypeVar("T")


def extended(
    group: str, ours: Mapping[str, T], kind: type = object, *, base: type | None = None
) -> dict[str, T]:
    """Return `ours` and the objects that distributions have registered in `group`, by name; ours come first.

    Raises EntrainError, naming the distribution, if an object cannot be imported or a name is already taken,
    and if one is no instance of `kind`, or no subclass of `base`.
    """
    found = _registered(group, tuple(ours))
    for name, each in found.items():
        if not isinstance(each, kind):
            needed = f"{kind.__module__}.{kind.__qualname__}"
            raise EntrainError(f"{group}: {name!r} is {each!r}; an instance of {needed} is needed")
        if base is not None and not (isinstance(each, type) and issubclass(each, base)):
            needed = f"{base.__module__}.{base.__qualname__}"
            raise EntrainError(f"{group}: {name!r} is {each!r}; a subclass of {needed} is needed")
    return {**ours, **found}


@functools.cache
def _registered(group: str, taken: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        whose = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
        what = f"{whose} registers {entry.name!r} in {group}"
        if entry.name in (*taken, *found):
            raise EntrainError(f"{what}, a name that is already taken; rename it, or uninstall {whose}")
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            raise EntrainError(f"{what}, but {entry.value} cannot be loaded: {error}") from error
    return found


def forget() -> None:
    """Look for registered objects again: a distribution has been added."""
    _registered.cache_clear()
