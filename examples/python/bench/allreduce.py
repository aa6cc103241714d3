"""All-reduce of 25 MiB over `quelea` and gloo, in turns: `python allreduce.py --processes 4`.

Processes are on this machine. In every round each backend does a few all-reduces, gloo first in even
rounds; the median over all rounds is what counts, because neighbours of this machine come and go.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist


def work(rank: int, options: argparse.Namespace, folder: str, answers) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.processes
    )
    groups = {name: dist.new_group(backend=name) for name in ("gloo", "quelea")}
    tensor = torch.ones(options.mib << 18)
    times = {name: [] for name in groups}
    for each in range(options.rounds + 1):
        names = list(groups) if each % 2 == 0 else list(groups)[::-1]
        for name in names:
            for _ in range(options.repeats):
                tensor.fill_(1.0)
                dist.barrier()
                begun = time.perf_counter()
                dist.all_reduce(tensor, group=groups[name])
                # The first round is for warming up.
                if each > 0:
                    times[name].append(time.perf_counter() - begun)
                assert tensor[0].item() == tensor[-1].item() == options.processes
    if rank == 0:
        answers.put(times)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--mib", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    forks = multiprocessing.get_context("fork")
    answers = forks.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(rank, options, folder, answers) for rank in range(options.processes)]
        processes = [forks.Process(target=work, args=each) for each in arguments]
        for process in processes:
            process.start()
        times = answers.get(timeout=600)
        for process in processes:
            process.join(60)
    medians = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name}: median {median:.1f} ms, best {1e3 * min(times[name]):.1f} ms")
    print(f"quelea against gloo: {medians['quelea'] / medians['gloo']:.2f}")


if __name__ == "__main__":
    main()
