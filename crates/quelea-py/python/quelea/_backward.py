"""Backward passes: hand the gradient over bucket by bucket while the pass is running."""

from __future__ import annotations

import math

import torch
from torch.autograd import Variable

from quelea import _checks, _optimizers
from quelea._active_run import ActiveRun
from quelea._core import Error
from quelea._turn import Turn

#: The most samples of a mini-batch that a record has room for.
SAMPLES_MAX = 2**32 - 1


class BackwardPass:
    """Hands the gradient of a step over to the rank."""

    active: ActiveRun

    def __init__(
        self, optimizer: torch.optim.Optimizer, server_optimizer: dict[str, object] | None
    ):
        self.optimizer, self.server_optimizer = optimizer, server_optimizer
        #: Inside `no_sync()`.
        self.paused = False
        #: What the script has reported for this step.
        self.loss = math.nan
        self._samples_reported: int | None = None
        #: Samples that the model was called with since the last step.
        self._samples_seen = 0

    def attach(self, active: ActiveRun) -> None:
        """Hands gradients over to this run from now on."""
        self.active = active
        self.reset()

    def reset(self) -> None:
        """Gets ready for the gradient of the next step."""
        binding = self.active.binding
        self.next_bucket = 0
        #: Buckets, and the copies from a GPU that have to end before they are handed over.
        self.in_transit: list[tuple[int, torch.cuda.Event | None]] = []
        self.params_sent: torch.cuda.Event | None = None
        self.ready = [False] * len(binding.bucket_of)
        #: How many parameters of each bucket are not ready.
        self.remaining = list(binding.bucket_sizes)

    def report(self, loss: float, samples: int | None) -> None:
        """The script says what its mini-batch was."""
        self.loss, self._samples_reported = loss, samples

    def see_inputs(self, inputs: tuple[object, ...]) -> None:
        """The model is called with these: the first dimension is that of the mini-batch."""
        first = next((one for one in inputs if isinstance(one, torch.Tensor) and one.dim() > 0), None)
        if first is not None:
            self._samples_seen += first.shape[0]

    def _take_samples(self) -> int:
        reported, seen = self._samples_reported, self._samples_seen
        self._samples_reported, self._samples_seen = None, 0
        return min(max(seen if reported is None else int(reported), 0), SAMPLES_MAX)

    def accumulated(self, index: int, p: torch.Tensor) -> None:
        """The gradient of a parameter is complete for this backward pass."""
        if self.paused:
            return
        cycle = self.active.cycle
        if not cycle.turn.awaits_gradient or self.ready[index]:
            raise Error(_checks.SECOND_BACKWARD)
        if cycle.turn is Turn.GRADIENT:
            self._start()
        self._take(index, p)
        bucket = self.active.binding.bucket_of[index]
        self.remaining[bucket] -= 1
        if self.remaining[bucket] == 0:
            self._hand_over()

    def _start(self) -> None:
        active, flat = self.active, self.active.flat
        active.cycle.start_backward()
        if self.server_optimizer is not None:
            _optimizers.check_server_optimizer(self.optimizer, self.server_optimizer)
        active.run.set_learning_rate(_optimizers.learning_rate(self.optimizer))
        Variable._execution_engine.queue_callback(self.ended)
        active.binding.rebind_params()
        if flat.on_gpu and not active.properties.snapshot:
            # The script may have changed them since the last step.
            self.params_sent = flat.send_later("params", 0, flat.params.numel())

    def _take(self, index: int, p: torch.Tensor) -> None:
        self.ready[index] = True
        if self.active.properties.reads_gradient:
            self.active.binding.take_gradient(index, p)

    def _hand_over(self) -> None:
        """Hands over the buckets that are complete, in order."""
        flat, buckets = self.active.flat, self.active.buckets
        while self.next_bucket < len(buckets) and self.remaining[self.next_bucket] == 0:
            event = self.params_sent
            if self.active.properties.reads_gradient and flat.on_gpu:
                event = flat.send_later("grads", *buckets[self.next_bucket])
            self.in_transit.append((self.next_bucket, event))
            self.next_bucket += 1
        while self.in_transit:
            bucket, event = self.in_transit[0]
            if event is not None and not event.query():
                break
            del self.in_transit[0]
            self.active.run.bucket(bucket)

    def ended(self) -> None:
        """The backward pass has ended: when this returns, gradients that the algorithm averages
        are averaged."""
        active = self.active
        for index, p in enumerate(active.binding.trained.params):
            if not self.ready[index]:
                self._take(index, p)
        self.remaining = [0] * len(self.remaining)
        self._hand_over()
        for bucket, event in self.in_transit:
            if event is not None:
                event.synchronize()
            active.run.bucket(bucket)
        _checks.check_loss(active.properties, active.algorithm, self.loss)
        loss, self.loss = self.loss, math.nan
        active.cycle.end_backward(loss, self._take_samples())
        active.flat.fetch(grads=active.properties.reads_gradient)
        active.binding.narrow.refresh()
        if active.properties.reads_gradient:
            active.binding.narrow.refresh_gradients()
        active.prepare_step()
