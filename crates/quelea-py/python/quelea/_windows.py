"""Windows: tensors that neighbours write to while their owner computes, as in BlueFog.

The window `name` of a rank has its own tensor and one per rank that it receives from. `win_put` and
`win_accumulate` write at the neighbours, without their help; `win_update` mixes what has come. Only
`win_create` and `win_free` must be called by all ranks, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quelea._buffers import memory_of
from quelea._core import Error
from quelea._tensor_calls import _check_float, _element, _mesh
from quelea._tensor_mesh import CALL_SECONDS, Handle, TensorMesh


@dataclass
class _Window:
    number: int
    tensor: torch.Tensor
    self_weight: float
    src_weights: dict[int, float]
    targets: list[int]


def _found(name: str) -> tuple[TensorMesh, _Window]:
    mesh = _mesh()
    window = mesh.windows.get(name)
    if window is None:
        raise Error(f"there is no window `{name}`: call win_create(tensor, name) at all ranks first")
    return mesh, window


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def win_create(tensor: torch.Tensor, name: str, zero_init: bool = False) -> None:
    """Makes a window for tensors like this one, with a place for every neighbour of the topology.

    The places have the value of `tensor` at first, or zero with `zero_init`. All ranks must call it.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x")
    >>> quelea.win_update("x")
    tensor([1., 1.])
    >>> quelea.win_free("x")
    """
    _check_float("win_create()", tensor)
    mesh = _mesh()
    if name in mesh.windows:
        raise Error(f"there is a window `{name}` already: call win_free({name!r}) first")
    if mesh.topology.weights(0) != mesh.topology.weights(1):
        raise Error(
            f"the topology {mesh.topology.name} changes from step to step: windows need one that "
            'does not, as after set_topology("ring")'
        )
    own, sources = mesh.row(mesh.topology, 0)
    mesh.windows_made += 1
    number, host = mesh.windows_made, _on_host(tensor)
    mesh.group.window_create(number, _element(host), memory_of(host), list(sources), zero_init)
    targets = mesh.receivers(mesh.topology, 0)
    mesh.windows[name] = _Window(number, tensor.detach().clone(), own, sources, targets)
    # Nobody may write to a window that is not there yet.
    mesh.group.barrier(CALL_SECONDS).wait(None)


def win_free(name: str) -> None:
    """Ends a window when all ranks have called it.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x")
    >>> quelea.win_free("x")
    """
    mesh, window = _found(name)
    mesh.group.barrier(CALL_SECONDS).wait(None)
    mesh.group.window_free(window.number)
    del mesh.windows[name]


def _write_at_neighbors(
    kind: str,
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None,
    dst_weights: dict[int, float] | list[int] | None,
) -> Handle:
    mesh, window = _found(name)
    if tensor.shape != window.tensor.shape or tensor.dtype != window.tensor.dtype:
        raise Error(
            f"the window `{name}` has tensors of shape {tuple(window.tensor.shape)} and type "
            f"{window.tensor.dtype}, not {tuple(tensor.shape)} and {tensor.dtype}"
        )
    ranks = window.targets if dst_weights is None else dst_weights
    targets = ranks if isinstance(ranks, dict) else dict.fromkeys(ranks, 1.0)
    for rank in targets:
        if rank not in window.targets:
            raise Error(f"rank {rank} does not receive from this one in the window `{name}`")
    host = _on_host(tensor)
    calls = []
    for rank, weight in targets.items():
        scaled = host if weight == 1.0 else host * weight
        at = memory_of(scaled)
        calls.append(mesh.group.window_request(kind, rank, window.number, at, CALL_SECONDS))
    if self_weight is not None:
        window.tensor = tensor.detach() * self_weight
        mesh.group.window_publish(window.number, memory_of(_on_host(window.tensor)))
    return Handle(calls, None, lambda: None)


def win_put_nonblocking(
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: dict[int, float] | list[int] | None = None,
) -> Handle:
    """Starts `win_put`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x")
    >>> quelea.synchronize(quelea.win_put_nonblocking(torch.ones(2), "x"))
    """
    return _write_at_neighbors("put", tensor, name, self_weight, dst_weights)


def win_put(
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: dict[int, float] | list[int] | None = None,
) -> None:
    """Replaces what the neighbours' windows have of this rank by `tensor`.

    `dst_weights` selects neighbours, with a factor for each if it is a dictionary. With
    `self_weight`, this rank's own tensor becomes `self_weight` times `tensor`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x")
    >>> quelea.win_put(torch.full((2,), 3.0), "x", self_weight=1.0)
    >>> quelea.win_update("x")
    tensor([3., 3.])
    """
    win_put_nonblocking(tensor, name, self_weight, dst_weights).wait()


def win_accumulate_nonblocking(
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: dict[int, float] | list[int] | None = None,
) -> Handle:
    """Starts `win_accumulate`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x", zero_init=True)
    >>> quelea.synchronize(quelea.win_accumulate_nonblocking(torch.ones(2), "x"))
    """
    return _write_at_neighbors("accumulate", tensor, name, self_weight, dst_weights)


def win_accumulate(
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: dict[int, float] | list[int] | None = None,
) -> None:
    """Adds `tensor` to what the neighbours' windows have of this rank; otherwise as `win_put`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x", zero_init=True)
    >>> quelea.win_accumulate(torch.ones(2), "x", self_weight=0.5)
    >>> quelea.win_update_then_collect("x")
    tensor([0.5000, 0.5000])
    """
    win_accumulate_nonblocking(tensor, name, self_weight, dst_weights).wait()


def win_get_nonblocking(name: str, src_ranks: list[int] | None = None) -> Handle:
    """Starts `win_get`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x")
    >>> quelea.synchronize(quelea.win_get_nonblocking("x"))
    """
    mesh, window = _found(name)
    sources = list(window.src_weights) if src_ranks is None else src_ranks
    for rank in sources:
        if rank not in window.src_weights:
            raise Error(f"this rank does not receive from rank {rank} in the window `{name}`")
    calls = [
        mesh.group.window_request("get", rank, window.number, None, CALL_SECONDS)
        for rank in sources
    ]
    return Handle(calls, None, lambda: None)


def win_get(name: str, src_ranks: list[int] | None = None) -> None:
    """Replaces what this rank's window has of its neighbours by their own tensors.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x")
    >>> quelea.win_get("x")
    """
    win_get_nonblocking(name, src_ranks).wait()


def win_update(
    name: str,
    self_weight: float | None = None,
    neighbor_weights: dict[int, float] | None = None,
    reset: bool = False,
) -> torch.Tensor:
    """Mixes the window's own tensor with what neighbours have put; returns it.

    The result becomes the own tensor. Weights are those of the topology unless both are given; with
    `reset`, what neighbours have put is zero afterwards.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x")
    >>> quelea.win_update("x", self_weight=0.5, neighbor_weights={})
    tensor([0.5000, 0.5000])
    """
    mesh, window = _found(name)
    if (self_weight is None) != (neighbor_weights is None):
        raise Error("win_update() needs self_weight and neighbor_weights together, or neither")
    own = window.self_weight if self_weight is None else self_weight
    weights = window.src_weights if neighbor_weights is None else neighbor_weights
    for rank in weights:
        if rank not in window.src_weights:
            raise Error(f"this rank does not receive from rank {rank} in the window `{name}`")
    wide = torch.promote_types(window.tensor.dtype, torch.float32)
    mixed = window.tensor.cpu().to(wide) * own
    came = torch.empty_like(_on_host(window.tensor))
    for rank, weight in weights.items():
        mesh.group.window_take(window.number, rank, memory_of(came), reset)
        mixed += weight * came.to(wide)
    result = mixed.to(window.tensor.dtype)
    mesh.group.window_publish(window.number, memory_of(result.contiguous()))
    window.tensor = result.to(window.tensor.device)
    return window.tensor.clone()


def win_update_then_collect(name: str) -> torch.Tensor:
    """Adds all that neighbours have put to the own tensor, and resets it: for push-sum.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.win_create(torch.ones(2), "x", zero_init=True)
    >>> quelea.win_update_then_collect("x")
    tensor([1., 1.])
    """
    _, window = _found(name)
    return win_update(name, 1.0, dict.fromkeys(window.src_weights, 1.0), reset=True)
