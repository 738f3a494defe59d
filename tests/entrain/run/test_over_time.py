"""What `entrain run` records in time: jobs alone, throughput on links, windows and F, what MLTCP learned."""

from __future__ import annotations

import csv
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.attempts import undisturbed
from tests.entrain.running import results

pytestmark = pytest.mark.root


EXPERIMENT = """
[experiment]
name = "sampled"
policy = ["mltcp"]
congestion_control = ["reno"]
start_spread_ms = 20
alone_iterations = 3
sample_ms = 20

[network]
offloads = false

[topology]
kind = "dumbbell"
hosts_per_side = 2
host_rate_mbps = 50
bottleneck_rate_mbps = 50
queue_packets = 43
"""
JOB = """
[[job]]
name = "{name}"
collective = "ring"
bytes = 300_000
compute_ms = 200
iterations = {iterations}
hosts = ["{a}", "{b}"]
"""


def jobs(iterations: int) -> str:
    pairs = (("one", "h1", "h3"), ("two", "h2", "h4"))
    return "".join(JOB.format(name=name, a=a, b=b, iterations=iterations) for name, a, b in pairs)


def test_a_run_is_recorded_in_time(tmp_path: Path) -> None:
    file = tmp_path / "sampled.toml"
    file.write_text(EXPERIMENT + jobs(iterations=12))

    def recorded() -> tuple[Any, Path]:
        out = Path(tempfile.mkdtemp(dir=tmp_path)) / "out"
        (found,) = results(file, "--out", out)["runs"]
        return found, out

    def fits(
        recorded: tuple[Any, Path],
    ) -> bool:  # MLTCP takes a rank that has no processor for one that computes
        return all(
            each["total_bytes"] == pytest.approx(300_000, rel=0.01) and 50 < each["gap_ms"] < 250
            for each in recorded[0]["learned"]
        )

    found, out = undisturbed(recorded, fits)

    assert len({job["iteration_ms_alone"] for job in found["jobs"]}) == 1  # of equal jobs one is measured
    for job in found["jobs"]:
        assert job["iteration_ms_alone"] == job["iteration_ms_ideal"] > 0.95 * job["iteration_ms_bound"]
    lines = list(csv.DictReader((out / "throughput.csv").open()))
    for link in found["links"]:  # the monitor's count and the sampler's are the same
        sampled = sum(float(line["mbps"]) * 20e3 / 8 for line in lines if line["link"] == link["link"])
        assert sampled == pytest.approx(link["bytes"], rel=0.001)

    windows = list(csv.DictReader((out / "windows.csv").open()))
    assert {line["job"] for line in windows} == {"one", "two"}
    gains = [float(line["gain"]) for line in windows if line["gain"]]
    assert gains
    assert all(0.25 <= gain <= 2 for gain in gains)
    assert {each["host"] for each in found["learned"]} == {"h1", "h2", "h3", "h4"}
    for name in ("iterations.png", "throughput.png"):
        assert (out / name).stat().st_size > 10_000


@pytest.mark.parametrize("target", ["softswitch", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_dctcp_answers_the_switches_marks(tmp_path: Path, target: str) -> None:
    """The switches mark packets that wait in their queues, on BMv2 real ones, and senders' windows fall after
    marks, without a loss. Reno does not ask for marks and gets none."""
    file = tmp_path / "marked.toml"
    text = EXPERIMENT.replace('["mltcp"]', '["none"]').replace('["reno"]', '["reno", "mltcp_dctcp"]')
    text = text.replace("alone_iterations = 3\n", "").replace("queue_packets = 43", "queue_packets = 64")
    network = "ecn_threshold_packets = 5\nslow_start_after_idle = false\n"
    if target == "bmv2":
        network += 'shaping = "none"\n'  # BMv2 is the bottleneck: packets wait in it, not in a shaper
    text = text.replace("[network]\n", f"[network]\n{network}")
    file.write_text(text + jobs(iterations=5))

    def marked() -> tuple[int, int, float]:
        """Marks and falls that were seen in windows, and the marks that the jobs counted."""
        out = Path(tempfile.mkdtemp(dir=tmp_path)) / "out"
        runs = results(file, "--out", out, "--target", target)["runs"]
        counted = {
            run["congestion_control"]: sum(5 * job["marks_per_iteration"] for job in run["jobs"])
            for run in runs
        }
        windows = list(csv.DictReader((out / "windows.csv").open()))
        assert answers(windows, "reno") == (0, 0)
        assert counted["reno"] == 0
        return *answers(windows, "mltcp_dctcp"), counted["mltcp_dctcp"]

    def fits(found: tuple[int, int, float]) -> bool:
        marks, falls, counted = found
        return marks > 100 and falls > 0 and 0.8 * marks < counted < 1.5 * marks

    undisturbed(marked, fits)  # windows are looked at until about 0.1 s before the end


def answers(windows: list[dict[str, str]], control: str) -> tuple[int, int]:
    """Over the senders under `control`: segments marked, and how often a window was smaller than at the look
    before, with marks and no retransmission between the two."""
    marks = falls = 0
    for host in ("h1", "h2", "h3", "h4"):
        seen = [line for line in windows if (line["congestion_control"], line["host"]) == (control, host)]
        assert seen
        marks += int(seen[-1]["marked"])
        for before, after in pairwise(seen):
            unharmed = before["retransmitted"] == after["retransmitted"]
            more = int(after["marked"]) > int(before["marked"])
            falls += unharmed and more and int(after["cwnd"]) < int(before["cwnd"])
    return marks, falls
