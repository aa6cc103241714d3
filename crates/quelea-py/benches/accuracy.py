"""Seconds until a fixed test accuracy, with one slow host, under PyTorch's DDP and quelea.

`cargo xtask bench accuracy` starts one of these for every rank, with a plan in JSON. All contestants
train the same small convolution network on Fashion-MNIST with the same number of gradients in all, the
same batches per rank, learning rate and momentum. A gradient takes `compute_ms` more than it really
does, by sleeping, so that few cores are enough; the last rank takes `slow` times as long. Rank 0 keeps
copies of its own model while it trains and tests them afterwards: testing costs no training time.
"""

from __future__ import annotations

import faulthandler
import gzip
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import quelea.torch as quelea

#: What quelea is asked for.
OURS: dict[str, dict[str, Any]] = {
    "allreduce": {"algorithm": "allreduce"},
    "d-psgd": {"algorithm": "d-psgd", "topology": "ring"},
    "ad-psgd": {"algorithm": "ad-psgd", "topology": "ring"},
    "aladdin": {"algorithm": "aladdin"},
}
#: Nobody waits for anybody: whoever is ready takes the next of all gradients.
FREE = ("ad-psgd", "aladdin")


def idx(file: Path) -> torch.Tensor:
    """The array in a file in the format of MNIST."""
    content = gzip.decompress(file.read_bytes())
    axes = content[3]
    shape = [int.from_bytes(content[4 + 4 * k : 8 + 4 * k], "big") for k in range(axes)]
    return torch.from_numpy(numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * axes).reshape(shape).copy())


class Images:
    """Images with their labels."""

    def __init__(self, folder: Path, part: str):
        pixels = idx(folder / f"{part}-images-idx3-ubyte.gz")
        self.pixels = (pixels.float().unsqueeze(1) / 255 - 0.2860) / 0.3530
        self.labels = idx(folder / f"{part}-labels-idx1-ubyte.gz").long()


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(),
        nn.Conv2d(16, 32, 5, 2, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


class Training:
    """One contestant with one seed at one rank."""

    def __init__(self, bench: Bench, name: str, seed: int):
        plan = bench.plan
        self.bench, self.name = bench, name
        self.key = f"{seed}/{name}"
        self.net = network(seed)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=plan["lr"], momentum=plan["momentum"])
        if name == "ddp":
            self.model: nn.Module = DistributedDataParallel(self.net)
        else:
            self.model = quelea.wrap(self.net, self.optimizer, **OURS[name])
        self.order = torch.Generator().manual_seed(1000 * seed + bench.rank)
        self.copies: list[tuple[float, int, list[torch.Tensor]]] = []

    def step(self) -> None:
        train, plan = self.bench.train, self.bench.plan
        own = torch.randint(len(train.labels) // self.bench.world, (plan["batch"],), generator=self.order)
        which = own * self.bench.world + self.bench.rank
        loss = nn.functional.cross_entropy(self.model(train.pixels[which]), train.labels[which])
        time.sleep(self.bench.compute_seconds)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self) -> None:
        plan, store = self.bench.plan, self.bench.store
        gradients = plan["gradients"]
        dist.barrier()
        begun = time.monotonic()
        for step in range(gradients):
            if self.name in FREE:
                done = store.add(self.key, 1)
            else:
                done = (step + 1) * self.bench.world
            if done > gradients:
                break
            self.step()
            if self.bench.rank == 0 and step % plan["every"] == plan["every"] - 1:
                seconds = time.monotonic() - begun
                self.copies.append((seconds, done, [p.detach().clone() for p in self.net.parameters()]))
        if self.name in OURS:
            quelea.shutdown()
        dist.barrier()

    def print(self, seed: int) -> None:
        """What was reached when."""
        test = self.bench.test
        with torch.no_grad():
            for seconds, done, params in self.copies:
                for param, kept in zip(self.net.parameters(), params, strict=True):
                    param.copy_(kept)
                right = (self.net(test.pixels).argmax(1) == test.labels).float().mean().item()
                row = {"name": self.name, "seed": seed, "seconds": seconds, "gradients": done, "accuracy": right}
                print(json.dumps(row), flush=True)


class Bench:
    """One process."""

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
        slow = plan["slow"] if self.rank == self.world - 1 else 1
        self.compute_seconds = plan["compute_ms"] / 1e3 * slow
        self.train = Images(Path(plan["data"]), "train")
        self.test = Images(Path(plan["data"]), "t10k")

    def run(self) -> None:
        for seed in self.plan["seeds"]:
            for name in ("ddp", *OURS):
                training = Training(self, name, seed)
                training.run()
                training.print(seed)
                dist.barrier()


def main() -> None:
    plan = json.loads(sys.argv[1])
    # Whatever hangs says where, and ends.
    faulthandler.dump_traceback_later(plan["limit_seconds"], exit=True)
    Bench(plan).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
