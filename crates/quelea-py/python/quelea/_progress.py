"""What a script reports of its steps, and what it learns of the whole run: its step, its page."""

from __future__ import annotations

import torch

from quelea import _pages
from quelea._core import Error
from quelea._pages import RunPage
from quelea._session import Session


def _wrapped(what: str, model: torch.nn.Module | None) -> Session:
    # quelea.torch imports this file.
    from quelea.torch import _wrapped

    return _wrapped(what, model)


def rank() -> int:
    """The number of this process."""
    from quelea.torch import rank

    return rank()


def global_step(model: torch.nn.Module | None = None) -> int:
    """The step at which the ranks are on average, as far as this one knows; it never falls.

    In asynchronous algorithms that is the number of gradients of all ranks, divided by the number
    of ranks; elsewhere it is this rank's own step.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = quelea.wrap(model, optimizer, "ad-psgd")
    >>> quelea.global_step()
    0
    >>> model(torch.ones(4, 2)).sum().backward()
    >>> optimizer.step()
    >>> quelea.global_step()
    1
    """
    return _wrapped("global_step()", model).global_step


def start_step(model: torch.nn.Module | None = None) -> int:
    """The step at which this process begins: 0, or where the others are when it joins their run.

    A loop ``for step in range(quelea.start_step(), steps)`` is the same in every process, also in one that was
    started again, and after `load_state_dict`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> model = quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> quelea.start_step()
    0
    """
    return _wrapped("start_step()", model).start_step


def workers(model: torch.nn.Module | None = None) -> list[int]:
    """The ranks that take part in the run, as far as this one knows: lost ones are missing.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> model = quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> quelea.workers()
    [0]
    """
    return _wrapped("workers()", model).active.run.workers


def leave(model: torch.nn.Module | None = None) -> None:
    """Gives this process notice: it leaves the run as soon as the others can do without it, and the step after
    that raises `Left`, which ends the script with status 0. SIGTERM does the same.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> model = quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> quelea.leave()
    Traceback (most recent call last):
    ...
    quelea.Error: rank 0 cannot leave the run: its process has the controller
    """
    run = _wrapped("leave()", model).active.run
    if not run.can_leave:
        reason = "its process has the controller"
        if rank() != 0:
            reason = 'with on_loss="stop" the others cannot continue'
        raise Error(f"rank {rank()} cannot leave the run: {reason}")
    run.leave()


def report_loss(
    loss: float | torch.Tensor, samples: int | None = None, model: torch.nn.Module | None = None
) -> None:
    """Reports the loss of this step, for algorithms that use it and for the page.

    `samples` is the size of the mini-batch, for the page; unless it is given, it is the first dimension of
    what the model was called with.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = quelea.wrap(model, optimizer, "gossip-aga")
    >>> loss = model(torch.ones(1, 2)).square().sum()
    >>> quelea.report_loss(loss)
    >>> loss.backward()
    >>> optimizer.step()
    """
    value = loss.detach() if isinstance(loss, torch.Tensor) else loss
    _wrapped("report_loss()", model).backward.report(float(value), samples)


def page() -> RunPage | None:
    """The page of this process, at rank 0 where `init` was given one; in a notebook it shows itself.

    >>> import quelea.torch as quelea
    >>> quelea.init(page="127.0.0.1:0")
    >>> page = quelea.page()
    >>> page.url.startswith("http://127.0.0.1:")
    True
    >>> frame = page.show(height=600)
    """
    return _pages.live
