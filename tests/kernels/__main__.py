"""`python -m tests.kernels`: boot kernels of Debian's packages, and test entrain on them.

Stages: `load` loads every program, `doctor` tries each feature, `live` tests them, `lacking` takes features
from the kernel, `full` runs the kernel tests. The results are added to build/kernels.json, with the
version of entrain that each stage ran. The exit status is 1 if anything falls short.
"""

from __future__ import annotations

import functools
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click

from machine.errors import EntrainError
from machine.origin import here
from tests.kernels import guest
from tests.kernels.debian import Archive, Kernel

BUILD = guest.ROOT / "build" / "kernels"
RESULTS = guest.ROOT / "build" / "kernels.json"
LIMITS_S = {"load": 30.0, "doctor": 30.0, "live": 400.0, "lacking": 60.0, "full": 1200.0}
"""How long a stage may take on a usual machine."""

TEST_S = 90.0
"""The same for one test."""
HERE = "here"
"""Stands for the running kernel, without a guest."""

COMMANDS = "tests/entrain/commands/test_commands.py"
RATES = "tests/hostbpf/rates"
AGENT = "tests/hostbpf/agent/test_agent.py"
NETWORK = "tests/mininet_topos/test_network.py"
LIVE: Mapping[str, str] = {
    "up": f"{COMMANDS}::test_hosts_talk_without_any_setting_of_theirs",
    "loads": f"{COMMANDS}::test_loads_are_read_from_every_port",
    "drops": f"{COMMANDS}::test_drops_are_shown_where_they_happened_with_their_reason",
    "down": f"{COMMANDS}::test_down_and_a_crash_leave_nothing",
    "killed switch": f"{COMMANDS}::test_a_killed_switch_is_started_and_set_again",
    "killed agent": f"{AGENT}::test_killed_agent_leaves_nothing_and_another_one_starts",
    "killed programs": "tests/ebpf/test_gate.py",
    "MLTCP": "tests/hostbpf/test_mltcp.py::test_bytes_arrive_unchanged",
    "killed controls": "tests/ebpf/test_struct_ops.py",
    "slot rates by pacing": f"{AGENT}::test_rates_that_nobody_renews_end_within_their_lease",
    "slot rates by queueing": f"{RATES}/test_enforcers.py::test_any_control_keeps_to_the_rate",
    "carriers": "tests/hostbpf/carriers/test_carriers.py",
    "counting": "tests/hostbpf/test_counting.py",
    "loss": "tests/mininet_topos/test_loss.py",
    "delay": f"{NETWORK}::test_a_delayed_link_takes_its_time_and_nothing_of_it_stays",
    "multicast and clones": "tests/softswitch/test_lifecycle_live.py",
}
"""The tests that stand for each feature."""
FULL = ("tests/softswitch/kernel", "tests/softswitch/test_lifecycle_live.py", "tests/ebpf", "tests/hostbpf")


@click.command()
@click.option("--kernels", default="6.1 6.12 7.3", show_default=True, help="Series of kernels.")
@click.option(
    "--stages", default="load doctor live full", show_default=True, help="load, doctor, live, lacking, full."
)
@click.option("--failed", is_flag=True, help="Of stages live and full, run the tests that failed last time.")
def main(kernels: str, stages: str, failed: bool) -> None:
    """Test entrain on kernels of Debian's packages; the results are in build/kernels.json."""
    chosen = stages.split()
    if unknown := set(chosen) - LIMITS_S.keys():
        raise click.BadParameter(
            f"{', '.join(unknown)}: give load, doctor, live, lacking or full", param_hint="--stages"
        )
    try:
        guest.require()
        subprocess.run([sys.executable, "-m", "tests.kernels.load", "--compile"], check=True, cwd=guest.ROOT)
        known = {each["version"]: each for each in _known()}
        found = []
        for kernel in unpacked(kernels.split()):
            found.append(examine(kernel, chosen, known.get(kernel.version, {}), failed=failed))
            known[kernel.version] = found[-1]
            RESULTS.write_text(json.dumps(list(known.values()), indent=1) + "\n")
            click.echo(summary(found[-1]))
    except EntrainError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(any(falls_short(each) for each in found))


def _known() -> list[dict[str, Any]]:
    """Return the results of earlier runs."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def unpacked(series: list[str]) -> list[Kernel]:
    """Return the newest kernels of each series, unpacked in build/kernels. Raises EntrainError."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    archive = Archive(BUILD / "apt", architecture)
    return [archive.unpack(version, BUILD) for each in series for version in archive.newest(each)]


def examine(
    kernel: Kernel, stages: list[str], known: Mapping[str, Any], *, failed: bool = False
) -> dict[str, Any]:
    """Run the stages on one kernel, each in a guest of its own; return its part of the results.

    `known` has the results of earlier runs. With `failed`, only the tests that failed there run again.
    """
    found: dict[str, Any] = {**known, "version": kernel.version, "package": kernel.package, "failed": {}}
    found["ran"] = dict(known.get("ran", {}))
    for stage in stages:
        results = BUILD / "results" / f"{kernel.version}-{stage}"
        shutil.rmtree(results, ignore_errors=True)
        if stage == "load":
            script = f"{sys.executable} -m tests.kernels.load > {results}/load.json"
        elif stage == "doctor":
            script = f"{sys.executable} -m entrain.cli doctor --json > {results}/doctor.json"
        elif stage == "lacking":
            script = f"{sys.executable} -m tests.kernels.lacking > {results}/lacking.json"
        else:
            again = known.get(f"{stage}_failed", ()) if failed else ()
            tests = " ".join(f"'{test}'" for test in again or (LIVE.values() if stage == "live" else FULL))
            script = (
                f"{sys.executable} -m pytest -v -p no:cacheprovider --timeout {TEST_S * guest.patience():g} "
                f"--junit-xml {results}/junit.xml {tests} > {results}/log 2>&1\n"
                f"{sys.executable} -m tests.kernels.left > {results}/left.json"
            )
        click.echo(f"{kernel.version}: {stage}", err=True)
        try:
            printed = guest.run(kernel, script, results, limit_s=LIMITS_S[stage])
            (results / "console").write_text(printed)
            found |= _READ[stage](results)
            if failed and known.get(f"{stage}_failed"):
                found |= _merged(stage, known, found)
            found["ran"][stage] = here().version
        except (EntrainError, OSError, ValueError, ElementTree.ParseError) as error:
            found["failed"][stage] = f"{error} (see {results})"
    return found


def _load(results: Path) -> dict[str, Any]:
    loaded = json.loads((results / "load.json").read_text())
    return {name: loaded[name] for name in ("programs", "loaded", "refused")}


def _doctor(results: Path) -> dict[str, Any]:
    tried = json.loads((results / "doctor.json").read_text())["features"]
    return {"features": {each["name"]: f"{each['state']}; {each['detail']}" for each in tried}}


def _lacking(results: Path) -> dict[str, Any]:
    return {"lacking": json.loads((results / "lacking.json").read_text())}


def _tested(stage: str, results: Path) -> dict[str, Any]:
    """Return how the tests of a stage ended, by feature for `live`, and what they left."""
    outcomes: dict[str, dict[str, str]] = {"passed": {}, "failed": {}, "skipped": {}}
    for case in ElementTree.parse(results / "junit.xml").iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        why = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if why is None else "skipped" if why.tag == "skipped" else "failed"
        outcomes[outcome][name] = "" if why is None else (why.get("message") or "").splitlines()[0]
    found: dict[str, Any] = {
        "left": json.loads((results / "left.json").read_text()),
        f"{stage}_passed": len(outcomes["passed"]),
        f"{stage}_failed": outcomes["failed"],
        f"{stage}_skipped": outcomes["skipped"],
    }
    if stage == "live":
        found["live"] = {
            check: next(
                (
                    outcome
                    for outcome in ("failed", "passed", "skipped")
                    if any(name.startswith(test) for name in outcomes[outcome])
                ),
                "missing",
            )
            for check, test in LIVE.items()
        }
    return found


def _merged(stage: str, before: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stage's results after its failed tests have run again."""
    merged = {
        f"{stage}_passed": before[f"{stage}_passed"] + again[f"{stage}_passed"],
        f"{stage}_skipped": before[f"{stage}_skipped"] | again[f"{stage}_skipped"],
    }
    if stage == "live":
        merged["live"] = {
            check: outcome if (outcome := again["live"][check]) != "missing" else before["live"][check]
            for check in LIVE
        }
    return merged


_READ: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "load": _load,
    "doctor": _doctor,
    "lacking": _lacking,
    "live": functools.partial(_tested, "live"),
    "full": functools.partial(_tested, "full"),
}
"""By stage, what makes results of its files."""


def summary(found: Mapping[str, Any]) -> str:
    """Return one line about a kernel's results."""
    parts = [found["version"]]
    if "programs" in found:
        parts.append(f"{found['loaded']} of {found['programs']} programs loaded")
    for stage in ("live", "full"):
        if f"{stage}_passed" in found:
            parts.append(
                f"{stage}: {found[f'{stage}_passed']} passed, {len(found[f'{stage}_failed'])} failed"
            )
    parts += [f"{len(found['left'])} things left"] if "left" in found else []
    parts += [f"{stage}: {why}" for stage, why in found["failed"].items()]
    return "; ".join(parts)


def falls_short(found: Mapping[str, Any]) -> bool:
    """Return whether a kernel refused a program, failed a test, or something was left on it."""
    return bool(
        found["failed"]
        or found.get("programs") != found.get("loaded")
        or found.get("live_failed")
        or "missing" in found.get("live", {}).values()
        or found.get("full_passed") == 0
        or found.get("full_failed")
        or found.get("left")
        or any(found.get("lacking", {}).values())
    )


if __name__ == "__main__":
    main()
