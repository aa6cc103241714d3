"""DistributedDataParallel and FSDP2 over `quelea` train as they do over gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from distributed import in_group
from models import batch, distance, flat, make
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 10


def train(model: torch.nn.Module, kind: str, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        x, y = batch(kind, rank, step)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp(rank, kind):
    model = make(kind)
    # Small buckets, so that there are several.
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)
    train(wrapped, kind, rank)
    buffers = [b.flatten().double() for b in model.buffers()]
    return torch.cat([flat(model).double(), *buffers])


@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
@pytest.mark.parametrize("size", [2, 3])
def test_ddp_gives_the_parameters_and_buffers_that_gloo_gives(kind, size):
    ours = in_group(size, ddp, kind)
    theirs = in_group(size, ddp, kind, backend="gloo")
    for mine, other in zip(ours, theirs, strict=True):
        assert distance(mine, other) < 1e-6


def fsdp(rank, kind):
    model = make(kind)
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    train(model, kind, rank)
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_fsdp_gives_the_parameters_that_gloo_gives(kind):
    ours = in_group(2, fsdp, kind)
    theirs = in_group(2, fsdp, kind, backend="gloo")
    for mine, other in zip(ours, theirs, strict=True):
        assert distance(mine, other) < 1e-6


def hooked(rank):
    """A communication hook, which works with futures."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = make("mlp")
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    train(wrapped, "mlp", rank)
    return flat(model)


def test_communication_hooks_work():
    ours = in_group(2, hooked)
    theirs = in_group(2, hooked, backend="gloo")
    assert torch.equal(ours[0], ours[1])
    assert distance(ours[0], theirs[0]) < 1e-2


def test_the_world_has_the_name_of_the_backend():
    assert in_group(2, lambda rank: dist.get_backend()) == ["quelea"] * 2
