"""One run as its rank sees it: the Rust side, its vectors, the views of the model, the turn."""

from __future__ import annotations

from collections.abc import Callable

from quelea._binding import Binding
from quelea._core import Run
from quelea._exchange import Exchange
from quelea._params import TrainedParams
from quelea._step_delta import StepDelta
from quelea._turn import StepCycle


class ActiveRun:
    """A run that has started, at the turn for its first gradient."""

    def __init__(
        self,
        run: Run,
        algorithm: str,
        trained: TrainedParams,
        exchange: Exchange,
        save: Callable[[], bytes],
    ):
        self.run, self.algorithm, self.save = run, algorithm, save
        # Asked for at every gradient; they never change.
        self.buckets, self.properties = run.buckets, run.properties
        self.cycle = StepCycle(run, save)
        self.vectors = run.vectors()
        self.flat = exchange.flat(self.vectors, trained.device)
        #: Gradients lie in the flat vector: the algorithm reads them, or the host averages them.
        self.takes_gradient = self.properties.reads_gradient or self.flat.averages
        self.binding = Binding(trained, self.flat, self.buckets)
        self.step_delta: StepDelta | None = None
        #: Changes with every write to the gradients.
        self.grads_version = -1

    def prepare_step(self) -> None:
        """Remembers what the step of the optimizer will be compared with."""
        self.grads_version = self.flat.grads._version
        if self.cycle.turn.sends_displacement:
            if self.step_delta is None:
                self.step_delta = StepDelta(self.flat, self.takes_gradient)
            self.step_delta.complete()

    def close(self) -> None:
        """Ends the run together with all other ranks. The model keeps its last parameters."""
        try:
            self.binding.narrow.absorb()
            if not self.properties.snapshot:
                self.flat.send("params")
            self.run.finish(self.save)
            self.flat.fetch(grads=False)
            self.binding.narrow.refresh()
        finally:
            self.flat.close()
