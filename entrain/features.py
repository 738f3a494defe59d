"""What entrain can do on this machine, found out by trying it (`entrain.attempts`)."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from machine.errors import BadInput, MissingTool
from machine.packages import INSTALLED, run_module
from machine.patience import patience
from machine.record import clean_stale

State = Literal["works", "fails", "not tried"]

TIMEOUT_S = patience(120.0)
"""How long all attempts may take. The first ones on a machine compile their programs."""
LOCKDOWN = Path("/sys/kernel/security/lockdown")
MODULES_DISABLED = Path("/proc/sys/kernel/modules_disabled")
STATUS = Path("/proc/self/status")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_BPF": 39}


@dataclass(frozen=True)
class Feature:
    """One thing that entrain can do."""

    name: str
    purpose: str
    kernel: str
    """The kernels that have it."""
    instead: str
    """What can be used on other kernels."""
    required: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of trying a feature. `remedy` is empty if it works."""

    name: str
    state: State
    detail: str
    """How it works, such as "by clsact", or why it does not."""
    purpose: str
    required: bool
    remedy: str

    @property
    def words(self) -> str:
        """What `entrain doctor` says about the feature."""
        if self.state == "works":
            if not self.detail:
                return "works"
            return f"works {self.detail}" if self.detail.startswith("by ") else f"works; {self.detail}"
        return f"{'' if self.state == 'fails' else 'not tried: '}{self.detail}\n{self.remedy}"


_BPF = "Linux 6.1 or later with CONFIG_DEBUG_INFO_BTF and CONFIG_BPF_JIT"
_INTERFACES = f"{_BPF}, CONFIG_VETH and CONFIG_NET_SCH_INGRESS, and before 6.6 CONFIG_NET_CLS_BPF"
_CONTROLS = f"{_BPF}, and before 6.4 bpftool"

FEATURES = (
    Feature(
        "P4 switch",
        "networks with target softswitch",
        _INTERFACES,
        "`--target bmv2`, or `entrain simulate`",
        required=not INSTALLED,
    ),
    Feature("MLTCP", "policy mltcp", _CONTROLS, "policy none with cubic or dctcp, or `entrain simulate`"),
    Feature("slots", "policy slots", _CONTROLS, "policy none or cassini, or `entrain simulate`"),
    Feature("Parrot", "coflow policies", _CONTROLS, "policy none or cassini, or `entrain simulate`"),
    Feature("counting", "profiles that agents measure", _INTERFACES, "profiles in a file"),
    Feature("link monitor", "which flows share a link in a run", _INTERFACES, "`entrain simulate`"),
    Feature("loss", "`loss` of an experiment", _INTERFACES, "`loss` of links, with CONFIG_NET_SCH_NETEM"),
    Feature(
        "delay",
        "`delay_ms` of links",
        "any kernel with CONFIG_NET_SCH_NETEM, or any kernel and a C compiler",
        "links without delay_ms",
    ),
)
TOFINO = "Tofino"
NAMES = (*(feature.name for feature in FEATURES), TOFINO)


def tried(names: Collection[str] = NAMES) -> list[Outcome]:
    """Try features. Everything that this needs ends before it returns."""
    wanted = [feature for feature in FEATURES if feature.name in names]
    root = os.geteuid() == 0
    answers = _answers([feature.name for feature in wanted]) if root and wanted else {}
    return [
        *(_outcome(feature, answers.get(feature.name)) for feature in wanted),
        *([_tofino()] if TOFINO in names else []),
    ]


def check(names: Collection[str]) -> None:
    """Raise MissingTool, with the words of `entrain doctor`, if one of these features does not work."""
    for outcome in tried(names):
        if outcome.state == "fails":
            raise MissingTool(
                f"{outcome.name} does not work on this machine (Linux {platform.release()}): {outcome.words}"
            )


def _outcome(feature: Feature, answer: dict[str, str] | None) -> Outcome:
    state: State
    if answer is None:
        state, detail, remedy = "not tried", "needs root", "run as root"
    elif "how" in answer:
        state, detail, remedy = "works", answer["how"], ""
    else:
        state, detail = "fails", "\n".join([answer["why"], *obstacles()])
        remedy = f"needs {feature.kernel}; instead, use {feature.instead}"
    return Outcome(feature.name, state, detail, feature.purpose, feature.required, remedy)


def obstacles() -> list[str]:
    """Return the settings of this machine that refuse programs or interfaces, with their remedies."""
    return list(_obstacles())


def _obstacles() -> Iterator[str]:
    with contextlib.suppress(OSError):
        if "[confidentiality]" in LOCKDOWN.read_text(encoding="utf-8"):
            yield "the kernel is locked down: boot it without lockdown=confidentiality"
    with contextlib.suppress(OSError):
        if MODULES_DISABLED.read_text(encoding="utf-8").strip() == "1":
            yield "kernel.modules_disabled is 1: load modules such as veth and sch_htb before it is set"
    with contextlib.suppress(OSError):
        status = dict(
            line.split(":", 1) for line in STATUS.read_text(encoding="utf-8").splitlines() if ":" in line
        )
        effective = int(status.get("CapEff", "0"), 16)
        if missing := [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]:
            yield f"this process lacks {' and '.join(missing)}: in a container, run it privileged"
        if status.get("Seccomp", "").strip() == "2":
            yield "a seccomp filter is active, which may refuse BPF: in a container, run it privileged"


def _answers(names: list[str]) -> dict[str, dict[str, str]]:
    """Run the attempts in a network namespace of their own. Return their answers by feature."""
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", *run_module("entrain.attempts"), *names]
    environment = {**os.environ, "GRPC_VERBOSITY": "NONE"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=environment,
            check=False,
        )
        output, problem = done.stdout, done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired as late:
        output, problem = late.stdout or b"", f"took longer than {TIMEOUT_S:g} s"
    except OSError as error:
        output, problem = b"", f"{command[0]}: {error.strerror}"
    answers = {answer.pop("name"): answer for answer in map(json.loads, output.splitlines())}
    if len(answers) < len(names):
        clean_stale()  # it was killed, and did not clean up
    return {name: answers.get(name, {"why": problem}) for name in names}


def _tofino() -> Outcome:
    """Return what a Tofino would get. None can be tried from here."""
    from controlplane.network import TOFINOS
    from controlplane.pipeline import Pipeline

    try:
        for target in TOFINOS:
            Pipeline.of_target(target)
        detail = f"the program is compiled for {' and '.join(TOFINOS)}; it has never run on hardware"
    except BadInput as error:
        detail = str(error)
    remedy = "needs a switch that runs Stratum: docs/tofino.md"
    return Outcome(TOFINO, "not tried", detail, "networks with target tofino or tofino2", False, remedy)
