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

Loop, optimizer and scheduler stay; in asynchronous algorithms `GlobalScheduler` follows all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from quelea._pytorch import torch  # isort: skip
from quelea import _failure, _pages, _session, _tensor_mesh
from quelea._algorithm import Algorithm, resolved
from quelea._core import Error, Group
from quelea._progress import global_step, page, report_loss
from quelea._schedulers import GlobalScheduler
from quelea._settings import settings_of
from quelea._tensor_calls import (
    allgather,
    allgather_nonblocking,
    allreduce,
    allreduce_nonblocking,
    broadcast,
    broadcast_nonblocking,
    in_neighbor_ranks,
    neighbor_allreduce,
    neighbor_allreduce_nonblocking,
    out_neighbor_ranks,
    poll,
    set_topology,
    synchronize,
)
from quelea._windows import (
    win_accumulate,
    win_accumulate_nonblocking,
    win_create,
    win_free,
    win_get,
    win_get_nonblocking,
    win_put,
    win_put_nonblocking,
    win_update,
    win_update_then_collect,
)

__all__ = [
    "Error",
    "GlobalScheduler",
    "allgather",
    "allgather_nonblocking",
    "allreduce",  # names: default
    "allreduce_nonblocking",
    "barrier",
    "broadcast",
    "broadcast_nonblocking",
    "evaluate_model",
    "global_step",
    "in_neighbor_ranks",
    "init",
    "load_state_dict",
    "local_rank",
    "neighbor_allreduce",
    "neighbor_allreduce_nonblocking",
    "no_sync",
    "out_neighbor_ranks",
    "page",
    "poll",
    "rank",
    "report_loss",
    "set_topology",
    "shutdown",
    "state_dict",
    "synchronize",
    "win_accumulate",
    "win_accumulate_nonblocking",
    "win_create",
    "win_free",
    "win_get",
    "win_get_nonblocking",
    "win_put",
    "win_put_nonblocking",
    "win_update",
    "win_update_then_collect",
    "world_size",
    "wrap",
]

Model = TypeVar("Model", bound=torch.nn.Module)

_group: Group | None = None


def init(
    timeout: float = 60.0,
    *,
    insecure: bool = False,
    page: str | None = None,
    records: str | Path | None = None,
) -> None:
    """Finds the other processes of this launch; a process without a launcher is a group of one.

    Launchers: ``python -m quelea.launch``, torchrun, mpirun, srun, Kubernetes. All must call it within
    `timeout` seconds. Several machines need ``QUELEA_SECRET``, or `insecure` for plain connections.

    With `page`, an address such as ``"127.0.0.1:8600"`` (or ``QUELEA_PAGE``), rank 0 shows the runs
    of this process in a browser. With `records` (or ``QUELEA_RECORDS``) it writes what is measured to
    that folder, for `quelea.open_run` and ``quelea page``; a second run there replaces the first.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.rank(), quelea.world_size()
    (0, 1)
    """
    global _group
    if _group is not None:
        raise Error("init() was called before: call it once")
    _group = Group(timeout, insecure)
    _pages.begin(_group.rank, page, records)
    _failure.watch(_fail, shutdown)


def _fail(reason: str) -> bool:
    session = _session.current
    return session is None or session.active.run.fail(reason)


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
    """The number of this process, from 0: selects its part of the data.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> list(range(10))[quelea.rank() :: quelea.world_size()]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    return _joined().rank


def world_size() -> int:
    """The number of processes.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.world_size()
    1
    """
    return _joined().world_size


def local_rank() -> int:
    """The number of this process on its machine: selects its GPU.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.local_rank()
    0
    """
    return _joined().local_rank


def barrier(timeout: float = 1800.0) -> None:
    """Waits until all processes have called it; after `timeout` seconds an error names who is missing.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.barrier()
    """
    session = _session.current
    _joined().barrier(session.active.run if session is not None else None, timeout)


def wrap(
    model: Model,
    optimizer: torch.optim.Optimizer,
    algorithm: str | Algorithm | type[Algorithm] = "allreduce",  # names: default
    *,
    topology: str | dict[str, Any] | None = None,
    codec: str | dict[str, Any] | None = None,
    server_optimizer: dict[str, Any] | None = None,
    servers: int = 1,
    bucket_mb: float = 25.0,
    seed: int = 1,
    poison: str | None = None,
    **parameters: Any,
) -> Model:
    """Trains `model` together with all other processes; returns the same model.

    `algorithm` is a name from ``quelea.algorithms()``, and `parameters` are its options, as in ``wrap(model,
    optimizer, "aladdin", alpha=0.5)``; or a class of your own, or an object of it. `topology` selects who mixes
    with whom in gossip algorithms, `codec` how vectors are encoded; each is a name or a dictionary with
    ``name`` and further keys. Where servers run the optimizer, they use `server_optimizer`, or the equivalent
    of `optimizer` (SGD, Adam and AdamW), with rank 0's learning rate. All start from rank 0's parameters.

    `poison` says what happens when a rank sends NaN, infinities or absurd magnitudes: ``"stop"``, ``"drop"``,
    ``"refuse"`` or ``"ignore"``. Where ranks send each other gradients the default is ``"ignore"``, because a
    ``GradScaler`` finds infinities there and skips the step; elsewhere it is ``"stop"``.

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
    config = {
        "seed": seed,
        "workers": group.world_size,
        "algorithm": resolved({"name": algorithm, **parameters}),
        "topology": _named(topology),
        "codec": _named(codec),
        "buckets": {"size_mb": bucket_mb},
        "cluster": {"servers": servers},
        "trust": {"poison": poison} if poison is not None else None,
    }
    settings = settings_of(config, model, optimizer, server_optimizer)
    _session.current = _session.Session(group, model, optimizer, settings)
    model.no_sync = no_sync
    return model


def _named(given: str | dict[str, Any] | None) -> dict[str, Any] | None:
    return {"name": given} if isinstance(given, str) else given


@contextmanager
def no_sync() -> Iterator[None]:
    """Backward passes inside only add to the gradient: nothing is exchanged.

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
    backward = _wrapped("no_sync()").backward
    before, backward.paused = backward.paused, True
    try:
        yield
    finally:
        backward.paused = before


@contextmanager
def evaluate_model() -> Iterator[torch.nn.Module]:
    """Inside, the model has the mean of all ranks' parameters and buffers, then its own again.

    All ranks must call it.

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
    """What this rank needs to resume: its own parameters, which in gossip differ between ranks.

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
        "algorithm": session.settings.algorithm,
        "rank": rank(),
        "world_size": world_size(),
        "global_step": session.global_step,
        "params": session.packed(),
    }


def load_state_dict(state: dict[str, Any]) -> None:
    """Resumes from what `state_dict` returned, at all ranks together.

    In most gossip algorithms every rank resumes from its own parameters; in all others the ranks
    start from the mean. What an algorithm keeps beside the parameters (trackers, corrections,
    push-sum weights, servers' models) is reset.

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
            raise Error(f"the state has {key} {state[key]}, this process has {key} {mine}")
    count = sum(p.numel() for p in session.trained.params)
    if state["params"].numel() != count:
        raise Error(f"the state has {state['params'].numel()} parameters, the model {count}")
    # States of earlier versions have no step.
    session.reopen(state["params"], state.get("global_step", session.global_step))


def shutdown() -> None:
    """Ends the run; returns when all ranks have called it. The model keeps its parameters.

    A script that ends without an error calls it implicitly.

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
    _tensor_mesh.leave()
