"""Experiments from Python: load a file, change it, run it, and look at the results."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tomli_w

from entrain.api.commands import error_of
from entrain.api.results import Pictures, Tables, own_backend, pictures
from entrain.experiment import Experiment as Checked
from entrain.experiment import parse_experiment
from entrain.results import files, store, values
from entrain.results.values import RunResult
from entrain.run import plan
from machine.errors import BadInput
from machine.toml import read_toml

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, float], object]
"""Called with the current activity, and the part of all work that is done (0 to 1)."""

_FILES = (("experiment", "topology"), ("cluster", "trace"))
"""Keys that name a file, relative to the experiment's."""


@dataclass(frozen=True)
class Experiment:
    """An experiment: the tables of its file, checked. It does not change; `change` returns another one."""

    tables: Mapping[str, Any]
    """The file's tables, as `tomllib` reads them."""
    source: Path
    """The file. What the tables name is relative to it."""
    _checked: Checked = field(repr=False, compare=False)

    @classmethod
    def load(cls, path: str | Path) -> Experiment:
        """Load the TOML file `path`. Raises BadInput, which names the file, the key and the remedy."""
        return cls._of(read_toml(Path(path)), Path(path))

    @classmethod
    def parse(cls, text: str, source: str | Path = "experiment.toml") -> Experiment:
        """Return the experiment in the TOML `text`. Errors call it `source`. Raises BadInput."""
        try:
            return cls._of(tomllib.loads(text), Path(source))
        except tomllib.TOMLDecodeError as error:
            raise BadInput(f"{source}: is not valid TOML: {error}") from error

    @classmethod
    def _of(cls, tables: dict[str, Any], source: Path) -> Experiment:
        return cls(tables, source, parse_experiment(tables, source))

    def change(self, changes: Mapping[str, Any] | None = None, /, **experiment: Any) -> Experiment:
        """Return this experiment with other values, checked.

        Keywords are keys of `[experiment]`. `changes` has any keys, with dots: `{"network.loss": 0.01}`. A
        job is called by its name, as in `"job.vgg.iterations"`. None removes a key. Raises BadInput.
        """
        tables = copy.deepcopy(dict(self.tables))
        every = {**(changes or {}), **{f"experiment.{key}": value for key, value in experiment.items()}}
        for where, value in every.items():
            *parents, key = where.split(".")
            table: Any = tables
            for parent in parents:
                table = _inside(table, parent, f"{self.source}: {where}")
            if not isinstance(table, dict):
                raise BadInput(f"{self.source}: {where}: name the job before the key, as in job.NAME.bytes")
            if value is None:
                table.pop(key, None)
            else:
                table[key] = copy.deepcopy(value)
        return self._of(tables, self.source)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self._checked.name

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The runs: routing (or a cluster's strategy), policy, congestion control, load and seed of each."""
        return [plan.name_parts(each) for each in self._checked.combinations()]

    def plan(self, *, only: Sequence[str] = ()) -> plan.Plan:
        """Return what `run` would do, and at least how long it would take. `only` is as in `run`."""
        return plan.plan(self._checked, plan.chosen(self._checked, only))

    def to_toml(self) -> str:
        """Return the experiment's file. It may stand anywhere: the paths in it are absolute."""
        tables = copy.deepcopy(dict(self.tables))
        for table, key in _FILES:
            if key in tables.get(table, {}):
                tables[table][key] = str((self.source.parent / tables[table][key]).resolve())
        return tomli_w.dumps(tables)

    def save(self, path: str | Path) -> None:
        """Write the experiment to the file `path`, for `entrain run`."""
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    def run(
        self,
        out: str | Path | None = None,
        *,
        only: Sequence[str] = (),
        resume: bool = False,
        progress: Progress | None = None,
        target: Literal["softswitch", "bmv2"] | None = None,
    ) -> Results:
        """Run the experiment in a network that lasts as long as the call, and return its results.

        This is `entrain run` in a process of its own. It needs root, and works in a notebook and beside a
        running event loop. `out` is a directory that keeps each run as soon as it ends; with `resume`, those
        that it already has are not run again. `only` selects runs by texts such as `"policy=slots,none"`.

        Raises BadInput and EntrainError. KeyboardInterrupt ends the run in order, which removes the network.
        """
        with tempfile.TemporaryDirectory(prefix="entrain-") as place:
            file = Path(place) / self.source.with_suffix(".toml").name
            directory = Path(out) if out is not None else Path(place) / "out"
            self.save(file)
            options = ["--out", str(directory.absolute())]
            options += [word for each in only for word in ("--only", each)]
            options += ["--resume"] if resume else []
            options += ["--target", target] if target else []
            _entrain_run([str(file), *options], Path(place), progress or (lambda what, part: None))
            return Results.load(directory)


@dataclass(frozen=True)
class Results(Tables):
    """The results of an experiment: its runs, as tables."""

    _experiment: Checked
    _runs: tuple[RunResult, ...]

    @classmethod
    def load(cls, directory: str | Path) -> Results:
        """Load the results that `entrain run --out` or `Experiment.run` has written. Raises BadInput."""
        held = store.read(files.NETWORK, Path(directory))
        return cls(held.experiment, tuple(held.runs))

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<results of {self._experiment.name}: {len(self)} runs; tables {', '.join(self.tables)}>"

    @cached_property
    def _rows(self) -> dict[str, files.Rows]:
        return files.rows(self._experiment, self._runs)

    @property
    def jobs(self) -> pd.DataFrame:
        """One row per job and run, as in `jobs.csv`."""
        return self.frame("jobs")

    @property
    def iterations(self) -> pd.DataFrame:
        """One row per iteration of each job and run, as in `iterations.csv`."""
        return self.frame("iterations")

    @property
    def links(self) -> pd.DataFrame:
        """One row per link and run, as in `links.csv`: how many flows were on it at one time."""
        return self.frame("links")

    @property
    def document(self) -> dict[str, Any]:
        """The content of `results.json`."""
        return values.document(self._experiment, self._runs)

    def plot(self) -> Pictures:
        """Return the pictures that `entrain run --out` draws. A notebook shows them."""
        with tempfile.TemporaryDirectory(prefix="entrain-") as place, own_backend():
            files.draw(Path(place), self._experiment, self._runs)
            return pictures(Path(place))


def _inside(table: Any, key: str, where: str) -> Any:
    """Return the table `key` of a table, made if there is none; of a list, the table with this name."""
    if isinstance(table, list):
        for each in table:
            if isinstance(each, dict) and each.get("name") == key:
                return each
        names = ", ".join(str(each.get("name")) for each in table if isinstance(each, dict))
        raise BadInput(f"{where}: there is no {key!r}; there is {names or 'only a list of values'}")
    if not isinstance(table, dict):
        raise BadInput(f"{where}: {key} is below a value, not a table")
    return table.setdefault(key, {})


def _entrain_run(arguments: list[str], place: Path, progress: Progress) -> None:
    """Run `entrain run` to its end. Raises the error with which it ended."""
    read, write = os.pipe()
    with (
        open(read, encoding="utf-8") as told,  # noqa: PTH123 (a descriptor)
        (place / "stdout").open("w+", encoding="utf-8") as output,
        (place / "stderr").open("w+", encoding="utf-8") as errors,
    ):
        try:
            process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "entrain.cli", "run"),
                    *("--json", "--progress", str(write), *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=[write],
                start_new_session=True,  # an interrupt goes to our whole group; we pass it on once
            )
        finally:
            os.close(write)
        try:
            for line in told:
                now = json.loads(line)
                progress(now["what"], now["part"])
            status = process.wait()
        except BaseException:
            _end(process)
            raise
        if status:
            output.seek(0)
            errors.seek(0)
            raise error_of(status, output.read(), errors.read())


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the process, and wait until it has removed its network, even if the user interrupts again."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    while process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
