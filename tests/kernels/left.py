"""What has been left on the machine: one JSON list on stdout. Run it where only tests have run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from ebpf.struct_ops import available_congestion_controls
from hostbpf.controls import DIRECTORY
from machine.record import RECORDS


def left() -> list[str]:
    """Return namespaces, interfaces, records, pins, BPF programs and congestion controls."""
    found = [f"namespace {path.name}" for path in Path("/run/netns").glob("*")]
    interfaces = (path.name for path in Path("/sys/class/net").iterdir())
    found += [f"interface {name}" for name in interfaces if name != "lo"]
    found += [f"record {path.name}" for path in RECORDS.glob("*.jsonl")]
    found += [f"pins in {DIRECTORY}"] if DIRECTORY.exists() else []
    controls = available_congestion_controls()
    found += [
        f"congestion control {name}" for name in controls if name not in ("reno", "cubic", "dctcp", "bbr")
    ]
    listed = subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, check=True).stdout
    ours = {"sched_cls", "struct_ops", "tracing", "syscall"}
    found += [f"program {each.get('name')}" for each in json.loads(listed) if each["type"] in ours]
    return found


if __name__ == "__main__":
    print(json.dumps(left()))
