"""Unequal machines: every rank gets a share of the work in proportion to its measured speed.

Where gradients or models are exchanged at every step, the share is one of the mini-batch, and gradients weigh as
much as their samples. Where ranks take local steps between two averages, it is a share of the steps.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler

from quelea import _core, _session
from quelea._core import Error, Group
from quelea._exchange import Exchange
from quelea._settings import WrapSettings


@dataclass(frozen=True)
class Balance:
    """How ``wrap(balance=…)`` divides work; ``balance=True`` is the default of everything.

    `least` and `most` limit a rank's share, relative to an equal one. Speeds are compared every `every` steps, or
    at the first average after them. `speed` returns this rank's speed in samples per second (or in any other
    unit) where it is known from elsewhere; otherwise the time of gradients is measured.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = quelea.wrap(model, optimizer, balance=quelea.Balance(least=0.5, most=2.0))
    """

    least: float = 0.25
    most: float = 4.0
    every: int = 20
    speed: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1 <= self.most:
            raise ValueError(
                f"least = {self.least}, most = {self.most}: shares are relative to an equal one, so least is above "
                "0 and at most 1, and most at least 1"
            )
        if self.every < 1:
            raise ValueError(f"every = {self.every}: must be at least 1")


def shares(speeds: list[float], total: int, balance: Balance) -> list[int]:
    """Whole shares of `total` in proportion to the speeds, within the limits, none of them empty."""
    count = len(speeds)
    equal = total / count
    low, high = max(1.0, balance.least * equal), balance.most * equal
    # What a limit takes from one goes to those who are within theirs.
    fixed: dict[int, float] = {}
    while True:
        free = [i for i in range(count) if i not in fixed]
        left, speed = total - sum(fixed.values()), sum(speeds[i] for i in free)
        wanted = {i: left * speeds[i] / speed for i in free}
        above = {i: high for i in free if wanted[i] > high}
        below = {i: low for i in free if wanted[i] < low}
        # The side that is further off is fixed first: the other may come right by it.
        excess = sum(wanted[i] - high for i in above)
        lack = sum(low - wanted[i] for i in below)
        beyond = above if excess >= lack else below
        if not beyond or len(beyond) == len(free):
            break
        fixed.update(beyond)
    exact = [fixed.get(i, wanted.get(i, 0.0)) for i in range(count)]
    return _rounded(exact, total)


def _rounded(exact: list[float], total: int) -> list[int]:
    """Rounds by largest remainders, so that the sum stays; ties go to the lower rank."""
    whole = [max(1, int(share)) for share in exact]
    order = sorted(range(len(exact)), key=lambda i: (whole[i] - exact[i], i))
    for i in order * 2:
        if sum(whole) >= total:
            break
        whole[i] += 1
    for i in reversed(order * 2):
        if sum(whole) <= total:
            break
        if whole[i] > 1:
            whole[i] -= 1
    return whole


class Balancer:
    """The shares of one run."""

    #: Gradients whose median is a rank's speed.
    WINDOW = 20

    def __init__(self, group: Group, balance: Balance, local_steps: int):
        self.group, self.balance, self.local_steps = group, balance, local_steps
        self.speeds = [1.0] * group.world_size
        #: The mini-batch of all ranks together, as the data helper has it.
        self.total: int | None = None
        self._times: deque[float] = deque(maxlen=self.WINDOW)
        self._since: float | None = None
        self._steps = 0
        #: Steps between two averages, by rank.
        self.steps_of_round = self._divided_steps()

    # Shares.

    def sizes(self) -> list[int]:
        """The present shares of the mini-batch, by rank; equal ones where steps are divided."""
        assert self.total is not None, "the data helper says it"
        if self.local_steps > 1:
            return [self.total // self.group.world_size] * self.group.world_size
        return shares(self.speeds, self.total, self.balance)

    def _divided_steps(self) -> list[int]:
        """The fastest rank takes all steps of a round."""
        fastest, steps = max(self.speeds), self.local_steps
        least = self.balance.least
        return [max(1, round(steps * max(least, speed / fastest))) for speed in self.speeds]

    def weight(self, samples: float) -> float:
        """What a gradient over so many samples is multiplied by, so that all samples weigh alike."""
        if samples <= 0:
            raise Error(
                "balance= needs the size of every mini-batch, and the model was called without a tensor as its "
                "first argument: call quelea.report_loss(loss, samples=…) before loss.backward()"
            )
        if self.local_steps > 1:
            return 1.0
        if self.total is None:
            raise Error(
                "balance= divides mini-batches, but nothing asks for them: pass quelea.BalancedBatches(…) as "
                "batch_sampler= to the DataLoader"
            )
        return self.group.world_size * samples / self.total

    # Events of the run.

    def restart(self) -> None:
        """A run has started, whose steps are counted from 0."""
        self._steps, self._since = 0, None

    def step_ended(self) -> None:
        """The rank may compute again."""
        self._since = time.perf_counter()

    def gradient_computed(self, samples: float) -> None:
        """The gradient over so many samples is complete, and nobody was waited for."""
        now, since = time.perf_counter(), self._since
        self._since = None
        if since is not None and samples > 0:
            self._times.append((now - since) / samples)

    def steps_to_pass(self) -> int:
        """A step was taken: how many this rank passes now, until it is at the average of all ranks."""
        self._steps += 1
        in_round = (self._steps - 1) % self.local_steps + 1
        if in_round != self.steps_of_round[self.group.rank]:
            return 0
        self._steps += self.local_steps - in_round
        return self.local_steps - in_round

    def compare(self) -> None:
        """The steps were passed: at the end of a round, all ranks compare their speeds if it is time."""
        rounds, rest = divmod(self._steps, self.local_steps)
        if rest != 0 or rounds % max(1, self.balance.every // self.local_steps) != 0:
            return
        if self.balance.speed is not None:
            speed = float(self.balance.speed())
        else:
            speed = 1.0 / statistics.median(self._times) if self._times else 0.0
        told = self.group.gather("balance", json.dumps(speed).encode())
        speeds = [float(json.loads(answer)) for answer in told]
        if min(speeds) <= 0:
            # Somebody has measured nothing yet.
            return
        before = self._shown()
        self.speeds = speeds
        self.steps_of_round = self._divided_steps()
        if self.group.rank == 0 and self._shown() != before:
            each = ", ".join(f"{speed:.3g}" for speed in speeds)
            print(f"quelea: {self._shown()} for speeds {each}", file=sys.stderr, flush=True)

    def _shown(self) -> str:
        if self.local_steps > 1:
            return f"local steps {', '.join(map(str, self.steps_of_round))} of {self.local_steps}"
        if self.total is None:
            return "no shares"
        return f"batch shares {', '.join(map(str, self.sizes()))} of {self.total}"


def balancer_of(
    exchange: Exchange, settings: WrapSettings, balance: bool | Balance
) -> Balancer | None:
    """What divides the work of a run, if it is to be divided."""
    if balance is False:
        return None
    if not isinstance(balance, (bool, Balance)):
        raise TypeError(f"balance = {balance!r}: must be True, False or a quelea.Balance")
    if exchange.group is not exchange.processes:
        raise Error(
            "balance= divides mini-batches among ranks that have the whole model: leave it out with replicate= "
            "and within_host="
        )
    if not _core.properties(settings.config).synchronous:
        raise Error(
            f"{settings.algorithm} is asynchronous, where a fast rank takes more steps by itself: leave balance out"
        )
    steps = _core.local_steps(settings.config)
    return Balancer(exchange.group, Balance() if balance is True else balance, steps)


class BalancedBatches(Sampler[list[int]]):
    """Mini-batches of this rank for a run with ``balance=``: the `batch_sampler` of a ``DataLoader``.

    The samples of an epoch are shuffled in the same way at all ranks, and cut into mini-batches of `batch_size`
    per rank; every rank has its share of each, and every sample is in one. Samples at the end that fill no
    mini-batch are left out. With local steps, a rank has whole mini-batches, and fewer of them if it is slow.
    Call `set_epoch` before every epoch.

    A change of shares takes effect `prefetch` mini-batches later: set it to ``num_workers * prefetch_factor`` of
    a ``DataLoader`` with workers, at all ranks to the same.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = quelea.wrap(model, optimizer, balance=True)
    >>> batches = quelea.BalancedBatches(6, batch_size=2, shuffle=False)
    >>> list(batches)
    [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        *,
        model: torch.nn.Module | None = None,
        shuffle: bool = True,
        seed: int = 0,
        prefetch: int = 0,
    ):
        balancer = _session.chosen("BalancedBatches", model).balancer
        if balancer is None:
            raise Error("BalancedBatches needs a model that was wrapped with balance=True")
        if batch_size < 1 or samples < batch_size * balancer.group.world_size:
            raise ValueError(
                f"samples = {samples}, batch_size = {batch_size}: needs at least one sample, and a mini-batch for "
                f"each of {balancer.group.world_size} ranks"
            )
        self._balancer, self.samples, self.batch_size = balancer, samples, batch_size
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        balancer.total = batch_size * balancer.group.world_size
        if prefetch and balancer.local_steps > 1:
            raise ValueError(
                f"prefetch = {prefetch}: with local steps, mini-batches cannot be asked for ahead; use a DataLoader "
                "with num_workers=0"
            )
        #: Shares that are used from now on and later.
        self._sizes = deque([balancer.sizes()] * prefetch)

    def set_epoch(self, epoch: int) -> None:
        """Shuffles differently in every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """With local steps, as long as shares do not change."""
        balancer, rounds = self._balancer, self.samples // self._samples_of_round()
        own = balancer.steps_of_round[balancer.group.rank] if balancer.local_steps > 1 else 1
        return own * rounds

    def _samples_of_round(self) -> int:
        if self._balancer.local_steps > 1:
            return self.batch_size * sum(self._balancer.steps_of_round)
        return self.batch_size * self._balancer.group.world_size

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self.samples))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.samples, generator=generator).tolist()
        start = 0
        while start + self._samples_of_round() <= self.samples:
            end = start + self._samples_of_round()
            yield from self._batches(order[start:end])
            start = end

    def _batches(self, order: list[int]) -> list[list[int]]:
        """This rank's mini-batches of a round."""
        balancer = self._balancer
        rank = balancer.group.rank
        if balancer.local_steps > 1:
            counts, size = balancer.steps_of_round, self.batch_size
            begin = size * sum(counts[:rank])
            return [order[begin + k * size :][:size] for k in range(counts[rank])]
        self._sizes.append(balancer.sizes())
        sizes = self._sizes.popleft()
        return [order[sum(sizes[:rank]) :][: sizes[rank]]]
