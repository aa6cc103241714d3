"""n virtual workers of one PyTorch model on one device, with the virtual clock."""

from __future__ import annotations

import ctypes
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quelea._pytorch import torch  # isort: skip
from quelea import _core
from quelea._algorithm import resolved
from quelea._batches import to_device
from quelea._flat import flatten
from quelea._order import SampleOrder
from quelea._pages import RunPage
from quelea._replicas import LANES, Passes, PendingGradient, ReplicaGraphs, WorkerBatch
from quelea._results import Summary

#: Gradients that are computed together on a GPU, unless the caller chooses.
TOGETHER = 8
#: The loss of a model on a batch.
Loss = Callable[[torch.nn.Module, Any], torch.Tensor]
#: Loss and accuracy, or None in its place, of a model.
Measure = Callable[[torch.nn.Module], tuple[float, float | None]]
#: Is called with the rank, the step and the loss of every gradient.
Watch = Callable[[int, int, float], None]


# long: most of it is its documentation
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
    together: int | None = None,
    reshuffle: bool = False,
    watch: Watch | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    page: str | RunPage | None = None,
) -> Summary:
    """Trains in the virtual cluster, and returns the run's summary.

    `config` has the keys of a run file (``{"workers": 16, "steps": 500, "algorithm": {"name":
    "d-psgd"}, "optimizer": {"name": "sgd", "lr": 0.1}, "cluster": {…}}``), without a task. A class of
    your own, or an object of it, may take the place of the algorithm's name
    (``"algorithm": Mine(period=4)``). The optimizer is quelea's own. Worker i has the samples i, i + n, i + 2n, …, in an order that
    depends on the seed alone; with `reshuffle` all samples are distributed over the workers anew in
    every epoch, as PyTorch's DistributedSampler does. `loss(model, batch)` returns the mean loss of
    a batch, whose tensors are on the device; PyTorch's random numbers are seeded for each batch,
    before `collate`. `evaluate(model)` returns loss and accuracy (or None) of the deployed model;
    the default is the loss over the first 512 samples. Buffers, such as the statistics of batch
    normalisation, are kept per worker, and their mean is evaluated. `watch(rank, step, loss)` is
    called after every gradient.

    With `graph`, on a GPU, passes are captured as CUDA graphs, in which gradients that virtual time
    does not need yet are computed `together`, 8 unless given. Batches must then have the same
    shapes, and `loss` must do on the device all that changes, and change nothing but its model. If
    capturing fails, a warning gives the reason, and gradients are computed one by one.

    With `out` the files of the run stay there. With `resume`, the folder of a run that has
    checkpoints, it continues from the newest one, there unless `out` is another folder; all other
    arguments must be as they were, but `config` may have more steps.

    With `page`, an address such as ``"127.0.0.1:8600"`` or a page of before, the run is shown in a
    browser while it lasts. The summary is a dictionary that a notebook shows as a table with plots; with `out`,
    ``summary.show()`` shows the page of the run, and ``pandas.DataFrame(summary.records())`` has its
    records.

    >>> import torch, quelea
    >>> points = torch.linspace(-1, 1, 64)
    >>> dataset = [(x.view(1), 3 * x.view(1)) for x in points]
    >>> def loss(model, batch):
    ...     return (model(batch[0]) - batch[1]).square().mean()
    >>> config = {
    ...     "workers": 4, "steps": 100, "optimizer": {"lr": 0.1}, "algorithm": {"name": "d-psgd"},
    ...     "cluster": {"hosts": 4, "compute_ms": 10.0},
    ... }
    >>> summary = quelea.simulate(lambda: torch.nn.Linear(1, 1), loss, dataset, config)
    >>> summary["loss"] < 0.01, 1.0 <= summary["clock_seconds"] < 1.2
    (True, True)
    """
    if "algorithm" in config:
        config = {**config, "algorithm": resolved(config["algorithm"])}
    continues = _continues(out, resume)
    order = SampleOrder(len(dataset), config, batch, reshuffle)
    workers = _VirtualWorkers(Passes(make_model().to(device), loss), dataset, order, collate, watch)
    workers.choose_batches(together, graph)
    workers.measure = evaluate or workers.mean_loss
    with tempfile.TemporaryDirectory() as folder:
        keep = out is not None or continues
        place = out if keep else Path(folder) / "run"
        return Summary(workers.train(config, place, resume, page), keep)


def _continues(out: str | Path | None, resume: str | Path | None) -> bool:
    """Whether the run writes into the folder that it resumes from; raises if `out` is taken."""
    if resume is not None and (out is None or Path(out) == Path(resume)):
        return True
    if out is not None and (Path(out) / "summary.json").exists():
        raise ValueError(f"out = {str(out)!r} holds a run already: choose another folder")
    return False


class _VirtualWorkers:
    """The gradients of all virtual workers. Rust calls its public methods; vectors are addresses."""

    def __init__(
        self,
        passes: Passes,
        dataset: Sequence[Any],
        order: SampleOrder,
        collate: Callable[[list[Any]], Any],
        watch: Watch | None,
    ):
        self.passes, self.dataset, self.order = passes, dataset, order
        self.collate, self.watch = collate, watch
        for name, p in passes.named:
            if p.dtype != torch.float32:
                raise ValueError(f"parameter `{name}` is {p.dtype}: must be torch.float32")
        if not passes.named:
            raise ValueError("the model has no parameter that requires a gradient")
        self.measure: Measure = self.mean_loss
        # Parameters in transit.
        self.flat = torch.cat([p.detach().reshape(-1) for p in passes.params])
        self.buffers = flatten(passes.float_buffers)
        #: Those of every worker, one per line.
        self.kept = [b.repeat(order.workers, 1) for b in self.buffers]
        # A gradient and its loss, and the memory through which they and parameters are copied.
        self.result = torch.empty(self.flat.numel() + 1, device=self.flat.device)
        self.staged = torch.empty(self.flat.numel() + 1, pin_memory=self.flat.is_cuda)
        #: The most gradients in a batch, and the most batches that are started and not finished.
        self.batch_limits: tuple[int, int] | None = None
        self.replicas: ReplicaGraphs | None = None
        #: Batches of gradients that are not finished, with what finishes each.
        self.started: deque[Callable[[], list[tuple[float, int]]]] = deque()

    def choose_batches(self, together: int | None, graph: bool) -> None:
        """Has gradients computed together where that was asked for."""
        if together is not None and together < 1:
            raise ValueError(f"together = {together}: must be at least 1")
        with_graphs = graph and self.flat.is_cuda
        most = min(together or (TOGETHER if with_graphs else 1), self.order.workers)
        if with_graphs or most > 1:
            self.batch_limits = (most, LANES)
        if with_graphs:
            self.replicas = ReplicaGraphs(self.passes, self.kept, most)

    def train(
        self,
        config: dict[str, Any],
        out: str | Path | None,
        resume: str | Path | None,
        page: str | RunPage | None,
    ) -> Path:
        """Runs the virtual cluster with these workers, and returns where the files of the run are."""
        shown = RunPage(page) if isinstance(page, str) else page
        try:
            folder = _core.simulate(
                config,
                [(name, list(p.shape)) for name, p in self.passes.named],
                self.flat.tolist(),
                self,
                out=None if out is None else str(out),
                resume=None if resume is None else str(resume),
                page=None if shown is None else shown.served,
            )
        finally:
            if shown is not None and shown is not page:
                shown.close()
        return Path(folder)

    def gradient(self, rank: int, step: int, params: int, grad: int) -> tuple[float, int]:
        """Computes one gradient, from and into memory that Rust owns."""
        self._load(params, [kept[rank] for kept in self.kept])
        if not self.passes.model.training:
            self.passes.model.train()
        batch = self._batch(rank, step)
        self.passes.compute(to_device(batch.data, self.flat.device), self.result)
        for mine, kept in zip(self.buffers, self.kept, strict=True):
            kept[rank].copy_(mine)
        self.staged.copy_(self.result)
        self._host(grad).copy_(self.staged[:-1])
        found = float(self.staged[-1])
        if self.watch is not None:
            self.watch(rank, step, found)
        return found, batch.samples

    def start(self, gradients: list[tuple[int, int, int, int]]) -> None:
        """Starts to compute gradients; each is given as for `gradient`."""
        if self.replicas is not None:
            try:
                self.started.append(self._start(self.replicas, gradients))
                return
            except Exception as error:
                warnings.warn(f"no CUDA graph, the passes run without it: {error}", stacklevel=2)
                self.replicas = None
        found = [self.gradient(*gradient) for gradient in gradients]
        self.started.append(lambda: found)

    def finish(self) -> list[tuple[float, int]]:
        """Waits for the first batch that was started; loss and number of samples of each."""
        return self.started.popleft()()

    def _start(
        self, replicas: ReplicaGraphs, gradients: list[tuple[int, int, int, int]]
    ) -> Callable[[], list[tuple[float, int]]]:
        pending = [PendingGradient(*gradient) for gradient in gradients]
        data = [self._batch(one.rank, one.step) for one in pending]
        lane = replicas.start(pending, [self._host(one.params) for one in pending], data)

        def finish() -> list[tuple[float, int]]:
            results = lane.finish()
            losses = results[: len(pending), -1].tolist()
            for one, result, found in zip(pending, results, losses, strict=False):
                self._host(one.grad).copy_(result[:-1])
                if self.watch is not None:
                    self.watch(one.rank, one.step, found)
            return [(found, batch.samples) for found, batch in zip(losses, data, strict=True)]

        return finish

    def evaluate(self, params: int) -> tuple[float, float | None]:
        """Loss and accuracy of the deployed model."""
        self._load(params, [kept.mean(0) for kept in self.kept])
        self.passes.model.eval()
        with torch.no_grad():
            found = self.measure(self.passes.model)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise TypeError(
                f"evaluate() returned {found!r}: must be a loss and an accuracy or None"
            )
        return found

    def state(self, rank: int) -> bytes:
        """The buffers of a worker."""
        return b"".join(
            kept[rank].cpu().contiguous().view(torch.uint8).numpy().tobytes() for kept in self.kept
        )

    def restore(self, rank: int, state: bytes) -> None:
        """Takes over what `state` returned."""
        lines = [kept[rank] for kept in self.kept]
        sizes = [line.numel() * line.element_size() for line in lines]
        if sum(sizes) > len(state):
            raise ValueError(f"{len(state)} bytes, but the model's buffers have {sum(sizes)}")
        start = 0
        for line, size in zip(lines, sizes, strict=True):
            part = torch.frombuffer(bytearray(state[start : start + size]), dtype=line.dtype)
            line.copy_(part)
            start += size

    def mean_loss(self, model: torch.nn.Module) -> tuple[float, None]:
        """The mean loss over the first samples."""
        samples = [self.dataset[i] for i in range(min(512, len(self.dataset)))]
        batch = to_device(self.collate(samples), self.flat.device)
        return float(self.passes.loss(model, batch)), None

    def _batch(self, rank: int, step: int) -> WorkerBatch:
        samples, seed = self.order.samples(rank, step), self.order.batch_seed(rank, step)
        torch.manual_seed(seed)
        return WorkerBatch(self.collate([self.dataset[i] for i in samples]), len(samples), seed)

    def _host(self, address: int) -> torch.Tensor:
        buffer = (ctypes.c_float * self.flat.numel()).from_address(address)
        return torch.frombuffer(buffer, dtype=torch.float32)

    def _load(self, address: int, buffers: list[torch.Tensor]) -> None:
        self.staged[:-1].copy_(self._host(address))
        self.flat.copy_(self.staged[:-1])
        self.passes.load(self.flat)
        for mine, kept in zip(self.buffers, buffers, strict=True):
            mine.copy_(kept)
