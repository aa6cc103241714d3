"""Memory of Rust as tensors, and tensors as memory, for algorithms in Python."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from quelea._core import Error

#: Libraries whose arrays an algorithm may work with.
KINDS = ("torch", "numpy")


def buffer_at(address: int, length: int, owner: object) -> Any:
    """Memory of `float32` values that `owner` keeps. Tensors made of it hold a reference to it, so
    that its count tells whether one is left."""
    buffer = (ctypes.c_float * length).from_address(address)
    buffer.owner = owner  # type: ignore[attr-defined]
    return buffer


def tensor_of(kind: str, buffer: Any) -> Any:
    """A tensor over this memory, without a copy."""
    if kind == "numpy":
        import numpy

        return numpy.frombuffer(buffer, dtype=numpy.float32)
    import torch

    if len(buffer) == 0:
        return torch.empty(0)
    return torch.frombuffer(buffer, dtype=torch.float32)


def place_of(values: Any) -> tuple[int, int]:
    """Address and number of elements of a tensor or array; raises if it is of another kind."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        if values.dtype is not torch.float32 or values.device.type != "cpu":
            raise Error(
                f"a tensor of {values.dtype} on {values.device}: vectors of an algorithm are "
                "torch.float32 on the CPU; convert it with .float().cpu()"
            )
        if not values.is_contiguous():
            raise Error("a tensor that is not contiguous: call .contiguous() first")
        return values.data_ptr(), values.numel()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(values, numpy.ndarray):
        if values.dtype != numpy.float32 or not values.flags.c_contiguous:
            raise Error(
                f"an array of {values.dtype}: vectors of an algorithm are contiguous arrays of "
                "float32; convert it with numpy.ascontiguousarray(values, numpy.float32)"
            )
        return values.__array_interface__["data"][0], values.size
    raise Error(f"{type(values).__name__} is no vector: pass a tensor of PyTorch or an array of NumPy")


class BucketVectors:
    """The parameters or the gradient during an event: bucket `b` is `vectors[b]`, a tensor that is a
    view of the rank's own memory."""

    __slots__ = ("_context", "_which")

    def __init__(self, context: Any, which: str):
        self._context, self._which = context, which

    def __getitem__(self, b: int) -> Any:
        return self._context._bucket(self._which, b)

    def __len__(self) -> int:
        count: int = self._context.buckets
        return count

    @property
    def flat(self) -> Any:
        """All buckets that belong to the algorithm now, as one tensor."""
        return self._context._bucket(self._which, None)
