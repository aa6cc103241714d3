"""Calls on single tensors, beside or without `wrap`: what BlueFog's users know.

Every call has a form that returns at once, with a handle for `synchronize` and `poll`. All ranks must
make the calls of this file in the same order.
"""

from __future__ import annotations

from typing import Any

import torch

from quelea._buffers import Buffers
from quelea._core import Error
from quelea._tensor_mesh import CALL_SECONDS, Handle, TensorMesh, connected


def _mesh() -> TensorMesh:
    # quelea.torch imports this file.
    from quelea.torch import _joined

    return connected(_joined())


def _element(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_float(what: str, tensor: torch.Tensor) -> None:
    if not tensor.is_floating_point():
        raise Error(f"{what} needs a floating point tensor, not {tensor.dtype}: convert it")


def synchronize(handle: Handle) -> torch.Tensor | None:
    """Waits until a call that returned a handle has ended; returns its result.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.synchronize(quelea.allreduce_nonblocking(torch.ones(2)))
    tensor([1., 1.])
    """
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> handle = quelea.allreduce_nonblocking(torch.ones(2))
    >>> _ = quelea.synchronize(handle)
    >>> quelea.poll(handle)
    True
    """
    return handle.is_done


def allreduce_nonblocking(tensor: torch.Tensor, average: bool = True) -> Handle:
    """Starts `allreduce`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> handle = quelea.allreduce_nonblocking(torch.tensor([2.0]))
    >>> quelea.synchronize(handle)
    tensor([2.])
    """
    if average:
        _check_float("the mean of allreduce()", tensor)
    mesh, result = _mesh(), tensor.detach().clone()
    buffers = Buffers([result], [result])
    buffers.wait_for_copies()
    operation = "avg" if average else "sum"
    call = mesh.group.all_reduce(
        buffers.at(result), _element(result), operation, CALL_SECONDS, buffers
    )
    return Handle([call], buffers, lambda: result)


def allreduce(tensor: torch.Tensor, average: bool = True) -> torch.Tensor:
    """The mean of all ranks' tensors, or with ``average=False`` their sum.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.allreduce(torch.tensor([2.0, 4.0]))
    tensor([2., 4.])
    """
    return _value(allreduce_nonblocking(tensor, average))


def broadcast_nonblocking(tensor: torch.Tensor, root_rank: int) -> Handle:
    """Starts `broadcast`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.synchronize(quelea.broadcast_nonblocking(torch.tensor([2.0]), 0))
    tensor([2.])
    """
    mesh, result = _mesh(), tensor.detach().clone()
    if not 0 <= root_rank < mesh.size:
        raise Error(f"root_rank = {root_rank}: must be below the {mesh.size} ranks")
    buffers = Buffers([result], [result])
    buffers.wait_for_copies()
    call = mesh.group.broadcast(buffers.at(result), root_rank, CALL_SECONDS, buffers)
    return Handle([call], buffers, lambda: result)


def broadcast(tensor: torch.Tensor, root_rank: int) -> torch.Tensor:
    """The tensor of rank `root_rank`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.broadcast(torch.tensor([2.0]), 0)
    tensor([2.])
    """
    return _value(broadcast_nonblocking(tensor, root_rank))


def allgather_nonblocking(tensor: torch.Tensor) -> Handle:
    """Starts `allgather`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.synchronize(quelea.allgather_nonblocking(torch.ones(1, 2)))
    tensor([[1., 1.]])
    """
    if tensor.dim() == 0:
        raise Error("allgather() joins tensors along their first dimension: use tensor[None]")
    mesh, given = _mesh(), tensor.detach()
    result = torch.empty(mesh.size * given.shape[0], *given.shape[1:]).to(given)
    buffers = Buffers([given], [result])
    buffers.wait_for_copies()
    size = given.numel() * given.element_size()
    mine, places = buffers.at(given), buffers.parts(result, [size] * mesh.size)
    peers = [peer for peer in range(mesh.size) if peer != mesh.rank]
    call = mesh.group.exchange(
        "all_gather",
        [(peer, mine) for peer in peers],
        [(peer, places[peer]) for peer in peers],
        [(mine, places[mesh.rank])],
        CALL_SECONDS,
        buffers,
    )
    return Handle([call], buffers, lambda: result)


def allgather(tensor: torch.Tensor) -> torch.Tensor:
    """All ranks' tensors, one after the other along the first dimension.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.allgather(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    return _value(allgather_nonblocking(tensor))


def set_topology(topology: str | dict[str, Any]) -> None:
    """Selects who the neighbours of `neighbor_allreduce` and of new windows are, at all ranks.

    Names and options are those of ``quelea list topologies``.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.set_topology("exponential")
    """
    mesh = _mesh()
    mesh.topology = mesh.named_topology(topology)


def in_neighbor_ranks(step: int = 0) -> list[int]:
    """The ranks that this one receives from in `neighbor_allreduce`.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.in_neighbor_ranks()
    []
    """
    mesh = _mesh()
    return sorted(mesh.row(mesh.topology, step)[1])


def out_neighbor_ranks(step: int = 0) -> list[int]:
    """The ranks that receive from this one in `neighbor_allreduce`.

    >>> import quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.out_neighbor_ranks()
    []
    """
    mesh = _mesh()
    return mesh.receivers(mesh.topology, step)


def neighbor_allreduce_nonblocking(
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_weights: dict[int, float] | None = None,
    dst_weights: dict[int, float] | list[int] | None = None,
    step: int = 0,
) -> Handle:
    """Starts `neighbor_allreduce`.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.synchronize(quelea.neighbor_allreduce_nonblocking(torch.tensor([2.0])))
    tensor([2.])
    """
    _check_float("neighbor_allreduce()", tensor)
    mesh, given = _mesh(), tensor.detach()
    own, sources, targets = _weights(mesh, self_weight, src_weights, dst_weights, step)
    scaled = {w: given if w == 1.0 else given * w for w in set(targets.values())}
    received = {peer: torch.empty_like(given) for peer in sources}
    buffers = Buffers(list(scaled.values()), list(received.values()))
    buffers.wait_for_copies()
    call = mesh.group.exchange(
        "neighbor_allreduce",
        [(peer, buffers.at(scaled[w])) for peer, w in targets.items()],
        [(peer, buffers.at(t)) for peer, t in received.items()],
        [],
        CALL_SECONDS,
        buffers,
    )
    wide = torch.promote_types(given.dtype, torch.float32)

    def combine() -> torch.Tensor:
        mixed = given.to(wide) * own
        for peer, weight in sources.items():
            mixed += weight * received[peer].to(wide)
        return mixed.to(given.dtype)

    return Handle([call], buffers, combine)


def neighbor_allreduce(
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_weights: dict[int, float] | None = None,
    dst_weights: dict[int, float] | list[int] | None = None,
    step: int = 0,
) -> torch.Tensor:
    """The weighted mean of the tensors of this rank and its neighbours.

    Without weights, neighbours and weights are those of the topology at this `step` (topologies
    whose rounds differ need it). With weights, the call decides: `self_weight` times the own tensor,
    plus ``src_weights[j]`` times what each rank j sends; `dst_weights` names the ranks that this one
    sends to, as a list, or with a factor for each.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> quelea.neighbor_allreduce(torch.tensor([2.0]))
    tensor([2.])
    >>> quelea.neighbor_allreduce(torch.tensor([2.0]), self_weight=0.5, src_weights={}, dst_weights=[])
    tensor([1.])
    """
    return _value(
        neighbor_allreduce_nonblocking(
            tensor,
            self_weight=self_weight,
            src_weights=src_weights,
            dst_weights=dst_weights,
            step=step,
        )
    )


def _weights(
    mesh: TensorMesh,
    self_weight: float | None,
    src_weights: dict[int, float] | None,
    dst_weights: dict[int, float] | list[int] | None,
    step: int,
) -> tuple[float, dict[int, float], dict[int, float]]:
    """My own weight, those of the ranks that I receive from, the factors of those that I send to."""
    given = [self_weight, src_weights, dst_weights]
    if all(weight is None for weight in given):
        own, sources = mesh.row(mesh.topology, step)
        return own, sources, dict.fromkeys(mesh.receivers(mesh.topology, step), 1.0)
    if self_weight is None or src_weights is None or dst_weights is None:
        raise Error(
            "neighbor_allreduce() needs self_weight, src_weights and dst_weights together, or none "
            "of them, where the topology decides"
        )
    targets = dst_weights if isinstance(dst_weights, dict) else dict.fromkeys(dst_weights, 1.0)
    for what, ranks in (("src_weights", src_weights), ("dst_weights", targets)):
        for rank in ranks:
            mesh.check_rank(what, rank)
    return self_weight, src_weights, targets


def _value(handle: Handle) -> torch.Tensor:
    result = handle.wait()
    assert result is not None, "these calls have a result"
    return result
