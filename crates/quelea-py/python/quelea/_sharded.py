"""Models that FSDP2 (`fully_shard`) shards: a rank exchanges its shards with those of the other replicas.

A sharded parameter is a `DTensor` whose local tensor is this rank's shard. FSDP gathers the shards of a replica
for its passes and reduces gradients onto shards; the ranks that have the same shard of different replicas are one
run, with flat vectors of shards.
"""

from __future__ import annotations

from typing import Any

import torch

from quelea._core import Error, Group


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; any other tensor itself."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a `DTensor`."""
    return hasattr(tensor, "_local_tensor")


def with_local(like: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """`part` as a tensor that is sharded as `like` is."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    like = like.detach()
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def set_local_grad(p: torch.Tensor, grad: torch.Tensor) -> None:
    """Makes `grad` the gradient of this rank's part of a parameter."""
    if is_sharded(p) and p.grad is not None:
        p.grad._local_tensor = grad
    else:
        p.grad = with_local(p, grad)


class ShardedParams:
    """The shards of a model, and where FSDP keeps them; none in a model that is not sharded."""

    def __init__(self, model: torch.nn.Module):
        self._modules = [m for m in model.modules() if hasattr(m, "_get_fsdp_state")]
        self._groups = [g for m in self._modules for g in _param_groups(m)]
        # Between a forward and a backward pass a module may have its gathered parameters.
        self.reshard()
        self._fsdp = {id(p.sharded_param): p for g in self._groups for p in g.fsdp_params}

    def __bool__(self) -> bool:
        return bool(self._modules)

    def has(self, p: torch.Tensor) -> bool:
        """Whether `fully_shard` has sharded this parameter."""
        return id(p) in self._fsdp

    def padding(self, p: torch.Tensor) -> int:
        """How many elements FSDP needs after a shard: it gathers shards of equal size."""
        if not self.has(p):
            return 0
        return int(self._fsdp[id(p)].padded_sharded_param_size.numel()) - local(p).numel()

    def bind(self, p: torch.Tensor, view: torch.Tensor, flat: torch.Tensor, start: int) -> None:
        """Makes a shard the view of a flat vector that starts there."""
        if not is_sharded(p):
            p.data = view
            return
        p._local_tensor = view  # type: ignore[attr-defined]
        # What FSDP gathers from: the shard and its padding.
        size = local(p).numel() + self.padding(p)
        self._fsdp[id(p)]._sharded_param_data = flat[start : start + size]

    def reshard(self) -> None:
        """Frees gathered parameters: after shards have changed, the next pass gathers them again."""
        for module in self._modules:
            module.reshard()

    def check(self, named: list[tuple[str, torch.nn.Parameter]], replicas: list[int] | None) -> None:
        """Raises if these parameters cannot be exchanged between the ranks `replicas`."""
        sharded = any(is_sharded(p) for _, p in named)
        if replicas is not None and not sharded:
            raise Error(
                "replicate= is for sharded models, and this one is not sharded: call fully_shard(model, "
                'mesh=mesh["shard"]) before the optimizer is created, or leave replicate out'
            )
        for name, p in named if sharded else []:
            self._check_param(name, p, replicas)

    def _check_param(self, name: str, p: torch.Tensor, replicas: list[int] | None) -> None:
        if replicas is None:
            raise Error(
                f"the parameter `{name}` is sharded, and nothing says which ranks have the same shard: pass "
                'replicate=mesh["replicate"] of a mesh with a dimension for shards and one for replicas'
            )
        if not is_sharded(p):
            raise Error(
                f"the parameter `{name}` is not sharded, but others are: call fully_shard(model, "
                'mesh=mesh["shard"]) on the whole model, after its layers'
            )
        if not self.has(p):
            raise Error(
                f"the parameter `{name}` was not sharded by fully_shard(): other kinds of sharding are not "
                "supported"
            )
        if self._fsdp[id(p)].mesh_info.replicate_mesh_dim is not None:
            raise Error(
                f"the parameter `{name}` is on a mesh with replicas, which fully_shard() averages itself: give "
                'it the dimension of shards alone, fully_shard(…, mesh=mesh["shard"])'
            )
        shared = set(p.device_mesh.mesh.flatten().tolist()) & set(replicas)
        if len(shared) != 1:
            raise Error(
                f"the ranks {replicas} are not replicas of the parameter `{name}`: ranks {sorted(shared)} have "
                'different shards of it; pass replicate=mesh["replicate"], the other dimension of its mesh'
            )


def _param_groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        # One group for each module in earlier versions of PyTorch.
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(groups)


def replica_ranks(group: Group, replicate: Any) -> list[int]:
    """The ranks of a dimension of a device mesh, this one among them."""
    if not hasattr(replicate, "get_local_rank"):
        raise TypeError(
            f"replicate = {replicate!r}: pass a dimension of a device mesh, such as "
            'init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))["replicate"]'
        )
    if replicate.ndim != 1:
        names = replicate.mesh_dim_names
        raise ValueError(
            f"replicate has {replicate.ndim} dimensions {names}: select the one of the replicas, as in "
            'mesh["replicate"]'
        )
    theirs = (torch.distributed.get_rank(), torch.distributed.get_world_size())
    if theirs != (group.rank, group.world_size):
        raise Error(
            f"this process is rank {theirs[0]} of {theirs[1]} for torch.distributed, but rank {group.rank} of "
            f"{group.world_size} for quelea: start both by the same launcher"
        )
    ranks: list[int] = replicate.mesh.tolist()
    return ranks
