"""What watching costs: the same runs alone, and with `entrain watch --web` and a reader of its page.

Runs alternate, seed by seed, so that what changes on the machine meanwhile changes both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from entrain.api.experiment import Experiment
from entrain.results import comparison, files, store
from machine.errors import EntrainError

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "slots-two-jobs.toml"
TIMEOUT_S = 30.0


@dataclass
class Watcher:
    """Watches a run from when its tables are written to its end: give `begin` to `Experiment.run`."""

    network: str
    readings: int = 0
    cpu_s: float = 0.0
    _process: subprocess.Popen[str] | None = None
    _reader: threading.Thread = field(init=False)

    def begin(self, what: str, part: float) -> None:
        """Begin, once the run answers."""
        if self._process is not None or "writing tables" not in what:
            return
        command = [sys.executable, "-m", "entrain.cli", "watch", "--web", "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(
            [*command, "--network", self.network],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,))
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Ask for each reading as the page does, until the run has ended."""
        assert process.stdout is not None
        url, number = process.stdout.readline().strip(), 0
        while url:
            asked = f"{url}api/snapshot?after={number}"
            try:
                with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
                    found = json.load(answer)
                spent = psutil.Process(process.pid).cpu_times()
            except (OSError, psutil.NoSuchProcess):
                return
            if "ended" in found:
                return
            self.readings += number != found["number"]
            self.cpu_s, number = spent.user + spent.system, found["number"]

    def end(self) -> None:
        """Wait until it has ended, as it does with the run."""
        if self._process is not None:
            self._process.wait(TIMEOUT_S)
            self._reader.join()


def measure(experiment: Experiment, seeds: Sequence[int], directory: Path) -> dict[str, Any]:
    """Run `experiment` with each seed, alone and watched. Results stay in `directory`."""
    experiment = experiment.change(seed=list(seeds))
    alone, watched = directory / "alone", directory / "watched"
    watchers = [Watcher(experiment.name) for _ in seeds]
    for seed, watcher in zip(seeds, watchers, strict=True):
        only = [f"seed={seed}"]
        experiment.run(alone, only=only, resume=True)
        try:
            experiment.run(watched, only=only, resume=True, progress=watcher.begin)
        finally:
            watcher.end()
        if not watcher.readings:
            raise EntrainError(f"seed {seed}: no run was read: it was too short, or --out has it already")
    first, second = (store.read(files.NETWORK, each) for each in (alone, watched))
    spent = fmean(watcher.cpu_s for watcher in watchers)
    return {
        "changes": [
            {
                "run": each.run,
                "job": each.job,
                "measure": each.measure,
                "alone": each.first.mean,
                "watched": each.second.mean,
                "change_percent": 100 * each.change.mean,
                "half_percent": None if each.change.half is None else 100 * each.change.half,
                "meaning": each.verdict,
            }
            for each in comparison.compare(first, second)
        ],
        "processor_busy": {
            held.directory.name: fmean(run.overhead["processor_busy"] for run in held.runs)
            for held in (first, second)
        },
        "watch_cpu_s": spent,
        "readings": sum(watcher.readings for watcher in watchers),
        "seeds": list(seeds),
    }


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks watch")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--experiment", type=Path, default=EXPERIMENT, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="keep the results here: DIR/alone and DIR/watched")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as text:
        seeds = range(1, options.seeds + 1)
        found = measure(Experiment.load(options.experiment), seeds, options.out or Path(text))
    if options.json:
        print(json.dumps(found))
        return
    for each in found["changes"]:
        half = "" if each["half_percent"] is None else f" ± {each['half_percent']:.1f}"
        print(
            f"{each['run']:14} {each['job']:10} {each['measure']:16} {each['alone']:10.2f} "
            f"{each['watched']:10.2f} {each['change_percent']:+6.1f}{half} %  {each['meaning']}"
        )
    busy = found["processor_busy"]
    print(f"processors busy: {busy['alone']:.0%} alone, {busy['watched']:.0%} watched")
    spent, readings = found["watch_cpu_s"], found["readings"]
    print(f"entrain watch: {spent:.1f} s of a processor per seed, {readings} readings")
