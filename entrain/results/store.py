"""A directory of results: the experiment, and one file per completed run.

    experiment.json    the experiment, as checked
    runs/000-NAME.json a run; reading it returns the value that was written

All other files in the directory (`results.json`, CSV files, plots) derive from these.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from machine.errors import BadInput, EntrainError
from machine.whole import whole

EXPERIMENT, RUNS = "experiment.json", "runs"
OTHERS = ("results.json", "summary.json")
"""Files of earlier versions and of `entrain simulate`: a directory with one of them is not overwritten."""

_NOT_COMPARED = ("source", "topology.name", "paper")
"""Parts of an experiment that do not affect its results."""

E = TypeVar("E")
R = TypeVar("R")


@dataclass(frozen=True)
class Kind(Generic[E, R]):
    """A kind of experiment: its name, and the types of an experiment and of a run."""

    name: str
    experiment: TypeAdapter[E]
    run: TypeAdapter[R]
    order: Callable[[E], Callable[[R], int]]
    """A sort key that puts runs into the experiment's order. They may have been made in another one."""


@dataclass
class Store(Generic[E, R]):
    """A directory that is open for writing (see `writing`), with its completed runs in their order."""

    kind: Kind[E, R]
    directory: Path
    experiment: E
    runs: list[R] = field(default_factory=list)

    def add(self, run: R, name: str) -> None:
        """Write a completed run. Raises EntrainError if it cannot be written; earlier runs stay."""
        number = len(self.runs)
        with keeping(self.directory):
            if not number:
                self._begin()
            path = self.directory / RUNS / f"{number:03}-{name}.json"
            with whole(path) as draft:
                draft.write_bytes(self.kind.run.dump_json(run))
        self.runs.append(run)
        self.runs.sort(key=self.kind.order(self.experiment))

    def _begin(self) -> None:
        """Remove the runs of an earlier experiment."""
        (self.directory / RUNS).mkdir(exist_ok=True)
        for path in (self.directory / RUNS).glob("*.json"):
            path.unlink()


@contextlib.contextmanager
def writing(kind: Kind[E, R], directory: Path, experiment: E, *, resume: bool) -> Iterator[Store[E, R]]:
    """Open `directory` exclusively for the runs of `experiment`; create it if it does not exist.

    With `resume`, the store has the directory's runs. Without it, the first new run replaces them. Raises
    BadInput if the directory cannot be written, another process is writing to it, or it has the results of
    another experiment.
    """
    path = directory / EXPERIMENT
    try:
        directory.mkdir(parents=True, exist_ok=True)
        foreign = [name for name in OTHERS if (directory / name).exists()] if not path.exists() else []
        if foreign:
            raise BadInput(
                f"{directory}: its {foreign[0]} is from another experiment or an earlier version; "
                f"give another --out, or remove it"
            )
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise BadInput(
            f"{directory}: cannot be written ({error.strerror}); give another directory with --out"
        ) from error
    with os.fdopen(lock, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadInput(
                f"{directory}: another run is writing there; wait until it ends, or give another --out"
            ) from error
        held = _same(kind, directory, file.read(), experiment)
        runs = _runs(kind, directory, experiment) if held and resume else []
        content = {"kind": kind.name, "experiment": kind.experiment.dump_python(experiment, mode="json")}
        with keeping(directory):
            file.seek(0)
            file.write(json.dumps(content).encode())
            file.truncate()
            file.flush()
        yield Store(kind, directory, experiment, runs)


def read(kind: Kind[E, R], directory: Path) -> Store[E, R]:
    """Read the results in `directory`. Raises BadInput if they are of another kind or cannot be read."""
    path = directory / EXPERIMENT
    try:
        content = json.loads(path.read_bytes())
        if content["kind"] != kind.name:
            raise BadInput(f"{path}: the experiment is of kind {content['kind']!r}, not {kind.name!r}")
        experiment = kind.experiment.validate_json(json.dumps(content["experiment"]))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: not written by this version; run the experiment again") from error
    return Store(kind, directory, experiment, _runs(kind, directory, experiment))


def found(directories: Iterable[Path]) -> list[Path]:
    """Return the directories of results in `directories` and their subdirectories, in the order given."""
    every = (path.parent for each in directories for path in sorted(each.rglob(EXPERIMENT)))
    return list(dict.fromkeys(every))


def kind_of(directory: Path) -> str | None:
    """Return the kind of experiment whose results `directory` has, or None if it has none."""
    try:
        found = json.loads((directory / EXPERIMENT).read_bytes())
    except (OSError, ValueError):
        return None
    return str(found.get("kind")) if isinstance(found, Mapping) else None


@contextlib.contextmanager
def keeping(directory: Path) -> Iterator[None]:
    """Turn an OSError on writing to `directory` into an EntrainError that says how to continue."""
    try:
        yield
    except OSError as error:
        raise EntrainError(
            f"{error.filename or directory}: cannot be written ({error.strerror}); earlier runs are kept: "
            f"make room and continue with --resume"
        ) from error


def _runs(kind: Kind[E, R], directory: Path, experiment: E) -> list[R]:
    runs = []
    for path in sorted((directory / RUNS).glob("[0-9]*.json")):
        try:
            runs.append(kind.run.validate_json(path.read_bytes()))
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
        except ValidationError as error:
            if error.errors()[0]["type"] == "json_invalid":
                problem = "is broken; remove this file, and run the experiment again with --resume"
            else:
                problem = f"not written by this version; remove {directory}, and run the experiment again"
            raise BadInput(f"{path}: {problem}") from error
    return sorted(runs, key=kind.order(experiment))


def _same(kind: Kind[E, Any], directory: Path, content: bytes, experiment: E) -> bool:
    """Return whether `directory` has runs of `experiment`. Raises BadInput if they are of another one."""
    if not any((directory / RUNS).glob("[0-9]*.json")):
        return False
    try:
        found = json.loads(content)
        there, here = found["experiment"], kind.experiment.dump_python(experiment, mode="json")
    except (ValueError, KeyError, TypeError):
        there, here = None, None
    if there is None or found.get("kind") != kind.name:
        raise BadInput(f"{directory}: has results of something else; give another --out")
    for where, one, other in differences(there, here):
        raise BadInput(
            f"{directory}: has results of another experiment ({where} is {json.dumps(one)} there and "
            f"{json.dumps(other)} here); give another --out, or remove the directory"
        )
    return True


def differences(there: Any, here: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys in which two experiments, given as JSON values, differ, and both values.

    Keys of inner tables are joined by dots; elements of a list have their number, from 1.
    """
    if where in _NOT_COMPARED:
        return
    if isinstance(there, dict) and isinstance(here, dict):
        pairs = [(key, there.get(key), here.get(key)) for key in {**there, **here}]
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = [(str(place), *both) for place, both in enumerate(zip(there, here, strict=True), 1)]
    else:
        if there != here:
            yield where, there, here
        return
    for key, a, b in pairs:
        yield from differences(a, b, f"{where}.{key}" if where else key)
