"""Run the points of an experiment in parallel. Each result is stored when it arrives, so an interrupted sweep
can resume."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import hashlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from machine.errors import EntrainError, MissingTool
from machine.processors import share_memory
from simulation.experiments.experiment import Point
from simulation.experiments.registry import EXPERIMENTS
from simulation.results import RESULT, Result

Engine = Literal["local", "ray", "dask"]
_PR_SET_PDEATHSIG = 1


def run_point(point: Point) -> Result:
    """Run one point."""
    return EXPERIMENTS[point["experiment"]].run(point)


def point_file(directory: Path, point: Point) -> Path:
    """Return the file for the result of `point`. Its name is a hash of everything that determines the result,
    including the trace's content."""
    content = dict(point)
    if "trace" in content:
        content["trace"] = hashlib.sha256(Path(content["trace"]).read_bytes()).hexdigest()
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
    return directory / "points" / f"{digest}.json"


def _keep(path: Path, result: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(RESULT.dump_json(result))
    partial.replace(path)


def _load(path: Path) -> Result | None:
    try:
        return RESULT.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def run_points(
    todo: list[Point],
    *,
    directory: Path | None = None,
    workers: int | None = None,
    engine: Engine = "local",
    done: Callable[[Point, bool], None] = lambda point, resumed: None,
) -> list[Result]:
    """Return the results of `todo` in its order. `directory` stores them and supplies those of an interrupted
    run.

    The engine "local" uses this machine's cores. "ray" and "dask" use the cluster at RAY_ADDRESS or
    DASK_SCHEDULER_ADDRESS, and without one start processes on this machine. All give the same results, and
    run the points of a worker that died again on another. Each machine of a cluster needs entrain, and the
    trace at the same path. Raises EntrainError if no cluster answers.
    """
    results: dict[int, Result] = {}
    missing: list[int] = []
    for i, point in enumerate(todo):
        kept = _load(point_file(directory, point)) if directory is not None else None
        if kept is None:
            missing.append(i)
        else:
            results[i] = kept
            done(point, True)
    run = {"local": _local, "ray": _ray, "dask": _dask}[engine]
    for place, result in run([todo[i] for i in missing], workers):
        i = missing[place]
        results[i] = result
        if directory is not None:
            _keep(point_file(directory, todo[i]), result)
        done(todo[i], False)
    return [results[i] for i in range(len(todo))]


def _local(todo: list[Point], workers: int | None) -> Iterator[tuple[int, Result]]:
    parallel = os.cpu_count() or 1 if share_memory() else 1
    count = min(workers or parallel, len(todo))
    if count <= 1:
        for i, point in enumerate(todo):
            yield i, run_point(point)
        return
    try:
        processes = concurrent.futures.ProcessPoolExecutor(
            count, initializer=_end_with, initargs=(os.getpid(),)
        )
    except OSError as error:
        raise EntrainError(
            f"/dev/shm cannot be used ({error.strerror}), which parallel processes need: mount it writable, "
            f"or give --workers 1"
        ) from error
    with processes as pool:
        futures = {pool.submit(run_point, point): i for i, point in enumerate(todo)}
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.kill()
            raise


def _end_with(parent: int) -> None:
    """Make this worker end when its parent does, for whatever reason, and leave signals to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingTool(
            f"--engine needs {name.split('.')[0]}, which is not installed; pip install it or use local"
        ) from None


@contextlib.contextmanager
def _answers(variable: str) -> Iterator[None]:
    """Within, a cluster is asked; EntrainError if none answers."""
    try:
        yield
    except OSError as error:
        address = os.environ.get(variable)
        raise EntrainError(
            f"no cluster answers at {variable}={address}: {error}; start its scheduler, or unset {variable}"
        ) from error


def _ray(todo: list[Point], workers: int | None) -> Iterator[tuple[int, Result]]:
    ray = _library("ray")
    with contextlib.redirect_stdout(sys.stderr):  # where it says which workers have died
        if not ray.is_initialized():
            # A cluster at RAY_ADDRESS has its own number of processors and rejects any other.
            count = None if os.environ.get("RAY_ADDRESS") else workers
            with _answers("RAY_ADDRESS"):
                ray.init(num_cpus=count, log_to_driver=False)
        remote = ray.remote(run_point)
        pending = {remote.remote(point): i for i, point in enumerate(todo)}
        while pending:
            ready, _ = ray.wait(list(pending))
            yield pending.pop(ready[0]), ray.get(ready[0])


def _dask(todo: list[Point], workers: int | None) -> Iterator[tuple[int, Result]]:
    distributed, config = _library("dask.distributed"), _library("dask.config")
    # A point keeps a processor busy, so a worker on this machine has one thread.
    here = {} if config.get("scheduler-address", None) else {"n_workers": workers, "threads_per_worker": 1}
    with _answers("DASK_SCHEDULER_ADDRESS"):
        client = distributed.Client(**here)
    with client:
        futures = {client.submit(run_point, point, pure=False): i for i, point in enumerate(todo)}
        for future in distributed.as_completed(list(futures)):
            yield futures[future], future.result()
