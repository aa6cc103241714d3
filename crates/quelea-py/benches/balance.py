"""Synchronous training on four hosts of which one is slower, with and without ``balance=True``.

`cargo xtask bench peers-balance` starts one of these for every rank. A sample takes its time by sleeping, three times as
long on the slow host; the model is small and learns to tell Gaussian clouds apart. Both see the same mini-batches.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import quelea.torch as quelea

SAMPLES, WIDTH, CLASSES = 8192, 32, 10


class Slow(nn.Module):
    """A network for which every sample takes its time."""

    def __init__(self, seconds_per_sample: float):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, CLASSES))
        self.seconds_per_sample = seconds_per_sample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds_per_sample * len(x))
        return self.net(x)


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=generator)
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    return centres[labels] + 1.5 * torch.randn(SAMPLES, WIDTH, generator=generator), labels


def equal_batches(batch: int, seed: int) -> Any:
    """This rank's part of each mini-batch, which all have the same number of samples of."""
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))
    rows = order[: SAMPLES // (batch * quelea.world_size()) * batch * quelea.world_size()]
    return rows.view(-1, quelea.world_size(), batch)[:, quelea.rank()].tolist()


def train(plan: dict[str, Any], balance: bool, seed: int) -> dict[str, float]:
    """Milliseconds of a step once speeds are known, and the loss over all samples at the end."""
    inputs, labels = data(1)
    is_slow = quelea.rank() == quelea.world_size() - 1
    seconds = plan["sample_ms"] / 1e3 * (plan["slow"] if is_slow else 1)
    torch.manual_seed(seed)
    model = Slow(seconds)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = quelea.Balance(every=plan["warm"]) if balance else False
    quelea.wrap(model, optimizer, "allreduce", balance=given)
    batches = (
        quelea.BalancedBatches(SAMPLES, plan["batch"], seed=seed)
        if balance
        else equal_batches(plan["batch"], seed)
    )
    begun = 0.0
    for step, rows in enumerate(batches):
        if step == plan["warm"]:
            quelea.barrier()
            begun = time.monotonic()
        if step == plan["warm"] + plan["steps"]:
            break
        cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    took = (time.monotonic() - begun) / plan["steps"]
    quelea.shutdown()
    with torch.no_grad():
        loss = cross_entropy(model.net(inputs), labels).item()
    return {"step_ms": took * 1e3, "loss": loss}


def main() -> None:
    plan = json.loads(sys.argv[1])
    # Whatever hangs says where, and ends.
    faulthandler.dump_traceback_later(plan["limit_seconds"], exit=True)
    quelea.init()
    for round in range(plan["rounds"]):
        for name in ("equal", "balanced"):
            row = {"round": round, "rank": int(os.environ["RANK"]), "name": name}
            print(json.dumps(row | train(plan, name == "balanced", round)), flush=True)


if __name__ == "__main__":
    main()
