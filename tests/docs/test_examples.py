"""Every example in README, docs/ and design/ runs.

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

from schedulers.placement.strategies import STRATEGIES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "KNOWN_ISSUES.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "design").glob("*.md")),
]
GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "docs/architecture.md"]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]*?) -->\s*\n)?^```(?P<language>sh|python)\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
_COMPUTES = re.compile(r"(entrain (simulate|place) .*\n)+")
"""Commands that change nothing on the machine."""


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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            each,
            marks=() if _COMPUTES.fullmatch(each.text) else pytest.mark.root,
            id=f"{each.page}:{each.line}",
        )
        for each in _examples()
    ],
)
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


def test_every_figure_of_the_readme_is_a_result() -> None:
    """README's table quotes rows that open docs/results.md: the paper's figure, ours, and the verdict."""
    results = (ROOT / "docs/results.md").read_text(encoding="utf-8").partition("\n## How these figures")[0]
    table = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .partition("| claim | paper | here |")[2]
        .partition("\n\n")[0]
    )
    rows = re.findall(r"^\|[^|]+(\|[^|]+\|[^|]+\|[^|]+\|)$", table, re.MULTILINE)[1:]
    assert len(rows) > 5
    for row in rows:
        assert row in results, f"README has {row}, docs/results.md has not"


def test_every_make_verb_of_the_pages_exists() -> None:
    verbs = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        shell = "".join(block["text"] for block in _BLOCK.finditer(text) if block["language"] == "sh")
        named = re.findall(r"`make ([a-z0-9-]+)", text) + re.findall(
            r"^make ([a-z0-9-]+)", shell, re.MULTILINE
        )
        for verb in named:
            assert verb in verbs, f"{page.name} names `make {verb}`"


_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[a-z0-9_.*/-]+\.(?:py|c|h|p4|proto|toml|md)")


def _missing(directories: list[Path], name: str) -> bool:
    return not any(list(directory.glob(name)) for directory in directories)


def test_every_file_of_a_table_exists() -> None:
    """A table's first column names files from the repository's root or from a directory that the page
    names."""
    seen = 0
    for page in PAGES:
        text = page.read_text()
        named = [ROOT / each for each in _CODE.findall(text) if re.fullmatch(r"[a-z0-9_/]+/", each)]
        for row in re.findall(r"^\|([^|\n]*)\|", text, re.MULTILINE):
            for name in _CODE.findall(row):
                if _FILE.fullmatch(name):
                    seen += 1
                    assert not _missing([ROOT, *named], name), f"{page.name} lists {name}"
    assert seen > 5


def test_every_path_into_a_package_exists() -> None:
    seen = 0
    for page in PAGES:
        for name in _CODE.findall(page.read_text()):
            if name.partition("/")[0] in (*PACKAGES, "docs", "tests", "experiments") and _FILE.fullmatch(
                name
            ):
                seen += 1
                assert not _missing([ROOT], name), f"{page.name} names {name}"
    assert seen > 20


_PATH = re.compile(r"[A-Za-z0-9_.*/-]+")
_NEW = {
    "entrain/policies/NAME.py",
    "tests/entrain/policies/test_NAME.py",
    "experiments/NAME.toml",
    "results/NAME",
}
"""Files that a recipe makes, or that a run does."""
_MADE = ("build", "results")
"""Directories that have what commands make."""


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_every_path_that_a_guide_names_exists(guide: Path) -> None:
    """Also directories, and what a command in an indented block is given."""
    text = guide.read_text()
    commands = [line for line in text.splitlines() if line.startswith("    ")]
    named = {*_CODE.findall(text), *(word for line in commands for word in line.split())}
    tops = {path.name for path in ROOT.iterdir()} - {".venv", *_MADE}
    paths = {name for name in named if _PATH.fullmatch(name) and "/" in name and name.split("/")[0] in tops}
    assert len(paths) > 20
    for name in paths - _NEW:
        assert not _missing([ROOT], name), f"{guide.name} names {name}"


_STEP = re.compile(r"^\d+\. `([^`]+)` `([^`]+)`:", re.MULTILINE)


def test_the_table_of_strategies_has_all_and_says_which_are_live() -> None:
    rows = (
        (ROOT / "docs/placement.md")
        .read_text(encoding="utf-8")
        .partition("| strategy | live |")[2]
        .partition("\n\n")[0]
    )
    cells = [row.split("|")[1:3] for row in rows.splitlines()[2:]]
    shown = {name: live.strip() == "yes" for names, live in cells for name in re.findall(r"`(.+?)`", names)}
    assert shown == {name: strategy.live for name, strategy in STRATEGIES.items()}


def test_every_step_of_a_walk_names_what_its_file_has() -> None:
    steps = _STEP.findall((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert len(steps) > 40
    for path, name in steps:
        text = (ROOT / path).read_text(encoding="utf-8")
        for part in name.split("."):
            defined = rf"\b(def|class|state|define|static \S+ \S+) {part}\b"
            assert re.search(defined, text), f"{path} has no {name}"


def test_every_section_says_something() -> None:
    for page in PAGES:
        lines = [line for line in page.read_text().splitlines() if line.strip()]
        for line, following in zip(lines, [*lines[1:], "# the end"], strict=True):
            if line.startswith("## "):
                assert not re.match(r"#{1,2} ", following), f"{page.name}: {line} is empty"


def test_nothing_advises_to_install_entrain_from_a_package_index() -> None:
    """There the name belongs to another project; only a checkout can be installed."""
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for path in [*PAGES, ROOT / "Makefile", *sources]:
        assert not re.search(r"install [^\n]*['\" ]entrain\b(?![./-])", path.read_text()), path


def test_no_default_lies_outside_the_checkout() -> None:
    """What a default needs is included; nobody else has the directory beside this checkout."""
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for path in [*PAGES, *sources]:
        assert "shared/data" not in path.read_text(), path
