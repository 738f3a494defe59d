"""`import entrain`: the same as the commands, from Python."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import entrain
from entrain.api import plugins
from entrain.api.plugins import GROUPS
from machine.plugins import extended, forget
from tests.attempts import undisturbed
from tests.entrain.results.test_store import EXPERIMENT, fill, load

ROOT = Path(__file__).resolve().parents[3]

LIVE = """
[experiment]
name = "live"
seed = [1, 2]

[topology]
kind = "dumbbell"
hosts_per_side = 1
host_rate_mbps = 100
bottleneck_rate_mbps = 100

[[job]]
name = "only"
collective = "ring"
bytes = 50_000
compute_ms = 20
iterations = {iterations}
hosts = ["h1", "h2"]
"""


def test_importing_it_is_lazy() -> None:
    """It loads no library that takes time, and starts no thread."""
    code = (
        "import entrain, sys, threading\n"
        "heavy = {'numpy', 'numba', 'grpc', 'pandas', 'matplotlib', 'pydantic', 'click', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)), threading.active_count(), entrain.BadInput.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[] 1 BadInput\n"


def test_every_stable_name_is_there_and_described() -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    for name in entrain.__all__:
        assert getattr(entrain, name).__doc__
        assert f"entrain.{name}" in page or f"`{name}" in page, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        entrain.nothing  # noqa: B018


def test_it_is_typed() -> None:
    assert (ROOT / "entrain/py.typed").exists()


class TestExperiment:
    """What users do with an experiment before it runs."""

    experiment = entrain.Experiment.parse(EXPERIMENT)

    def test_a_change_returns_another_experiment(self) -> None:
        changed = self.experiment.change({"job.a.bytes": 7, "network.loss": 0.1}, seed=[3, 4], routing="ecmp")
        assert [run["seed"] for run in changed.runs] == [3, 4]
        assert changed.tables["job"][0]["bytes"] == 7
        assert changed.tables["network"] == {"loss": 0.1}
        assert len(self.experiment.runs) == 2
        assert self.experiment.tables["job"][0]["bytes"] == 1448000

    def test_none_removes_a_key(self) -> None:
        assert [run["routing"] for run in self.experiment.change(routing=None).runs] == ["ecmp"]

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"experiment.polcy": "none"}, "did you mean policy?"),
            ({"job.b.bytes": 7}, "there is no 'b'; there is a"),
            ({"job.bytes": 7}, "name the job before the key"),
            ({"experiment.name.first": "x"}, "experiment.name.first"),
            ({"experiment.routing.first.x": 1}, "only a list of values"),
        ],
    )
    def test_a_wrong_change_names_the_key(self, changes: dict[str, Any], told: str) -> None:
        with pytest.raises(entrain.BadInput) as error:
            self.experiment.change(changes)
        assert told in str(error.value)

    def test_what_is_saved_is_the_same_experiment(self, tmp_path: Path) -> None:
        self.experiment.save(tmp_path / "saved.toml")
        assert entrain.Experiment.load(tmp_path / "saved.toml").tables == self.experiment.tables

    def test_a_saved_experiment_finds_its_files_from_anywhere(self, tmp_path: Path) -> None:
        example = entrain.Experiment.load(ROOT / "examples/topology/experiment.toml")
        example.save(tmp_path / "saved.toml")
        assert entrain.Experiment.load(tmp_path / "saved.toml").runs == example.runs

    def test_text_that_is_no_toml_is_bad_input(self) -> None:
        with pytest.raises(entrain.BadInput, match="is not valid TOML"):
            entrain.Experiment.parse("[experiment")


class TestResults:
    """What users do with results."""

    @pytest.fixture
    def results(self, tmp_path: Path) -> entrain.Results:
        fill(tmp_path / "out", load(tmp_path, EXPERIMENT), 2)
        return entrain.Results.load(tmp_path / "out")

    def test_tables_are_data_frames(self, results: entrain.Results) -> None:
        pandas = pytest.importorskip("pandas")
        assert isinstance(results.jobs, pandas.DataFrame)
        assert list(results.jobs["routing"]) == ["ecmp", "source"]
        assert list(results.iterations["iteration_ms"]) == [100.25, 101.5] * 2
        assert list(results.links["link"]) == ["leaf1->spine1"] * 2

    def test_without_pandas_the_error_says_what_to_do(
        self, results: entrain.Results, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(entrain.EntrainError, match="pip install pandas"):
            results.jobs  # noqa: B018
        assert [row["iteration_ms"] for row in results.rows("iterations")] == [100.25, 101.5] * 2

    def test_an_unknown_table_is_told_with_the_known_ones(self, results: entrain.Results) -> None:
        with pytest.raises(entrain.BadInput, match="there is jobs, links, queues, iterations"):
            results.rows("jbos")

    def test_a_notebook_shows_pictures(self, results: entrain.Results) -> None:
        import matplotlib

        matplotlib.use("svg")
        shown = results.plot()
        assert matplotlib.get_backend() == "svg"  # the user's choice stays
        assert "results" in [each.name for each in shown]
        assert all(each.png.startswith(b"\x89PNG") for each in shown)
        assert shown._repr_html_().count("<img") == len(shown)


def test_a_simulation_has_the_figures_of_the_command(tmp_path: Path) -> None:
    told: list[float] = []
    found = entrain.simulate(
        "coflow-fb2010",
        policy=["varys", "fifo"],
        limit=20,
        out=tmp_path,
        workers=1,
        progress=lambda what, part: told.append(part),
    )
    assert told == [0.5, 1.0]
    assert [row["policy"] for row in found.rows("points")] == ["varys", "fifo"]
    assert len(found.rows("coflows")) == 40
    again = entrain.simulate("coflow-fb2010", policy="varys,fifo", limit=20, out=tmp_path, workers=1)
    both = [dict(each.document) for each in (again, found)]
    for document in both:
        del document["origin"]  # the second began a moment later
    assert both[0] == both[1]
    with pytest.raises(entrain.BadInput, match="did you mean varys"):
        entrain.simulate("coflow-fb2010", policy=["vary"])


class TestPlugins:
    """`entrain.plugin`."""

    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("PYTHONPATH", "")
        yield
        monkeypatch.undo()
        for each in plugins._site().iterdir():  # nothing stays registered for the tests that follow
            shutil.rmtree(each)
        forget()

    def test_it_is_registered_here_and_in_processes_that_start_later(self, tmp_path: Path) -> None:
        (tmp_path / "guest_one.py").write_text("thing = 'first'\n")
        entrain.plugin("strategies", "of-mine", "guest_one:thing")
        assert extended("entrain.strategies", {})["of-mine"] == "first"
        (tmp_path / "guest_one.py").write_text("thing = 'second, and longer'\n")
        entrain.plugin("strategies", "of-mine", "guest_one:thing")
        assert extended("entrain.strategies", {})["of-mine"] == "second, and longer"
        code = "from machine.plugins import extended; print(extended('entrain.strategies', {})['of-mine'])"
        command = [sys.executable, "-c", f"import sys; sys.path.append({str(ROOT)!r}); {code}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == "second, and longer\n"

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (("polices", "x", "a:b"), "use one of collectives"),
            (("policies", "x", "nowhere_at_all:b"), "there is no module 'nowhere_at_all'"),
            (("policies", "x", "json"), "give the object, too"),
            (("policies", "x = y", "json:dumps"), "must consist of"),
        ],
    )
    def test_a_mistake_is_bad_input(self, arguments: tuple[str, str, str], told: str) -> None:
        with pytest.raises(entrain.BadInput, match=told):
            entrain.plugin(*arguments)

    def test_every_group_is_in_the_guide(self) -> None:
        page = (ROOT / "docs/extend.md").read_text(encoding="utf-8")
        assert all(f"`entrain.{group}`" in page for group in GROUPS)


@pytest.mark.root
def test_an_experiment_runs_beside_an_event_loop(tmp_path: Path) -> None:
    """As in a notebook. What was kept is not run again."""
    experiment = entrain.Experiment.parse(LIVE.format(iterations=3))
    told: list[float] = []

    async def main() -> entrain.Results:
        return experiment.run(tmp_path / "out", only=["seed=1"], progress=lambda _, part: told.append(part))

    first = asyncio.run(main())
    assert [row["seed"] for row in first.rows("jobs")] == [1]
    assert told[-1] == 1.0
    assert told == sorted(told)
    both = experiment.run(tmp_path / "out", resume=True)
    assert [row["seed"] for row in both.rows("jobs")] == [1, 2]
    assert both.rows("iterations")[:3] == first.rows("iterations")


@pytest.mark.root
def test_an_interrupt_takes_the_network_down(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        interrupt_a_run(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_a_run(tmp_path: Path) -> None:
    experiment = entrain.Experiment.parse(LIVE.format(iterations=100_000))
    names: set[str] = set()

    def there() -> set[str]:
        return {path.name for path in Path("/run/netns").iterdir()}

    def interrupt(what: str, part: float) -> None:
        if "only 1" in what and not names:
            ours = (each.pid for each in psutil.Process().children(recursive=True))
            names.update(f"entrain-run-{pid}" for pid in ours)
            assert names & there()
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        experiment.run(tmp_path / "out", progress=interrupt)
    assert names
    assert not names & there()


@pytest.mark.root
def test_an_error_of_a_run_is_raised(tmp_path: Path) -> None:
    experiment = entrain.Experiment.parse(LIVE.format(iterations=1))
    (tmp_path / "out").write_text("a file, not a directory")
    with pytest.raises(entrain.BadInput, match="give another directory"):
        experiment.run(tmp_path / "out")


@pytest.mark.root
def test_a_network_is_up_within_the_context() -> None:
    table = LIVE.partition("[topology]")[2].partition("[[job]]")[0]
    topology = f'[topology]\nname = "of-python"\n{table}'
    with entrain.up(topology) as network:
        assert entrain.Network.running("of-python") == network
        h1, h2 = network.host("h1"), network.host("h2")
        assert "1 received" in h1.run("ping", "-c", "1", "-W", "60", h2.address).stdout
        with pytest.raises(entrain.EntrainError, match="status 3: no"):
            h1.run("sh", "-c", "echo no; exit 3")
        with pytest.raises(entrain.BadInput, match="it has h1, h2"):
            network.host("h3")
        with h2.running("sleep", "1000") as process:
            pass
        assert process.returncode == -signal.SIGTERM

        def read() -> dict[tuple[str, str], Any]:
            return {(row["switch"], row["peer"]): row for row in network.loads(interval_ms=300)}

        with h1.running("ping", "-f", "-q", "-s", "1400", h2.address):  # which begins at some time
            loads = undisturbed(read, lambda loads: loads["left", "right"]["measured_mbps"] > 0.1, 60)
        assert {switch for switch, _ in loads} == {"left", "right"}
        assert not any(loads["left", "right"]["slots"].values()), "nothing is planned for a ping"
        assert sum(packets for packets, _ in network.counter("left", "port_out").values()) > 0
        with pytest.raises(entrain.EntrainError, match="is already up"), entrain.up(topology):
            pass
    with pytest.raises(entrain.EntrainError, match="no network 'of-python' is up"):
        entrain.Network.running("of-python")
