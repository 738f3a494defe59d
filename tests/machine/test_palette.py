"""One colour means one thing, whoever looks at it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from entrain.experiment import load_experiment
from entrain.results.values import scheduler, strategy
from entrain.trials import slot_rates
from machine import palette
from machine.palette import COLOURS, CROSS, JOBS, SPARE, job_style, style
from simulation.experiments.registry import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[2]

VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""What is left of linear RGB (Machado, Oliveira, Fernandes, "A physiologically-based model for simulation of
color vision deficiency", 2009, severity 1)."""
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
DISTANCE = 13.0
"""In CIE L*a*b*; some 2.3 can just be told apart side by side. Okabe and Ito's own seven are 16 apart."""


def lab(colour: str, vision: str) -> np.ndarray:
    """A colour as it appears, in CIE L*a*b*."""
    rgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(VISION[vision] @ linear, 0, 1) / WHITE
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def pictures() -> Iterator[tuple[str, list[str]]]:
    """What is drawn together: the policies of a simulation, or what the runs of an experiment differ by."""
    for experiment in EXPERIMENTS.values():
        yield experiment.name, list(experiment.policies)
    for path in sorted((ROOT / "experiments").glob("*.toml")):
        if "[experiment]" in path.read_text() and not slot_rates.is_slot_rates(path):
            combinations = list(load_experiment(path).combinations())
            names = {scheduler(each) for each in combinations}
            yield path.stem, sorted(names if len(names) > 1 else {strategy(each) for each in combinations})


@pytest.mark.parametrize(("picture", "names"), [*pictures()])
def test_what_is_drawn_together_can_be_told_apart(picture: str, names: list[str]) -> None:
    looks = [style(each) for each in names]
    assert len(set(looks)) == len(names)
    assert len({(look.colour, look.hatch) for look in looks}) == len(names)
    for (a, b), vision in itertools.product(
        itertools.combinations({look.colour for look in looks}, 2), VISION
    ):
        assert np.linalg.norm(lab(a, vision) - lab(b, vision)) > DISTANCE, (a, b, vision)


@pytest.mark.parametrize(("picture", "names"), [*pictures()])
def test_lines_drawn_together_can_be_told_apart_in_grey(picture: str, names: list[str]) -> None:
    for a, b in itertools.combinations(map(style, names), 2):
        lighter = abs(lab(a.colour, "normal")[0] - lab(b.colour, "normal")[0])
        assert lighter > DISTANCE or (a.line, a.marker) != (b.line, b.marker), (a, b)


@pytest.mark.parametrize(("picture", "names"), [*pictures()])
def test_bars_drawn_together_can_be_told_apart_in_grey(picture: str, names: list[str]) -> None:
    for a, b in itertools.combinations(map(style, names), 2):
        lighter = abs(lab(a.colour, "normal")[0] - lab(b.colour, "normal")[0])
        assert lighter > DISTANCE or a.hatch != b.hatch, (a, b)


def test_jobs_can_be_told_apart_in_grey() -> None:
    looks = [job_style(place) for place in range(len(JOBS))]
    assert len({look.hatch for look in looks}) == len({look.marker for look in looks}) == len(JOBS)


@pytest.mark.parametrize("vision", VISION)
def test_jobs_can_be_told_apart(vision: str) -> None:
    for a, b in itertools.combinations((*JOBS, CROSS), 2):
        assert np.linalg.norm(lab(a, vision) - lab(b, vision)) > DISTANCE, (a, b)


def test_no_colour_means_two_things() -> None:
    every = [*COLOURS.values(), *SPARE, *JOBS, CROSS]
    assert len({each.lower() for each in every}) == len(every)
    assert [name for name, colour in COLOURS.items() if colour == "#000000"] == ["ideal"]


def test_readings_of_one_algorithm_share_its_colour() -> None:
    for first, *others in (
        ("reno", "bpf_reno", "mltcp_reno"),
        ("slots", "slot_cubic", "slots-2", "slots-drawn"),
        ("d-clas", "d-clas-job"),
        ("parrot", "parrot-wo-wc", "parrot-filling"),
    ):
        assert {style(each).colour for each in others} == {style(first).colour}
    assert style("bpf_reno") == style("reno")


def test_a_policy_that_nobody_knows_has_a_look_of_its_own() -> None:
    assert style("newcomer") == style("newcomer")
    assert style("newcomer").colour in SPARE


def test_pictures_take_their_colours_from_the_palette() -> None:
    """No other module names a colour, but black and white and their mixtures."""
    named = re.compile(r"""["'](#[0-9a-fA-F]{6}|tab:\w+|C\d|(?:red|green|blue|orange|purple))["']|get_cmap""")
    for package in ("entrain", "simulation"):
        for path in (ROOT / package).rglob("*.py"):
            if "matplotlib" in path.read_text():
                assert not named.findall(path.read_text()), path
    assert Path(palette.__file__).name == "palette.py"
