"""The wheel, installed into a virtual environment that knows nothing of this checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang on PATH, to build the wheel"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of what git knows, so that nothing is left in the checkout."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    build = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(output), "."]
    subprocess.run([sys.executable, "-m", "pip", *build], cwd=source, check=True)
    (found,) = output.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a virtual environment with the wheel. What it depends on is found where the tests find it."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def run(python: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python, or a script beside it, in a directory without any of our packages."""
    program, *rest = arguments
    command = [str(python.parent / program), *rest]
    done = subprocess.run(
        command,
        cwd=python.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done


def test_the_wheel_adds_one_name(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert len(names) == 2, names
    assert "entrain" in names
    assert all(name == "entrain" or name.endswith(".dist-info") for name in names)


def test_our_packages_are_found_through_entrain_alone(python: Path) -> None:
    done = run(python, "python", "-c", "import entrain, machine, wire.slot_header; print(machine.__file__)")
    assert "_packages/machine" in done.stdout, done.stderr
    assert "ModuleNotFoundError" in run(python, "python", "-c", "import machine").stderr
    assert "--device-id" in run(python, "python", "-m", "entrain.module", "softswitch", "--help").stdout


def test_commands_work(python: Path) -> None:
    assert run(python, "entrain", "--version").stdout.startswith("entrain, version ")
    needs = json.loads(run(python, "entrain", "doctor", "--json").stdout)["needs"]
    packages = [each for each in needs if each["name"].startswith("Python package")]
    assert packages
    assert [each["name"] for each in packages if each["state"] != "found"] == []
    (profiles,) = python.parents[1].rglob("profiles-40-60.toml")
    scored = run(python, "entrain", "simulate", "cassini-score", "--profiles", str(profiles))
    assert scored.returncode == 0, scored.stderr
    assert "score" in scored.stdout


_LOAD_ALL = """
import entrain
from ebpf import compile_cached
from ebpf.struct_ops import VARIANTS
from machine.packages import ROOT
for source in sorted(ROOT.glob("*/bpf/*.bpf.c")):
    for defines in VARIANTS if source.name.startswith(("mltcp_", "slot_pacing")) else (None,):
        compiled = compile_cached(source, defines=defines)
        assert compiled.parent.name == "objects", compiled
        print(source.name)
"""


def test_programs_are_shipped_compiled(python: Path, tmp_path: Path) -> None:
    done = run(python, "python", "-c", _LOAD_ALL, CLANG="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert done.stdout.split().count("mltcp_reno.bpf.c") == 2, done.stderr
    assert "carrier.bpf.c" in done.stdout


@pytest.mark.root
def test_an_agent_runs_without_a_compiler(python: Path, tmp_path: Path) -> None:
    script = (
        f"ip link set lo up && exec {python.parent}/entrain-agent --interface lo --listen unix:{tmp_path}/a"
    )
    environment = {**os.environ, "CLANG": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path)}
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    process.terminate()
    errors = process.communicate(timeout=60)[1]
    assert said.startswith("ready"), errors
    assert process.returncode == 0, errors
