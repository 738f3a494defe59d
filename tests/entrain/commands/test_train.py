"""`entrain train`: what a command gets, and that a script finds its own modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.permissions import let_others_pass

ROOT = Path(__file__).resolve().parents[3]
HOOK = ROOT / "workloads" / "torch_hook"


def _train(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ENTRAIN_PROGRESS": str(directory / "progress"), **variables}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [variables.get("PYTHONPATH"), str(ROOT)]))
    command = [sys.executable, "-m", "entrain.cli", "train", *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=directory, check=False
    )


def test_the_command_s_status_is_ours_and_its_options_are_its_own(tmp_path: Path) -> None:
    done = _train(tmp_path, "--", "sh", "-c", "echo $1; exit 7", "sh", "--json")
    assert (done.returncode, done.stdout) == (7, "--json\n")


def test_the_command_learns_job_control_and_directory(tmp_path: Path) -> None:
    where = tmp_path / "elsewhere"
    done = _train(
        tmp_path, "--job", "vgg", "--congestion-control", "reno", "--progress", str(where), "--", "env"
    )
    lines = done.stdout.splitlines()
    assert {"ENTRAIN_JOB=vgg", "ENTRAIN_CONGESTION_CONTROL=reno", f"ENTRAIN_PROGRESS={where}"} <= set(lines)
    [path] = [line for line in lines if line.startswith("PYTHONPATH=")]
    assert path == f"PYTHONPATH={HOOK}:{ROOT}"
    assert where.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.root
def test_the_command_learns_its_mark(tmp_path: Path) -> None:
    assert "ENTRAIN_MARK=7" in _train(tmp_path, "--mark", "7", "--", "env").stdout.splitlines()


@pytest.mark.root
def test_a_mark_that_would_be_refused_is_refused_before_the_command_runs(tmp_path: Path) -> None:
    unable = ["setpriv", "--bounding-set", "-net_admin,-net_raw", "--inh-caps", "-net_admin,-net_raw"]
    command = [*unable, sys.executable, "-m", "entrain.cli", "train", "--mark", "7", "--", "touch", "ran"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ENTRAIN_PROGRESS": str(tmp_path / "progress")},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert "CAP_NET_ADMIN" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--", "no-such-program"], 2, ["no-such-program", "give one"]),
        (["--congestion-control", "nope", "--", "true"], 2, ["'nope'", "cubic", "entrain-agent"]),
        (["--progress", "/proc/nowhere", "--", "true"], 1, ["/proc/nowhere", "ENTRAIN_PROGRESS"]),
        ([], 2, ["PROGRAM"]),
    ],
)
def test_what_cannot_be_run_is_named(
    arguments: list[str], status: int, words: list[str], tmp_path: Path
) -> None:
    done = _train(tmp_path, *arguments)
    assert done.returncode == status
    assert all(word in done.stderr for word in words), done.stderr


FAKE_DDP = """
class DistributedDataParallel:
    pass
"""


def test_a_script_s_own_modules_and_sitecustomize_are_found_as_ever(tmp_path: Path) -> None:
    """With a PyTorch that is none: the hook cannot work with it, says so, and the script runs."""
    project = tmp_path / "project"
    package = project / "torch" / "nn" / "parallel"
    package.mkdir(parents=True)
    for each in (package, *package.parents[:2]):
        (each / "__init__.py").touch()
    (package / "distributed.py").write_text(FAKE_DDP)
    (project / "machine.py").write_text("ANSWER = 42\n")
    (project / "workloads.py").write_text("import machine\n")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    (project / "script.py").write_text(
        "import machine\n"
        "from torch.nn.parallel.distributed import DistributedDataParallel\n"
        "import workloads, sys\n"
        "assert customized and machine.ANSWER == workloads.machine.ANSWER == 42\n"
        "assert not any('schedulers' in name for name in sys.modules)\n"
        "print(DistributedDataParallel.__name__)\n"
    )
    done = _train(tmp_path, "--", sys.executable, "project/script.py", PYTHONPATH=str(site))
    assert (done.returncode, done.stdout) == (0, "DistributedDataParallel\n"), done.stderr
    assert "progress will not be published" in done.stderr


@pytest.mark.root
def test_a_program_is_not_found_where_a_directory_of_path_cannot_be_entered(tmp_path: Path) -> None:
    """The kernel says "Permission denied" for such a directory."""
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)
    code = (
        "import os; from machine.process import become; from machine.errors import BadInput\n"
        "try: become(['no-such-program'], os.environ)\n"
        "except BadInput as error: print(error)"
    )
    let_others_pass(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PATH": f"/usr/bin:{shut}"},
        capture_output=True,
        text=True,
        user=65534,
    )
    assert done.stdout == "no-such-program: no such program\n", done.stderr
