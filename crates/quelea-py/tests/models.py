"""Small models, with data that every rank makes for itself."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import torch
from torch import nn


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 9, 3),
    )


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def batch(kind: str, rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a rank at a step, always the same."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    targets = torch.randint(0, 3, (8,), generator=generator)
    if kind == "transformer":
        return torch.randint(0, 20, (8, 6), generator=generator), targets
    shape = (8, 1, 8, 8) if kind == "cnn" else (8, 10)
    return torch.randn(shape, generator=generator), targets


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": Transformer}


def make(kind: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[kind]()


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 handwritten digits of 8 × 8 pixels."""
    path = Path(__file__).parents[2] / "quelea-data" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = torch.tensor([[float(value) for value in row] for row in csv.reader(file)])
    return rows[:, :-1] / 16, rows[:, -1].long()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative to the second."""
    return float((a - b).norm() / b.norm())
