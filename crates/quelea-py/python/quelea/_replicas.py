"""Gradients of several virtual workers at the same time on one GPU: copies of the model whose
forward and backward passes are captured as one CUDA graph, each on a separate stream."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from quelea._batches import fill, pinned_like, to_device
from quelea._flat import flatten

#: Passes before a capture: libraries choose their kernels, and allocate, in the first ones.
WARM_UP = 3
#: While the passes of one batch run, another one is filled or emptied.
LANES = 2


@dataclass
class PendingGradient:
    """A gradient that Rust asks for; vectors are addresses."""

    rank: int
    step: int
    params: int
    grad: int


@dataclass
class WorkerBatch:
    """The mini-batch of a gradient."""

    #: What the loss takes.
    data: Any
    #: How many samples there are in it.
    samples: int
    #: Of PyTorch's random numbers.
    seed: int


class Passes:
    """Forward and backward pass of one model."""

    def __init__(self, model: torch.nn.Module, loss: Callable[[torch.nn.Module, Any], torch.Tensor]):
        self.model, self.loss = model, loss
        # In the order in which backward passes finish them, roughly.
        self.named = [(n, p) for n, p in model.named_parameters() if p.requires_grad][::-1]
        self.params = [p for _, p in self.named]
        self.float_buffers = [b for b in model.buffers() if b.is_floating_point()]

    def load(self, flat: torch.Tensor) -> None:
        """Sets the parameters. The memory of each of them stays aligned for the device."""
        parts = flat.split([p.numel() for p in self.params])
        parts = [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]
        with torch.no_grad():
            torch._foreach_copy_(self.params, parts)

    def compute(self, batch: Any, result: torch.Tensor) -> None:
        """Leaves the gradient of a batch, followed by its loss, in `result`."""
        for p in self.params:
            p.grad = None
        value = self.loss(self.model, batch)
        value.backward()
        with torch.no_grad():
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
            parts.append(value.to(torch.float32))
            torch.cat([part.reshape(-1) for part in parts], out=result)


class ReplicaGraphs:
    """Computes batches of gradients, each in one of a few lanes that take turns."""

    def __init__(self, passes: Passes, kept: list[torch.Tensor], most: int):
        lanes = [_Lane(passes, kept, most) for _ in range(LANES)]
        self.turns: Iterator[_Lane] = itertools.cycle(lanes)

    def start(
        self, gradients: list[PendingGradient], params: list[torch.Tensor], data: list[WorkerBatch]
    ) -> _Lane:
        """Starts to compute these gradients at `params`, and returns without waiting."""
        lane = next(self.turns)
        lane.start([gradient.rank for gradient in gradients], params, data)
        return lane


class _Replica:
    """A copy of the model, with a batch and a result in fixed memory."""

    def __init__(self, lane: _Lane, slot: int, batch: Any):
        self.passes = Passes(copy.deepcopy(lane.passes.model), lane.passes.loss)
        flatten(self.passes.float_buffers, [vector[slot] for vector in lane.buffers])
        self.passes.model.train()
        device = lane.flat.device
        self.flat, self.result = lane.flat[slot], lane.result[slot]
        self.staged, self.batch = pinned_like(batch), to_device(batch, device)
        self.stream = torch.cuda.Stream(device)
        self.generator = torch.Generator(device)
        #: Passes that are left until it may be captured.
        self.warm_up = WARM_UP

    def run(self) -> None:
        self.passes.load(self.flat)
        self.passes.compute(self.batch, self.result)


class _Lane:
    """Some replicas, the memory through which their vectors are copied, and their graphs."""

    def __init__(self, passes: Passes, kept: list[torch.Tensor], most: int):
        self.passes, self.kept = passes, kept
        length, device = sum(p.numel() for p in passes.params), passes.params[0].device
        self.flat = torch.empty(most, length, device=device)
        self.result = torch.empty(most, length + 1, device=device)
        self.buffers = [vectors.new_zeros(most, vectors.shape[1]) for vectors in kept]
        self.ranks = torch.zeros(most, dtype=torch.long, device=device)
        self.host_flat = torch.empty(most, length, pin_memory=True)
        self.host_result = torch.empty(most, length + 1, pin_memory=True)
        self.host_ranks = torch.zeros(most, dtype=torch.long, pin_memory=True)
        self.stream, self.done = torch.cuda.Stream(device), torch.cuda.Event()
        self.replicas: list[_Replica] = []
        #: By the number of replicas, the first of which run in it.
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def start(self, ranks: list[int], params: list[torch.Tensor], data: list[WorkerBatch]) -> None:
        """Starts to compute the gradients of these workers."""
        count = len(ranks)
        for slot, (values, rank) in enumerate(zip(params, ranks, strict=True)):
            self.host_flat[slot].copy_(values)
            self.host_ranks[slot] = rank
        self.stream.wait_stream(torch.cuda.current_stream(self.flat.device))
        with torch.cuda.stream(self.stream):
            self.flat[:count].copy_(self.host_flat[:count], non_blocking=True)
            for slot, batch in enumerate(data):
                if slot == len(self.replicas):
                    self.replicas.append(_Replica(self, slot, batch.data))
                replica = self.replicas[slot]
                fill(replica.batch, replica.staged, batch.data)
            graph = self.graphs.get(count) or self._capture(count)
            for replica, batch in zip(self.replicas, data, strict=False):
                replica.generator.manual_seed(batch.seed)
            self.ranks.copy_(self.host_ranks, non_blocking=True)
            ranks_there = self.ranks[:count]
            for mine, kept in zip(self.buffers, self.kept, strict=True):
                torch.index_select(kept, 0, ranks_there, out=mine[:count])
            graph.replay()
            for mine, kept in zip(self.buffers, self.kept, strict=True):
                kept.index_copy_(0, ranks_there, mine[:count])
            self.host_result[:count].copy_(self.result[:count], non_blocking=True)
            self.done.record(self.stream)

    def finish(self) -> torch.Tensor:
        """Waits, and returns the gradients, each with its loss after it, one per line."""
        self.done.synchronize()
        return self.host_result

    def _warm_up(self, replica: _Replica) -> None:
        replica.stream.wait_stream(self.stream)
        with torch.cuda.stream(replica.stream):
            while replica.warm_up > 0:
                replica.run()
                replica.warm_up -= 1
        self.stream.wait_stream(replica.stream)
        replica.passes.model.zero_grad()

    def _capture(self, count: int) -> torch.cuda.CUDAGraph:
        """The passes of the first replicas as a graph, in which they run at the same time."""
        replicas = self.replicas[:count]
        for replica in replicas:
            self._warm_up(replica)
        graph = torch.cuda.CUDAGraph()
        for replica in replicas:
            graph.register_generator_state(replica.generator)
        usual = torch.cuda.default_generators[self.flat.device.index]
        before = usual.graphsafe_get_state()
        # Graphs of a lane never run at the same time, so they may use the same memory.
        shared = next(iter(self.graphs.values())).pool() if self.graphs else None
        try:
            with torch.cuda.graph(graph, pool=shared, stream=self.stream):
                for replica in replicas:
                    replica.stream.wait_stream(self.stream)
                    with torch.cuda.stream(replica.stream):
                        # Random numbers of a gradient depend on its seed, not on its neighbours.
                        usual.graphsafe_set_state(replica.generator.graphsafe_get_state())
                        replica.run()
                for replica in replicas:
                    self.stream.wait_stream(replica.stream)
        finally:
            usual.graphsafe_set_state(before)
        self.graphs[count] = graph
        return graph
