"""Flat vectors in memory that Rust owns, and a model's tensors as views into them."""

from __future__ import annotations

import ctypes

import torch

from quelea._core import Error, RankVectors, VectorAt


def tensor_at(vector: VectorAt, memory: RankVectors) -> torch.Tensor:
    """A tensor that is a view of this vector, and keeps its memory."""
    buffer = (ctypes.c_float * vector.length).from_address(vector.address)
    buffer.memory = memory  # type: ignore[attr-defined]
    return torch.frombuffer(buffer, dtype=torch.float32)


def vector_of(tensor: torch.Tensor) -> VectorAt:
    """Where the elements of a flat tensor on the CPU are."""
    return VectorAt(tensor.data_ptr(), tensor.numel())


def padding(like: torch.Tensor, more: int = 0) -> int:
    """How many elements are left free after a tensor like this and `more` elements: kernels of a GPU are
    faster on tensors that start at multiples of 128 bytes."""
    return -(like.numel() + more) % 32 if like.is_cuda else 0


def flatten(
    tensors: list[torch.Tensor], vectors: list[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """Makes tensors views into one vector per type, which are returned: these, or new ones."""
    groups: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    filled = []
    for place, group in enumerate(groups.values()):
        sizes = [tensor.numel() + padding(tensor) for tensor in group]
        vector = group[0].new_zeros(sum(sizes)) if vectors is None else vectors[place]
        for tensor, part in zip(group, vector.split(sizes), strict=True):
            part = part[: tensor.numel()].view(tensor.shape)
            tensor.data = part.copy_(tensor)
        filled.append(vector)
    return filled


def view_like(flat: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    """The part of `flat` from `start` on, in the shape and memory format of `like`."""
    if layout_of(like) == "strided":
        return flat[start : start + like.numel()].view(like.shape)
    return flat.as_strided(like.size(), like.stride(), flat.storage_offset() + start)


def layout_of(tensor: torch.Tensor) -> str:
    """The name of the memory format."""
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return "channels_last_3d"
    return "strided"


class Flat:
    """Parameters and gradients of a model on its device, as flat vectors.

    On the CPU they are the vectors of the rank. On a GPU they are copies there, which are exchanged
    with the rank's vectors through pinned memory on a separate stream.
    """

    def __init__(self, vectors: RankVectors, device: torch.device):
        self.host_params = tensor_at(vectors.params, vectors)
        self.host_grads = tensor_at(vectors.grads, vectors)
        self.on_gpu = device.type == "cuda"
        #: Whether the model's vectors are not the rank's own: they are copied in both directions.
        self.copies = self.on_gpu
        #: Whether gradients are averaged over the ranks of a host before they are handed over.
        self.averages = False
        if self.on_gpu:
            _pin(self.host_params, True)
            try:
                _pin(self.host_grads, True)
            except Error:
                _pin(self.host_params, False)
                raise
            self.stream = torch.cuda.Stream(device)
            self.params = self.host_params.to(device)
            self.grads = torch.zeros_like(self.params)
        else:
            self.params, self.grads = self.host_params, self.host_grads

    def average(self) -> None:
        """Averages the gradient over the ranks of this host, where it is to be."""

    def send_later(self, vector: str, start: int, end: int) -> torch.cuda.Event | None:
        """Starts to copy a part of the parameters or gradients from a GPU to the rank. When the
        event has happened, this copy and all earlier copies to the GPU are complete."""
        host, device = getattr(self, f"host_{vector}"), getattr(self, vector)
        self.stream.wait_stream(torch.cuda.current_stream(device.device))
        with torch.cuda.stream(self.stream):
            host[start:end].copy_(device[start:end], non_blocking=True)
            event = torch.cuda.Event()
            event.record(self.stream)
        return event

    def fetch(self, grads: bool) -> None:
        """Copies the rank's parameters, and with `grads` its gradients, to the device."""
        if self.on_gpu:
            self.params.copy_(self.host_params, non_blocking=True)
            if grads:
                self.grads.copy_(self.host_grads, non_blocking=True)

    def send(self, vector: str) -> None:
        """Copies the device's parameters or gradients to the rank."""
        if self.on_gpu:
            event = self.send_later(vector, 0, self.params.numel())
            assert event is not None, "a copy from a GPU has an event"
            event.synchronize()

    def close(self) -> None:
        """Unpins the memory."""
        if self.on_gpu:
            torch.cuda.synchronize(self.params.device)
            for vector in (self.host_params, self.host_grads):
                _pin(vector, False)


def _pin(vector: torch.Tensor, pinned: bool) -> None:
    runtime = torch.cuda.cudart()
    if pinned:
        status = runtime.cudaHostRegister(vector.data_ptr(), 4 * vector.numel(), 0)
    else:
        status = runtime.cudaHostUnregister(vector.data_ptr())
    if int(status) != 0:
        raise Error(f"the GPU driver cannot pin {4 * vector.numel()} bytes (error {status})")
