"""The parameters that a run trains, and their places in flat vectors."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

from quelea._flat import layout_of, padding
from quelea._sharded import ShardedParams, local


class TrainedParams:
    """The parameters of a model that require a gradient, in the order of the flat vectors. In a sharded
    model, flat vectors have this rank's shards."""

    def __init__(self, model: torch.nn.Module):
        self.shards = ShardedParams(model)
        # In the order in which backward passes finish them, roughly.
        self.named = [(n, p) for n, p in model.named_parameters() if p.requires_grad][::-1]
        self.names = [name for name, _ in self.named]
        self.params = [p for _, p in self.named]
        self.ids = {id(p) for p in self.params}
        self.pads = [self._pad(p) for p in self.params]
        sizes = [local(p).numel() + pad for p, pad in zip(self.params, self.pads, strict=True)]
        #: Where each starts in the flat vectors.
        self.starts = list(itertools.accumulate(sizes, initial=0))[:-1]
        #: The length of the flat vectors.
        self.length = sum(sizes)

    def _pad(self, p: torch.Tensor) -> int:
        sharded = self.shards.padding(p)
        return sharded + padding(local(p), sharded)

    @property
    def device(self) -> torch.device:
        """The device of all of them."""
        return self.params[0].device

    def shapes(self) -> list[tuple[str, list[int]]]:
        """Name and shape of every part of the flat vectors."""
        shapes: list[tuple[str, list[int]]] = []
        for (name, p), pad in zip(self.named, self.pads, strict=True):
            shapes.append((name, list(local(p).shape)))
            if pad > 0:
                shapes.append((f"{name}_padding", [pad]))
        return shapes

    @property
    def count(self) -> int:
        """The number of their elements that this rank has."""
        return sum(local(p).numel() for p in self.params)

    def packed(self, views: list[torch.Tensor]) -> torch.Tensor:
        """A copy of the parameters, as these views have them, as one vector without padding, on
        the CPU."""
        return torch.cat([_in_memory_order(view).cpu() for view in views])

    def flattened(self) -> torch.Tensor:
        """A copy of the parameters as a flat vector of the rank, on the CPU."""
        return self._padded(self._parts())

    def unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        """A flat vector of the rank from what `packed` returned."""
        packed = packed.detach().to(torch.float32).cpu()
        return self._padded(packed.split([local(p).numel() for p in self.params]))

    def _parts(self) -> list[torch.Tensor]:
        return [_in_memory_order(local(p)).float().cpu() for p in self.params]

    def _padded(self, parts: Iterable[torch.Tensor]) -> torch.Tensor:
        free = (torch.zeros(pad) for pad in self.pads)
        return torch.cat([part for pair in zip(parts, free, strict=True) for part in pair])


def _in_memory_order(p: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor in the order in which they lie in memory."""
    p = p.detach()
    if layout_of(p) in ("contiguous", "strided"):
        return p.flatten()
    return p.as_strided((p.numel(),), (1,))
