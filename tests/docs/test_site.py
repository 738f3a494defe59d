"""The site of docs/ builds without a network, has no broken link, and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import browsed, needs_browser

ROOT = Path(__file__).resolve().parents[2]
_LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]* src="https?://|<link[^>]* rel="(?:stylesheet|preconnect)" href="https?://"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the built site. `strict` in mkdocs.yml turns a broken link into a failure."""
    directory = tmp_path_factory.mktemp("site")
    offline = ["unshare", "--net"] if os.geteuid() == 0 else []
    command = [*offline, sys.executable, "-m", "mkdocs", "build", "--site-dir", str(directory)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_every_page_of_docs_is_on_the_site(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists(), page


def test_every_page_of_design_is_on_the_site(site: Path) -> None:
    for page in (ROOT / "design").glob("*.md"):
        name = "index" if page.stem == "README" else page.stem
        assert (site / "project" / "design" / f"{name}.html").exists(), page


def test_the_overview_has_every_page() -> None:
    overview = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    missing = {page.name for page in (ROOT / "docs").glob("*.md")} - set(re.findall(r"[\w-]+\.md", overview))
    assert missing == {"index.md"}


@needs_browser
def test_the_search_finds_pages_that_are_opened_from_files(site: Path, tmp_path: Path) -> None:
    page = browsed(f"{site.as_uri()}/index.html?q=headroom", tmp_path)
    assert re.search(r'<a href="[^"]*/host\.html"[^>]*class="md-search-result__link"', page)


def test_every_command_is_in_the_reference(site: Path) -> None:
    text = (site / "reference" / "cli.html").read_text()
    for command in (ROOT / "entrain" / "commands").glob("[!_]*.py"):
        assert f"entrain {command.stem.replace('_', '-')}<" in text, command


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not _LOADED.search(page.read_text()), page
