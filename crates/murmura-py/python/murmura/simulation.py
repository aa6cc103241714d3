"""n virtual workers of one PyTorch model on one device, with the virtual clock."""

from __future__ import annotations

import ctypes
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from murmura import _core

#: What a model and a batch cost.
Loss = Callable[[torch.nn.Module, Any], torch.Tensor]


def simulate(
    make_model: Callable[[], torch.nn.Module],
    loss: Loss,
    dataset: Sequence[Any],
    config: dict[str, Any],
    *,
    batch: int = 32,
    evaluate: Callable[[torch.nn.Module], tuple[float, float | None]] | None = None,
    collate: Callable[[list[Any]], Any] = torch.utils.data.default_collate,
    device: str | torch.device = "cpu",
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Trains in the virtual cluster, and returns the run's summary.

    `config` is what a run file says (``{"workers": 16, "steps": 500, "algorithm": {"name":
    "d-psgd"}, "optimizer": {"name": "sgd", "lr": 0.1}, "cluster": {…}}``), without a task. The
    optimizer is murmura's own. Worker i has the samples i, i + n, i + 2n, … and draws them in an
    order that follows from the seed. `loss(model, batch)` gives the mean loss of a batch;
    `evaluate(model)` gives loss and accuracy (or None) of what one would deploy; without it the
    loss over the first 512 samples is taken. Buffers, such as the statistics of batch
    normalisation, are kept per worker, and their mean is evaluated.

    With `out` the files of the run stay there: summary.json, records.jsonl, final.safetensors,
    trace.json.
    """
    script = _Script(make_model().to(device), loss, dataset, config, batch, collate)
    measure = evaluate or script.mean_loss
    calls = (script.gradient, lambda params: script.evaluate(params, measure))
    tensors = [(name, list(p.shape)) for name, p in script.named]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(out) if out is not None else Path(folder) / "run"
        _core.simulate(config, tensors, script.initial.tolist(), calls, str(place))
        summary: dict[str, Any] = json.loads((place / "summary.json").read_text())
    return summary


class _Script:
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
        self.params = [p for _, p in self.named]
        self.initial = torch.cat([p.detach().flatten() for p in self.params]).cpu()
        self.length = self.initial.numel()
        self.device = self.params[0].device
        self.buffers = [b for b in model.buffers() if b.is_floating_point()]
        first = [b.clone() for b in self.buffers]
        self.kept = [[b.clone() for b in first] for _ in range(self.workers)]

    def _host(self, address: int) -> torch.Tensor:
        buffer = (ctypes.c_float * self.length).from_address(address)
        return torch.frombuffer(buffer, dtype=torch.float32)

    def _load(self, address: int, buffers: list[torch.Tensor]) -> None:
        flat = self._host(address).to(self.device)
        start = 0
        with torch.no_grad():
            for p in self.params:
                p.copy_(flat[start : start + p.numel()].view(p.shape))
                start += p.numel()
            for mine, kept in zip(self.buffers, buffers, strict=True):
                mine.copy_(kept)

    def rows(self, rank: int, step: int) -> list[int]:
        """The samples of a worker's step: a function of the seed alone."""
        own = range(rank, len(self.dataset), self.workers)
        size = min(self.batch, len(own))
        per_epoch = len(own) // size
        epoch, place = divmod(step, per_epoch)
        mixed = (self.seed * 1_000_003 + epoch) * 1_000_003 + rank
        order = torch.randperm(len(own), generator=torch.Generator().manual_seed(mixed % 2**63))
        return [own[i] for i in order[place * size : (place + 1) * size].tolist()]

    def gradient(self, rank: int, step: int, params: int, grad: int) -> tuple[float, int]:
        """Computes one gradient, from and into memory of Rust."""
        self._load(params, self.kept[rank])
        self.model.train()
        rows = self.rows(rank, step)
        self.model.zero_grad()
        torch.manual_seed(self.seed * 1_000_003 + step * self.workers + rank)
        value = self.loss(self.model, self.collate([self.dataset[i] for i in rows]))
        value.backward()
        zero = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        self._host(grad).copy_(torch.cat([g.flatten() for g in zero]))
        for mine, kept in zip(self.buffers, self.kept[rank], strict=True):
            kept.copy_(mine)
        return float(value.detach()), len(rows)

    def evaluate(
        self,
        params: int,
        measure: Callable[[torch.nn.Module], tuple[float, float | None]],
    ) -> tuple[float, float | None]:
        """What the deployed model is worth."""
        means = [torch.stack(tensors).mean(0) for tensors in zip(*self.kept, strict=True)]
        self._load(params, means)
        self.model.eval()
        with torch.no_grad():
            return measure(self.model)

    def mean_loss(self, model: torch.nn.Module) -> tuple[float, None]:
        """Over the first samples."""
        rows = [self.dataset[i] for i in range(min(512, len(self.dataset)))]
        return float(self.loss(model, self.collate(rows))), None
