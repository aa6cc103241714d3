"""PyTorch over gloo on loopback: prints the milliseconds of every round at rank 0.

usage: gloo_local.py allreduce|exchange PROCESSES ROUNDS ELEMENTS
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM_UP = 5


def exchange(vector, other, rank):
    pending = [dist.isend(vector, 1 - rank), dist.irecv(other, 1 - rank)]
    for work in pending:
        work.wait()
    vector.add_(other).mul_(0.5)


def work(rank, what, processes, rounds, elements, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    vector, other = torch.ones(elements), torch.ones(elements)
    times = []
    last = time.perf_counter()
    for step in range(WARM_UP + rounds):
        if what == "allreduce":
            dist.all_reduce(vector)
            vector.mul_(1 / processes)
        else:
            exchange(vector, other, rank)
        now = time.perf_counter()
        if step >= WARM_UP:
            times.append((now - last) * 1e3)
        last = now
    if rank == 0:
        print(*times, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    what, processes, rounds, elements = sys.argv[1], *map(int, sys.argv[2:5])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    mp.spawn(work, (what, processes, rounds, elements, free), nprocs=processes)
