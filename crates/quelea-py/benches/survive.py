"""One process of the same training loop under quelea, torchft, hivemind or torchrun, until it is ended.

`cargo xtask bench survive` starts these through `survive_kills.py` and kills some of them. Every process
appends a line to a file of its own after every step: when the step began and ended, and whether it contained
an exchange with other processes. The model has 25 MB and computes next to nothing; a step sleeps for as long
as a real one would compute.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

LAYERS, WIDTH = 10, 790  # 25 MB
BATCH = 4
BUCKET_MB = 5

#: One step; the number of the step, and whether it contained an exchange.
Step = Callable[[], "tuple[int, bool]"]


class Loop:
    """The model, and what a step is beside the exchange."""

    def __init__(self, plan: dict[str, Any]):
        self.plan = plan
        rank = os.environ.get("QUELEA_RANK") or os.environ["RANK"]
        self.rank, self.world = int(rank), plan["processes"]
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.input = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(self.rank))
        self.steps = 0

    def optimizer(self, params: Any = None) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            self.model.parameters() if params is None else params, lr=1e-3, momentum=0.9
        )

    def gradients(self, optimizer: Any, model: nn.Module | None = None) -> None:
        optimizer.zero_grad()
        time.sleep(self.plan["compute_ms"] / 1e3)
        (model or self.model)(self.input).square().mean().backward()

    def run(self, step: Step) -> None:
        folder = Path(self.plan["folder"])
        with open(folder / f"{self.rank}.{os.getpid()}.jsonl", "a", buffering=1) as log:
            while True:
                begun = time.time()
                number, exchanged = step()
                line = {"begun": begun, "ended": time.time(), "step": number, "exchange": exchanged}
                log.write(json.dumps(line) + "\n")


def under_quelea(loop: Loop) -> Step:
    import quelea.torch as quelea

    quelea.init()
    settings, every = loop.plan["settings"], loop.plan["every"]
    optimizer = loop.optimizer()
    model = quelea.wrap(loop.model, optimizer, bucket_mb=BUCKET_MB, **settings)
    # A process that was started again is where the others are.
    loop.steps = quelea.start_step()

    def step() -> tuple[int, bool]:
        loop.gradients(optimizer, model)
        optimizer.step()
        loop.steps += 1
        return loop.steps, loop.steps % every == 0

    return step


def under_torchft(loop: Loop) -> Step:
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo

    # Every process is a replica group of its own.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    optimizer = loop.optimizer()
    limit = timedelta(seconds=loop.plan["timeout_seconds"])

    def load(state: dict[str, Any]) -> None:
        loop.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save() -> dict[str, Any]:
        return {"model": loop.model.state_dict(), "optimizer": optimizer.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=load,
        state_dict=save,
        min_replica_size=1,
        timeout=limit,
        quorum_timeout=timedelta(seconds=60),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=loop.plan["lighthouse"],
        replica_id=f"survive_{loop.rank}",
        hostname="127.0.0.1",
    )

    def step() -> tuple[int, bool]:
        _ = store  # It must live as long as the loop.
        manager.start_quorum()
        loop.gradients(optimizer)
        grads = [param.grad for param in loop.model.parameters() if param.grad is not None]
        for work in [manager.allreduce(grad) for grad in grads]:
            work.wait()
        is_committed = manager.should_commit()
        is_shared = manager.num_participants() > 1
        if is_committed:
            optimizer.step()
        return manager.current_step(), is_committed and is_shared

    return step


def under_hivemind(loop: Loop) -> Step:
    import hivemind

    dht = hivemind.DHT(initial_peers=loop.plan["peers"], host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    every = loop.plan["every"]
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="survive",
        batch_size_per_step=BATCH,
        target_batch_size=BATCH * loop.world * every,
        params=loop.model.parameters(),
        optimizer=lambda params: loop.optimizer(params),
        matchmaking_time=loop.plan["matchmaking_seconds"],
        averaging_timeout=loop.plan["timeout_seconds"],
    )
    # One that joins later has the model and the epoch of the others first.
    if loop.plan["joins"]:
        optimizer.load_state_from_peers()

    def step() -> tuple[int, bool]:
        before = optimizer.local_epoch
        loop.gradients(optimizer)
        optimizer.step()
        loop.steps += 1
        return loop.steps, optimizer.local_epoch > before

    return step


def under_torchrun(loop: Loop) -> Step:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    limit = timedelta(seconds=loop.plan["timeout_seconds"])
    # The processes of an attempt must not find the addresses of those before it, which gloo would call.
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.PrefixStore(
        f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}",
        dist.TCPStore(*address, is_master=False, timeout=limit),
    )
    dist.init_process_group(
        "gloo", store=store, rank=loop.rank, world_size=loop.world, timeout=limit
    )
    model = DistributedDataParallel(loop.model, bucket_cap_mb=BUCKET_MB)
    optimizer = loop.optimizer()
    saved = Path(loop.plan["folder"]) / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved)
        loop.steps = state["step"]
        loop.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def step() -> tuple[int, bool]:
        loop.gradients(optimizer, model)
        optimizer.step()
        loop.steps += 1
        if loop.rank == 0 and loop.steps % loop.plan["every"] == 0:
            beside = saved.with_suffix(".new")
            state = {"step": loop.steps, "model": loop.model.state_dict()}
            torch.save(state | {"optimizer": optimizer.state_dict()}, beside)
            beside.replace(saved)
        return loop.steps, True

    return step


SYSTEMS = {
    "quelea": under_quelea,
    "torchft": under_torchft,
    "hivemind": under_hivemind,
    "torchrun": under_torchrun,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    training = Loop(given)
    training.run(SYSTEMS[given["system"]](training))
