"""quelea in Hugging Face Transformers: a callback, and a `Trainer` that also divides the data.

    from quelea.transformers import QueleaTrainer

    trainer = QueleaTrainer(model, args, train_dataset=data, algorithm="d-psgd")
    trainer.train()

Scripts are started by ``quelea launch``: every process is a `Trainer` of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import quelea.torch as _quelea
from quelea._core import Error
from quelea._framework import inner_optimizer, join, keep_mean

__all__ = ["QueleaCallback", "QueleaTrainer"]


class QueleaCallback(TrainerCallback):
    """Trains the model of a `Trainer` together with all other processes, from its first step to its last.

    Arguments are those of ``quelea.torch.wrap``. The callback does not divide the data: `QueleaTrainer` does. When
    the training ends, the model has the mean of all ranks.
    """

    def __init__(self, algorithm: Any = None, **options: Any):
        self._options = options if algorithm is None else {"algorithm": algorithm, **options}
        self._model: torch.nn.Module | None = None
        #: Whether somebody calls `no_sync` where gradients are accumulated.
        self.accumulates = False

    def on_train_begin(
        self, args: TrainingArguments, state: Any, control: Any, **objects: Any
    ) -> None:
        """Wraps the model and the optimizer."""
        if args.world_size > 1:
            raise Error(
                f"the Trainer has set up torch.distributed for {args.world_size} processes itself: start the script "
                "by `quelea launch -n N`, not by torchrun or accelerate"
            )
        if args.gradient_accumulation_steps > 1 and not self.accumulates:
            raise Error(
                f"gradient_accumulation_steps = {args.gradient_accumulation_steps}: use quelea.transformers."
                "QueleaTrainer, which knows the last backward pass of a step"
            )
        join()
        self._model = objects["model"]
        _quelea.wrap(self._model, inner_optimizer(objects["optimizer"]), **self._options)

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Ends the run."""
        model, self._model = self._model, None
        if model is not None:
            keep_mean(model)


class QueleaTrainer(Trainer):
    """A `Trainer` whose processes train one model: `QueleaCallback`, and every process has its part of the data.

    Beside the arguments of `Trainer` it takes `algorithm`, and `options` for all others of ``quelea.torch.wrap``.
    Evaluations and checkpoints are of the mean of all ranks; rank 0 saves them.
    """

    def __init__(
        self, *args: Any, algorithm: Any = None, options: dict[str, Any] | None = None, **named: Any
    ):
        super().__init__(*args, **named)
        self._callback = QueleaCallback(algorithm, **(options or {}))
        self._callback.accumulates = True
        self.add_callback(self._callback)

    @property
    def _wrapped(self) -> torch.nn.Module | None:
        return self._callback._model

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler[int] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        join()
        if _quelea.world_size() == 1:
            return super()._get_train_sampler(train_dataset)
        if not hasattr(dataset, "__len__"):
            raise Error(
                "the dataset has no length and cannot be divided among processes: give every process its part, "
                "by quelea.torch.rank(), and use Trainer with QueleaCallback"
            )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return torch.utils.data.DistributedSampler(
            dataset, _quelea.world_size(), _quelea.rank(), seed=seed
        )

    def training_step(self, model: torch.nn.Module, *args: Any, **named: Any) -> torch.Tensor:
        """Exchanges gradients in the last backward pass of a step only."""
        if self.accelerator.sync_gradients or self._wrapped is None:
            return super().training_step(model, *args, **named)
        with _quelea.no_sync(self._wrapped):
            return super().training_step(model, *args, **named)

    def evaluate(self, *args: Any, **named: Any) -> dict[str, float]:
        """Evaluates the mean of all ranks, at every rank."""
        if self._wrapped is None:
            return super().evaluate(*args, **named)
        with _quelea.evaluate_model(self._wrapped):
            return super().evaluate(*args, **named)

    def _save_checkpoint(self, *args: Any, **named: Any) -> None:
        if self._wrapped is None:
            return super()._save_checkpoint(*args, **named)
        with _quelea.evaluate_model(self._wrapped):
            if _quelea.rank() == 0:
                super()._save_checkpoint(*args, **named)

    def save_model(self, *args: Any, **named: Any) -> None:
        """Saves at rank 0."""
        join()
        if _quelea.rank() == 0:
            super().save_model(*args, **named)
