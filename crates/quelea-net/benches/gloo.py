"""PyTorch's all-reduce over gloo on loopback: prints milliseconds per round of 25 MiB.

usage: gloo.py PROCESSES ROUNDS
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM_UP = 3


def work(rank, processes, rounds, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    vector = torch.ones(25 * (1 << 20) // 4)
    for step in range(WARM_UP + rounds):
        if step == WARM_UP:
            begun = time.perf_counter()
        dist.all_reduce(vector)
    if rank == 0:
        print((time.perf_counter() - begun) / rounds * 1e3, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    mp.spawn(work, (int(sys.argv[1]), int(sys.argv[2]), free), nprocs=int(sys.argv[1]))
