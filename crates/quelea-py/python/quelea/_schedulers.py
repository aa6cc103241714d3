"""Learning-rate schedulers that follow all ranks of an asynchronous run, not only their own."""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from quelea import _session
from quelea._core import Error


def _session_of(scheduler: LRScheduler) -> _session.Session:
    """The session whose optimizer the scheduler has, or the only one."""
    for session in _session.sessions:
        if session.optimizer is scheduler.optimizer:
            return session
    if len(_session.sessions) > 1:
        raise Error(
            "the optimizer of the scheduler is none of the wrapped models': create the scheduler with an "
            "optimizer that was given to quelea.wrap()"
        )
    return _session.chosen("GlobalScheduler", None)


class GlobalScheduler:
    """Advances a scheduler of ``torch.optim.lr_scheduler`` with the steps of all ranks.

    Use it in place of `scheduler`: call ``step()`` after every ``optimizer.step()``. It calls
    ``scheduler.step()`` as often as the ranks have taken `every` steps on average since the last
    call: not at all at a fast rank that is ahead, several times at a slow one. In synchronous
    algorithms that is once per `every` calls. `every` is the number of steps per epoch for a
    scheduler that counts epochs.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = quelea.wrap(model, optimizer, "ad-psgd")
    >>> step_lr = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> scheduler = quelea.GlobalScheduler(step_lr)
    >>> rates = []
    >>> for _ in range(4):
    ...     model(torch.ones(4, 2)).sum().backward()
    ...     optimizer.step()
    ...     scheduler.step()
    ...     rates += scheduler.get_last_lr()
    >>> rates
    [0.1, 0.05, 0.05, 0.025]
    """

    def __init__(self, scheduler: LRScheduler, every: int = 1):
        if isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(
                "ReduceLROnPlateau follows a measured value, not steps: call it where the value is "
                "measured, at all ranks with the same one"
            )
        if every < 1:
            raise ValueError(f"every = {every}: must be at least 1")
        self.scheduler, self.every = scheduler, every
        #: The step of the process up to which the scheduler was advanced.
        self._followed = self._now()
        with warnings.catch_warnings():
            # In a process that has just joined, the others' optimizers have run as often.
            warnings.simplefilter("ignore", UserWarning)
            self.step()

    def _now(self) -> int:
        """The step from which a scheduler of this process follows: in one that has just joined, all steps of
        the run are before it."""
        session = _session_of(self.scheduler)
        return session.steps_in_process if session.joined is None else 0

    def step(self) -> None:
        """Advances the scheduler to the step at which the ranks are on average."""
        reached = _session_of(self.scheduler).steps_in_process
        while self._followed + self.every <= reached:
            self._followed += self.every
            if not self._has_ended():
                self.scheduler.step()

    def _has_ended(self) -> bool:
        """Whether the scheduler allows no further step, as OneCycleLR after its last one."""
        last: int | None = getattr(self.scheduler, "total_steps", None)
        return last is not None and self.scheduler.last_epoch >= last

    def get_last_lr(self) -> list[Any]:
        """The learning rates that the scheduler has set last."""
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The state of the scheduler, and how many steps it has not followed yet."""
        ahead = _session_of(self.scheduler).steps_in_process - self._followed
        return {"scheduler": self.scheduler.state_dict(), "ahead": ahead}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from what `state_dict` returned."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._followed = self._now() - state["ahead"]
