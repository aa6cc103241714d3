"""Handwritten digits with a small network: `quelea launch -n 4 examples/python/digits.py`.

The lines that quelea adds to a plain PyTorch script are marked with `+`.
"""

import argparse
import csv
import gzip
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import quelea.torch as quelea  # +

DATA = Path(__file__).parents[2] / "crates/quelea-data/data/digits.csv.gz"


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    with gzip.open(DATA, "rt") as file:
        rows = torch.tensor([[float(value) for value in row] for row in csv.reader(file)])
    return rows[:, :-1] / 16, rows[:, -1].long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="d-psgd")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()

    quelea.init()  # +
    inputs, targets = digits()
    train, test = slice(0, 1500), slice(1500, None)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    model = quelea.wrap(model, optimizer, algorithm=options.algorithm)  # +

    order = torch.Generator().manual_seed(quelea.rank())  # every rank draws its own batches
    for step in range(options.steps):
        rows = torch.randint(0, train.stop, (32,), generator=order)
        loss = cross_entropy(model(inputs[rows]), targets[rows])
        quelea.report_loss(loss)  # + only for gossip-aga
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if quelea.rank() == 0 and (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    with quelea.evaluate_model(), torch.no_grad():  # + the mean of all ranks
        right = model(inputs[test]).argmax(1) == targets[test]
    if quelea.rank() == 0:
        print(f"{options.algorithm}: {right.float().mean().item():.1%} of unseen digits are right")
    quelea.shutdown()  # + it is also called at the end by itself


if __name__ == "__main__":
    main()
