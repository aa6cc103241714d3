"""Which samples each virtual worker has at each step: a function of the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class SampleOrder:
    """The order in which virtual workers go through a dataset."""

    def __init__(self, samples: int, config: dict[str, Any], batch: int, reshuffle: bool):
        self.workers, self.seed = int(config.get("workers", 8)), int(config.get("seed", 1))
        self.batch, self.reshuffle = batch, reshuffle
        if samples < self.workers:
            raise ValueError(
                f"the dataset has {samples} samples for {self.workers} workers: every worker "
                "needs at least one"
            )
        self.all = range(samples)
        #: The epoch that each worker is in, and its samples in their order.
        self.orders: dict[int, tuple[int, list[int]]] = {}
        #: With `reshuffle`, all samples in the order of each recent epoch.
        self.epochs: dict[int, list[int]] = {}

    def samples(self, rank: int, step: int) -> list[int]:
        """The samples of a worker's step."""
        # When all samples are shuffled, no worker has one more than the others.
        own = len(self.all[rank :: self.workers])
        own = len(self.all) // self.workers if self.reshuffle else own
        size = min(self.batch, own)
        epoch, place = divmod(step, own // size)
        if self.orders.get(rank, (-1, []))[0] != epoch:
            self.orders[rank] = (epoch, self._order(rank, epoch))
        return self.orders[rank][1][place * size : (place + 1) * size]

    def batch_seed(self, rank: int, step: int) -> int:
        """The seed of PyTorch's random numbers for a worker's step."""
        return self.seed * 1_000_003 + step * self.workers + rank

    def _order(self, rank: int, epoch: int) -> list[int]:
        if self.reshuffle:
            if epoch not in self.epochs:
                self.epochs[epoch] = _shuffled(self.all, self.seed * 1_000_003 + epoch)
                # Workers of asynchronous algorithms may be an epoch apart.
                for old in [e for e in self.epochs if e < epoch - 2]:
                    del self.epochs[old]
            return self.epochs[epoch][rank :: self.workers]
        mixed = (self.seed * 1_000_003 + epoch) * 1_000_003 + rank
        return _shuffled(self.all[rank :: self.workers], mixed)


def _shuffled(samples: Sequence[int], seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed % 2**63)
    return [samples[i] for i in torch.randperm(len(samples), generator=generator).tolist()]
