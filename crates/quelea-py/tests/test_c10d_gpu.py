"""`torch.distributed` with the backend `quelea` on a GPU, where there is one, against gloo."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from distributed import in_group
from models import batch, distance, flat, make
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="no GPU here")


def collectives(rank):
    mine = torch.full((100_000,), float(rank + 1), device="cuda")
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    gathered = torch.empty(2, device="cuda")
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)], device="cuda"))
    # A tensor of the CPU after one of the GPU keeps its turn.
    on_cpu = torch.tensor([rank])
    dist.all_reduce(on_cpu)
    return mine.unique().tolist(), gathered.tolist(), on_cpu.item()


def test_tensors_of_a_gpu_have_their_values():
    assert in_group(2, collectives) == [([3.0], [0.0, 1.0], 1)] * 2


def ddp(rank, kind, synchronized):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = make(kind).cuda()
    if synchronized:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(10):
        x, y = (tensor.cuda() for tensor in batch(kind, rank, step))
        cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(model).cpu()


@pytest.mark.parametrize(
    ("kind", "synchronized"), [("mlp", False), ("cnn", False), ("cnn", True), ("transformer", False)]
)
def test_ddp_gives_the_parameters_that_gloo_gives(kind, synchronized):
    ours = in_group(2, ddp, kind, synchronized)
    theirs = in_group(2, ddp, kind, synchronized, backend="gloo")
    for mine, other in zip(ours, theirs, strict=True):
        assert distance(mine, other) < 1e-6
