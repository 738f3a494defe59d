"""An installed entrain has every package of the checkout and the data that defaults read."""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import find_namespace_packages

ROOT = Path(__file__).resolve().parents[1]


def test_every_package_and_the_included_data_are_installed() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    present = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ROOT.iterdir()
        if top.is_dir() and not top.name.startswith(".") and top.name not in ("tests", "build")
        for path in top.rglob("__init__.py")
    }
    found = find_namespace_packages(str(ROOT), include=setuptools["packages"]["find"]["include"])
    assert {*present, "data"} <= set(found)
    installed = {
        path for pattern in setuptools["package-data"]["data"] for path in (ROOT / "data").glob(pattern)
    }
    assert installed == {path for path in (ROOT / "data").rglob("*") if path.is_file()}
