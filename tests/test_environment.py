"""What the user's environment sets changes no command: locale, matplotlib's backend, long paths, /dev/shm."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from entrain.commands.simulate import command
from entrain.doctor import needs
from machine.address import check_socket
from machine.errors import BadInput, EntrainError
from machine.toml import read_toml
from machine.whole import whole
from simulation import sweep
from simulation.experiments.registry import points
from simulation.traces import read_coflow_benchmark
from tests.test_layers import ALLOWED, ROOT

SMALL = ("simulate", "coflow-fb2010", "--limit", "5", "--workers", "1")


def entrain(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "entrain.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})


def _without_encoding(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or any(key.arg == "encoding" for key in node.keywords):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
        if name in ("read_text", "write_text") or (
            name in ("open", "fdopen") and any(mode in modes for mode in ("r", "w", "a", "w+", "r+"))
        ):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_every_text_file_has_an_encoding() -> None:
    modules = [
        path for package in (*ALLOWED, "benchmarks", "robustness") for path in (ROOT / package).rglob("*.py")
    ]
    assert [each for path in modules for each in _without_encoding(path)] == []


def test_a_byte_order_mark_before_a_file_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_toml(file) == {"a": 1}
    file.write_bytes(b"\xef\xbb\xbf4 1\n1 0 1 1 1 2:8\n")
    assert len(read_coflow_benchmark(file).jobs) == 1


@pytest.mark.parametrize(
    ("name", "tool"), [("p4app.json", "p4-utils"), ("lab.clab.yml", "containerlab"), ("0.et", "Chakra")]
)
def test_a_refusal_of_another_tools_file_names_the_page_that_says_how(
    tmp_path: Path, name: str, tool: str
) -> None:
    file = tmp_path / name
    file.write_bytes(b'{"topology": "\xff"}')
    heading = "Files of other tools"
    assert f"### {heading}\n" in (ROOT / "docs/extend.md").read_text(encoding="utf-8")
    with pytest.raises(BadInput, match=f"is not .*; files of {tool}.* docs/extend.md, '{heading}'"):
        read_toml(file)
    if tool == "Chakra":
        with pytest.raises(BadInput, match=f"no trace that vclos-512 reads; files of {tool}"):
            points("vclos-512", file, None, None, 0)


def test_output_that_the_locale_cannot_hold_is_replaced() -> None:
    done = entrain(*SMALL, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "?s" in done.stdout  # µs


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "unknown"])
def test_pictures_are_drawn_whatever_backend_a_notebook_has_set(backend: str) -> None:
    modules = "from entrain.results import cluster_plots, overhead, plots, remedies, timelines"
    drawn = "from simulation import plots; plots._panels(1)"
    program = f"import os; {modules}; {drawn}; print(os.environ['MPLBACKEND'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": backend},
    )
    assert (done.returncode, done.stdout.strip()) == (0, backend), done.stderr


def test_a_path_that_no_socket_can_have_is_refused_with_the_remedy(tmp_path: Path) -> None:
    check_socket(Path("/" + 106 * "x"))
    with pytest.raises(BadInput, match=r"has 108 bytes, .* at most 107; .*ENTRAIN_RUN"):
        check_socket(Path("/" + 107 * "x"))


def test_a_file_is_written_whole_or_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    link.symlink_to(target)
    with pytest.raises(UnicodeEncodeError), whole(link) as draft:
        draft.write_text("half \ud800", encoding="utf-8")
    assert target.read_text() == "before"
    with whole(link) as draft:
        draft.write_text("after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    with whole(Path("/dev/null")) as draft:
        draft.write_text("nowhere")
    assert Path("/dev/null").is_char_device()
    assert sorted(tmp_path.iterdir()) == [link, target]


@pytest.mark.parametrize("below", ["file", "file/below"])
def test_a_simulation_begins_only_if_its_results_can_be_written(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    done = entrain(*SMALL, "--out", str(tmp_path / below))
    assert done.returncode == 2
    assert done.stderr.startswith(f"entrain: --out {tmp_path / below}: cannot be written (")
    assert "Traceback" not in done.stderr


@pytest.fixture
def no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/dev/shm/x")

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refuse)
    monkeypatch.setattr("multiprocessing.Lock", refuse)


@pytest.mark.usefixtures("no_shared_memory")
def test_a_shared_memory_that_cannot_be_used_is_named() -> None:
    with pytest.raises(EntrainError, match=r"^/dev/shm cannot be used .*give --workers 1"):
        list(sweep._local([{}, {}], 2))  # type: ignore[list-item]
    (need,) = [need for need in needs() if need.name == "shared memory"]
    assert need.check() is None


@pytest.mark.usefixtures("no_shared_memory")
def test_one_worker_simulates_without_shared_memory() -> None:
    arguments = ["coflow-fb2010", "--limit", "5", "--policy", "fifo,fair", "--json"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert "note: /dev/shm cannot be used" in done.stderr
    assert len(json.loads(done.stdout)["points"]) == 2
