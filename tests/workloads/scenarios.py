"""A training script that knows nothing of entrain: trains models of several kinds, says what came out.

    python scenarios.py RANKS ITERATIONS SCENARIO ...

forks its ranks once PyTorch is imported, for that takes longest. Each rank prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import machine  # a module of the script's own

WIDTH = 300


class Partly(torch.nn.Module):
    """Uses a part of its parameters only in every other call."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = torch.nn.Linear(16, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        hidden = self.always(inputs)
        return self.sometimes(hidden) if self.calls % 2 else hidden


def model_of(scenario):
    if scenario == "unused":
        return Partly()
    if scenario == "sparse":
        return torch.nn.EmbeddingBag(1000, WIDTH, sparse=True)
    layers = [torch.nn.Linear(16, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)]
    return torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(WIDTH))


def train(scenario, iterations):
    torch.manual_seed(1)
    ddp = DistributedDataParallel(
        model_of(scenario),
        bucket_cap_mb=0.1,
        gradient_as_bucket_view=scenario.startswith("views"),
        find_unused_parameters=scenario == "unused",
    )
    if scenario == "own-hook":
        ddp.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    digest = hashlib.sha256()
    for _ in range(iterations):
        optimizer.zero_grad(set_to_none=scenario != "views-kept")
        for part in range(2):
            inputs = torch.randn(8, 16, generator=generator)
            if scenario == "sparse":
                inputs = (inputs.abs() * 100).long()
            later = scenario == "accumulating" and part == 0
            with ddp.no_sync() if later else contextlib.nullcontext():
                loss = ddp(inputs).square().mean()
                if scenario == "accumulating" or part == 0:
                    loss.backward()
        optimizer.step()
        digest.update(loss.detach().numpy().tobytes())
    for parameter in ddp.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    files = Path(os.environ["ENTRAIN_PROGRESS"]).glob(f"*-{os.getpid()}-*.progress")
    progress = [path.read_bytes().hex() for path in files]
    return {"digest": digest.hexdigest(), "progress": progress, "bytes": gradient_bytes(ddp)}


def gradient_bytes(ddp):
    return sum(parameter.numel() * parameter.element_size() for parameter in ddp.parameters())


def run(rank, ranks, iterations, scenarios):
    torch.set_num_threads(1)
    results = {}
    for scenario in scenarios:
        store = f"{os.environ['STORE']}-{scenario}"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        results[scenario] = train(scenario, iterations)
        dist.destroy_process_group()
    line = json.dumps({"rank": rank, "own": machine.ANSWER, "results": results})
    os.write(1, line.encode() + b"\n")


def main():
    ranks, iterations, *scenarios = sys.argv[1:]
    children = []
    for rank in range(int(ranks)):
        child = os.fork()
        if not child:
            status = 1
            try:
                run(rank, int(ranks), int(iterations), scenarios)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))


if __name__ == "__main__":
    main()
