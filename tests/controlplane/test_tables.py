"""Tables for people: on 80 columns, no address, number or remedy is cut."""

from __future__ import annotations

import re

import pytest
from rich.console import Console, RenderableType

from entrain.commands.doctor import show
from entrain.commands.flows import flows_table, learned_table
from entrain.doctor import Finding, State
from hostbpf.flows import FlowState
from hostbpf.mltcp import JobKey, JobState


def rendered(shown: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().splitlines()


def flow(**changes: object) -> FlowState:
    """With the longest addresses and numbers that can be."""
    fields = {
        "netns": 1 << 63,
        "source": "255.255.255.255",
        "source_port": 65535,
        "destination": "254.254.254.254",
        "destination_port": 65534,
        "control": "x" * 15,
        "job": (1 << 32) - 1,
        "cwnd": 1_234_567,
        "ssthresh": 1 << 31,
        "srtt_ms": 12_345.678,
        "mss": 1448,
        "bytes_sent": 123_456_789_012,
        "bytes_acked": 1 << 40,
        "retransmitted": (1 << 32) - 2,
        "marked": (1 << 32) - 3,
        "delivery_mbps": 99_999.9,
        "pacing_mbps": None,
        "gain": 1.75,
    }
    return FlowState(**{**fields, **changes})  # type: ignore[arg-type]


def test_flows_fit_80_columns_whole() -> None:
    text = rendered(flows_table([flow(), flow(gain=None, job=3, control="cubic")]))
    assert max(map(len, text)) <= 80
    words = set(re.split(r"\s+", " ".join(text)))
    assert {
        *("255.255.255.255:65535", "254.254.254.254:65534", "x" * 15, "4294967295", "1234567", "12345.678"),
        *("99999.9", "123456.789", "4294967294", "4294967293", "1.75", "-", "cubic"),
    } <= words


def test_what_was_learned_fits_80_columns_whole() -> None:
    state = JobState(*(123_456_789 for _ in JobState._fields))
    text = rendered(learned_table({JobKey((1 << 32) - 1, 1): ("255.255.255.255", state)}))
    assert max(map(len, text)) <= 80
    assert {"4294967295", "255.255.255.255", "123.457", "123.5", "123456789"} <= set(" ".join(text).split())


def finding(name: str, state: State, required: bool) -> Finding:
    found = state == "found"
    remedy = "" if found else f"apt-get install {name}"
    return Finding(
        name, state, "/usr/local/bin/" + name if found else "", f"what {name} is for", required, remedy
    )


HERE, GONE, EXTRA = (
    finding("here", "found", True),
    finding("gone", "missing", True),
    finding("extra", "missing", False),
)
LONG = finding("n" * 50, "missing", True)


def doctor(*findings: Finding, width: int = 80) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        show(findings, console)
    return captured.get().splitlines()


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ((HERE, GONE, EXTRA), "not ready: 1 thing is missing"),
        ((HERE, GONE, LONG), "not ready: 2 things are missing"),
        ((HERE, EXTRA), "ready: everything required is here; 1 optional thing is missing"),
        ((HERE,), "ready: everything required is here"),
        ((finding("root", "not tried", True),), "not ready: 1 thing is missing"),
    ],
)
def test_doctor_begins_with_the_verdict(findings: tuple[Finding, ...], verdict: str) -> None:
    assert doctor(*findings)[0] == verdict


def test_doctor_tells_what_is_missing_before_what_is_there() -> None:
    text = "\n".join(doctor(HERE, EXTRA, GONE))
    places = [
        text.index(word) for word in ("apt-get install gone", "apt-get install extra", "/usr/local/bin/here")
    ]
    assert places == sorted(places)
    assert "for what gone is for" in text


@pytest.mark.parametrize("width", [40, 80])
def test_doctor_cuts_nothing(width: int) -> None:
    text = doctor(HERE, GONE, LONG, width=width)
    assert max(map(len, text)) <= width
    assert "…" not in "".join(text)
    assert "".join(text).count("n") >= 150  # the name, and in remedy and purpose
    for word in ("apt-get", "install", "gone", "/usr/local/bin/here"):
        assert word in " ".join(text).split()
