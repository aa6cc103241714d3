"""Buffers and frozen parameters: equal at the start, averaged for evaluation."""

from __future__ import annotations

import hashlib
import io

import torch

from quelea._core import Error, Group
from quelea._flat import vector_of
from quelea._params import TrainedParams
from quelea._sharded import local


class UntrainedTensors:
    """The tensors of a model that are not trained."""

    def __init__(self, model: torch.nn.Module, trained: TrainedParams):
        self.model, self.trained = model, trained

    def tensors(self) -> list[torch.Tensor]:
        """All of them that have elements."""
        params = self.model.parameters()
        frozen = [local(p).data for p in params if id(p) not in self.trained.ids]
        return [t for t in [*frozen, *self.model.buffers()] if t.numel() > 0]

    def floats(self) -> list[torch.Tensor]:
        """Those of type float32, which evaluation averages."""
        return [t for t in self.tensors() if t.dtype == torch.float32]

    @staticmethod
    def digest(tensors: list[torch.Tensor]) -> str:
        """The same where tensors are the same."""
        digest = hashlib.blake2b()
        for t in tensors:
            digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def broadcast(self, group: Group) -> None:
        """Gives every rank those of rank 0."""
        floats = self.floats()
        if floats:
            flat = gather(floats)
            group.broadcast_vector("wrap()", vector_of(flat))
            scatter(flat, floats)
        # Integers and floats of other widths: if they are many, they are a frozen model, which
        # all ranks have loaded already. So they are compared before they are sent.
        others = [t for t in self.tensors() if t.dtype != torch.float32]
        others = [t for t in others if t.layout == torch.strided and not t.is_quantized]
        try:
            group.agree("wrap()", [self.digest(others)])
        except Error:
            file = io.BytesIO()
            if group.rank == 0:
                torch.save([t.detach().cpu() for t in others], file)
            first = group.broadcast("wrap()", file.getvalue())
            loaded = torch.load(io.BytesIO(first), weights_only=True)
            for mine, other in zip(others, loaded, strict=True):
                mine.copy_(other)


def gather(tensors: list[torch.Tensor]) -> torch.Tensor:
    """A copy of these tensors as one vector on the CPU."""
    return torch.cat([t.detach().flatten() for t in tensors]).cpu()


def scatter(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copies a vector that `gather` made back into its tensors."""
    start = 0
    for t in tensors:
        t.detach().copy_(flat[start : start + t.numel()].view(t.shape))
        start += t.numel()
