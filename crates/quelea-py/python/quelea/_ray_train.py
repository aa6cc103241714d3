"""quelea in Ray Train: `QueleaConfig` as the `torch_config` of a ``TorchTrainer``, and `wrap` in its workers.

    import quelea.ray

    def train():
        ...
        model = quelea.ray.wrap(model, optimizer)

    TorchTrainer(train, torch_config=quelea.ray.QueleaConfig("d-psgd"), scaling_config=...).fit()

When Ray replaces workers, its worker group starts anew, and so does the group of processes; the training function
resumes from its checkpoint, as with Ray's own configuration.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

import ray
import torch
from ray.train.backend import Backend, BackendConfig

import quelea.torch as _quelea
from quelea._core import Error
from quelea._framework import join

__all__ = ["QueleaConfig", "wrap"]

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

    @property
    def backend_cls(self) -> type[Backend]:
        """What Ray calls when workers start and end."""
        return _QueleaBackend


class _QueleaBackend(Backend):
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: QueleaConfig) -> None:
        """Tells every worker its rank, and where the first one is."""
        nodes = worker_group.execute(_node)
        host, port = worker_group.execute_single(0, _free_address)
        is_local = len(set(nodes)) == 1
        started = []
        for rank, node in enumerate(nodes):
            variables = {
                "QUELEA_RANK": rank,
                "QUELEA_WORLD_SIZE": len(nodes),
                "QUELEA_LOCAL_RANK": nodes[:rank].count(node),
                "QUELEA_LOCAL_SIZE": nodes.count(node),
                "QUELEA_RENDEZVOUS": f"{'127.0.0.1' if is_local else host}:{port}",
            }
            if not is_local:
                variables["QUELEA_SECRET"] = backend_config.secret
            options = backend_config.options
            started.append(worker_group.execute_single_async(rank, _prepare, variables, options))
        ray.get(started)


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
