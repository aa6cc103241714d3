"""What the modules for frameworks have in common."""

from __future__ import annotations

from typing import Any

import torch

import quelea.torch as _quelea


def join() -> None:
    """Finds the other processes, unless the script has done it."""
    if _quelea._group is None:
        _quelea.init()


def inner_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer of PyTorch inside those that frameworks put around it."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    found: torch.optim.Optimizer = optimizer
    return found


def keep_mean(model: torch.nn.Module) -> None:
    """Ends the run of a model, which has the mean of all ranks afterwards."""
    with _quelea.evaluate_model(model), torch.no_grad():
        tensors = [t for t in [*model.parameters(), *model.buffers()] if t.is_floating_point()]
        mean = [t.detach().clone() for t in tensors]
    _quelea.shutdown(model)
    with torch.no_grad():
        for tensor, value in zip(tensors, mean, strict=True):
            tensor.copy_(value)
