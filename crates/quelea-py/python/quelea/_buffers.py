"""Memory of tensors that the Rust side can use: their own, or a copy of them on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from quelea._core import Error, TensorAt

#: One stream per GPU for all copies between it and the host.
_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream_of(device: torch.device) -> torch.cuda.Stream:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


class Buffers:
    """The tensors of one operation: those that it reads, and those that it writes."""

    def __init__(
        self,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor] | None = None,
    ):
        self.reads, self.writes = list(reads), list(writes)
        #: What the future of the operation has: all that is written, unless said otherwise.
        self.results = self.writes if results is None else list(results)
        both = self.reads + self.writes
        self.devices = list({t.device for t in both if t.is_cuda})
        if len(self.devices) > 1:
            raise Error("the tensors of one call are on several GPUs: they must be on one")
        self._stream = _stream_of(self.devices[0]) if self.devices else None
        self._copied_in: torch.cuda.Event | None = None
        self._copied_out: torch.cuda.Event | None = None
        read = {id(t) for t in self.reads}
        self._hosts: dict[int, torch.Tensor] = {}
        #: Tensors that travel as one, and what travels.
        self._joined: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.devices[0]))
        for tensor in both:
            if id(tensor) not in self._hosts:
                self._hosts[id(tensor)] = self._on_host(tensor, id(tensor) in read)
        if self._stream is not None:
            self._copied_in = torch.cuda.Event()
            self._copied_in.record(self._stream)

    def _on_host(self, tensor: torch.Tensor, is_read: bool) -> torch.Tensor:
        if tensor.layout != torch.strided:
            raise Error(f"the tensor is {tensor.layout}: call to_dense(), only those are supported")
        if tensor.is_cuda:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            if is_read:
                with torch.cuda.stream(self._stream):
                    host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._stream)
            return host
        if tensor.device.type != "cpu":
            raise Error(f"the tensor is on {tensor.device}: supported are the CPU and CUDA")
        return tensor.detach().contiguous()

    @property
    def on_gpu(self) -> bool:
        """Whether copies to and from a GPU are needed."""
        return self._stream is not None

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or its contiguous copy on the host."""
        return self._hosts[id(tensor)]

    def at(self, tensor: torch.Tensor) -> TensorAt:
        """Where the tensor lies on the host."""
        return memory_of(self.host(tensor))

    def at_joined(self, tensors: Sequence[torch.Tensor]) -> TensorAt:
        """Where these tensors of one type lie one after the other: in their own memory if it is one tensor."""
        if len(tensors) == 1:
            return self.at(tensors[0])
        hosts = [self.host(tensor) for tensor in tensors]
        joined = torch.cat([host.reshape(-1) for host in hosts])
        self._joined.append((hosts, joined))
        return memory_of(joined)

    def _divide_joined(self) -> None:
        for hosts, joined in self._joined:
            parts = joined.split([host.numel() for host in hosts])
            torch._foreach_copy_([host.view(-1) for host in hosts], list(parts))

    def parts(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[TensorAt]:
        """Where consecutive parts of a tensor lie, of so many bytes each."""
        start = self.host(tensor).data_ptr()
        found = []
        for size in sizes:
            found.append(TensorAt(start, size))
            start += size
        return found

    def wait_for_copies(self) -> None:
        """Waits until everything that is read is on the host."""
        if self._copied_in is not None:
            self._copied_in.synchronize()

    def copy_back(self) -> None:
        """Copies what was written to where it belongs."""
        with torch.no_grad(), self.on_stream():
            self._divide_joined()
            for tensor in self.writes:
                host = self.host(tensor)
                if host.data_ptr() != tensor.data_ptr() or tensor.is_cuda:
                    tensor.detach().copy_(host, non_blocking=True)
            if self._stream is not None:
                self._copied_out = torch.cuda.Event()
                self._copied_out.record(self._stream)

    def make_visible(self) -> None:
        """Makes the current stream wait for what was copied back."""
        if self._copied_out is not None:
            torch.cuda.current_stream(self.devices[0]).wait_event(self._copied_out)

    def on_stream(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which copies go to the stream of this operation."""
        return torch.cuda.stream(self._stream) if self.on_gpu else contextlib.nullcontext()


def memory_of(tensor: torch.Tensor) -> TensorAt:
    """Where a contiguous tensor of the host lies."""
    return TensorAt(tensor.data_ptr(), tensor.numel() * tensor.element_size())
