"""Compiles p4src/tna for Tofino 1 and 2 with p4c's Tofino back end, for `build/` folders that are committed.

`python -m p4src.tofino` makes p4src/build/tofino and p4src/build/tofino2 anew: p4c's own files for a
deployment (`fabric.conf` and what it names), P4Info, a table of what the program takes of the chip
(`resources.md`), the instructions of its stateful ALUs (`stateful.bfa`), and the hash of the sources.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from machine.errors import EntrainError, MissingTool
from p4src.compile import BUILD, ROOT, sources_hash

FABRIC = ROOT / "tna/fabric.p4"

ARCHITECTURES: Final = {"tofino": "tna", "tofino2": "t2na"}
"""p4c's name of the architecture, by target."""

PREFIX = Path("/usr/local/tofino/bin")
"""Where p4c stands if it is not the one on PATH."""

PACKED = "pipe/"
"""What stands in this folder is kept compressed, which makes it 20 times smaller."""

HASH = "fabric.sha256"
P4INFO = "fabric.p4info.txtpb"


def p4c() -> Path | None:
    """A p4c that has the Tofino back end, on PATH or in `PREFIX`; None if there is none."""
    for folder in (*map(Path, os.environ.get("PATH", "").split(os.pathsep)), PREFIX):
        if all(shutil.which(program, path=folder) for program in ("p4c", "p4c-barefoot")):
            return folder / "p4c"
    return None


def compile_for(target: str) -> dict[str, bytes]:
    """What p4c makes of the program for `target`, by path below the target's folder in `BUILD`.

    Raises MissingTool without the back end, EntrainError with p4c's own words.
    """
    if (compiler := p4c()) is None:
        raise MissingTool(
            f"p4c with its Tofino back end (p4c-barefoot) is neither on PATH nor in {PREFIX}: it is needed "
            f"only to change the switch program, not to deploy it"
        )
    with tempfile.TemporaryDirectory() as scratch:
        # Where it stands matters nothing: the .conf names its files by the folder's name.
        out = Path(scratch) / "fabric"
        command: list[str | Path] = [
            compiler,
            "--target",
            target,
            "--arch",
            ARCHITECTURES[target],
            "-g",
            "-o",
            out.name,
        ]
        command += ["--bf-rt-schema", "fabric/bfrt.json", "--p4runtime-files", f"fabric/{P4INFO}"]
        _run([*command, "--p4runtime-force-std-externs", FABRIC], scratch)
        command = [compiler.with_name("p4c-gen-conf"), "--conf-type", "BF-RT", "--p4-version", "p4-16"]
        command += [
            "--device",
            target,
            "--name",
            "fabric",
            "--pipe",
            "pipe",
            "--bfrt-name",
            "fabric/bfrt.json",
        ]
        _run([*command, "--outputdir", out.name, "--installdir", out.name], scratch)
        return dict(_outputs(out, target))


def read(target: str, name: str) -> bytes:
    """What stands in `BUILD` of `target`'s output `name`. Raises FileNotFoundError."""
    path = BUILD / target / name
    return gzip.decompress(Path(f"{path}.gz").read_bytes()) if name.startswith(PACKED) else path.read_bytes()


def write(target: str, name: str, content: bytes) -> None:
    """Write one of `target`'s outputs to `BUILD`. The same content makes the same file."""
    path = BUILD / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith(PACKED):
        Path(f"{path}.gz").write_bytes(gzip.compress(content, mtime=0))
    else:
        path.write_bytes(content)


def _run(command: list[str | Path], folder: str) -> None:
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode:
        raise EntrainError(f"{FABRIC}: {command[0]} failed:\n{run.stdout}{run.stderr}")


def _outputs(out: Path, target: str) -> Iterator[tuple[str, bytes]]:
    binary = f"pipe/{target}.bin"
    yield HASH, sources_hash(FABRIC).encode()
    yield P4INFO, (out / P4INFO).read_bytes()
    yield "fabric.conf", (out / "fabric.conf").read_bytes()
    for name in ("bfrt.json", "pipe/context.json"):
        # Without p4c's indentation, which makes it twice as long.
        document = json.loads((out / name).read_bytes())
        yield name, json.dumps(document, separators=(",", ":")).encode() + b"\n"
    yield binary, (out / binary).read_bytes()
    yield "stateful.bfa", stateful(out / "pipe/fabric.bfa").encode()
    yield "resources.md", resources(out / "pipe/logs", target).encode()


_TABLE = re.compile(
    r"^  stateful \S*\$salu\.(?:FabricEgress\.load_table|FabricIngress\.guard)\.(\w+):\n((?:    .*\n)+)",
    re.MULTILINE,
)


def stateful(assembly: Path) -> str:
    """The part of p4c's assembly that programs the stateful ALUs: the lanes, and the guard."""
    found = sorted(
        _TABLE.findall(assembly.read_text(encoding="utf-8")), key=lambda each: (len(each[0]), each[0])
    )
    return "".join(f"stateful {name}:\n{body}" for name, body in found)


def resources(logs: Path, target: str) -> str:
    """What the program takes of the chip, in Markdown, from the reports that p4c writes with -g."""
    metrics = json.loads((logs / "metrics.json").read_bytes())
    mau = json.loads((logs / "resources.json").read_bytes())["resources"]["mau"]
    stages = [_stage(stage) for stage in mau["mau_stages"]]  # those that are used
    lines = [
        f"# What the program takes of {'a Tofino 2' if target == 'tofino2' else 'a Tofino 1'}",
        "",
        f"Made by `python -m p4src.tofino` from the reports of p4c's back end {metrics['compiler_version']}. "
        f"It takes {len(stages)} of {mau['nStages']} stages.",
        "",
        "| stage | tables | SRAMs | TCAMs | stateful and meter ALUs | counter ALUs |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for number, stage in enumerate(stages):
        lines.append(f"| {number} | {' | '.join(map(str, stage))} |")
    of = [value * mau["nStages"] for value in _room(mau["mau_stages"][0])]
    totals = [sum(column) for column in zip(*stages, strict=True)]
    lines.append(f"| all | {' | '.join(f'{a} of {b}' for a, b in zip(totals, of, strict=True))} |")
    lines += ["", "| containers of the packet header vector | bits each | used |", "|---|---:|---:|"]
    for kind, sizes in metrics["phv"].items():
        for size in sizes:
            lines.append(f"| {kind} | {size['bit_width']} | {size['containers_occupied']} |")
    return "\n".join(lines) + "\n"


def _stage(stage: dict[str, Any]) -> tuple[int, ...]:
    return (
        len(stage["logical_tables"]["ids"]),
        len(stage["rams"]["srams"]),
        len(stage["tcams"]["tcams"]),
        len(stage["meter_alus"]["meters"]),
        len(stage["statistic_alus"]["stats"]),
    )


def _room(stage: dict[str, Any]) -> tuple[int, ...]:
    return (
        stage["logical_tables"]["size"],
        stage["rams"]["nRows"] * stage["rams"]["nColumns"],
        stage["tcams"]["nRows"] * stage["tcams"]["nColumns"],
        stage["meter_alus"]["nAlus"],
        stage["statistic_alus"]["nAlus"],
    )


def main() -> None:
    """Write the folders of all targets that are named, or of both; without the compiler, say so."""
    if p4c() is None:
        print(
            f"not compiled for Tofino: no p4c with that back end is on PATH or in {PREFIX}", file=sys.stderr
        )
        return
    for target in sys.argv[1:] or ARCHITECTURES:
        for name, content in compile_for(target).items():
            write(target, name, content)
        print(f"wrote {BUILD / target}")


if __name__ == "__main__":
    main()
