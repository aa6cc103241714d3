"""Steps of the same model under PyTorch's DDP, Decent-DP and quelea, in one process per rank.

`cargo xtask bench peers` starts one of these for every rank, with a plan in JSON: rounds, and in
each the contestants in turn. Every rank prints what a step took, a line for each contestant and
round. The model computes next to nothing; its layers sleep, forwards and backwards, for as long as
a real one would compute, so that few cores are enough and overlap is real.
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
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import quelea.torch as quelea

LAYERS, WIDTH = 10, 790  # 25 MB
#: Every contestant cuts the model into buckets of this size.
BUCKET_MB = 5
#: What quelea is asked for; one-peer gossip has the pairs of Decent-DP's "one-peer-exp".
OURS: dict[str, dict[str, Any]] = {
    "allreduce": {"algorithm": "allreduce"},
    "gossip": {"algorithm": "d-psgd", "topology": "one-peer-hypercube"},
    "aladdin": {"algorithm": "aladdin"},
    "ad-psgd": {"algorithm": "ad-psgd"},
}
#: Nobody waits for anybody: every rank takes its own steps until all have taken enough.
FREE = ("aladdin", "ad-psgd")

Step = Callable[[], None]


class Pause(torch.autograd.Function):
    """Takes as long as a layer would."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pace: list[float]) -> torch.Tensor:
        ctx.pace = pace
        time.sleep(pace[0] / 3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        time.sleep(ctx.pace[0] * 2 / 3)
        return grad, None


class Model(nn.Module):
    def __init__(self, pace: list[float]):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.pace = pace

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = Pause.apply(layer(x), self.pace) if self.pace[0] > 0 else layer(x)
        return x


def optimizer_of(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1e-3, momentum=0.9)


class Rank:
    """One process, and the models that it trains in turn."""

    def __init__(self, plan: dict[str, Any]):
        self.plan = plan
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        limit = timedelta(seconds=plan["limit_seconds"])
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self.store = dist.TCPStore(*address, self.world, self.rank == 0, timeout=limit)
        dist.init_process_group(
            "gloo", store=self.store, rank=self.rank, world_size=self.world, timeout=limit
        )
        quelea.init()
        #: What a layer takes, in seconds; the models look at it.
        self.pace = [0.0]
        self.input = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(self.rank))
        self.peers = {"ddp": self.ddp, "decent-dp": self.decent_dp, "alone": self.plain}
        self.made: dict[str, Step] = {}

    def stepping(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Step:
        def step() -> None:
            model(self.input).square().mean().backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()

        return step

    def plain(self) -> Step:
        model = Model(self.pace)
        return self.stepping(model, optimizer_of(model.parameters()))

    def ddp(self) -> Step:
        model = DistributedDataParallel(Model(self.pace), bucket_cap_mb=BUCKET_MB)
        return self.stepping(model, optimizer_of(model.parameters()))

    def decent_dp(self) -> Step:
        from decent_dp.ddp import DecentralizedDataParallel
        from loguru import logger

        logger.remove()
        model = DecentralizedDataParallel(
            Model(self.pace),
            optim_fn=lambda named: optimizer_of([p for _, p in named]),
            topology="one-peer-exp",
            bucket_size_in_mb=BUCKET_MB,
        )
        # It runs the optimizer inside the backward pass.
        return self.stepping(model, None)

    def ours(self, name: str) -> Step:
        model = Model(self.pace)
        optimizer = optimizer_of(model.parameters())
        quelea.wrap(model, optimizer, bucket_mb=BUCKET_MB, **OURS[name])
        return self.stepping(model, optimizer)

    def step_of(self, name: str) -> Step:
        """Peers are made once and kept; quelea's runs end with their turn, so that nothing is sent in those of others."""
        if name in OURS:
            return self.ours(name)
        if name not in self.made:
            self.made[name] = self.peers[name]()
            self.made[name]()
        return self.made[name]

    def run(self) -> None:
        for round in range(self.plan["rounds"]):
            for number, turn in enumerate(self.plan["turns"]):
                if round < turn.get("rounds", self.plan["rounds"]):
                    self.take(turn, f"{round}.{number}", round)

    def take(self, turn: dict[str, Any], key: str, round: int) -> None:
        """A contestant's turn: a few steps to get warm, then those that count."""
        name, slow = turn["name"], turn.get("slow", 1)
        is_slow = slow != 1 and self.rank == self.world - 1
        self.pace[0] = turn["compute_ms"] / 1e3 / LAYERS * (slow if is_slow else 1)
        step = self.step_of(name)
        dist.barrier()
        took = None
        if name != "alone" or self.rank == 0:
            if is_slow and name in FREE:
                self.go_on_until_all_have_done(step, key, self.world - 1)
            else:
                took = self.measure(step, turn)
                if name in FREE:
                    self.store.add(key, 1)
                    self.go_on_until_all_have_done(step, key, self.world - (slow != 1))
        if name in OURS:
            quelea.shutdown()
        dist.barrier()
        if took is not None:
            row = {"round": round, "rank": self.rank, "step_ms": took[0] * 1e3, "cpu_ms": took[1] * 1e3}
            row |= {k: turn[k] for k in ("name", "compute_ms")} | {"slow": slow}
            print(json.dumps(row), flush=True)

    def measure(self, step: Step, turn: dict[str, Any]) -> tuple[float, float]:
        """Seconds of a step, and of the processor's time that all threads took for it."""
        for _ in range(turn["warm"]):
            step()
        begun, cpu_begun = time.monotonic(), time.process_time()
        for _ in range(turn["steps"]):
            step()
        cpu, took = time.process_time() - cpu_begun, time.monotonic() - begun
        return took / turn["steps"], cpu / turn["steps"]

    def go_on_until_all_have_done(self, step: Step, key: str, count: int) -> None:
        while self.store.add(key, 0) < count:
            step()


class Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        self.stride, self.more = stride, width - width_in

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        x = x[:, :, :: self.stride, :: self.stride]
        return (nn.functional.pad(x, (0, 0, 0, 0, 0, self.more)) + y).relu()


def resnet20() -> nn.Module:
    torch.manual_seed(0)
    widths = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
    first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*first, *(Block(*w) for w in widths), *last)


def overhead(plan: dict[str, Any]) -> None:
    """What a step of a ResNet-20 takes in one process, plain and wrapped, in turns."""
    quelea.init()
    inputs, targets = torch.randn(plan["batch"], 3, 32, 32), torch.randint(0, 10, (plan["batch"],))
    steps: dict[str, Step] = {}
    for name in ("plain", "wrapped"):
        model = resnet20()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        if name == "wrapped":
            quelea.wrap(model, optimizer, algorithm=plan["algorithm"])

        def step(model: nn.Module = model, optimizer: Any = optimizer) -> None:
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

        steps[name] = step
    for round in range(plan["rounds"]):
        # Whoever comes second finds other caches: they take turns in that too.
        for name in ("plain", "wrapped") if round % 2 == 0 else ("wrapped", "plain"):
            begun = time.monotonic()
            steps[name]()
            took = time.monotonic() - begun
            if round >= plan["warm"]:
                print(json.dumps({"round": round, "name": name, "step_ms": took * 1e3}))
    quelea.shutdown()


def main() -> None:
    plan = json.loads(sys.argv[1])
    # Whatever hangs says where, and ends.
    faulthandler.dump_traceback_later(plan["limit_seconds"], exit=True)
    torch.set_flush_denormal(True)
    if plan["kind"] == "overhead":
        overhead(plan)
    else:
        rank = Rank(plan)
        rank.run()
        rank.made.clear()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
