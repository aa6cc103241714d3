"""Distributed training of a PyTorch model in three lines.

    >>> import torch
    >>> import quelea.torch as quelea
    >>> quelea.init()                                  # reads the launcher's environment
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = quelea.wrap(model, optimizer, algorithm="allreduce")
    >>> model(torch.ones(4, 2)).sum().backward()
    >>> optimizer.step()
    >>> quelea.shutdown()

The loop, the optimizer and the scheduler stay as they are.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import torch

from quelea import _optimizers, _session
from quelea._core import Error, Group, algorithms

__all__ = [
    "Error",
    "barrier",
    "evaluate_model",
    "init",
    "load_state_dict",
    "local_rank",
    "no_sync",
    "rank",
    "report_loss",
    "shutdown",
    "state_dict",
    "world_size",
    "wrap",
]

Model = TypeVar("Model", bound=torch.nn.Module)

#: How long a process whose run was ended by another lets that one leave before it.
ECHO_SECONDS = 1.0

_group: Group | None = None
_failed = False


def init(timeout: float = 60.0) -> None:
    """Finds the other processes of this launch; a process that was started alone is a group of one.

    Recognised are ``python -m quelea.launch``, torchrun, mpirun, srun and Kubernetes indexed jobs.
    All processes must come within `timeout` seconds.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.rank(), quelea.world_size()
    (0, 1)
    """
    global _group
    if _group is not None:
        raise Error("init() was called before; call it once")
    _group = Group(timeout)
    _watch_for_failure()
    atexit.register(_at_exit)


def _joined() -> Group:
    if _group is None:
        raise Error("call quelea.init() first")
    return _group


def _wrapped(what: str) -> _session.Session:
    _joined()
    if _session.current is None:
        raise Error(f"{what} needs a wrapped model: call quelea.wrap(model, optimizer, …) first")
    return _session.current


def rank() -> int:
    """The number of this process, from 0: which part of the data to take.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> list(range(10))[quelea.rank() :: quelea.world_size()]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    return _joined().rank


def world_size() -> int:
    """How many processes there are.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.world_size()
    1
    """
    return _joined().world_size


def local_rank() -> int:
    """The number of this process on its machine: which GPU to take.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.local_rank()
    0
    """
    return _joined().local_rank


def barrier() -> None:
    """Waits until all processes are here.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.barrier()
    """
    session = _session.current
    _joined().barrier(session.run if session is not None else None)


def wrap(
    model: Model,
    optimizer: torch.optim.Optimizer,
    algorithm: str = "allreduce",
    *,
    topology: str | dict[str, Any] | None = None,
    codec: str | dict[str, Any] | None = None,
    server_optimizer: dict[str, Any] | None = None,
    servers: int = 1,
    bucket_mb: float = 25.0,
    seed: int = 1,
    **parameters: Any,
) -> Model:
    """Trains `model` together with all other processes; returns the same model.

    `algorithm` is a name from ``quelea.algorithms()``, and `parameters` are its own, for example
    ``wrap(model, optimizer, "aladdin", alpha=0.5, period=4)``. `topology` says who mixes with whom
    in the gossip algorithms, `codec` what vectors travel as; each is a name or a dictionary with
    ``name`` and further keys. Where servers take the steps (sync-ps, asp, ssp), they use
    `server_optimizer`, or what they can make of `optimizer` (SGD, Adam and AdamW); the learning
    rate is the optimizer's at rank 0 in either case.

    All ranks begin with rank 0's parameters and buffers.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> quelea.wrap(model, optimizer, "d-psgd", topology="ring") is model
    True
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> model.weight.tolist()
    [[-0.5, -0.5]]
    """
    group = _joined()
    if _session.current is not None:
        raise Error("a model is wrapped already: one process trains one model; shutdown() ends it")
    state = _state(model, optimizer, algorithm, parameters)
    settings = {
        "seed": seed,
        "workers": group.world_size,
        "algorithm": {"name": algorithm, **parameters},
        "topology": _row(topology),
        "codec": _row(codec),
        "buckets": {"size_mb": bucket_mb},
        "cluster": {"servers": servers},
    }
    served = None
    if algorithm in ("sync-ps", "asp", "ssp"):
        served = {} if server_optimizer else _optimizers.described(optimizer)
    elif server_optimizer is not None:
        raise Error(f"server_optimizer: the workers of {algorithm} take the steps themselves")
    elif parameters.get("payload") == "gradient":
        served = _optimizers.described(optimizer)
    if served is not None:
        settings["optimizer"] = server_optimizer or served
        _optimizers.check_served(optimizer, served)
    settings = {key: value for key, value in settings.items() if value is not None}
    _session.current = _session.Session(group, model, optimizer, settings, state, served)
    model.no_sync = no_sync
    return model


def _state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: str,
    parameters: dict[str, Any],
) -> list[str]:
    """The vectors of the optimizer's state that the algorithm averages or replaces."""
    keys = next((keys for name, _, keys in algorithms() if name == algorithm), [])
    on_cpu = all(p.device.type == "cpu" for p in model.parameters())
    names = _optimizers.state_names(optimizer) if on_cpu else []
    if algorithm == "qg-dmsgd":
        if names != ["momentum_buffer"]:
            raise Error(
                "qg-dmsgd replaces the momentum inside the optimizer: it needs torch.optim.SGD "
                "with momentum and without dampening, on the CPU; use d-psgd or decentlam"
            )
        return names
    if "buffers" not in keys:
        return []
    if not names:
        if parameters.setdefault("buffers", "keep") != "keep":
            raise Error(
                f"buffers = {parameters['buffers']!r}: averages or resets the optimizer's state, "
                "which is known of SGD with momentum, Adam and AdamW on the CPU; use "
                'buffers="keep"'
            )
    return [] if parameters.get("buffers") == "keep" else names


def _row(given: str | dict[str, Any] | None) -> dict[str, Any] | None:
    return {"name": given} if isinstance(given, str) else given


@contextmanager
def no_sync() -> Iterator[None]:
    """Backward passes in here only add to the gradient: nothing is exchanged.

    The last backward pass before a step must be outside.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = quelea.wrap(model, optimizer)
    >>> with quelea.no_sync():
    ...     model(torch.ones(1, 2)).sum().backward()
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> model.weight.grad.tolist()
    [[2.0, 2.0]]
    >>> optimizer.step()
    """
    session = _wrapped("no_sync()")
    before, session.paused = session.paused, True
    try:
        yield
    finally:
        session.paused = before


def report_loss(loss: float | torch.Tensor) -> None:
    """Tells the loss of this step, for algorithms that follow it (gossip-aga).

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
    _wrapped("report_loss()").loss = float(value)


@contextmanager
def evaluate_model() -> Iterator[torch.nn.Module]:
    """Inside, the model has the mean of all ranks' parameters and buffers; afterwards its own.

    All ranks must come here together.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> model = quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "ad-psgd")
    >>> with quelea.evaluate_model() as mean, torch.no_grad():
    ...     mean(torch.ones(4, 2)).shape
    torch.Size([4, 1])
    """
    session = _wrapped("evaluate_model()")
    session.check_between_steps("evaluate_model()")
    with torch.no_grad():
        saved = session.average()
    try:
        yield session.model
    finally:
        with torch.no_grad():
            for tensor, value in saved:
                tensor.copy_(value)


def state_dict() -> dict[str, Any]:
    """What this rank needs to go on: its own parameters, which in gossip differ between ranks.

    Save it at every rank, beside ``optimizer.state_dict()``.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> model = quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "d-psgd")
    >>> state = quelea.state_dict()
    >>> state["algorithm"], state["rank"], state["params"].numel()
    ('d-psgd', 0, 3)
    """
    session = _wrapped("state_dict()")
    session.check_between_steps("state_dict()")
    return {
        "algorithm": session.algorithm,
        "rank": rank(),
        "world_size": world_size(),
        "params": session.packed(),
    }


def load_state_dict(state: dict[str, Any]) -> None:
    """Goes on from what `state_dict` gave, at all ranks together.

    Every rank of a gossip algorithm has its own parameters again; in all others the ranks begin at
    the mean. What an algorithm keeps beside the parameters (trackers, corrections, push-sum
    weights, servers' models) begins anew from them.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> model = quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "d-psgd")
    >>> state = quelea.state_dict()
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> quelea.load_state_dict(state)
    >>> bool((model.weight != 0).all())
    True
    """
    session = _wrapped("load_state_dict()")
    session.check_between_steps("load_state_dict()")
    for key, mine in (("world_size", world_size()), ("rank", rank())):
        if state[key] != mine:
            raise Error(f"the state is one of {key} {state[key]}, this process has {key} {mine}")
    count = sum(p.numel() for p in session.params)
    if state["params"].numel() != count:
        raise Error(f"the state has {state['params'].numel()} parameters, the model {count}")
    session.reopen(state["params"])


def shutdown() -> None:
    """Ends the run; returns when all ranks have called it. The model keeps its parameters.

    It is called by itself when a script ends well.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> for algorithm in ("allreduce", "d-psgd"):
    ...     model = torch.nn.Linear(2, 1)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     model = quelea.wrap(model, optimizer, algorithm)
    ...     quelea.shutdown()
    """
    session, _session.current = _session.current, None
    if session is not None:
        session.finish()
        session.model.__dict__.pop("no_sync", None)


def _watch_for_failure() -> None:
    """A script that fails tells the other ranks why before it ends."""
    before, leave = sys.excepthook, sys.exit

    def hook(kind: type, error: BaseException, trace: Any) -> None:
        global _failed
        if hasattr(sys, "ps1"):
            # Somebody is typing, and goes on.
            return before(kind, error, trace)
        _failed = True
        before(kind, error, trace)
        sys.stderr.flush()
        text = str(error).splitlines()
        _tell_failure(": ".join([kind.__name__, *text[:1]]))

    def exit(status: object = None, /) -> NoReturn:
        # Who waits for the others' last steps must not be one that has given up. Python forgets
        # the status before it calls what is registered for the end.
        _session.leaving = status
        leave(status)  # type: ignore[arg-type]

    sys.excepthook, sys.exit = hook, exit


def _tell_failure(reason: str) -> None:
    if _session.current is not None and not _session.current.run.fail(reason):
        # It is only the echo of another's failure. Launchers name whoever leaves first.
        time.sleep(ECHO_SECONDS)


def _at_exit() -> None:
    if _session.leaving not in (None, 0):
        _tell_failure(f"it ended with sys.exit({_session.leaving!r})")
    elif not _failed:
        shutdown()
