"""Makes the distributions in examples/ visible, as pip does, without changing the virtual environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def environment(site: Path, *examples: str) -> dict[str, str]:
    """Return the environment of processes for which these examples are installed; metadata goes to `site`."""
    for example in examples:
        table = tomllib.loads((EXAMPLES / example / "pyproject.toml").read_text())["project"]
        metadata = site / f"{table['name'].replace('-', '_')}-{table['version']}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {table['name']}\nVersion: {table['version']}\n"
        )
        (metadata / "entry_points.txt").write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
                for group, entries in table["entry-points"].items()
            )
        )
    paths = [str(site), *(str(EXAMPLES / example) for example in examples)]
    path = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def entrain(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an entrain command."""
    return subprocess.run(
        [sys.executable, "-m", "entrain.cli", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
