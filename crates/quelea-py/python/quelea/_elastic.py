"""Data of a script that every epoch goes through exactly once, whichever processes are lost or join.

A *unit* is one mini-batch. Units are numbered in the order of the epochs, and every rank knows which of them belong
to which rank at which step: this follows from the seed and from the changes of membership, which all ranks learn
with the step from which on they hold. So nothing is sent, and no rank has to hand anything out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Sampler

from quelea import _session
from quelea._core import Error

#: A change of membership holds from this many steps after the furthest rank; a process that joins a synchronous run
#: begins at that rank's step.
STEPS_AHEAD = 2

#: Ranks that departed with their steps, ranks that joined, and the step from which on it holds.
Change = tuple[list[tuple[int, int]], list[int], int]


@dataclass(frozen=True)
class Segment:
    """Steps with the same members: the units `again` are drawn first, then those from `fresh` on."""

    first_step: int
    members: list[int]
    again: list[int]
    fresh: int

    def _unit(self, place: int) -> int:
        if place < len(self.again):
            return self.again[place]
        return self.fresh + place - len(self.again)

    def unit(self, rank: int, step: int) -> int:
        """The unit of a member at a step."""
        place = (step - self.first_step) * len(self.members) + self.members.index(rank)
        return self._unit(place)

    def left(self, step: int) -> tuple[list[int], int]:
        """Which units are to be drawn again, and which was never drawn, when all have taken the steps before."""
        drawn = (step - self.first_step) * len(self.members)
        fresh = self.fresh + max(0, drawn - len(self.again))
        return self.again[drawn:], fresh


class Plan:
    """Which unit belongs to which rank at which step of a run."""

    def __init__(
        self,
        start: tuple[list[int], int],
        members: list[int],
        changes: list[Change],
        delay: int = 0,
        until: int | None = None,
    ):
        """Of a run that began with these units to be drawn again and fresh. Changes hold `delay` steps later, and all
        of them at the step `until`."""
        self.segments = [Segment(0, members, *start)]
        #: The step from which on each member has units of its own.
        self.own_from = dict.fromkeys(members, 0)
        # The step at which each member began, and the steps that others had taken in its place before.
        entered = dict.fromkeys(members, (0, 0))
        departed_steps: dict[int, int] = {}
        for departed, joined, from_step in changes:
            last = self.segments[-1]
            begin = from_step + delay if until is None else min(from_step + delay, until)
            begin = max(begin, last.first_step)
            again, fresh = last.left(begin)
            gone = [rank for rank, _ in departed if rank in entered]
            for rank, steps in departed:
                departed_steps[rank] = steps
                if rank in entered:
                    first, before = entered.pop(rank)
                    unused = range(max(first + steps - before, self.own_from.pop(rank)), begin)
                    again = [*again, *(self.segment(step).unit(rank, step) for step in unused)]
            for rank in joined:
                entered[rank] = (from_step - STEPS_AHEAD, departed_steps.get(rank, 0))
                self.own_from[rank] = begin
            members = sorted({*last.members} - {*gone} | {*joined})
            self.segments.append(Segment(begin, members, sorted(again), fresh))

    def segment(self, step: int) -> Segment:
        """Who draws what at a step."""
        return next(each for each in reversed(self.segments) if each.first_step <= step)

    def drawn(self, rank: int, step: int) -> int:
        """The unit that a rank draws at a step; before it has units of its own, one that others draw too."""
        segment = self.segment(step)
        members = segment.members
        return segment.unit(rank if rank in members else members[rank % len(members)], step)

    def left(self, step: int) -> tuple[list[int], int]:
        """See `Segment.left`."""
        return self.segment(step).left(step)


class ElasticSampler(Sampler[list[int]]):
    """Mini-batches of this rank, every sample of an epoch exactly once in all: the `batch_sampler` of a ``DataLoader``.

    The samples of an epoch are shuffled by `seed` in the same way at all ranks, and mini-batches of `batch_size` go to
    the ranks in turn. A mini-batch counts as used when ``optimizer.step()`` has been called after it. When a process
    is lost or leaves, what it had drawn and not used is drawn by the others, from an agreed step on; a process that
    joins takes its turn from there on. Take one mini-batch for each step.

    Iterating goes through the epoch that is under way, then through the next one, and so on. A mini-batch may have
    samples of two epochs: all are full, and all ranks take as many steps. What was lost in the last steps of an epoch is
    drawn first in the next one. In the last epoch of a script nobody draws it; `unconfirmed` says how much that is.

    For synchronous algorithms, whose ranks take their steps together. `prefetch` is ``num_workers * prefetch_factor``
    of a ``DataLoader`` with workers, at all ranks the same: changes of membership take effect so many steps later.

    >>> import torch, quelea.torch as quelea
    >>> quelea.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = quelea.wrap(model, optimizer)
    >>> sampler = quelea.ElasticSampler(6, batch_size=2, shuffle=False)
    >>> for batch in sampler:
    ...     model(torch.ones(len(batch), 2)).sum().backward()
    ...     optimizer.step()
    ...     print(batch)
    [0, 1]
    [2, 3]
    [4, 5]
    >>> sampler.epoch, sampler.state_dict()["next"]
    (1, 3)
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
        session = _session.chosen("ElasticSampler", model)
        if not session.active.properties.synchronous:
            raise Error(
                f"{session.settings.algorithm} is asynchronous, and ElasticSampler needs ranks that take their steps "
                "together: choose a synchronous algorithm, or divide the data among the ranks"
            )
        world = session.group.world_size
        if batch_size < 1 or samples < batch_size * world:
            raise ValueError(
                f"samples = {samples}, batch_size = {batch_size}: needs at least one sample, and a mini-batch for "
                f"each of {world} ranks"
            )
        self._session, self.samples, self.batch_size = session, samples, batch_size
        self.shuffle, self.seed, self.prefetch = shuffle, seed, prefetch
        self._orders: dict[int, list[int]] = {}
        #: Units that were drawn before the run: those to be drawn again, and the first that never was.
        self._start: tuple[list[int], int] = session.joined_data or ([], 0)
        self._active = session.active
        #: Steps of the run that this rank has taken, and for which it has drawn.
        self._taken = self._drawn = session.active.run.start_step
        session.step.sampler = self

    # What the run says.

    def step_taken(self) -> None:
        """The optimizer has run: what was drawn for this step is used."""
        self._follow_run()
        self._taken += 1
        self._drawn = max(self._drawn, self._taken)

    def start(self) -> tuple[list[int], int]:
        """With what the run began, for a process that joins it."""
        self._follow_run()
        return self._start

    def _follow_run(self) -> None:
        """After `load_state_dict` the model has another run, whose steps are counted from 0."""
        if self._session.active is not self._active:
            self._start = self._left()
            self._active = self._session.active
            self._taken = self._drawn = self._active.run.start_step

    def _plan(self, until: int | None = None) -> Plan:
        members = list(range(self._session.group.world_size))
        return Plan(self._start, members, self._active.run.changes, self.prefetch, until)

    def _left(self) -> tuple[list[int], int]:
        """What is to be drawn again and what is fresh, as if all changes that are known held now."""
        return self._plan(until=self._taken).left(self._taken)

    # What the script asks.

    @property
    def epoch(self) -> int:
        """The epoch that is under way: that of the next mini-batch that nobody has drawn."""
        self._follow_run()
        _, fresh = self._plan().left(self._taken)
        return fresh * self.batch_size // self.samples

    @property
    def unconfirmed(self) -> int:
        """Mini-batches that were drawn by a process that is lost, and nobody has used yet."""
        self._follow_run()
        return len(self._left()[0])

    def __iter__(self) -> Iterator[list[int]]:
        self._follow_run()
        # What was drawn and not used is drawn again.
        self._drawn = self._taken
        rank = self._session.group.rank
        end = (self.epoch + 1) * self.samples
        while True:
            plan = self._plan()
            _, fresh = plan.left(self._drawn)
            if fresh * self.batch_size >= end:
                return
            unit = plan.drawn(rank, self._drawn)
            self._drawn += 1
            yield self._samples_of(unit)

    def __len__(self) -> int:
        """Mini-batches until the end of the epoch, as long as membership does not change."""
        self._follow_run()
        plan = self._plan()
        again, fresh = plan.left(self._taken)
        units = len(again) + -(-(self.epoch + 1) * self.samples // self.batch_size) - fresh
        return -(-units // len(plan.segment(self._taken).members))

    def _samples_of(self, unit: int) -> list[int]:
        places = range(unit * self.batch_size, (unit + 1) * self.batch_size)
        return [self._order(place // self.samples)[place % self.samples] for place in places]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            # Mini-batches that are drawn again may be of the epoch before.
            self._orders = {known: order for known, order in self._orders.items() if abs(known - epoch) <= 2}
            order = list(range(self.samples))
            if self.shuffle:
                generator = torch.Generator().manual_seed(self.seed + epoch)
                order = torch.randperm(self.samples, generator=generator).tolist()
            self._orders[epoch] = order
        return self._orders[epoch]

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands between two steps. Save it at one rank and load it at all; their number may be
        another."""
        self._follow_run()
        again, fresh = self._left()
        return {
            "samples": self.samples,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "next": fresh,
            "again": again,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state_dict` was called, at all ranks together and before the first step of the run: after
        `quelea.load_state_dict`. In a process that has just joined a run it does nothing: the others are further."""
        self._follow_run()
        if self._session.joined_data is not None:
            return
        for key in ("samples", "batch_size", "seed", "shuffle"):
            if state[key] != getattr(self, key):
                raise Error(f"the state has {key} {state[key]}, this sampler has {key} {getattr(self, key)}")
        if self._taken != self._active.run.start_step:
            raise Error("the state of an ElasticSampler is loaded before the first step of a run")
        self._start = (list(state["again"]), int(state["next"]))
