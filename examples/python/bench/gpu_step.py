"""What an exchange adds to a step on a GPU that two processes share:

    quelea launch -n 2 examples/python/bench/gpu_step.py --algorithm d-psgd
    quelea launch -n 2 examples/python/bench/gpu_step.py --algorithm d-psgd --model gpt

In every process the same model is trained twice on random data: first without connection to the other
process, which does the same at that time, then with the algorithm. Printed are the milliseconds of a
step, the median over blocks of steps that begin and end with an idle GPU, and the difference.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import quelea.torch as quelea

sys.path.append(str(Path(__file__).parents[1]))

from models import GPT, resnet20  # noqa: E402


def make(kind, batch, device):
    """A model and a function that returns its loss on random data."""
    torch.manual_seed(0)
    if kind == "resnet20":
        model = resnet20().to(device)
        images = torch.rand(batch, 3, 32, 32, device=device)
        classes = torch.randint(10, (batch,), device=device)
        return model, lambda: cross_entropy(model(images), classes)
    # 124 million parameters.
    model = GPT(50_257, 1024, width=768, layers=12, heads=12, dropout=0.0)
    model.to(device, torch.bfloat16)
    words = torch.randint(50_257, (batch, 1025), device=device)
    return model, lambda: cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def blocks(loss, optimizer, count, steps):
    """Milliseconds of a step in each of `count` blocks."""
    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        quelea.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began) / steps)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="d-psgd")
    parser.add_argument("--model", choices=["resnet20", "gpt"], default="resnet20")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, help="of a block")
    parser.add_argument("--blocks", type=int, default=7)
    options = parser.parse_args()
    batch = options.batch or {"resnet20": 128, "gpt": 16}[options.model]
    steps = options.steps or {"resnet20": 50, "gpt": 8}[options.model]
    torch.backends.cudnn.benchmark = True
    quelea.init()
    medians = []
    for connected in (False, True):
        model, loss = make(options.model, batch, "cuda")
        optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
        if connected:
            quelea.wrap(model, optimizer, algorithm=options.algorithm)
        blocks(loss, optimizer, 1, steps)
        times = blocks(loss, optimizer, options.blocks, steps)
        medians.append(statistics.median(times))
        if quelea.rank() == 0:
            how = options.algorithm if connected else "unconnected"
            print(f"{options.model} × {batch}, {how}: {medians[-1]:.2f} ms, "
                  f"{min(times):.2f} to {max(times):.2f}", flush=True)
    if quelea.rank() == 0:
        alone, together = medians
        print(f"{options.algorithm} adds {together - alone:.2f} ms ({together / alone - 1:.1%})")
    quelea.shutdown()


if __name__ == "__main__":
    main()
