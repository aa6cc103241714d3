"""All-reduce by `torch.distributed` over quelea and gloo, in turns.

`cargo xtask bench peers-c10d` starts one of these for every rank. In every round each backend does a few all-reduces, gloo
first in even rounds; every rank prints the median of a round. A plan with `tensors` above 1 passes them to
``all_reduce_coalesced``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def all_reduce(tensors: list[torch.Tensor], group: Any) -> None:
    if len(tensors) == 1:
        dist.all_reduce(tensors[0], group=group)
    else:
        dist.all_reduce_coalesced(tensors, group=group)


def main() -> None:
    plan = json.loads(sys.argv[1])
    # Whatever hangs says where, and ends.
    faulthandler.dump_traceback_later(plan["limit_seconds"], exit=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=plan["limit_seconds"]))
    groups = {name: dist.new_group(backend=name) for name in ("gloo", "quelea")}
    tensors = [torch.ones(plan["bytes"] // 4) for _ in range(plan["tensors"])]
    # The first round is for warming up.
    for round in range(plan["rounds"] + 1):
        for name in list(groups) if round % 2 == 0 else list(groups)[::-1]:
            times = []
            for _ in range(plan["repeats"]):
                for tensor in tensors:
                    tensor.fill_(1.0)
                dist.barrier()
                begun = time.perf_counter()
                all_reduce(tensors, groups[name])
                times.append(time.perf_counter() - begun)
                assert all(t[0].item() == t[-1].item() == dist.get_world_size() for t in tensors)
            row = {"round": round, "rank": int(os.environ["RANK"]), "name": name}
            if round > 0:
                print(json.dumps(row | {"step_ms": statistics.median(times) * 1e3}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
