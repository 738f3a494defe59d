"""Profiles from files and from jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from machine.errors import BadInput
from workloads.profiles import GBPS, read_profiles

JOB = '[[job]]\nname = "a"\nperiod_ms = 100\nphases = [{ start_ms = 60, end_ms = 100, gbps = 10 }]\n'
LINK = '[[link]]\nname = "l"\ncapacity_gbps = 10\njobs = ["a"]\n'


def test_a_file_gives_profiles_and_links(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(JOB + LINK)
    file = read_profiles(path)
    assert file.profiles["a"].ups == pytest.approx(np.array([[0.06, 0.1, 10 * GBPS]]))
    assert file.profiles["a"].period == pytest.approx(0.1)
    assert [(link.name, link.capacity, link.jobs) for link in file.links] == [("l", 10 * GBPS, ("a",))]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("period_ms = 100", "period_ms = 0", "[[job]] 1, period_ms: must be above 0, is 0"),
        ("gbps = 10 }", "gbps = 11 }", "gbps is 11, more than the 10 of link 'l'"),
        (
            "gbps = 10 }",
            "gbps = 10 }, { start_ms = 50, end_ms = 70, gbps = 1 }",
            "one begins at 60 ms while another lasts until 70 ms",
        ),
        ("end_ms = 100", "end_ms = 101", "one ends at 101 ms, after the period of 100 ms"),
        ("end_ms = 100", "end_ms = 60", "needs to end later"),
        ("start_ms = 60", "start_ms = -1", "start_ms: must be at least 0, is -1"),
        ("gbps = 10 }", "mbps = 10 }", "unknown key"),
        ('jobs = ["a"]', 'jobs = ["a", "b"]', "[[link]] 'l', jobs: there is no job 'b'; known are a"),
        ('jobs = ["a"]', 'jobs = ["a", "a"]', "'a' is listed 2 times"),
        ('jobs = ["a"]', "jobs = []", "[[link]] 1, jobs: needs at least 1 item"),
        ("capacity_gbps = 10", "capacity_gbps = inf", "capacity_gbps: must be a finite number"),
        (JOB, JOB + JOB, "[[job]], name: 'a' is listed 2 times"),
        (LINK, "", "link: this key is missing"),
        (JOB, JOB + JOB.replace('"a"', '"b"').replace("100", "100001"), "1000 times is the most"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = tmp_path / "profiles.toml"
    text = JOB + LINK
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(BadInput) as caught:
        read_profiles(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
