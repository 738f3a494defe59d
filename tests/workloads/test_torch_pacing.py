"""The forward pass that begins an iteration waits for the job's pace. This needs no PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import contextlib, socket, sys, threading, time, types
from pathlib import Path

for name in ("torch", "torch.distributed", "torch._compile", "torch.nn", "torch.nn.parallel"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torch"].distributed = sys.modules["torch.distributed"]
sys.modules["torch._compile"]._disable_dynamo = None
sys.modules["torch.nn.parallel.distributed"] = types.ModuleType("torch.nn.parallel.distributed")
sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel = None
from hostbpf.agent.paces import Paces
from schedulers.cassini.pace import Pace
from workloads import torch_monitor

listener = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
read = lambda: receiver.recv(1 << 16)
threading.Thread(target=lambda: list(iter(read, b"")), daemon=True).start()
process = torch_monitor._process
model = process.add(2)

def iterate():
    process.forward()
    began = time.monotonic_ns()
    process.begin(model, 200_000, True)
    sender.sendall(bytes(200_000))
    process.reduced(model, 200_000)
    return began

with contextlib.closing(Paces(Path(sys.argv[1]), None)) as agent:
    iterate(), iterate()
    assert torch_monitor.begun().waited_ns == 0
    pace = Pace(time.monotonic_ns(), 300_000_000, 100_000_000)
    agent.set(0, "trained", pace)
    for turn in range(3):
        began = iterate()
        begun = torch_monitor.begun()
        off = (begun.at_ns - pace.anchor_ns) % pace.period_ns
        assert off <= pace.bound_ns and began >= begun.at_ns, begun
    [found] = agent.starts(0)
    assert found.paced and found.said.waited_ns > 0, found
process.end()
sender.close()
"""


def test_iterations_of_training_follow_a_pace(tmp_path: Path) -> None:
    environment = {**os.environ, "ENTRAIN_PROGRESS": str(tmp_path), "ENTRAIN_JOB": "trained"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
