"""`entrain doctor` tries what entrain does, and runs are refused in its words before anything starts."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from ebpf.errors import describe
from entrain import attempts, doctor, features
from entrain.cli import cli
from entrain.commands import run as run_command
from entrain.commands.doctor import show
from entrain.experiment import load_experiment
from entrain.features import FEATURES, NAMES, TOFINO, Outcome, tried
from hostbpf import mltcp
from machine.errors import MissingTool
from machine.packages import ROOT
from machine.record import RECORDS, clean_stale
from tests.hostbpf.conftest import or_skip

EXPERIMENT, TOPOLOGY = ROOT / "experiments/source-routing.toml", ROOT / "experiments/leaf-spine.toml"
REFUSAL = describe(
    "fabric.o: cannot be loaded",
    errno.EACCES,
    "libbpf: prog 'softswitch': -- BEGIN PROG LOAD LOG --\n; h->ttl -= 1;\nR1 bad\n-- END PROG LOAD LOG --\n",
)
"""What the loader raises for a program that the kernel refuses."""

Answers = Callable[[list[str]], dict[str, dict[str, str]]]


def refusing(*refused: str) -> Answers:
    """Attempts on a kernel that refuses these features' programs."""
    return lambda names: {n: {"why": str(REFUSAL)} if n in refused else {"how": ""} for n in names}


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root, on a kernel that has all that networks need."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor, "_kernel", list)


def test_each_feature_has_an_attempt_and_says_what_it_needs_and_what_can_be_used_instead() -> None:
    assert {feature.name for feature in FEATURES} == attempts.ATTEMPTS.keys()
    assert all(feature.purpose and feature.kernel and feature.instead for feature in FEATURES)
    assert [feature.name for feature in FEATURES if feature.required] == ["P4 switch"]


@pytest.mark.usefixtures("as_root")
def test_a_refused_feature_has_the_verifiers_words_and_the_others_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "_answers", refusing("MLTCP"))
    monkeypatch.setattr(features, "obstacles", lambda: ["the kernel is locked down"])
    found = {outcome.name: outcome for outcome in tried()}
    assert list(found) == list(NAMES)
    words = found.pop("MLTCP").words
    assert "rejected by the verifier: R1 bad" in words and "at: h->ttl -= 1;" in words
    assert "kernel: Linux" in words and "report: " in words and "locked down" in words
    assert "needs Linux 6.1 or later" in words and "instead, use policy none" in words
    assert found.pop(TOFINO).state == "not tried"
    assert {outcome.words for outcome in found.values()} == {"works"}


def test_without_root_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(features, "_answers", lambda names: pytest.fail("tried"))
    assert {(outcome.state, outcome.remedy) for outcome in tried(["P4 switch", "loss"])} == {
        ("not tried", "run as root")
    }


@pytest.mark.parametrize("failing", [True, False])
def test_a_required_feature_decides_the_verdict(failing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [
        Outcome(
            "P4 switch",
            "fails" if failing else "works",
            "why" if failing else "by clsact",
            "",
            True,
            "remedy",
        ),
        Outcome("MLTCP", "fails", "why not", "", False, "another one"),
    ]
    monkeypatch.setattr(doctor, "examine", list)
    monkeypatch.setattr(features, "tried", lambda: outcomes)
    done = CliRunner().invoke(cli, ["doctor", "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == (1 if failing else 0)
    assert document["ok"] == (not failing) and document["needs"] == []
    assert [each["name"] for each in document["features"]] == ["P4 switch", "MLTCP"]
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        show([], console, outcomes)
    text = captured.get()
    assert text.startswith("not ready: P4 switch does not work" if failing else "ready: ")
    assert "why not" in text and "another one" in text
    assert failing or "works by clsact" in text


def test_settings_that_refuse_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, path in (("LOCKDOWN", "lockdown"), ("MODULES_DISABLED", "modules"), ("STATUS", "status")):
        monkeypatch.setattr(features, name, tmp_path / path)
    assert features.obstacles() == []
    (tmp_path / "lockdown").write_text("none integrity [confidentiality]\n")
    (tmp_path / "modules").write_text("1\n")
    (tmp_path / "status").write_text(f"CapEff:\t{1 << 12:016x}\nSeccomp:\t2\n")
    locked, modules, capabilities, seccomp = features.obstacles()
    assert "lockdown" in locked and "modules_disabled" in modules and "seccomp" in seccomp
    assert "lacks CAP_SYS_ADMIN and CAP_BPF" in capabilities
    (tmp_path / "lockdown").write_text("none [integrity] confidentiality\n")
    (tmp_path / "modules").write_text("0\n")
    (tmp_path / "status").write_text(f"CapEff:\t{(1 << 41) - 1:016x}\nSeccomp:\t0\n")
    assert features.obstacles() == []


@pytest.mark.parametrize(
    ("lacking", "shaping", "told"),
    [
        ("true", "none", "network namespaces is missing on this machine (Linux 6.1.0-test)"),
        ("type veth", "none", "needs a kernel with CONFIG_VETH"),
        ("root htb", "htb", "needs a kernel with CONFIG_NET_SCH_HTB, or shaping"),
        ("u32", "htb", "CONFIG_NET_CLS_U32"),
        ("bfifo", "htb", "CONFIG_NET_SCH_FIFO"),
        ("root tbf", "tbf", "CONFIG_NET_SCH_TBF"),
    ],
)
def test_what_a_kernel_lacks_is_named_before_a_network_starts(
    lacking: str, shaping: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 1 if lacking in command[-1] else 0, b"", b"")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor, "_run", run)
    monkeypatch.setattr("platform.release", lambda: "6.1.0-test")
    with pytest.raises(MissingTool) as caught:
        doctor.check_network([], shaping)
    assert told in str(caught.value) and "6.1.0-test" in str(caught.value)
    if shaping != "none":
        doctor.check_network([], "none")


@pytest.mark.parametrize(("file", "told"), [("_BTF", "CONFIG_DEBUG_INFO_BTF"), ("_JIT", "CONFIG_BPF_JIT")])
def test_a_kernel_without_btf_or_jit_is_named(
    file: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("_BTF", "_JIT"):
        monkeypatch.setattr(doctor, name, tmp_path / name)
        (tmp_path / name).write_text("1\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor, "_run", lambda command: subprocess.CompletedProcess(command, 0, b"", b""))
    monkeypatch.setattr(doctor, "_is_compiled", lambda: False)
    monkeypatch.setattr(features, "_answers", refusing())
    doctor.check_network(["P4 switch"], "none")
    (tmp_path / file).unlink()
    with pytest.raises(MissingTool, match=told):
        doctor.check_network(["P4 switch"], "none")
    doctor.check_network([], "none")  # nothing of it is a program


@pytest.mark.usefixtures("as_root")
def test_a_run_whose_switches_would_be_refused_stops_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(features, "_answers", refusing("P4 switch"))
    monkeypatch.setattr(run_command, "owned_place", lambda *_: pytest.fail("a place was made"))
    out = tmp_path / "out"
    done = CliRunner().invoke(cli, ["run", str(EXPERIMENT), "--out", str(out)])
    assert isinstance(done.exception, MissingTool)
    told = str(done.exception)
    assert told.startswith("P4 switch does not work on this machine (Linux ")
    assert "R1 bad" in told and "`--target bmv2`" in told
    assert not out.exists()


@pytest.mark.usefixtures("as_root")
def test_up_whose_switches_would_be_refused_stops_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "_answers", refusing("P4 switch"))
    monkeypatch.setattr("entrain.run.starting.start", lambda plan: pytest.fail("started"))
    done = CliRunner().invoke(cli, ["up", str(TOPOLOGY)])
    assert isinstance(done.exception, MissingTool)
    assert str(done.exception).startswith("P4 switch does not work on this machine (Linux ")


def test_a_run_needs_only_what_it_uses() -> None:
    def needed(name: str, target: Any = None) -> set[str]:
        return run_command._features(load_experiment(ROOT / f"experiments/{name}.toml", target=target))

    assert needed("source-routing") == {"P4 switch"}
    assert "P4 switch" not in needed("source-routing", "bmv2")
    assert "MLTCP" in needed("mltcp-two-jobs") and "slots" not in needed("mltcp-two-jobs")
    assert {"slots", "loss"} <= needed("slots-loss")
    assert "slots" in needed("parrot")


def test_a_plan_of_runs_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_network", lambda *_: pytest.fail("tried"))
    assert CliRunner().invoke(cli, ["run", str(EXPERIMENT), "--dry-run"]).exit_code == 0


# -- as root


def left() -> tuple[list[str], list[str], str]:
    """What an attempt could leave on this machine."""
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    records = [
        path.name for path in RECORDS.glob("*.jsonl") if path.name.startswith(("doctor", "softswitch"))
    ]
    return [name for _, name in socket.if_nameindex()], sorted(records), listed


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.root
def test_the_real_programs_carry_packets_and_leave_nothing() -> None:
    before = left()
    found = {outcome.name: outcome for outcome in tried()}
    assert left() == before
    assert found["P4 switch"].state == "works", found["P4 switch"].words
    assert found["counting"].state == "works", found["counting"].words
    assert all(outcome.state == "works" or outcome.detail for outcome in found.values())


def tried_with(patch: str, *names: str) -> list[dict[str, str]]:
    """The answers of attempts in whose process `patch` has run."""
    script = f"import sys; from entrain import attempts\n{patch}\nattempts.main(sys.argv[1:])"
    command = ["unshare", "--net", sys.executable, "-c", script, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.root
def test_nothing_is_left_of_a_killed_doctor() -> None:
    before = left()
    command = [sys.executable, "-m", "entrain.cli", "doctor"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as killed:
        until(lambda: left() != before)  # a record was begun
        killed.kill()

    def gone() -> bool:
        clean_stale()
        return left() == before

    until(gone)


@pytest.mark.root
def test_without_tcx_a_feature_works_by_clsact() -> None:
    patch = """
from ebpf import errors, object as objects
def refuse(*_, **__):
    raise errors.EbpfError("no tcx", errno=22)
objects.attach_tcx = refuse
"""
    assert tried_with(patch, "counting") == [{"name": "counting", "how": "by clsact"}]


@pytest.mark.root
def test_a_refused_program_is_told_and_the_next_feature_is_tried() -> None:
    patch = """
from ebpf import errors, object as objects
load = objects.Object.load
def refuse(self):
    if "loss" in self.path.name:
        raise errors.EbpfError("refused by the kernel", errno=13)
    load(self)
objects.Object.load = refuse
"""
    loss, counting = tried_with(patch, "loss", "counting")
    assert loss == {"name": "loss", "why": "refused by the kernel"}
    assert counting["name"] == "counting" and "how" in counting


@pytest.mark.root
def test_a_packet_that_is_not_counted_is_no_success() -> None:
    patch = """
from hostbpf.rates.meter import Meter
Meter.take = lambda self, before: {}
attempts.PATIENCE_S = 0.2
"""
    ((counting),) = tried_with(patch, "counting")
    assert "none was counted" in counting["why"]


@pytest.mark.root
def test_controls_of_another_process_work() -> None:
    with or_skip(mltcp.registered()):
        (outcome,) = tried(["MLTCP"])
    assert outcome.words == "works; its congestion controls are registered by another process"


@pytest.mark.root
def test_a_machine_that_makes_no_namespaces_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2; exit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert {(each.state, "Operation not permitted" in each.detail) for each in tried(["loss", "delay"])} == {
        ("fails", True)
    }
