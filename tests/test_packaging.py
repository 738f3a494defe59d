"""An installed entrain has every package of the checkout and the data that defaults read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import find_namespace_packages

ROOT = Path(__file__).resolve().parents[1]


def _pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pins = (line.removesuffix(" \\").partition("==") for line in lines if line and not line.startswith(" "))
    return {package.lower().replace("_", "-"): version for package, _, version in pins}


def test_setup_installs_pinned_versions_by_hash() -> None:
    wanted = _pinned("constraints.lock")
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert built == [f"setuptools=={wanted['setuptools']}"]
    development, needed = _pinned("requirements-dev.lock"), _pinned("requirements.lock")
    assert all(wanted.get(name, version) == version for name, version in development.items())
    assert needed.items() < development.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for names, locked in (
        (project["dependencies"], needed),
        (extras["dev"] + extras["parquet"], development),
    ):
        missing = {re.split(r"[\[<>=~ ]", name)[0].lower() for name in names} - locked.keys()
        assert not missing, f"run `make lock` for {missing}"
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert all("--hash=sha256:" in block for block in re.split(r"\n(?=\w)", text.strip()))
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(
        "--require-hashes" in line or "--no-deps" in line
        for line in make.splitlines()
        if "pip install" in line
    )


def test_every_package_and_the_included_data_are_installed() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    present = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ROOT.iterdir()
        if top.is_dir() and not top.name.startswith(".") and top.name not in ("tests", "build", "examples")
        for path in top.rglob("__init__.py")
    }
    found = find_namespace_packages(str(ROOT), include=setuptools["packages"]["find"]["include"])
    assert {*present, "data"} <= set(found)
    installed = {
        path for pattern in setuptools["package-data"]["data"] for path in (ROOT / "data").glob(pattern)
    }
    results = ROOT / "data" / "results"  # published in a checkout only
    included = {path for path in (ROOT / "data").rglob("*") if path.is_file()}
    assert installed == {path for path in included if results not in path.parents}
