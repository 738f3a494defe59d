"""Load every P4 program and every eBPF object into the running kernel: one JSON object on stdout.

`python -m tests.kernels.load --compile` compiles them only, for all kernels.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ebpf import Object, compile_cached, struct_ops
from machine.errors import EntrainError
from softswitch.compiler.build import build, generate
from softswitch.compiler.ir import load_program
from softswitch.kernel.datapath import Datapath

ROOT = Path(__file__).resolve().parents[2]


def switch_programs() -> list[Path]:
    """Return the P4 programs, as p4c's JSON: the fabric and those of the tests."""
    built = (ROOT / "tests/p4/programs/build", ROOT / "tests/softswitch/programs", ROOT / "p4src/build")
    return sorted(path for directory in built for path in directory.glob("*.json"))


def objects() -> list[Path]:
    """Return the sources of all eBPF objects but those of the tests."""
    folders = ("ebpf", "hostbpf", "mininet_topos", "ocs", "examples", "benchmarks")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.bpf.c"))


def is_control(source: Path) -> bool:
    """Return whether it is a congestion control, which differs by kernel."""
    return "tcp_congestion_ops" in source.read_text()


def compile_all() -> None:
    """Put everything into the cache of compiled objects."""
    for path in switch_programs():
        build(generate(load_program(path.read_bytes())))
    for source in objects():
        for defines in struct_ops.VARIANTS if is_control(source) else (None,):
            compile_cached(source, defines=defines)


def load_all() -> Iterator[tuple[str, str]]:
    """Load everything; yield each name with an error, which is empty where it loaded."""
    for path in switch_programs():
        program = load_program(path.read_bytes())
        for netless in (False, True):
            name = path.stem + (" (netless)" if netless else "")
            try:
                Datapath.load(program, name="kernels", netless=netless).close()
            except EntrainError as error:
                yield name, str(error)
            else:
                yield name, ""
    for source in objects():
        name = str(source.relative_to(ROOT))
        try:
            with Object.open(
                (struct_ops.compile_control if is_control(source) else compile_cached)(source)
            ) as obj:
                obj.load()
        except EntrainError as error:
            yield name, str(error)
        else:
            yield name, ""


def main() -> None:
    if sys.argv[1:2] == ["--compile"]:
        compile_all()
        return
    started = time.monotonic()
    found = dict(load_all())
    refused = {name: why for name, why in found.items() if why}
    print(
        json.dumps(
            {
                "programs": len(found),
                "loaded": len(found) - len(refused),
                "refused": refused,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
