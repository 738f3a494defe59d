"""Congestion controls registered without links, as on kernels before Linux 6.4."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ebpf.struct_ops import available_congestion_controls
from machine.record import clean_stale

ROOT = Path(__file__).resolve().parents[2]
CONTROL = "gentle"
REGISTER = """
from ebpf import Object, struct_ops
from examples.congestion_control.gentle import SOURCE
struct_ops.kernel_has_links = lambda: False
with Object.open(struct_ops.compile_control(SOURCE)) as control:
    control.load()
    with control.register("gentle"):
        print("registered", flush=True)
        input()
"""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("bpftool") is None, reason="needs bpftool"),
    pytest.mark.skipif(
        CONTROL in available_congestion_controls(), reason="another process has registered it"
    ),
]


def registered() -> subprocess.Popen[bytes]:
    """Start a process that has registered the control until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", REGISTER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"registered\n"
    assert CONTROL in available_congestion_controls()
    return process


def test_a_registration_without_link_ends_with_its_owner() -> None:
    assert registered().communicate(b"\n")[0] == b""
    assert CONTROL not in available_congestion_controls()


def test_what_a_killed_process_has_registered_is_removed_at_the_next_start() -> None:
    process = registered()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert CONTROL in available_congestion_controls()
    assert "struct_ops" in {each.kind for each in clean_stale()}
    assert CONTROL not in available_congestion_controls()
