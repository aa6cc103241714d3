"""The connections that calls on tensors use, beside a run or without one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch

from quelea import _mesh
from quelea._buffers import Buffers
from quelea._core import Error, Group, PendingCall, TensorGroup, Topology

#: How long a call on a tensor waits for the other ranks.
CALL_SECONDS = 600.0


class TensorMesh:
    """All ranks of `init()`, connected with each other, and who their neighbours are."""

    def __init__(self, group: Group):
        self.rank, self.size = group.rank, group.world_size
        listener = _mesh.listener(group.insecure)
        hub = group.hub_address
        at = _mesh.addresses(listener, towards=hub)
        mine = {"at": at, "port": listener.port, "token": os.urandom(16).hex()}
        told = [
            json.loads(answer)
            for answer in group.gather("the first call on a tensor", json.dumps(mine).encode())
        ]
        token = bytes.fromhex(told[0]["token"])
        # Rank 0 does not know how it is reached; everybody else does.
        addresses = [each["at"] for each in told]
        addresses[0] = [f"{hub}:{told[0]['port']}"]
        ranks = list(range(self.size))
        self.group = TensorGroup(listener, self.rank, addresses, token, ranks, CALL_SECONDS)
        self.topology = self.named_topology(None)
        self.windows: dict[str, Any] = {}
        self.windows_made = 0

    def named_topology(self, topology: str | dict[str, Any] | None) -> Topology:
        """A topology of this many ranks."""
        settings: dict[str, Any] = {"workers": self.size}
        if topology is not None:
            settings["topology"] = {"name": topology} if isinstance(topology, str) else topology
        return Topology(settings)

    def row(self, topology: Topology, step: int) -> tuple[float, dict[int, float]]:
        """My own weight, and those of the ranks that I receive from."""
        weights = dict(topology.weights(step)[self.rank])
        return weights.pop(self.rank, 0.0), weights

    def receivers(self, topology: Topology, step: int) -> list[int]:
        """The ranks that receive from me."""
        rows = topology.weights(step)
        return [i for i, row in enumerate(rows) if i != self.rank and self.rank in dict(row)]

    def check_rank(self, what: str, rank: int) -> None:
        """Raises if `rank` is none of the other ranks."""
        if not isinstance(rank, int) or not 0 <= rank < self.size or rank == self.rank:
            raise Error(f"{what} names rank {rank}: it must be another rank, below {self.size}")


class Handle:
    """A call on a tensor that runs or has ended. `synchronize(handle)` returns its result."""

    def __init__(
        self, calls: list[PendingCall], buffers: Buffers | None, finish: Callable[[], torch.Tensor | None]
    ):
        self._calls, self._buffers, self._finish = calls, buffers, finish
        self._result: torch.Tensor | None = None
        self._is_finished = False

    @property
    def is_done(self) -> bool:
        """Whether `synchronize` would return at once."""
        return all(call.is_done for call in self._calls)

    def wait(self) -> torch.Tensor | None:
        """Waits for the end; the result."""
        for call in self._calls:
            call.wait(None)
        if not self._is_finished:
            if self._buffers is not None:
                self._buffers.copy_back()
                self._buffers.make_visible()
            self._result, self._is_finished = self._finish(), True
        return self._result


_mesh_of_process: TensorMesh | None = None


def connected(group: Group) -> TensorMesh:
    """The connections of this process; the first call makes them, together with all ranks."""
    global _mesh_of_process
    if _mesh_of_process is None:
        _mesh_of_process = TensorMesh(group)
    return _mesh_of_process


def leave() -> None:
    """Takes leave of the other ranks, if there were calls on tensors."""
    global _mesh_of_process
    mesh, _mesh_of_process = _mesh_of_process, None
    if mesh is not None:
        mesh.group.leave(30.0)
