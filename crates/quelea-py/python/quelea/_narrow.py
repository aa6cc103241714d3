"""Parameters of half precision: the rank's flat vector has them in `float32`.

The model has what is rounded of it. What the script does to a parameter is added to the flat vector,
so what rounding leaves out is kept from step to step, and small steps and exchanges add up.
"""

from __future__ import annotations

import torch

from quelea._core import Error
from quelea._params import TrainedParams
from quelea._sharded import local, set_local_grad

#: Types that a parameter may have beside `float32`, and the codec of the same width.
CODECS = {torch.bfloat16: "bf16", torch.float16: "f16"}


class NarrowParams:
    """The trained parameters of half precision."""

    def __init__(
        self,
        trained: TrainedParams,
        param_views: list[torch.Tensor],
        grad_views: list[torch.Tensor],
    ):
        each = zip(trained.named, param_views, grad_views, strict=True)
        self._all = [
            (name, p, p.dtype, view, grad)
            for (name, p), view, grad in each
            if p.dtype != torch.float32
        ]
        self._ids = {id(p) for _, p, *_ in self._all}

    def has(self, p: torch.Tensor) -> bool:
        """Whether this parameter is one of them."""
        return id(p) in self._ids

    def absorb(self) -> None:
        """Adds to the flat vector what the script has changed since `refresh`."""
        with torch.no_grad():
            for name, p, dtype, view, _ in self._all:
                own = local(p).detach()
                if (own.shape, own.dtype, own.device) != (view.shape, dtype, view.device):
                    raise Error(
                        f"the parameter `{name}` was {dtype} on {view.device} at wrap() and is "
                        f"{p.dtype} on {p.device} now: change type and device of the model before "
                        "wrap()"
                    )
                view += own.float() - view.to(dtype).float()

    def refresh(self) -> None:
        """Rounds the flat vector into the parameters."""
        with torch.no_grad():
            for _, p, _, view, _ in self._all:
                local(p).detach().copy_(view)

    def refresh_gradients(self) -> None:
        """Rounds the averaged gradient into the gradients of the parameters."""
        for _, p, dtype, _, grad in self._all:
            if p.requires_grad:
                set_local_grad(p, grad.to(dtype))

    def tensors(self) -> list[torch.Tensor]:
        """The parameters."""
        return [local(p).detach() for _, p, *_ in self._all]


def codec_of(params: list[torch.nn.Parameter]) -> str | None:
    """The codec that exchanges parameters in their own width, if all have the same half."""
    types = {p.dtype for p in params}
    return CODECS.get(types.pop()) if len(types) == 1 else None
