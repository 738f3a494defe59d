"""A training script that pickles and copies its models, and registers hooks when it likes.

python hooked.py STORE
"""

from __future__ import annotations

import copy
import io
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


def train(model, iterations=3):
    for _ in range(iterations):
        model(torch.ones(4, 8)).sum().backward()
    return model


def pickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def ddp():
    return DistributedDataParallel(torch.nn.Linear(8, 8))


def run(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    model = ddp()
    train(pickled(model))
    train(copy.deepcopy(train(model)))
    train(pickled(model))
    assert not model._comm_hooks
    assert not model._forward_pre_hooks
    for iterations in (0, 3):
        buckets = []

        def hook(state, bucket, seen=buckets):
            seen.append(state)
            return default_hooks.allreduce_hook(None, bucket)

        model = train(ddp(), iterations)
        model.register_comm_hook("mine", hook)
        train(model)
        assert buckets == ["mine"] * 3
        try:
            model.register_comm_hook(None, hook)
        except RuntimeError as error:
            assert "can only be called once" in str(error)
        else:
            raise AssertionError("two hooks")
    model = train(ddp())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    train(model)
    train(torch.compile(ddp(), backend="eager"))
    for _ in range(2):
        train(fully_shard(torch.nn.Linear(8, 8), mesh=init_device_mesh("cpu", (RANKS,))))
    dist.destroy_process_group()


if __name__ == "__main__":
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if not child:
            status = 1
            try:
                run(rank, sys.argv[1])
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(statuses))
