"""Steps of a model that is sharded inside hosts, under PyTorch's HSDP and DDP over gloo and under quelea between hosts.

`cargo xtask bench peers-hsdp` starts one of these for every rank of two hosts with two ranks each. As in `peers.py`
the layers sleep for as long as real ones would compute, and every rank prints what a step took.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from peers import BUCKET_MB, LAYERS, WIDTH, Model, optimizer_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import quelea.torch as quelea

#: Algorithms between hosts; FSDP is inside.
OURS: dict[str, dict[str, Any]] = {
    "allreduce": {"algorithm": "allreduce"},
    "d-psgd": {"algorithm": "d-psgd"},
    "diloco": {"algorithm": "diloco", "period": 10},
    "aladdin": {"algorithm": "aladdin"},
}

Step = Callable[[], None]


def sharded(model: Model, mesh: Any) -> Model:
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Rank:
    """One process, and the models that it trains in turn."""

    def __init__(self, plan: dict[str, Any]):
        self.plan = plan
        self.rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", timeout=timedelta(seconds=plan["limit_seconds"]))
        quelea.init()
        names = ("replicate", "shard")
        self.mesh = init_device_mesh("cpu", (plan["hosts"], plan["ranks"]), mesh_dim_names=names)
        #: What a layer takes, in seconds; the models look at it.
        self.pace = [0.0]
        self.input = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(self.rank))
        self.made: dict[str, Step] = {}

    def stepping(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        def step() -> None:
            model(self.input).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def ours(self, name: str) -> Step:
        model = sharded(Model(self.pace), self.mesh["shard"])
        optimizer = optimizer_of(model.parameters())
        quelea.wrap(model, optimizer, replicate=self.mesh["replicate"], bucket_mb=BUCKET_MB, **OURS[name])
        return self.stepping(model, optimizer)

    def step_of(self, name: str) -> Step:
        """Peers are made once and kept; quelea's runs end with their turn, so that nothing is sent in those of others."""
        if name in OURS:
            return self.ours(name)
        if name not in self.made:
            model: nn.Module = Model(self.pace)
            if name == "ddp":
                model = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
            elif name == "hsdp":
                model = sharded(model, self.mesh)
            else:
                model = sharded(model, self.mesh["shard"])
            self.made[name] = self.stepping(model, optimizer_of(model.parameters()))
        return self.made[name]

    def take(self, name: str, compute_ms: float, round: int) -> None:
        self.pace[0] = compute_ms / 1e3 / LAYERS
        step = self.step_of(name)
        for _ in range(self.plan["warm"]):
            step()
        dist.barrier()
        begun = time.monotonic()
        for _ in range(self.plan["steps"]):
            step()
        took = time.monotonic() - begun
        if name in OURS:
            quelea.shutdown()
        dist.barrier()
        row = {"round": round, "rank": self.rank, "name": name, "compute_ms": compute_ms}
        print(json.dumps(row | {"step_ms": took / self.plan["steps"] * 1e3}), flush=True)


def main() -> None:
    plan = json.loads(sys.argv[1])
    # Whatever hangs says where, and ends.
    faulthandler.dump_traceback_later(plan["limit_seconds"], exit=True)
    rank = Rank(plan)
    for round in range(plan["rounds"]):
        for compute_ms in plan["compute_ms"]:
            for name in plan["names"]:
                rank.take(name, compute_ms, round)
    rank.made.clear()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
