"""Steps of the script's optimizer: what they did goes to the rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from quelea import _checks, _failure
from quelea._active_run import ActiveRun
from quelea._backward import BackwardPass
from quelea._turn import Turn

if TYPE_CHECKING:
    from quelea._elastic import ElasticSampler


class OptimizerStep:
    """Passes the optimizer's steps on to the rank."""

    active: ActiveRun

    def __init__(self, backward: BackwardPass):
        self.backward = backward
        #: Is told of every step that was taken.
        self.sampler: ElasticSampler | None = None

    def attach(self, active: ActiveRun) -> None:
        """Passes steps on to this run from now on."""
        self.active = active
        _failure.continues()

    def before(self) -> None:
        """The optimizer is about to run."""
        active = self.active
        params = active.binding.trained.params
        _checks.check_step_has_gradient(active.cycle, params)
        if active.cycle.turn is Turn.SERVED:
            _checks.check_gradients_unchanged(active)
            # Optimizers skip parameters without a gradient.
            for p in params:
                p.grad = None

    def after(self) -> None:
        """The optimizer has run."""
        active, turn = self.active, self.active.cycle.turn
        if turn.runs_optimizer:
            active.binding.narrow.absorb()
        if turn.sends_displacement:
            assert active.step_delta is not None
            restore = turn is Turn.DISPLACE and not active.properties.snapshot
            active.step_delta.write_displacement(restore)
            active.flat.send("grads")
        if turn.keeps_step:
            active.flat.send("params")
        self._end()

    def close_skipped(self) -> None:
        """Closes a step that the script has skipped, as GradScaler does: nothing moves."""
        active, flat = self.active, self.active.flat
        active.binding.narrow.absorb()
        if active.cycle.turn.sends_displacement:
            assert active.step_delta is not None
            active.step_delta.discard()
            if flat.on_gpu:
                # Parameters may still be on their way from where the rank will write next.
                torch.cuda.current_stream(flat.params.device).synchronize()
            flat.host_grads.zero_()
        self._end()

    def _end(self) -> None:
        """Waits until the next gradient may start."""
        active = self.active
        if active.cycle.turn.awaits_gradient:
            return
        active.cycle.end_step()
        active.flat.fetch(grads=False)
        active.binding.narrow.refresh()
        self.backward.reset()
        if self.sampler is not None:
            self.sampler.step_taken()
        _failure.continues()
        balancer = self.backward.balancer
        if balancer is not None:
            for _ in range(balancer.steps_to_pass()):
                self._pass()
            balancer.compare()
            balancer.step_ended()

    def _pass(self) -> None:
        """Takes a step without a gradient: nothing moves but what the algorithm does to the parameters."""
        active = self.active
        if active.properties.reads_gradient:
            active.flat.grads.zero_()
            active.flat.send("grads")
        active.cycle.start_backward()
        for bucket in range(len(active.buckets)):
            active.run.bucket(bucket)
        active.cycle.end_backward(math.nan, 0)
        if active.cycle.turn.sends_displacement:
            active.flat.host_grads.zero_()
        active.cycle.end_step()
        active.flat.fetch(grads=False)
        active.binding.narrow.refresh()
