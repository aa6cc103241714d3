"""Mini-batches: tensors in lists, tuples and dictionaries, which are moved to a device together."""

from __future__ import annotations

from typing import Any

import torch


def to_device(batch: Any, device: torch.device) -> Any:
    """The same batch with its tensors on the device."""
    return _mapped(batch, lambda tensor: tensor.to(device))


def pinned_like(batch: Any) -> Any:
    """Memory for batches of the same shapes from which a GPU copies without the processor; None in
    place of tensors that are on a GPU already."""
    return _mapped(
        batch, lambda tensor: None if tensor.is_cuda else torch.empty_like(tensor).pin_memory()
    )


def fill(place: Any, staged: Any, batch: Any) -> None:
    """Copies the tensors of a batch to those of another of the same shapes, through `staged`, and
    returns without waiting."""
    if isinstance(place, torch.Tensor):
        if place.shape != batch.shape:
            shapes = f"{tuple(place.shape)} and {tuple(batch.shape)}"
            raise ValueError(f"batches have the shapes {shapes}")
        place.copy_(batch if staged is None else staged.copy_(batch), non_blocking=True)
    elif isinstance(place, dict):
        for key, value in place.items():
            fill(value, staged[key], batch[key])
    elif isinstance(place, (list, tuple)):
        for value, through, other in zip(place, staged, batch, strict=True):
            fill(value, through, other)


def _mapped(batch: Any, change: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: _mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        parts = [_mapped(value, change) for value in batch]
        is_named = hasattr(batch, "_fields")
        return type(batch)(*parts) if is_named else type(batch)(parts)
    return batch
