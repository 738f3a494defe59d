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
CONTROLS = ("mltcp_*.bpf.c", "slot_pacing.bpf.c")
"""The congestion controls, which depend on the kernel's operations."""
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
        for package in sorted(built.iterdir()):
            if package.name != "entrain":
                package.rename(built / PRIVATE / package.name)

    def _compile(self, built: Path) -> None:
        sys.path.insert(0, str(ROOT))
        from ebpf.compile import ship
        from ebpf.struct_ops import VARIANTS

        for source in sorted(built.glob("*/bpf/*.bpf.c")):
            control = any(source.match(pattern) for pattern in CONTROLS)
            for defines in VARIANTS if control else (None,):
                ship(source, defines=defines)


setup(cmdclass={"build_py": BuildWheel})
