"""Who may import whom. `docs/architecture.md` shows the table that this file checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

BASE = {"machine", "wire"}
ALLOWED: dict[str, set[str]] = {
    "machine": set(),
    "wire": {"machine"},
    "p4src": {"machine"},
    "schedulers": set(),
    "ebpf": {"machine"},
    "softswitch": {"machine", "ebpf"},
    "ocs": {"machine", "ebpf"},
    "controlplane": {*BASE, "ocs", "schedulers"},
    "workloads": {*BASE, "schedulers"},
    "simulation": {"machine", "schedulers", "workloads"},
    "hostbpf": {*BASE, "ebpf", "schedulers"},
    "mininet_topos": {*BASE, "ebpf", "controlplane", "hostbpf", "ocs"},
    "entrain": {
        *BASE,
        "ebpf",
        "schedulers",
        "controlplane",
        "hostbpf",
        "ocs",
        "workloads",
        "simulation",
        "mininet_topos",
    },
}
"""For each package, the packages that it may import. Those in `ABOVE` may import all of them."""

ABOVE = {"benchmarks", "robustness", "tests"}

ROOMS: dict[str, dict[str, set[str]]] = {
    "softswitch": {
        "contract": set(),
        "compiler": set(),
        "kernel": {"contract", "compiler"},
        "p4runtime": {"contract", "kernel"},
    },
}
"""For each package that is divided: its rooms, and the rooms of the same package that each may import."""


def _imports(path: Path) -> Iterator[str]:
    """Every module that `path` imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _sources(package: str) -> Iterator[Path]:
    return (path for path in (ROOT / package).rglob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc")))


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    ours = {*ALLOWED, *ABOVE}
    allowed = {package, *ALLOWED[package]}
    for path in _sources(package):
        for module in _imports(path):
            top = module.partition(".")[0]
            assert top not in ours or top in allowed, f"{path.relative_to(ROOT)} imports {module}"


def test_the_packages_form_no_circle() -> None:
    remaining = dict(ALLOWED)
    while remaining:
        leaves = {package for package, below in remaining.items() if not below & remaining.keys()}
        assert leaves, f"a circle among {', '.join(sorted(remaining))}"
        for package in leaves:
            del remaining[package]


def test_the_page_shows_the_rule() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| package | may import |\n|---|---|\n")
    rows = [row.split("|")[1:3] for row in table.partition("\n\n")[0].splitlines()]
    shown = {
        re.findall(r"`(\w+)`", package)[0]: set(re.findall(r"`(\w+)`", below)) for package, below in rows
    }
    assert shown == ALLOWED


def test_every_package_has_its_rule() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - ABOVE == ALLOWED.keys()


@pytest.mark.parametrize(("package", "room"), [(p, room) for p, rooms in ROOMS.items() for room in rooms])
def test_a_room_imports_only_the_rooms_below_it(package: str, room: str) -> None:
    rooms = ROOMS[package]
    paths = [ROOT / package / f"{room}.py", *_sources(f"{package}/{room}")]
    for path in filter(Path.is_file, paths):
        for module in _imports(path):
            top, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            assert top != package or other not in rooms or other in {room, *rooms[room]}, (
                f"{path.relative_to(ROOT)} imports {module}"
            )


def test_schedulers_touch_neither_clock_nor_files_nor_sockets() -> None:
    forbidden = {"time", "datetime", "socket", "threading", "subprocess", "os", "pathlib", "random"}
    for path in _sources("schedulers"):
        for module in _imports(path):
            top = module.partition(".")[0]
            assert top not in forbidden or path.name == "compiled.py", f"{path.relative_to(ROOT)}: {module}"
