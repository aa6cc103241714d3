"""What a script reports of its steps, and what it learns of the whole run: its step, its page."""

from __future__ import annotations

import torch

from quelea import _pages
from quelea._pages import RunPage
from quelea._session import Session


def _wrapped(what: str) -> Session:
    # quelea.torch imports this file.
    from quelea.torch import _wrapped

    return _wrapped(what)


def global_step() -> int:
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
    return _wrapped("global_step()").global_step


def report_loss(loss: float | torch.Tensor, samples: int | None = None) -> None:
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
    _wrapped("report_loss()").backward.report(float(value), samples)


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
