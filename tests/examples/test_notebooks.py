"""The notebooks in examples/notebooks run from top to bottom, with root and without."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.installed import EXAMPLES, ROOT

nbformat = pytest.importorskip("nbformat", reason="needs the extra `notebook`")
nbclient = pytest.importorskip("nbclient", reason="needs the extra `notebook`")
pytest.importorskip("ipykernel", reason="needs the extra `notebook`")

NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
NEEDS = {"own-p4": [pytest.mark.p4c]}


def executed(notebook: Path, tmp_path: Path, first: str = "") -> str:
    """Execute a notebook after the code `first`, and return all that it has printed."""
    found = nbformat.read(notebook, as_version=4)
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})"
    found.cells.insert(0, nbformat.v4.new_code_cell(f"{path}\n{first}"))
    kernels = tmp_path / "kernels/here"
    kernels.mkdir(parents=True)
    line = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernels / "kernel.json").write_text(f'{{"argv": {line}, "display_name": "here", "language": "python"}}')
    os.environ["JUPYTER_PATH"] = str(tmp_path)
    client = nbclient.NotebookClient(
        found, timeout=240, kernel_name="here", resources={"metadata": {"path": str(notebook.parent)}}
    )
    client.execute()
    return "".join(_text(each) for cell in found.cells for each in cell.get("outputs", []))


def _text(output: Any) -> str:
    data = output.get("data", {})
    said = output.get("text") or data.get("text/plain", "")
    return f"{said}<picture>" if "<img" in str(data) else str(said)


@pytest.fixture(autouse=True)
def _own_jupyter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the variable that `executed` sets."""
    monkeypatch.setenv("JUPYTER_PATH", "")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_without_root_it_says_what_to_do(notebook: Path, tmp_path: Path) -> None:
    said = executed(notebook, tmp_path, "import os; os.geteuid = lambda: 1000")
    assert "sudo .venv/bin/jupyter lab" in said


@pytest.mark.root
@pytest.mark.parametrize(
    ("notebook", "shows"),
    [
        pytest.param(path, word, id=path.stem, marks=NEEDS.get(path.stem, []))
        for path, word in zip(NOTEBOOKS, ("<picture>", "packets marked", "50%"), strict=True)
    ],
)
def test_with_root_it_runs_in_a_network(notebook: Path, shows: str, tmp_path: Path) -> None:
    said = executed(notebook, tmp_path)
    assert shows in said
    assert "does not run as root" not in said


def test_a_notebook_is_kept_without_outputs() -> None:
    for notebook in NOTEBOOKS:
        assert all(not cell.get("outputs") for cell in nbformat.read(notebook, as_version=4).cells)
