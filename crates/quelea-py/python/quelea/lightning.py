"""quelea in Lightning: ``Trainer(strategy="quelea")``, or `QueleaStrategy` with an algorithm.

    import quelea.lightning

    trainer = Trainer(strategy=quelea.lightning.QueleaStrategy("d-psgd"), max_epochs=3)
    trainer.fit(model, loader)

Scripts are started by ``quelea launch``. Lightning gives every process its part of the data.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn

import quelea.torch as _quelea
from quelea._core import Error
from quelea._framework import join, keep_mean

__all__ = ["QueleaStrategy"]


class QueleaStrategy(ParallelStrategy):
    """Trains a `LightningModule` together with all other processes; arguments are those of
    ``quelea.torch.wrap``. When a fit ends, the module has the mean of all ranks."""

    strategy_name = "quelea"

    def __init__(self, algorithm: Any = None, **options: Any):
        own = ("accelerator", "parallel_devices", "cluster_environment", "checkpoint_io", "precision_plugin")
        super().__init__(**{key: options.pop(key) for key in own if key in options})
        self._options = options if algorithm is None else {"algorithm": algorithm, **options}
        self._is_wrapped = False
        join()

    # Who and where.

    is_distributed = True

    @property
    def root_device(self) -> torch.device:
        """The CPU, or the GPU of this process on its machine."""
        devices = self.parallel_devices or [torch.device("cpu")]
        return devices[_quelea.local_rank() % len(devices)]

    @property
    def global_rank(self) -> int:
        """The number of this process."""
        return _quelea.rank()

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine."""
        return _quelea.local_rank()

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return _quelea.world_size()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How Lightning divides the data."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def model_to_device(self) -> None:
        """Moves the module to the device of this process."""
        assert self.model is not None, "Lightning sets it before"
        self.model.to(self.root_device)

    # A fit.

    def setup(self, trainer: Any) -> None:
        """Wraps the module and its optimizer."""
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if len(self.optimizers) != 1:
            raise Error(
                f"the module has {len(self.optimizers)} optimizers, and QueleaStrategy trains with one: call "
                "quelea.torch.wrap() yourself, for every part of the module, in on_fit_start()"
            )
        _quelea.wrap(self.lightning_module, self.optimizers[0], **self._options)
        self._is_wrapped = True

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **named: Any,
    ) -> Any:
        """Computes the gradient, which is exchanged, before the step and not inside it."""
        plugin, module = self.precision_plugin, model or self.lightning_module
        if getattr(plugin, "scaler", None) is not None:
            # A scaler does so by itself.
            return plugin.optimizer_step(optimizer, model=module, closure=closure, **named)
        result = plugin._wrap_closure(module, optimizer, closure)
        optimizer.step(**named)
        return result

    @contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Backward passes inside only add to the gradient."""
        with _quelea.no_sync(self.lightning_module):
            yield

    def on_exception(self, exception: BaseException) -> None:
        """The others learn the reason when this process ends."""
        self._is_wrapped = False

    def teardown(self) -> None:
        """Ends the run."""
        is_wrapped, self._is_wrapped = self._is_wrapped, False
        if is_wrapped:
            keep_mean(self.lightning_module)
        super().teardown()

    # Calls that all processes make together.

    def barrier(self, name: str | None = None) -> None:
        """Waits for all processes."""
        _quelea.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of rank 0."""
        if src != 0:
            raise Error(f"broadcast(src={src}): QueleaStrategy sends objects of rank 0 only")
        return pickle.loads(_quelea._joined().broadcast("broadcast()", pickle.dumps(obj)))

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean or the sum over all processes."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        average = str(reduce_op).lower().rpartition(".")[2] in ("mean", "avg", "none")
        if average and not tensor.is_floating_point():
            # As Lightning's other strategies do it: the mean, as a whole number.
            return (_quelea.allreduce(tensor, average=False) / self.world_size).to(tensor.dtype)
        return _quelea.allreduce(tensor, average=average)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> Any:
        """The tensors of all processes, along a new first dimension."""
        return _quelea.allgather(tensor[None])


StrategyRegistry.register(
    "quelea", QueleaStrategy, description="Any algorithm of quelea between processes"
)
