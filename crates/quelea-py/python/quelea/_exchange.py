"""Who exchanges what in a run: all ranks the whole model, or the ranks that have the same shard of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quelea._core import Group, RankVectors
from quelea._flat import Flat
from quelea._params import TrainedParams


@dataclass(frozen=True)
class Exchange:
    """The ranks of a run, each with the whole model or with its shard of it."""

    #: All processes of the launch.
    processes: Group
    #: The ranks of the run.
    group: Group
    #: Their numbers for torch.distributed where the model is sharded; None where every rank has the whole model.
    replicas: list[int] | None = None

    def shapes(self, trained: TrainedParams) -> list[tuple[str, list[int]]]:
        """Names and shapes of the tensors that this rank exchanges."""
        return trained.shapes()

    def part(self, vector: torch.Tensor) -> torch.Tensor:
        """The part of a flat vector of the model that this rank exchanges."""
        return vector

    def flat(self, vectors: RankVectors, device: torch.device) -> Flat:
        """The flat vectors of the model, over those of the rank."""
        return Flat(vectors, device)

    def check_state(self, names: list[str], algorithm: str) -> None:
        """Raises if the optimizer's state of these names cannot be exchanged."""
