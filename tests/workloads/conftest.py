"""Jobs on loopback addresses, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JobFile = Callable[..., Path]
RunJob = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def job_file(tmp_path: Path) -> JobFile:
    """Write a job's file for ranks on loopback; its records go to `records` in the same directory."""

    def write(ranks: int = 4, directory: Path = tmp_path, **changes: Any) -> Path:
        job = {
            "name": "test",
            "collective": "ring",
            "hosts": [f"127.8.0.{rank + 1}" for rank in range(ranks)],
            "bytes": 100_000,
            "iterations": 3,
            "rendezvous": str(directory / "rendezvous"),
            "output": str(directory / "records"),
        }
        directory.mkdir(exist_ok=True)
        path = directory / "job.json"
        path.write_text(json.dumps(job | changes))
        return path

    return write


@pytest.fixture
def run_job(job_file: JobFile) -> RunJob:
    """Run all ranks of a job and wait; `patch` is Python that runs in the process they are forked from."""

    def run(patch: str = "", **changes: Any) -> subprocess.CompletedProcess[str]:
        arguments = ["launch", "--job", str(job_file(**changes)), "--json"]
        code = f"from workloads.__main__ import main\n{patch}\nraise SystemExit(main({arguments!r}))"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    return run
