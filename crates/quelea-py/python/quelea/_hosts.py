"""Hosts with several ranks: torch.distributed inside a host, any algorithm between hosts.

Every rank of a host exchanges its part of the model with the rank of the same local number on the other hosts, so
there are as many flows between two hosts as a host has ranks. With ``"ddp"`` every rank has the whole model: the
host averages gradients, and gathers what its ranks have exchanged. With ``"fsdp"`` `fully_shard` does both.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from quelea._core import Error, Group, RankVectors
from quelea._exchange import Exchange
from quelea._flat import Flat, tensor_at
from quelea._params import TrainedParams
from quelea._sharded import ShardedParams

#: The name of this process's host, where it is not the machine's: ranks with the same one are a host.
NODE_VARIABLE = "QUELEA_NODE"
#: The ways in which the ranks of a host work together.
WAYS = ("ddp", "fsdp")

#: The folder of the store, if this package has initialized torch.distributed at its leader.
_store_folder: str | None = None
_is_owner = False


@atexit.register
def _leave() -> None:
    # Registered at import, so called after the runs have ended.
    if _is_owner and dist.is_initialized():
        dist.destroy_process_group()
    if _store_folder is not None:
        shutil.rmtree(_store_folder, ignore_errors=True)


@dataclass(frozen=True)
class Hosts:
    """The ranks of every host, and where this one is."""

    ranks: list[list[int]]
    host: int
    place: int

    @property
    def own(self) -> list[int]:
        """The ranks of this host."""
        return self.ranks[self.host]

    @property
    def counterparts(self) -> list[int]:
        """The ranks with the same place on all hosts."""
        return [ranks[self.place] for ranks in self.ranks]


def node_name() -> str:
    """What ranks of one host have in common."""
    named = os.environ.get(NODE_VARIABLE)
    if named:
        return named
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}".strip()


def find_hosts(group: Group) -> Hosts:
    """Which ranks are on which host; all ranks call it together."""
    names = [name.decode() for name in group.gather("wrap()", node_name().encode())]
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        ranks.setdefault(name, []).append(rank)
    sizes = {name: len(own) for name, own in ranks.items()}
    if len(set(sizes.values())) > 1:
        each = ", ".join(f"{size} on {name.split(' ')[0]}" for name, size in sizes.items())
        raise Error(
            f"within_host needs the same number of ranks on every host, but there are {each}: start as many "
            f"everywhere, or set {NODE_VARIABLE} to the same name for the ranks of a host"
        )
    own = ranks[names[group.rank]]
    return Hosts(list(ranks.values()), list(ranks).index(names[group.rank]), own.index(group.rank))


def _process_group(group: Group, hosts: Hosts, device: torch.device) -> Any:
    """The ranks of this host as a group of torch.distributed, which is initialized for them if it is not."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not dist.is_initialized():
        return _initialize(group.subgroup("wrap()", hosts.own), backend)
    theirs = (dist.get_rank(), dist.get_world_size())
    if theirs == (group.rank, group.world_size):
        groups = [dist.new_group(ranks, backend=backend) for ranks in hosts.ranks]
        return groups[hosts.host]
    if theirs == (hosts.place, len(hosts.own)):
        return dist.group.WORLD
    raise Error(
        f"torch.distributed has rank {theirs[0]} of {theirs[1]} here: initialize it for all {group.world_size} "
        f"processes or for the {len(hosts.own)} of this host, or leave it to wrap(within_host=…)"
    )


def _initialize(host: Group, backend: str) -> Any:
    global _store_folder, _is_owner
    if host.rank == 0:
        _store_folder = tempfile.mkdtemp(prefix="quelea-host-")
    folder = host.broadcast("wrap()", (_store_folder or "").encode()).decode()
    store = dist.FileStore(f"{folder}/store", host.world_size)
    dist.init_process_group(backend, store=store, rank=host.rank, world_size=host.world_size)
    _is_owner = True
    return dist.group.WORLD


def _same_on_host(model: torch.nn.Module, process_group: Any) -> None:
    """Gives all ranks of this host the parameters and buffers of its first."""
    first = dist.get_global_rank(process_group, 0)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.numel() > 0:
            # Every backend has bytes.
            values = tensor.detach().contiguous().flatten()
            dist.broadcast(values.view(torch.uint8), first, group=process_group)
            with torch.no_grad():
                tensor.copy_(values.view(tensor.shape))


def exchange_between_hosts(
    group: Group, model: torch.nn.Module, optimizer: torch.optim.Optimizer, way: str
) -> Exchange:
    """Makes the ranks of this host work together in this way; the exchange is between hosts."""
    if way not in WAYS:
        raise ValueError(f'within_host = {way!r}: must be "ddp" or "fsdp"')
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    hosts = find_hosts(group)
    process_group = _process_group(group, hosts, device)
    between = group.subgroup("wrap()", hosts.counterparts)
    is_sharded = bool(ShardedParams(model))
    if way == "ddp":
        if is_sharded:
            raise Error('the model is sharded already: use within_host="fsdp"')
        _same_on_host(model, process_group)
        return HostExchange(group, between, None, process_group, hosts.place, len(hosts.own))
    if not is_sharded:
        _same_on_host(model, process_group)
        _shard(model, optimizer, process_group, device)
    return Exchange(group, between, [dist.get_rank()])


def _shard(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, process_group: Any, device: torch.device
) -> None:
    """Shards a model over the ranks of this host, every layer of a `ModuleList` by itself, and gives the
    optimizer the shards."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    if optimizer.state:
        raise Error(
            "the optimizer has taken steps, and its state would have to be sharded: call wrap() before the "
            "first step, or shard the model yourself with fully_shard() before the optimizer is created"
        )
    names = {id(p): name for name, p in model.named_parameters()}
    mesh = DeviceMesh.from_group(process_group, device.type, mesh_dim_names=("shard",))
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    shards = dict(model.named_parameters())
    for settings in optimizer.param_groups:
        settings["params"] = [
            shards[names[id(p)]] if id(p) in names else p for p in settings["params"]
        ]


@dataclass(frozen=True)
class HostExchange(Exchange):
    """Ranks that have the whole model, and exchange a part of it each."""

    process_group: Any = None
    place: int = 0
    size: int = 1

    def _length(self, whole: int) -> int:
        return -(-whole // self.size)

    def shapes(self, trained: TrainedParams) -> list[tuple[str, list[int]]]:
        """A part knows no tensors: it begins and ends anywhere."""
        return [("part", [self._length(trained.length)])]

    def part(self, vector: torch.Tensor) -> torch.Tensor:
        """This rank's part, filled up with zeros at the end of the last one."""
        length = self._length(vector.numel())
        own = vector[self.place * length : (self.place + 1) * length]
        return torch.cat([own, own.new_zeros(length - own.numel())])

    def flat(self, vectors: RankVectors, device: torch.device) -> Flat:
        """Vectors of the whole model on the device, of which a part is exchanged."""
        return HostFlat(vectors, device, self)

    def check_state(self, names: list[str], algorithm: str) -> None:
        """The optimizer's state is that of the whole model."""
        if names:
            raise Error(
                f'{algorithm} with these options works on the optimizer\'s state, which within_host="ddp" does '
                'not divide: use within_host="fsdp", or an algorithm or options that leave it alone'
            )


class HostFlat(Flat):
    """Parameters and gradients of a whole model, of which the rank's vectors are a part."""

    def __init__(self, vectors: RankVectors, device: torch.device, exchange: HostExchange):
        self.host_params = tensor_at(vectors.params, vectors)
        self.host_grads = tensor_at(vectors.grads, vectors)
        self.exchange = exchange
        self.on_gpu, self.copies, self.averages = device.type == "cuda", True, True
        length = self.host_params.numel()
        self.params = torch.zeros(length * exchange.size, device=device)
        self.grads = torch.zeros_like(self.params)
        self._own = slice(exchange.place * length, (exchange.place + 1) * length)
        self.fetch(grads=False)

    def send_later(self, vector: str, start: int, end: int) -> torch.cuda.Event | None:
        """Copies a part of what this rank exchanges to the rank."""
        host, whole = getattr(self, f"host_{vector}"), getattr(self, vector)
        host[start:end].copy_(whole[self._own][start:end])
        return None

    def average(self) -> None:
        """Averages the gradient over the ranks of this host."""
        dist.all_reduce(self.grads, group=self.exchange.process_group)
        self.grads.div_(self.exchange.size)

    def fetch(self, grads: bool) -> None:
        """Gathers what the ranks of this host have exchanged."""
        self._gather(self.params, self.host_params)
        if grads:
            self._gather(self.grads, self.host_grads)

    def _gather(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        part = own.to(whole.device) if self.on_gpu else own
        dist.all_gather_into_tensor(whole, part, group=self.exchange.process_group)

    def send(self, vector: str) -> None:
        """Copies this rank's part of the parameters or gradients to the rank."""
        self.send_later(vector, 0, self.host_params.numel())

    def close(self) -> None:
        """Nothing is pinned."""
