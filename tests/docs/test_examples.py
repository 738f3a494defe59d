"""Every example in README and docs/ runs.

A block marked `sh` runs as it stands, from the repository, with the virtual environment on PATH; one marked
`python` runs in a process of its own. A block that cannot run in a test says why in a comment
above it, `<!-- not run: REASON -->`, and the reason is shown with the skip.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]*?) -->\s*\n)?^```(?P<language>sh|python)\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Example:
    """One block of a page."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None


def _examples() -> list[Example]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in _BLOCK.finditer(text):
            line = text.count("\n", 0, block.start("language")) + 1
            found.append(Example(page.name, line, block["language"], block["text"], block["reason"]))
    return found


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", _examples(), ids=lambda example: f"{example.page}:{example.line}")
def test_example_runs(example: Example) -> None:
    if example.reason:
        pytest.skip(example.reason)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail"] if example.language == "sh" else [sys.executable, "-"]
    done = subprocess.run(
        command, input=example.text, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{example.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_every_linked_page_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_make_verb_of_the_pages_exists() -> None:
    verbs = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for verb in re.findall(r"`?make ([a-z0-9-]+)", page.read_text()):
            if f"make {verb}" in re.sub(r"[^`\n]*`([^`]*)`[^`\n]*", r"\1\n", page.read_text()):
                assert verb in verbs, f"{page.name} names `make {verb}`"
