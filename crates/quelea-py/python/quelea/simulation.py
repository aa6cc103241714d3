"""n virtual workers of one PyTorch model on one device, with the virtual clock."""

from __future__ import annotations

import ctypes
import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from quelea import _core
from quelea._flat import padding

#: The loss of a model on a batch.
Loss = Callable[[torch.nn.Module, Any], torch.Tensor]
#: Loss and accuracy, or None in its place, of a model.
Measure = Callable[[torch.nn.Module], tuple[float, float | None]]


def simulate(
    make_model: Callable[[], torch.nn.Module],
    loss: Loss,
    dataset: Sequence[Any],
    config: dict[str, Any],
    *,
    batch: int = 32,
    evaluate: Measure | None = None,
    collate: Callable[[list[Any]], Any] = torch.utils.data.default_collate,
    device: str | torch.device = "cpu",
    graph: bool = False,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Trains in the virtual cluster, and returns the run's summary.

    `config` has the keys of a run file (``{"workers": 16, "steps": 500, "algorithm": {"name":
    "d-psgd"}, "optimizer": {"name": "sgd", "lr": 0.1}, "cluster": {…}}``), without a task. The
    optimizer is quelea's own. Worker i has the samples i, i + n, i + 2n, …, in an order that
    depends on the seed alone. `loss(model, batch)` returns the mean loss of a batch, whose tensors
    are on the device; PyTorch's random numbers are seeded for each batch, before `collate`.
    `evaluate(model)` returns loss and accuracy (or None) of the deployed model; the default is the
    loss over the first 512 samples. Buffers, such as the statistics of batch normalisation, are
    kept per worker, and their mean is evaluated.

    With `graph`, on a GPU, forward and backward pass are captured as a CUDA graph and replayed,
    which is faster for small models. Every batch must then have the same shapes, and `loss` must do
    on the device all that changes from batch to batch. If capturing fails, a warning gives the
    reason, and the passes run without a graph.

    With `out` the files of the run stay there: summary.json, records.jsonl, final.safetensors,
    trace.json.

    >>> import torch, quelea
    >>> points = torch.linspace(-1, 1, 64)
    >>> dataset = [(x.view(1), 3 * x.view(1)) for x in points]
    >>> def loss(model, batch):
    ...     inputs, targets = batch
    ...     return (model(inputs) - targets).square().mean()
    >>> config = {
    ...     "workers": 4, "steps": 100, "algorithm": {"name": "d-psgd"}, "optimizer": {"lr": 0.1},
    ...     "cluster": {"hosts": 4, "compute_ms": 10.0},
    ... }
    >>> summary = quelea.simulate(lambda: torch.nn.Linear(1, 1), loss, dataset, config)
    >>> summary["loss"] < 0.01
    True
    >>> 1.0 <= summary["clock_seconds"] < 1.2
    True
    """
    if out is not None and (Path(out) / "summary.json").exists():
        raise ValueError(f"out = {str(out)!r} holds a run already: choose another folder")
    workers = _VirtualWorkers(make_model().to(device), loss, dataset, config, batch, collate)
    workers.graph = _Graph() if graph and workers.flat.is_cuda else None
    measure = evaluate or workers.mean_loss
    with tempfile.TemporaryDirectory() as folder:
        return workers.train(
            config, measure, Path(out) if out is not None else Path(folder) / "run"
        )


class _VirtualWorkers:
    """The gradients of all virtual workers, computed one after the other with one model."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        dataset: Sequence[Any],
        config: dict[str, Any],
        batch: int,
        collate: Callable[[list[Any]], Any],
    ):
        self.model, self.loss, self.dataset = model, loss, dataset
        self.batch, self.collate = batch, collate
        self.workers, self.seed = int(config.get("workers", 8)), int(config.get("seed", 1))
        if len(dataset) < self.workers:
            raise ValueError(
                f"the dataset has {len(dataset)} samples for {self.workers} workers: every worker "
                "needs at least one"
            )
        self.named = [(n, p) for n, p in model.named_parameters() if p.requires_grad][::-1]
        for name, p in self.named:
            if p.dtype != torch.float32:
                raise ValueError(f"parameter `{name}` is {p.dtype}: must be torch.float32")
        if not self.named:
            raise ValueError("the model has no parameter that requires a gradient")
        self.params = [p for _, p in self.named]
        # Parameters in transit; the memory of each parameter itself is aligned for the device.
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.params])
        parts = self.flat.split([p.numel() for p in self.params])
        self.parts = [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]
        self.buffers = _flatten([b for b in model.buffers() if b.is_floating_point()])
        self.kept = [[b.clone() for b in self.buffers] for _ in range(self.workers)]
        self.orders: dict[int, tuple[int, list[int]]] = {}
        self.graph: _Graph | None = None
        # A gradient and its loss, and the memory through which they and parameters are copied.
        self.result = torch.empty(self.flat.numel() + 1, device=self.flat.device)
        self.staged = torch.empty(self.flat.numel() + 1, pin_memory=self.flat.is_cuda)

    def train(self, config: dict[str, Any], measure: Measure, out: Path) -> dict[str, Any]:
        """Runs the virtual cluster with these workers, and returns the run's summary."""
        _core.simulate(
            config,
            [(name, list(p.shape)) for name, p in self.named],
            self.flat.tolist(),
            gradient=self.gradient,
            evaluate=lambda params: self.evaluate(params, measure),
            out=str(out),
        )
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        return summary

    def _host(self, address: int) -> torch.Tensor:
        buffer = (ctypes.c_float * self.flat.numel()).from_address(address)
        return torch.frombuffer(buffer, dtype=torch.float32)

    def _load(self, address: int, buffers: list[torch.Tensor]) -> None:
        self.staged[:-1].copy_(self._host(address))
        self.flat.copy_(self.staged[:-1])
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.parts)
        for mine, kept in zip(self.buffers, buffers, strict=True):
            mine.copy_(kept)

    def samples(self, rank: int, step: int) -> list[int]:
        """The samples of a worker's step: a function of the seed alone."""
        own = range(rank, len(self.dataset), self.workers)
        size = min(self.batch, len(own))
        per_epoch = len(own) // size
        epoch, place = divmod(step, per_epoch)
        if self.orders.get(rank, (-1, []))[0] != epoch:
            mixed = (self.seed * 1_000_003 + epoch) * 1_000_003 + rank
            order = torch.randperm(len(own), generator=torch.Generator().manual_seed(mixed % 2**63))
            self.orders[rank] = (epoch, order.tolist())
        return [own[i] for i in self.orders[rank][1][place * size : (place + 1) * size]]

    def compute(self, batch: Any) -> None:
        """Leaves the gradient of a batch, and its loss, in `result`."""
        for p in self.params:
            p.grad = None
        value = self.loss(self.model, batch)
        value.backward()
        with torch.no_grad():
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
            parts.append(value.to(torch.float32))
            torch.cat([part.reshape(-1) for part in parts], out=self.result)

    def gradient(self, rank: int, step: int, params: int, grad: int) -> tuple[float, int]:
        """Computes one gradient, from and into memory that Rust owns."""
        self._load(params, self.kept[rank])
        if not self.model.training:
            self.model.train()
        samples = self.samples(rank, step)
        torch.manual_seed(self.seed * 1_000_003 + step * self.workers + rank)
        batch = self.collate([self.dataset[i] for i in samples])
        if self.graph is None:
            self.compute(_to(batch, self.flat.device))
        elif not self.graph.replay(self, batch):
            self.graph = None
            return self.gradient(rank, step, params, grad)
        for mine, kept in zip(self.buffers, self.kept[rank], strict=True):
            kept.copy_(mine)
        self.staged.copy_(self.result)
        self._host(grad).copy_(self.staged[:-1])
        return float(self.staged[-1]), len(samples)

    def evaluate(self, params: int, measure: Measure) -> tuple[float, float | None]:
        """Loss and accuracy of the deployed model."""
        means = [torch.stack(tensors).mean(0) for tensors in zip(*self.kept, strict=True)]
        self._load(params, means)
        self.model.eval()
        with torch.no_grad():
            found = measure(self.model)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise TypeError(
                f"evaluate() returned {found!r}: must be a loss and an accuracy or None"
            )
        return found

    def mean_loss(self, model: torch.nn.Module) -> tuple[float, None]:
        """The mean loss over the first samples."""
        samples = [self.dataset[i] for i in range(min(512, len(self.dataset)))]
        return float(self.loss(model, _to(self.collate(samples), self.flat.device))), None


class _Graph:
    """Forward and backward pass as a CUDA graph, with batch and result in fixed memory."""

    def __init__(self) -> None:
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Any = None

    def replay(self, workers: _VirtualWorkers, batch: Any) -> bool:
        """Computes; False if nothing was computed because capturing failed."""
        try:
            graph = self.graph or self._capture(workers, batch)
            _fill(self.batch, batch)
        except Exception as error:
            warnings.warn(f"no CUDA graph, the passes run without it: {error}", stacklevel=2)
            return False
        graph.replay()
        return True

    def _capture(self, workers: _VirtualWorkers, batch: Any) -> torch.cuda.CUDAGraph:
        self.batch = _to(batch, workers.flat.device)
        before = [b.clone() for b in workers.buffers]
        # Libraries choose their kernels, and allocate, in the first passes.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                workers.compute(self.batch)
        torch.cuda.current_stream().wait_stream(side)
        workers.model.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            workers.compute(self.batch)
        for mine, kept in zip(workers.buffers, before, strict=True):
            mine.copy_(kept)
        self.graph = graph
        return graph


def _flatten(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Makes tensors views into one vector per type, which are returned."""
    groups: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    vectors = []
    for group in groups.values():
        sizes = [tensor.numel() + padding(tensor) for tensor in group]
        vector = group[0].new_zeros(sum(sizes))
        for tensor, part in zip(group, vector.split(sizes), strict=True):
            part = part[: tensor.numel()].view(tensor.shape)
            tensor.data = part.copy_(tensor)
        vectors.append(vector)
    return vectors


def _to(batch: Any, device: torch.device) -> Any:
    """The same batch with its tensors on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _to(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        parts = [_to(value, device) for value in batch]
        is_named = hasattr(batch, "_fields")
        return type(batch)(*parts) if is_named else type(batch)(parts)
    return batch


def _fill(place: Any, batch: Any) -> None:
    """Copies the tensors of a batch to those of another of the same shapes."""
    if isinstance(place, torch.Tensor):
        if place.shape != batch.shape:
            shapes = f"{tuple(place.shape)} and {tuple(batch.shape)}"
            raise ValueError(f"batches have the shapes {shapes}")
        place.copy_(batch)
    elif isinstance(place, dict):
        for key, value in place.items():
            _fill(value, batch[key])
    elif isinstance(place, (list, tuple)):
        for value, other in zip(place, batch, strict=True):
            _fill(value, other)
