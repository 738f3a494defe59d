"""Builds the wheel, beyond what pyproject.toml says. An editable install does none of this.

- The eBPF programs are compiled, so that hosts need no compiler.
- All packages but `entrain` move into `entrain/_packages`, so that the wheel adds no common name such as
  `machine` or `wire` to site-packages. `entrain/__init__.py` makes them importable.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
KERNEL_HZ = (100, 250, 300, 1000)
"""The choices of CONFIG_HZ, which MLTCP's CUBIC is compiled for."""
PRIVATE = "entrain/_packages"


class BuildWheel(build_py):
    """Compiles and moves what `build_py` has copied."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        built = Path(self.build_lib).resolve()
        shutil.rmtree(built, ignore_errors=True)  # what an earlier build left would be in the wheel, too
        super().run()
        self._compile(built)
        (built / PRIVATE).mkdir()
        shutil.copytree(ROOT / "experiments", built / PRIVATE / "experiments")
        shutil.copytree(ROOT / "docs" / "results-notes", built / PRIVATE / "docs" / "results-notes")
        for package in sorted(built.iterdir()):
            if package.name != "entrain":
                package.rename(built / PRIVATE / package.name)

    def _compile(self, built: Path) -> None:
        sys.path.insert(0, str(ROOT))
        from ebpf.compile import ship

        for source in sorted(built.glob("*/bpf/*.bpf.c")):
            if source.name.startswith("mltcp_"):
                for hz in KERNEL_HZ:
                    ship(source, defines={"HZ": hz})
            else:
                ship(source)


setup(cmdclass={"build_py": BuildWheel})
