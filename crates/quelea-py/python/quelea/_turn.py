"""The turns of a training step, and which turn follows which.

::

    GRADIENT --start_backward--> BACKWARD --end_backward--> APPLY            --end_step--> GRADIENT
                                                            DISPLACE
                                                            APPLY_AND_REPORT
                                                            SERVED
"""

from __future__ import annotations

import enum

from quelea._core import Error, Run


class Turn(enum.Enum):
    """What comes next in a step. Values are the names that `Run.wait` returns."""

    #: Forward and backward pass: parameters and gradients belong to the script.
    GRADIENT = "gradient"
    #: A backward pass has started to hand its gradient over.
    BACKWARD = "backward"
    #: The optimizer runs; the parameters keep its step.
    APPLY = "apply"
    #: The optimizer runs; how far it moved the parameters is sent, and the algorithm moves them.
    DISPLACE = "displace"
    #: The optimizer runs; the parameters keep its step, and how far it moved them is sent.
    APPLY_AND_REPORT = "apply_and_report"
    #: Servers have taken the step: the optimizer must not run.
    SERVED = "served"

    @property
    def awaits_gradient(self) -> bool:
        """Whether the gradient of the step is not handed over yet."""
        return self in (Turn.GRADIENT, Turn.BACKWARD)

    @property
    def runs_optimizer(self) -> bool:
        """Whether the rank waits for the script's optimizer."""
        return self in (Turn.APPLY, Turn.DISPLACE, Turn.APPLY_AND_REPORT)

    @property
    def sends_displacement(self) -> bool:
        """Whether the rank wants to know how far the optimizer moves the parameters."""
        return self in (Turn.DISPLACE, Turn.APPLY_AND_REPORT)

    @property
    def keeps_step(self) -> bool:
        """Whether the parameters keep the step of the optimizer."""
        return self in (Turn.APPLY, Turn.APPLY_AND_REPORT)


class StepCycle:
    """Whose turn it is in a run. Every transition is a method of this class."""

    def __init__(self, run: Run):
        self.run = run
        self._wait_for_gradient()
        self.turn = Turn.GRADIENT
        #: A forward pass has closed the last step before optimizer.step() was called.
        self.closed_by_forward = False

    def start_forward(self) -> None:
        """A forward pass with gradients starts: a step that was not taken will be skipped."""
        self.closed_by_forward |= self.turn.runs_optimizer

    def start_backward(self) -> None:
        """The first gradient of a backward pass is there."""
        assert self.turn is Turn.GRADIENT, self.turn
        self.turn = Turn.BACKWARD
        self.closed_by_forward = False

    def end_backward(self, loss: float, samples: int) -> None:
        """The gradient over so many samples is complete; waits until the optimizer may run."""
        assert self.turn is Turn.BACKWARD, self.turn
        self.run.gradient(loss, samples)
        # A run that ends here has got the whole gradient.
        self.turn = Turn.GRADIENT
        asked = Turn(self.run.wait())
        self.turn = Turn.SERVED if asked is Turn.GRADIENT else asked

    def end_step(self) -> None:
        """The step was taken or skipped; waits until the next gradient may start."""
        if self.turn.runs_optimizer:
            self.run.optimized()
            self._wait_for_gradient()
        self.turn = Turn.GRADIENT

    def _wait_for_gradient(self) -> None:
        asked = Turn(self.run.wait())
        if asked is not Turn.GRADIENT:
            raise Error(f"internal error in quelea: expected the turn GRADIENT, not {asked.name}")
