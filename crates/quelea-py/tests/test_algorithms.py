"""Every algorithm trains a small network on handwritten digits."""

from __future__ import annotations

import pytest
import torch
from group import launch
from models import digits
from torch import nn
from torch.nn.functional import cross_entropy

import quelea
import quelea.torch

STEPS, BATCH = 150, 32
#: Algorithms that need another learning rate than the others.
SETTINGS: dict[str, dict[str, object]] = {
    "d-amsgrad": {"lr": 0.01},
    "eamsgd": {"lr": 0.02, "momentum": 0.0},
}
ALGORITHMS = [name for name, _, _ in quelea.algorithms()]


def train(rank: int, algorithm: str) -> float:
    quelea.torch.init()
    inputs, targets = digits()
    train_count = 1500
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    settings = dict(SETTINGS.get(algorithm, {}))
    lr, momentum = settings.pop("lr", 0.1), settings.pop("momentum", 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    quelea.torch.wrap(model, optimizer, algorithm, bucket_mb=0.004, **settings)
    order = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        rows = torch.randint(0, train_count, (BATCH,), generator=order)
        loss = cross_entropy(model(inputs[rows]), targets[rows])
        quelea.torch.report_loss(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with quelea.torch.evaluate_model(), torch.no_grad():
        right = model(inputs[train_count:]).argmax(1) == targets[train_count:]
    quelea.torch.shutdown()
    return float(right.float().mean())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trains_the_digits_with_four_processes(algorithm):
    accuracies = launch(4, train, algorithm)
    assert len(set(accuracies)) == 1, "all ranks evaluate the same mean"
    assert accuracies[0] > 0.8
