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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from quelea._pytorch import torch  # isort: skip
from quelea import _failure, _hosts, _pages, _session, _sharded, _tensor_mesh
from quelea._algorithm import Algorithm, resolved
from quelea._balance import Balance, BalancedBatches, balancer_of
from quelea._checkpoint import RunState, load_state_dict, state_dict
from quelea._core import Error, Group, Left
from quelea._elastic import ElasticSampler
from quelea._exchange import Exchange
from quelea._progress import global_step, leave, page, report_loss, start_step, workers
from quelea._schedulers import GlobalScheduler
from quelea._settings import WrapSettings, settings_of
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
    "Balance",
    "BalancedBatches",
    "ElasticSampler",
    "Error",
    "GlobalScheduler",
    "Left",
    "RunState",
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
    "leave",
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
    "start_step",
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
    "workers",
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
    ended = [session.active.run.fail(reason) for session in _session.sessions]
    return all(ended)


def _joined() -> Group:
    if _group is None:
        raise Error("call quelea.init() first")
    return _group


def _wrapped(what: str, model: torch.nn.Module | None) -> _session.Session:
    _joined()
    return _session.chosen(what, model)


def rank() -> int:
    """The number of this process, from 0: selects its part of the data.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> list(range(10))[quelea.rank() :: quelea.world_size()]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    return _joined().rank


def world_size() -> int:
    """The number of processes that were started; those that take part now are in `workers`.

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
    """Waits until all processes that take part have called it; after `timeout` seconds an error names who is missing.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.barrier()
    """
    group = _joined()
    runs = (session.active.run for session in _session.sessions if session.group is group)
    group.barrier(next(runs, None), timeout)


# long: most of it says what the arguments are
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
    replicate: Any = None,
    within_host: str | None = None,
    balance: bool | Balance = False,
    on_loss: str = "continue",
    min_workers: int = 1,
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
    ``GradScaler`` finds infinities there and skips the step; elsewhere it is ``"stop"``. When a process is lost,
    the others continue as long as `min_workers` are left and rank 0 is one of them; with ``on_loss="stop"``, with
    `replicate` or `within_host` and beside another wrapped model they raise an error. A process that is started again joins the run here: see `start_step`.

    A model that ``fully_shard`` has sharded needs `replicate`, the dimension of the replicas of its mesh. With
    `within_host`, ``"ddp"`` or ``"fsdp"``, ranks of a host work together through torch.distributed, and the algorithm
    is between hosts. With `balance`, ranks get work in proportion to their speeds (`BalancedBatches`).

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
    if _session.session_of(model) is not None:
        raise Error("this model is wrapped already: quelea.shutdown(model) ends its run")
    exchange = _exchange(_joined(), model, optimizer, replicate, within_host)
    # Ranks that work together inside a host, or on several models at once, cannot do without one another.
    can_lose = exchange.group is exchange.processes and not _session.sessions
    config = {
        "seed": seed,
        "workers": exchange.group.world_size,
        "algorithm": resolved({"name": algorithm, **parameters}),
        "topology": _named(topology),
        "codec": _named(codec),
        "buckets": {"size_mb": bucket_mb},
        "cluster": {"servers": servers},
        "trust": {"poison": poison} if poison is not None else None,
        "membership": _session.membership(on_loss if can_lose else "stop", min_workers),
    }
    _start(exchange, model, optimizer, settings_of(config, model, optimizer, server_optimizer), balance)
    return model


def _start(
    exchange: Exchange,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: WrapSettings,
    balance: bool | Balance,
) -> None:
    """Starts the run of a model."""
    balancer = balancer_of(exchange, settings, balance)
    _session.sessions.append(_session.Session(exchange, model, optimizer, settings, balancer))
    model.no_sync = partial(no_sync, model)


def _exchange(
    group: Group,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    replicate: Any,
    within_host: str | None,
) -> Exchange:
    """Who exchanges what."""
    if within_host is not None:
        if replicate is not None:
            raise ValueError("replicate and within_host were given: the second finds the replicas itself")
        return _hosts.exchange_between_hosts(group, model, optimizer, within_host)
    if replicate is None:
        return Exchange(group, group)
    ranks = _sharded.replica_ranks(group, replicate)
    return Exchange(group, group.subgroup("wrap()", ranks), ranks)


def _named(given: str | dict[str, Any] | None) -> dict[str, Any] | None:
    return {"name": given} if isinstance(given, str) else given


@contextmanager
def no_sync(model: torch.nn.Module | None = None) -> Iterator[None]:
    """Backward passes inside only add to the gradient: nothing is exchanged.

    The last backward pass before a step must be outside. Where several models are wrapped, it is for `model`,
    as is ``model.no_sync()``.

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
    backward = _wrapped("no_sync()", model).backward
    before, backward.paused = backward.paused, True
    try:
        yield
    finally:
        backward.paused = before


@contextmanager
def evaluate_model(model: torch.nn.Module | None = None) -> Iterator[torch.nn.Module]:
    """Inside, the model has the mean of all ranks' parameters and buffers, then its own again.

    All ranks that take part must call it at the same step.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> model = quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "ad-psgd")
    >>> with quelea.evaluate_model() as mean, torch.no_grad():
    ...     mean(torch.ones(4, 2)).shape
    torch.Size([4, 1])
    """
    session = _wrapped("evaluate_model()", model)
    session.check_between_steps("evaluate_model()")
    with torch.no_grad():
        saved = session.average()
    try:
        yield session.model
    finally:
        with torch.no_grad():
            session.restore(saved)


def shutdown(model: torch.nn.Module | None = None) -> None:
    """Ends the run; returns when all ranks have called it. The model keeps its parameters.

    Where several models are wrapped it ends the run of `model`, or all. A script that ends without an error
    calls it implicitly.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> for algorithm in ("allreduce", "d-psgd"):
    ...     model = torch.nn.Linear(2, 1)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     model = quelea.wrap(model, optimizer, algorithm)
    ...     quelea.shutdown()
    """
    ending = list(_session.sessions) if model is None else [_session.chosen("shutdown()", model)]
    for session in ending:
        _session.sessions.remove(session)
        session.finish()
        session.model.__dict__.pop("no_sync", None)
    if not _session.sessions:
        _tensor_mesh.leave()
