"""docs/results.md: made from what `entrain run --out` writes, and never losing what stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from entrain import fluid, paper
from entrain.experiment import Combination, Experiment, load_experiment
from entrain.paper import verdicts
from entrain.policies.reports import HostReport, Paced
from entrain.results import files, live, opening, published
from entrain.results import page as results_page
from entrain.results.claims import MEASURES
from entrain.results.cluster import Stay, Stays
from entrain.results.store import writing
from entrain.results.values import LEARNING, JobResult, RunResult, Timeline
from entrain.results.verdicts import kind_of, verdict
from entrain.run.contention import LinkContention
from entrain.run.cross import NAME as CROSS
from entrain.run.samples import Throughput, Window
from entrain.trials import slot_rates
from hostbpf.rates.trial import FlowSlot, Outcome, Trial
from machine.errors import BadInput
from machine.origin import EMULATION, Origin, here
from schedulers.placement.cluster import Placement
from workloads.records import Summary

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENTS = {path.stem: path for path in sorted((ROOT / "experiments").glob("*.toml"))}
IDEAL_MS = 100.0


def iteration_ms(experiment: str, combination: Combination) -> float:
    """What a made-up run takes: TCP 200 ms (Reno 190), MLTCP 125, slots 150; more where packets are lost."""
    lost = experiment.startswith(("slots-loss", "slots-window-loss")) and not experiment.endswith("-none")
    if combination.policy.startswith("slots"):
        return 160.0 if lost else 150.0
    if combination.policy == "mltcp":
        return 125.0
    if combination.control == "reno":
        return 190.0
    return 800.0 if lost else 200.0


RUNNING_S = {"ecmp": 20.0, "recmp": 16.0, "source": 15.0, "vclos": 10.0, "ocs-vclos": 8.0, "apart": 20.0}
"""How long a made-up job on a cluster runs; it waits for a quarter of that."""


def cluster_run(experiment: Experiment, combination: Combination) -> RunResult:
    """All jobs take the same; each iteration takes 1.2 times as long as alone."""
    assert experiment.cluster is not None
    assert combination.strategy is not None
    jobs, stays = [], []
    for arrival in experiment.cluster.arrivals(combination.seed):
        summary = Summary("", "ring", 2, 2, (120.0, 120.0), (120.0, 120.0), 0.24, 9, 0.1, None)
        jobs.append(JobResult(arrival.name, ("h1", "h2"), summary, 90.0, 1, IDEAL_MS))
        running_s = RUNNING_S[combination.strategy] * (0.8 if combination.policy == "slots-15" else 1.0)
        start_s = arrival.arrival_s + running_s / 4
        placement = Placement(arrival.name, 0, (0, 1), (0, 0))
        stays.append(Stay(placement, arrival.arrival_s, start_s, start_s + running_s, changed=1))
    return RunResult(
        combination,
        experiment.target,
        tuple(jobs),
        (LinkContention("leaf1->spine1", 1, 1, 3, 1, 1),),
        {"processor_busy": 0.3, "unattributed_bytes": 0},
        stays=Stays(tuple(stays), {"gpus": 7, "network": 5}),
    )


def run(experiment: Experiment, combination: Combination) -> RunResult:
    """All jobs take the same; under MLTCP it is as bad as without in the first ten iterations. Under Cassini
    half of the time is communication, and all of it otherwise."""
    jobs, windows = [], []
    for job in experiment.jobs:
        number = job.spec.iterations
        learning = 200.0 if combination.policy == "mltcp" else iteration_ms(experiment.name, combination)
        ms = (learning,) * 10 + (iteration_ms(experiment.name, combination),) * (number - 10)
        marks = (700,) * 10 + (50,) * (number - 10)
        sent = tuple(each / 2 for each in ms) if combination.policy == "cassini" else ms
        summary = Summary("", "ring", 2, number, ms, sent, sum(ms) / 1e3, 9, 0.1, None, (), sum(marks), marks)
        jobs.append(JobResult(job.name, job.hosts, summary, 90.0, 1, IDEAL_MS))
        lost = 1 if combination.policy == "mltcp" else 6  # by each host, in each iteration
        windows += [
            Window(sum(ms[:after]) / 1e3, job.name, host, 10, None, lost * after, 0)
            for host in job.hosts
            for after in sorted({0, min(LEARNING, number), number})
        ]
    since = {job.name: 5 for job in jobs}
    paced = Paced(1.0, dict.fromkeys(since, 12.0), 4.0, 3, 1.5, 0.012, since=since)
    report = HostReport("h1", (), {}, {}, (1.0, 4.0), (0.5,), 10.0, 1.5, 1_000_000, 100.0)
    link = "left->right"
    names = [job.name for job in jobs] + ([CROSS] if experiment.cross else [])
    shares = {CROSS: (0.0, 60.0, 60.0, 0.0)}
    return RunResult(
        combination,
        experiment.target,
        tuple(jobs),
        (LinkContention(link, 1, 1, 1, 1, 1),),
        {"processor_busy": 0.3, "unattributed_bytes": 0},
        Timeline(
            tuple(Throughput(link, each, 20.0, shares.get(each, (80.0, 20.0, 20.0, 0.0))) for each in names),
            tuple(windows),
        ),
        (),
        (report,) * 2 if combination.policy == "slots" else (),
        paced=paced if combination.policy == "cassini" else Paced(),
    )


def leave(directory: Path, name: str) -> None:
    """Leave what `entrain run --out` would."""
    if name == "slot-rates":
        rates = slot_rates.load(EXPERIMENTS[name])
        slot = FlowSlot(0, 0, 10_000.0, 5_000, 0.5)  # half of what was wanted
        with writing(slot_rates.KIND, directory, rates, resume=False) as trials:
            for control in ("slot_reno", "cubic"):
                trial = Trial(60.0, 16, control=control)
                outcome = Outcome((slot,), 0.5, None)
                trials.add(slot_rates.TrialResult(trial, slot_rates.Goals(), outcome), control)
        return
    put(directory, load_experiment(EXPERIMENTS[name]))


def put(directory: Path, experiment: Experiment) -> None:
    with writing(files.NETWORK, directory, experiment, resume=False) as store:
        for combination in experiment.combinations():
            make = cluster_run if experiment.cluster else run
            store.add(make(experiment, combination), "run")


_FLUID: dict[tuple[str, int, str], float] = {}


@pytest.fixture(autouse=True)
def simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of one module are of the same experiments, so their fluid jobs are simulated once."""

    def mean_jct_s(experiment: Experiment, seed: int, policy: str) -> float:
        key = repr(experiment), seed, policy
        if key not in _FLUID:
            _FLUID[key] = fluid.mean_jct_s(experiment, seed, policy)
        return _FLUID[key]

    monkeypatch.setattr(live, "mean_jct_s", mean_jct_s)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("results")
    for name in live.compared():
        leave(directory / "live" / name, name)
    return [directory]


def section(page: str, number: int) -> str:
    return results_page.split(page)[live.titles()[number]]


def test_no_experiment_is_forgotten() -> None:
    """Those that compare with a paper's figures are all in a section."""
    compared = {name for name in EXPERIMENTS if name.startswith(("slots-", "slot-", "mltcp-"))}
    compared |= {name for name in EXPERIMENTS if name.startswith("cassini-")}
    assert compared | {"vclos", "vclos-small", "matrix", "parrot"} == live.compared().keys()


def test_figures_are_compared_with_the_papers(everything: list[Path]) -> None:
    page = results_page.page(everything)
    assert list(results_page.split(page)) == list(live.titles())
    every = [section(page, n) for n in range(19)]
    completion, bound, load, loss, window, two, tcp, overhead = every[:8]
    emulated, alone, lengths, rates, mltcp, seeds, vclos, unfair, shifts, snapshots, matrix = every[8:]
    for speed in ("10", "16", "24"):
        paper = "at least -15 %"
        claim = f"| mean completion time, slots against reno, {speed} Gbit/s | {paper} | -21.1 ± 0.0 % |"
        assert claim in completion
    assert "| training speed of VGG19, slots against cubic, 10 Gbit/s | +22 % | +33.3 ± 0.0 % |" in completion
    rows = {row[""]: row for row in tables(completion)[0]}
    for speed in ("10", "16", "24"):
        bounds = ("least left first, fluid", "max-min, fluid")
        ordered, shared = (numbers(rows[name][f"{speed} Gbit/s"])[0] for name in bounds)
        assert ordered < shared
    assert "| slots-15 | 20.00 ± 0.00 | -20.0 ± 0.0 % | 4.00 |" in load
    claim = "| mean completion time, slots against reno, 80 % of the GPUs"
    assert f"{claim} | at least -15 % | +0.0 ± 0.0 % |" in load
    for text in (bound, load):
        fluid = {row[""]: numbers(row["mean JCT (s)"])[0] for row in tables(text)[0]}
        assert fluid["least left first, fluid"] < fluid["max-min, fluid"]
    assert "| slots, 1.5 % loss against no loss | -4 % | -6.2 % |" in loss
    assert "| slots against cubic, 1.5 % loss | × 5.1 | × 5.00 |" in loss
    assert "| cubic, 0.2 % loss against no loss | -62 % | -75.0 % |" in loss
    assert "| cubic | 200 ms | × 4.00 |" in loss
    assert "| slots against cubic, 1 % loss | × 5.1 | × 5.00 ± 0.00 |" in window
    assert "| cubic | 200 ± 0 ms | × 4.00 ± 0.00 |" in window
    assert "| slots | 150 | 150 | 2.77 | 100 % |" in two
    assert "| slots | 60 | 20 | 75 % |" in tcp  # while the TCP flow is on
    assert "| slots-jct | 2 | 2.5 | 3.7 | 3.97 | 0.5 | 0.5 | 0.5 | 15 % | 1.6 | 0.80 % |" in overhead
    assert "| cubic | 60 | 16 | 50.00 % | 50.00 % | 0.0 % | 0.50 | - |" in rates
    assert "| 90 % of the negotiations over gRPC take at most (ms) | 6.2 | 3.7 |" in emulated
    assert "| slots-emulated | 2 | 2.5 |" in emulated
    claim = "| mean completion time, slots against reno, hosts' own links only | -8.5 %"
    assert f"{claim} | -21.1 ± 0.0 % |" in alone
    assert "| mean completion time, reno against cubic | -4 % | -5.0 ± 0.0 % |" in alone
    assert "| mean completion time, slots of 60 ms against 30 ms, 10 Gbit/s | 60 ms are best |" in lengths
    settled = "1.250 | 50 | 0 of 1 | - | 0.75 | 6.0 | 1.52 | 1.52"
    assert f"| mltcp-three-jobs | mltcp_reno | {settled} | 30 % |" in mltcp
    assert "| lost or marked segments, plain / MLTCP | up to 28.87 | 6.00 |" in mltcp
    assert "| mltcp-growth-only | mltcp_dctcp | 1.250 | 50 | 0 of 10 |" in seeds
    assert "CPU utilisation: 30 %" in completion
    assert "| ecmp | 20.00, 20.00 | 5.00, 5.00 | 25.00, 25.00 | 3 | 7 | 5 | 100 | 1.20 | 30 % |" in vclos
    assert "| ecmp | 20.00, 20.00 | 5.00, 5.00 | 25.00, 25.00 | 3 | 7 | 5 | 12 | 1.20 | 30 % |" in vclos
    assert "| mean JRT, vclos against ecmp, 32 GPUs | -21.4 % | -50.0 % |" in vclos
    assert "| mean JWT, vclos against source, 32 GPUs | -9.2 % | -33.3 % |" in vclos
    assert "| dlrm-one | 1.00 | 190.0 | 200.0 | 0.95 |" in unfair
    assert "| mixed-bert | 0.80 | 190.0 | 200.0 | 0.95 |" in unfair
    assert "| cassini, cubic | 1.00 | one 12, two 12 | 2.000 | 4.0 | 3 | 1.5 | 1.2 % | 50 |" in shifts
    assert "| cassini, reno | 190, 190 | 100, 100 | 1.900 | 267 | 100 % |" in shifts
    assert "cassini-incompatible:" in shifts and "cassini-snapshot-5:" in snapshots
    assert "| fair / unfair iteration time, two DLRM jobs | 1.28, 1.30 | 0.95, 0.95 |" in unfair
    assert "| iteration time once shifted / alone, two jobs that fit | near 1 | 1.900 to 2.000 |" in shifts
    assert "| 27 to 33 times fewer | 212 and 50 |" in shifts
    assert "snapshot 4 | 1.28, 1.16 | 2.00, 2.00 (reno); 2.00, 2.00 (dctcp) |" in snapshots
    assert "| iteration time, DCTCP / Cassini with DCTCP, by load and routing | 1.2 to 1.6 | 1.00 |" in matrix
    assert "| 45 % | source | slots | 1.500 | 1.500 | 321 |" in matrix


def test_what_was_not_run_is_left_out_and_named(tmp_path: Path) -> None:
    ran = ("slots-jct", "slots-loss-0.2")
    for name in ran:
        leave(tmp_path / name, name)
    page = results_page.page([tmp_path])
    assert "24 Gbit/s" not in page
    assert "| cubic | 800 ms |" in section(page, 3)  # there is nothing to compare with
    last = page.splitlines()[-1]
    for name in live.compared():
        assert (f"`experiments/{name}.toml`" in last) == (name not in ran)


def test_sections_without_new_results_stay_as_they_stand(tmp_path: Path) -> None:
    """The rest of the page is the same, byte for byte; the page need not have had the section before."""
    old = (ROOT / "docs" / "results.md").read_text()
    leave(tmp_path / "rates", "slot-rates")
    new = results_page.page([tmp_path], old)
    before, after = results_page.split(old), results_page.split(new)
    fresh = live.sections([tmp_path])
    assert {title: text for title, text in after.items() if title not in fresh} == {
        title: text for title, text in before.items() if title not in fresh
    }
    assert {title: after[title] for title in fresh} == fresh
    assert list(after) == [title for title in results_page.titles() if title in after]
    assert results_page.page([tmp_path], new) == new


def test_no_figures_get_lost_silently(everything: list[Path], tmp_path: Path) -> None:
    old = results_page.page(everything)
    leave(tmp_path / "mine", "slots-jct")
    with pytest.raises(BadInput, match=r"experiments/slots-jct-16g\.toml"):
        results_page.page([tmp_path], old)
    with pytest.raises(BadInput, match="By hand"):
        results_page.page(everything, old + "\n## By hand\n\nText.\n")
    leave(tmp_path / "again", "slots-jct")
    with pytest.raises(BadInput, match="both hold results of slots-jct with reno"):
        results_page.page([tmp_path])
    with pytest.raises(BadInput, match="no results to put on the page"):
        results_page.page([tmp_path / "nothing"])


def test_controls_of_one_experiment_may_have_been_run_one_by_one(tmp_path: Path) -> None:
    for control in ("cubic", "bpf_dctcp"):
        path = tmp_path / "mltcp-seeds.toml"
        path.write_text(
            re.sub(
                "^congestion_control = .*",
                f'congestion_control = ["{control}"]',
                EXPERIMENTS["mltcp-seeds"].read_text(),
                flags=re.MULTILINE,
            )
        )
        experiment = load_experiment(path)
        put(tmp_path / control, experiment)
    text = section(results_page.page([tmp_path]), 12)
    for name in ("mltcp_cubic", "mltcp_dctcp"):
        assert f"| mltcp-seeds | {name} | 1.250 | 50 | 0 of 10 |" in text


def entrain(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command; modules in `path` stand in for installed ones."""
    command = [sys.executable, "-m", "entrain.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_report_writes_the_page(tmp_path: Path) -> None:
    leave(tmp_path / "mine", "slots-two-jobs")
    page = tmp_path / "page.md"
    done = entrain("report", str(tmp_path), "--page", str(page))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert page.read_text() == results_page.page([tmp_path])
    assert entrain("report", str(tmp_path), "--page", "-").stdout == page.read_text()


def test_report_shows_and_draws_what_was_kept(tmp_path: Path) -> None:
    """As `entrain run` would have: from the runs alone, of each experiment below the directory."""
    for name in ("slots-two-jobs", "slot-rates"):
        leave(tmp_path / name, name)
    (tmp_path / "mininet.py").write_text("raise ModuleNotFoundError('it is not needed', name='mininet')")
    done = entrain("report", str(tmp_path), "--draw", path=tmp_path)
    assert done.returncode == 0, done.stderr
    for shown in ("slots-two-jobs on softswitch", "vgg19", "goals", "slot_reno"):
        assert shown in done.stdout
    for picture in ("iterations.png", "throughput.png", "results.png", "overhead.png"):
        assert (tmp_path / "slots-two-jobs" / picture).stat().st_size > 10_000
    assert (tmp_path / "slot-rates" / "results.png").exists()
    printed = json.loads(entrain("report", str(tmp_path / "slots-two-jobs"), "--json").stdout)
    assert printed == json.loads((tmp_path / "slots-two-jobs" / "results.json").read_text())
    assert entrain("report", str(tmp_path / "slots-two-jobs" / "runs")).returncode == 2


def test_what_a_paper_claims_stands_in_the_experiment(tmp_path: Path) -> None:
    """An experiment that nobody has heard of gets its row, in its figure's section, with its claim."""
    path = tmp_path / "mine.toml"
    text = EXPERIMENTS["slots-jct"].read_text().replace('name = "slots-jct"', 'name = "mine"')
    path.write_text(text.replace("10 Gbit/s", "5 Gbit/s").replace("at least -15 %", "a miracle"))
    put(tmp_path / "out", load_experiment(path))
    text = section(results_page.page([tmp_path / "out"]), 0)
    assert "| mean completion time, slots against reno, 5 Gbit/s | a miracle | -21.1 ± 0.0 % |" in text


def test_a_claim_may_be_written_after_its_experiment_was_run(tmp_path: Path) -> None:
    path = tmp_path / "cassini-marks.toml"
    path.write_text(EXPERIMENTS["cassini-marks"].read_text().partition("claim = ")[0])
    put(tmp_path / "out", load_experiment(path))
    assert "| 27 to 33 times fewer | 212 and 50 |" in results_page.page([tmp_path / "out"])


def test_a_new_figure_of_a_known_kind_needs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section with other words, for another paper's figure, and an experiment with other models."""
    mine = paper.Section(
        title="Mine", figures=("other/3",), tables="loss", text="After {learning} iterations."
    )
    every = (*paper.sections(), mine)
    monkeypatch.setattr(paper, "sections", lambda: every)
    path = tmp_path / "mine.toml"
    text = EXPERIMENTS["slots-loss"].read_text().replace('name = "slots-loss"', 'name = "mine"')
    path.write_text(text.replace("slots/10", "other/3").replace('name = "resnet50"', 'name = "gpt2"'))
    put(tmp_path / "out", load_experiment(path))
    made = results_page.split(results_page.page([tmp_path / "out"]))["Mine"]
    assert f"After {LEARNING} iterations." in made
    assert "Mean iteration time of gpt2 by loss rate" in made
    assert claims(made)["slots against cubic, 1 % loss"]["paper"] == "× 5.1"


@pytest.mark.parametrize("like", ["slots-two-jobs", "slots-tcp-flow", "slots-loss-none"])
def test_a_second_experiment_of_a_figure_needs_no_code(like: str, tmp_path: Path) -> None:
    """It is shown beside the first, or refused because nothing sets the two apart."""
    leave(tmp_path / "one", like)
    path = tmp_path / "other.toml"
    path.write_text(EXPERIMENTS[like].read_text().replace(f'name = "{like}"', 'name = "other"', 1))
    put(tmp_path / "two", load_experiment(path))
    if like == "slots-loss-none":
        with pytest.raises(BadInput, match="other and slots-loss-none: both have the condition 'none'"):
            results_page.page([tmp_path])
        return
    text = results_page.page([tmp_path])
    first, second = text.index(f"\n{like}:\n"), text.index("\nother:\n")
    assert "| slots |" in text[first:second] or "| slots |" in text[second:first]


def test_every_kind_of_figure_and_every_measure_is_made() -> None:
    assert set(get_args(paper.Tables)) == set(live.TABLES)
    assert set(get_args(paper.Measure)) == set(MEASURES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "section: this key is missing"),
        ('[[section]]\ntitle = "T"\nfigures = ["f"]\ntables = "lost"\ntext = ""', "did you mean loss?"),
    ],
)
def test_a_wrong_section_names_file_and_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "page.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=re.escape(f"{path}: ")) as error:
        paper.sections(path)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('figure = "slots/99"', "[[paper]] 1, figure"),
        ('figure = "mltcp"\nclaim = "fast"', "claim, value and measure"),
        ('figure = "mltcp"\nvalues = "1"', "did you mean value?"),
    ],
)
def test_a_wrong_claim_names_file_and_key(tmp_path: Path, table: str, told: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(
        EXPERIMENTS["slots-two-jobs"].read_text().partition("[[paper]]")[0] + f"[[paper]]\n{table}\n"
    )
    with pytest.raises(BadInput, match=re.escape(told)):
        load_experiment(path)


# -- the page's figures follow from each other, whoever made it


def tables(text: str) -> list[list[dict[str, str]]]:
    """The tables of a section, each a list of rows by column; a second column of a name has a `'`."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines())
        head = [f"{each}'" if each in head[:place] else each for place, each in enumerate(head)]
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def by_name(table: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    """Rows by what stands in the first column."""
    return {next(iter(row.values())): row for row in table}


def claims(text: str) -> dict[str, dict[str, str]]:
    """What the paper claims and what came out, by claim."""
    (found,) = (table for table in tables(text) if table and "claim" in table[0])
    return by_name(found)


def numbers(cell: str) -> list[float]:
    """As in `4 % to 12 %`, `-2.2 %`, `22.20 (+9.8 %)`."""
    return [float(each) for each in re.findall(r"[-+]?\d+(?:\.\d+)?", cell)]


def close(change: str, new: float, old: float, digits: int) -> None:
    """Whether a change in per cent, perhaps with its interval, follows from two numbers that were rounded
    to so many digits."""
    half = 0.5 * 10**-digits
    percent = numbers(change)[0]
    lowest = 100 * ((new - half) / (old + half) - 1) - 0.06
    assert lowest <= percent <= 100 * ((new + half) / (old - half) - 1) + 0.06, (change, new, old)


def check_completion(text: str) -> None:
    means, *others = (by_name(table) for table in tables(text)[:-1])
    models = [each for each in others if "vgg19" in each["slots"]]
    speeds = [column for column in means["slots"] if column]
    spread = [each for each in others if each not in models][-1]  # behind that of cross traffic, if any
    assert len(models) == len(speeds)
    for speed, times in zip(speeds, models, strict=True):
        shown = {name: row[speed] for name, row in means.items() if row[speed] != "-"}  # -: not run
        mean = {name: numbers(cell)[0] for name, cell in shown.items()}
        measured = [name for name in mean if not name.endswith(", fluid")]
        plain = (name for name in measured if "_" not in name and not name.startswith("slots"))
        best = min(plain, key=mean.__getitem__)
        for name, cell in shown.items():
            close(cell.partition("(")[2], mean[name], mean[best], 2)
        for name in measured:
            low, high, p99 = numbers(spread[name][speed])
            assert low <= mean[name] <= high
            assert p99 <= high
        ours = claims(text)[f"mean completion time, slots against {best}, {speed}"]["here"]
        close(ours, mean["slots"], mean[best], 2)
        speed_up = claims(text).get(f"training speed of VGG19, slots against cubic, {speed}")
        if speed_up:
            close(speed_up["here"], float(times["cubic"]["vgg19"]), float(times["slots"]["vgg19"]), 0)


def check_loss(text: str) -> None:
    vgg16 = by_name(tables(text)[0])

    def ms(name: str, loss: str) -> float:
        none = numbers(vgg16[name]["none"])[0]
        return none if loss == "none" else none * numbers(vgg16[name][loss])[0]

    for claim, row in claims(text).items():
        if found := re.match(r"(\w+), ([\d.]+ %) loss against no loss", claim):
            mine, others = ms(*found.groups()), ms(found[1], "none")
            assert numbers(row["here"])[0] == pytest.approx(100 * (others / mine - 1), abs=0.6)
        else:
            other, loss = re.match(r"slots against (\w+), ([\d.]+ %) loss", claim).groups()  # type: ignore[union-attr]
            assert numbers(row["here"])[0] == pytest.approx(ms(other, loss) / ms("slots", loss), abs=0.05)


def check_overhead(text: str) -> None:
    for claim, column, hosts in (
        ("90 % of the negotiations take at most (ms)", "p90", None),
        ("negotiation traffic of six servers (Mbit/s)", "carriers, all hosts (Mbit/s)", "6"),
        ("processor time of a host's scheduler", "agent CPU (of one core)", None),
    ):
        rows = [row for row in tables(text)[0] if hosts in (None, row["hosts"])]
        every = [number for row in rows for number in numbers(row[column])]
        here = numbers(claims(text)[claim]["here"])
        assert set(here) == ({min(every), max(every)} if every else set())


def check_mltcp(text: str) -> None:
    rows = [row for row in tables(text)[0] if row["control"].startswith("mltcp_")]
    pair = [row for row in rows if row["experiment"] == "mltcp-two-jobs"]
    here = {claim: row["here"] for claim, row in claims(text).items()}
    for claim, column in (
        ("mean iteration time, plain / MLTCP", "mean, plain / MLTCP"),
        ("99th percentile, plain / MLTCP", "p99, plain / MLTCP"),
    ):
        ratios = [number for row in pair for number in numbers(row[column])]
        assert set(numbers(here[claim])) == ({min(ratios), max(ratios)} if ratios else set())


def check_seeds(text: str) -> None:
    rows = tables(text)[0]
    converged = [numbers(row["converged"]) for row in rows]
    *span, ran, of = numbers(claims(text)["iterations until interleaved"]["here"])
    assert (ran, of) == tuple(map(sum, zip(*converged, strict=True)))
    at = [number for row in rows for number in numbers(row["at iteration"].strip("-"))]
    assert not at or (min(span), max(span)) == pytest.approx((min(at), max(at)), rel=0.01)


CHECKS = {0: check_completion, 3: check_loss, 7: check_overhead, 12: check_mltcp, 13: check_seeds}
"""By the number of a section."""


@pytest.mark.parametrize("number", CHECKS)
def test_derived_figures_follow_from_the_tables(everything: list[Path], number: int) -> None:
    CHECKS[number](section(results_page.page(everything), number))


def test_the_page_of_this_repository_is_the_makers(everything: list[Path]) -> None:
    """Its head, its sections and their order, the commands, every claim of a paper with the paper's value;
    and the figures that follow from others do so."""
    page = (ROOT / "docs" / "results.md").read_text()
    assert results_page.method() in page
    standing, made = results_page.split(page), results_page.split(results_page.page(everything))
    assert list(standing) == [title for title in results_page.titles() if title in standing]
    assert results_page.page(everything, page) == results_page.page(
        everything, results_page.page(everything, page)
    )
    for number, title in enumerate(live.titles()):
        if title not in standing:
            continue
        assert set(results_page.commands(standing[title])) <= set(results_page.commands(made[title]))
        if any(table and "claim" in table[0] for table in tables(made[title])):
            papers = {claim: row["paper"] for claim, row in claims(standing[title]).items()}
            assert set(papers.values()) <= {row["paper"] for row in claims(made[title]).values()}
        if number in CHECKS:
            CHECKS[number](standing[title])


def test_sections_of_an_earlier_emulation_say_so(everything: list[Path]) -> None:
    assert all(live.OLDER in text for text in live.sections(everything).values())
    assert here().emulation == EMULATION > Origin("0", "6.18", 2, "2026").emulation


@pytest.mark.parametrize("number", CHECKS)
def test_a_figure_that_somebody_changes_is_noticed(number: int) -> None:
    text = results_page.split((ROOT / "docs" / "results.md").read_text())[live.titles()[number]]
    first = next(iter(claims(text).values()))["here"]
    changed = re.sub(r"[-+]?\d+(\.\d+)?", lambda found: f"{float(found[0]) + 50:g}", first, count=1)
    with pytest.raises(AssertionError):
        CHECKS[number](text.replace(f"| {first} |\n", f"| {changed} |\n"))


def test_the_opening_table_has_the_figures_of_the_sections() -> None:
    """The committed page: every verdict has a row, with the figures that stand in its section."""
    page = (ROOT / "docs" / "results.md").read_text()
    sections = results_page.split(page)
    simulated = published.all_judged(published.read())
    table = opening.opening(sections, simulated)
    assert table in page
    assert page.index(table) < page.index(results_page.METHOD)
    assert {each.section for each in verdicts()} <= set(results_page.titles())
    shown = [each for each in verdicts() if each.section in sections]
    assert table.count("\n") == len(shown) + sum(bool(each.claim.why) for each in simulated) + 2
    for each in shown:
        rows = opening.rows_of(sections[each.section])
        _, theirs, ours = next(row for row in reversed(rows) if row[0] == each.claim)
        judged = verdict(theirs, ours, each.kind or kind_of(each.claim, theirs))
        assert f"| {each.claim} | {theirs} | {ours} | {judged} |" in table


def test_a_claim_that_was_not_run_has_no_verdict() -> None:
    first = verdicts()[0]
    rows = f"| claim | paper | here |\n|---|---|---|\n| {first.claim} | 1 | 2 |\n| other | 3 | 4 |\n"
    assert opening.opening({first.section: rows}).count("\n") == 3
    assert opening.opening({}) == ""
