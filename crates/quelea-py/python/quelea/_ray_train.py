"""quelea in Ray Train: `QueleaConfig` as the `torch_config` of a ``TorchTrainer``, `wrap` and `prepare_data_loader` in
its workers.

    import quelea.ray

    def train():
        ...
        model = quelea.ray.wrap(model, optimizer)
        loader = quelea.ray.prepare_data_loader(loader)

    TorchTrainer(train, torch_config=quelea.ray.QueleaConfig("d-psgd"), scaling_config=...).fit()

When a worker fails, Ray replaces it alone (as often as ``FailureConfig(max_failures=…)`` says), and the new worker joins
the run, which has continued without it. When Ray changes the number of workers (``num_workers=(2, 8)``), all of them
start anew, and the training function resumes from its checkpoint, as with Ray's own configuration.
"""

from __future__ import annotations

import os
import secrets
import socket
from types import TracebackType
from typing import Any

import ray
import torch
from ray.train.backend import Backend, BackendConfig
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler

import quelea.torch as _quelea
from quelea import _session
from quelea._core import Error
from quelea._elastic import ElasticSampler
from quelea._framework import join

__all__ = ["QueleaConfig", "prepare_data_loader", "wrap"]

#: What the workers of this process's group pass to `quelea.torch.wrap`.
_options: dict[str, Any] | None = None


class QueleaConfig(BackendConfig):
    """How workers of Ray Train find each other, and train: arguments are those of ``quelea.torch.wrap``.

    Connections between machines are encrypted with a secret of this configuration's own, unless ``QUELEA_SECRET`` is
    set.
    """

    def __init__(self, algorithm: Any = None, **options: Any):
        self.options = options if algorithm is None else {"algorithm": algorithm, **options}
        self.secret = os.environ.get("QUELEA_SECRET") or secrets.token_hex(32)
        #: Ray chooses a backend of torch.distributed where there is none.
        self.backend = "gloo"

    @property
    def backend_cls(self) -> type[Backend]:
        """What Ray calls when workers start and end."""
        return _QueleaBackend

    @property
    def train_func_context(self) -> type[_TrainingFunction]:
        """What the training function runs in."""
        return _TrainingFunction


class _TrainingFunction:
    """The process of a worker outlives its training function, with which the run ends."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None:
            _quelea.shutdown()
        else:
            text = str(error).splitlines()
            _quelea._fail(": ".join([kind.__name__, *text[:1]]))


class _QueleaBackend(Backend):
    share_cuda_visible_devices = True
    #: Every worker is one: Ray then replaces those that fail, and lets the others continue.
    has_replica_groups = True

    def __init__(self) -> None:
        #: The nodes of all workers, by rank, and where they meet.
        self._nodes: list[str] = []
        self._meeting_place = ""

    def on_start(self, worker_group: Any, backend_config: QueleaConfig) -> None:
        """Tells every worker its rank, and where the first one is; or one that replaces another."""
        ranks = [worker.distributed_context.world_rank for worker in worker_group.get_workers()]
        world = worker_group.get_workers()[0].distributed_context.world_size
        if len(ranks) == world:
            self._nodes = [""] * world
        for rank, node in zip(ranks, worker_group.execute(_node), strict=True):
            self._nodes[rank] = node
        is_local = len(set(self._nodes)) == 1
        if 0 in ranks:
            host, port = worker_group.execute_single(ranks.index(0), _free_address)
            self._meeting_place = f"{'127.0.0.1' if is_local else host}:{port}"
        started = []
        for place, rank in enumerate(ranks):
            variables = self._variables(rank)
            if not is_local:
                variables["QUELEA_SECRET"] = backend_config.secret
            options = backend_config.options
            started.append(worker_group.execute_single_async(place, _prepare, variables, options))
        ray.get(started)

    def _variables(self, rank: int) -> dict[str, Any]:
        nodes, node = self._nodes, self._nodes[rank]
        return {
            "QUELEA_RANK": rank,
            "QUELEA_WORLD_SIZE": len(nodes),
            "QUELEA_LOCAL_RANK": nodes[:rank].count(node),
            "QUELEA_LOCAL_SIZE": nodes.count(node),
            "QUELEA_RENDEZVOUS": self._meeting_place,
        }


def _node() -> str:
    return ray.get_runtime_context().get_node_id()


def _free_address() -> tuple[str, int]:
    """An address of this machine, and a port that is free now."""
    host = ray.util.get_node_ip_address()
    with socket.socket() as found:
        found.bind(("", 0))
        return host, found.getsockname()[1]


def _prepare(variables: dict[str, Any], options: dict[str, Any]) -> None:
    global _options
    # Ray's own variables, and those of a launcher that started Ray, mean other processes.
    for name in [name for name in os.environ if name.startswith("QUELEA_")]:
        del os.environ[name]
    os.environ.update({name: str(value) for name, value in variables.items()})
    _options = options


def wrap(model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> torch.nn.Module:
    """Trains `model` together with all other workers; what is given here replaces the configuration's."""
    if _options is None:
        raise Error("quelea.ray.wrap() is for workers of a TorchTrainer with torch_config=QueleaConfig(…)")
    join()
    return _quelea.wrap(model, optimizer, **{**_options, **options})


def prepare_data_loader(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same loader with this worker's part of the data, shuffled if it was; call it after `wrap`.

    With synchronous algorithms an `ElasticSampler` divides them: what a worker that fails had not used is used by the
    others. With asynchronous ones every rank has as many.
    """
    if _options is None:
        raise Error(
            "quelea.ray.prepare_data_loader() is for workers of a TorchTrainer with torch_config=QueleaConfig(…)"
        )
    if not hasattr(loader.dataset, "__len__") or loader.batch_size is None:
        raise Error(
            "the loader has no length or no batch_size and cannot be divided among workers: give every worker its "
            "part, by quelea.torch.rank()"
        )
    session = _session.chosen("prepare_data_loader()", None)
    shuffle = isinstance(loader.sampler, RandomSampler)
    ahead = (loader.prefetch_factor or 0) * loader.num_workers
    batches: dict[str, Any]
    if session.active.properties.synchronous:
        sampler: Sampler[Any] = ElasticSampler(
            len(loader.dataset), loader.batch_size, shuffle=shuffle, prefetch=ahead
        )
        batches = {"batch_sampler": sampler}
    else:
        sampler = DistributedSampler(
            loader.dataset, _quelea.world_size(), _quelea.rank(), shuffle=shuffle
        )
        batches = {"sampler": sampler, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    same = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator")
    same += ("multiprocessing_context", "prefetch_factor", "persistent_workers")
    return DataLoader(loader.dataset, **batches, **{name: getattr(loader, name) for name in same})
