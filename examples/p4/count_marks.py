"""Changes the switch program: per port, how many packets it marked with ECN, and how long the queue was then.

    python examples/p4/count_marks.py OUT

copies the program, changes it, and compiles it with p4c to OUT/fabric.json and OUT/fabric.p4info.txtpb.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import p4src
from machine.errors import EntrainError
from p4src.compile import check_p4c, compile_program

PROGRAM = Path(p4src.__file__).parent

CHANGES = (
    # where the counters are declared: a counter, and a register
    (
        "    counter(MAX_PORTS, CounterType.packets_and_bytes) port_out;\n",
        "    counter(MAX_PORTS, CounterType.packets) marked;\n    register<bit<32>>(MAX_PORTS) longest;\n",
    ),
    # where a packet is marked
    (
        "            hdr.ipv4.ecn = ECN_CONGESTED;\n",
        """\
            marked.count((bit<32>)standard_metadata.egress_port);
            bit<32> queued;
            longest.read(queued, (bit<32>)standard_metadata.egress_port);
            if ((bit<32>)standard_metadata.enq_qdepth > queued) {
                longest.write((bit<32>)standard_metadata.egress_port, (bit<32>)standard_metadata.enq_qdepth);
            }
""",
    ),
)
"""For each place in egress.p4: a line that is there, and what to add after it."""


def change(directory: Path) -> Path:
    """Copy the program to `directory`, change it, and return the file to compile."""
    shutil.copytree(
        PROGRAM, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build", "tna", "__pycache__")
    )
    egress = directory / "v1model/egress.p4"
    text = egress.read_text(encoding="utf-8")
    for line, added in CHANGES:
        if line not in text:
            raise SystemExit(f"{egress}: has no line {line.strip()!r} any more; change CHANGES")
        text = text.replace(line, line + added)
    egress.write_text(text, encoding="utf-8")
    return directory / "v1model/fabric.p4"


def build(out: Path) -> tuple[Path, Path]:
    """Compile the changed program to `out`. Return the files that `entrain deploy` takes.

    Raises EntrainError; without p4c, nothing is written.
    """
    check_p4c()
    compile_program(change(out / "p4")).write(out, "fabric")
    return out / "fabric.json", out / "fabric.p4info.txtpb"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/p4/count_marks.py OUT")
    try:
        print(*build(Path(sys.argv[1])))
    except EntrainError as error:
        sys.exit(str(error))
