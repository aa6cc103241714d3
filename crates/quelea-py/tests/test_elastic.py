"""Data that every epoch goes through exactly once, when processes are lost, leave or join."""

from __future__ import annotations

import itertools
import os
import random
import signal

import pytest
import torch
from group import launch, outcomes
from models import batch, make
from torch.nn.functional import cross_entropy

import quelea.torch as quelea
from quelea._elastic import STEPS_AHEAD, Plan

SAMPLES, BATCH = 50, 4
VICTIM = 1


# The plan by itself.


class Played:
    """A synchronous run with random losses and joins, played step by step; counts what was used."""

    def __init__(self, seed, delay):
        self.random, self.delay = random.Random(seed), delay
        self.members, self.changes, self.used = [0, 1, 2, 3], [], {}
        #: Steps that were taken in each rank's place, by all who had it.
        self.steps = dict.fromkeys(range(4), 0)
        self.entered = dict.fromkeys(range(4), 0)
        self.beside = 0

    def plan(self):
        return Plan(([], 0), [0, 1, 2, 3], self.changes, self.delay)

    def step(self, number):
        plan = self.plan()
        for rank in self.members:
            if plan.own_from[rank] <= number:
                unit = plan.drawn(rank, number)
                self.used[unit] = self.used.get(unit, 0) + 1
            else:
                self.beside += 1
            self.steps[rank] += 1

    def change(self, number):
        """Before step `number` some are lost, after that many steps, or somebody takes a free place."""
        free = [rank for rank in range(4) if rank not in self.members]
        if free and self.random.random() < 0.5:
            rank = self.random.choice(free)
            self.members = sorted([*self.members, rank])
            self.changes.append(([], [rank], number + STEPS_AHEAD))
        elif len(self.members) > 1:
            count = self.random.randint(1, min(2, len(self.members) - 1))
            gone = self.random.sample(self.members, count)
            self.members = [rank for rank in self.members if rank not in gone]
            departed = [(rank, self.steps[rank]) for rank in gone]
            self.changes.append((departed, [], number + STEPS_AHEAD))


@pytest.mark.parametrize("delay", [0, 3])
def test_with_random_losses_and_joins_every_unit_is_used_exactly_once(delay):
    changed = 0
    for seed in range(200):
        played = Played(seed, delay)
        for number in range(80):
            # None in the last steps, so that all that was lost is drawn again.
            if number < 50 and played.random.random() < 0.08:
                played.change(number)
            played.step(number)
        again, fresh = played.plan().left(80)
        assert again == [] and played.used == dict.fromkeys(range(fresh), 1), seed
        joins = sum(len(joined) for _, joined, _ in played.changes)
        assert played.beside <= joins * (STEPS_AHEAD + delay)
        changed += len(played.changes)
    assert changed > 400


def test_as_if_all_changes_held_now_nothing_is_missing_at_any_step():
    for seed in range(100):
        played = Played(seed, 2)
        for number in range(40):
            if played.random.random() < 0.1:
                played.change(number)
            played.step(number)
            plan = Plan(([], 0), [0, 1, 2, 3], played.changes, 2, until=number + 1)
            again, fresh = plan.left(number + 1)
            assert sorted([*again, *played.used]) == list(range(fresh)), (seed, number)


# With real processes.


def start(algorithm, **settings):
    quelea.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return quelea.wrap(model, optimizer, algorithm, **settings), optimizer


def step(model, optimizer, rank, number):
    optimizer.zero_grad()
    inputs, targets = batch("mlp", rank, number)
    cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def epochs_with_a_loss(rank, algorithm, told, death, leaves):
    """Goes through the data three times, and if somebody leaves until that is known and twice more; what this process
    has used in each step, and the changes of membership."""
    model, optimizer = start(algorithm)
    sampler = quelea.ElasticSampler(SAMPLES, BATCH, seed=3)
    used, ends, number, gone_in = [], [], 0, 0
    try:
        while len(ends) < 3 or leaves and len(ends) < gone_in + 3:
            for samples in torch.utils.data.DataLoader(range(SAMPLES), batch_sampler=sampler):
                if rank == VICTIM and number == death:
                    if leaves:
                        quelea.leave()
                    else:
                        os.kill(os.getpid(), signal.SIGKILL)
                if rank == VICTIM:
                    # The step in which it has left does not return.
                    told.put(samples.tolist())
                step(model, optimizer, rank, number)
                used.append(samples.tolist())
                number += 1
            ends.append(number)
            # One that leaves does so between two steps, the same ones at all ranks.
            if len(quelea.workers()) == 3:
                gone_in = len(ends)
    except quelea.Left:
        return "left"
    from quelea import _session

    found = used, ends, _session.sessions[0].active.run.changes, sampler.state_dict(), sampler.unconfirmed
    quelea.shutdown()
    return found


def counted(batches):
    """How often each sample is in these mini-batches."""
    counts = dict.fromkeys(range(SAMPLES), 0)
    for sample in itertools.chain.from_iterable(batches):
        counts[sample] += 1
    return counts


def flat_order(units, epochs):
    """The samples of the first units, in the order of the epochs."""
    orders = []
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(3 + epoch)
        orders += torch.randperm(SAMPLES, generator=generator).tolist()
    return orders[: units * BATCH]


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("algorithm", ["allreduce", "d-psgd"])
@pytest.mark.parametrize("death", [2, 4])
def test_what_a_lost_process_had_not_used_is_drawn_by_the_others_and_nothing_twice(algorithm, death, leaves):
    import multiprocessing

    told = multiprocessing.get_context("fork").SimpleQueue()
    dead = () if leaves else (VICTIM,)
    results = outcomes(3, epochs_with_a_loss, algorithm, told, death, leaves, dead=dead, limit=200.0)
    assert [failure for failure, _ in results] == [None] * (3 - len(dead)), results
    survivors = [found for _, found in results if found != "left"]
    (used_0, ends_0, changes, state, unconfirmed), (used_2, ends_2, *others) = survivors
    assert ends_0 == ends_2 and others == [changes, state, unconfirmed] and len(ends_0) >= 3
    [([(victim, steps)], [], from_step)] = changes
    # Whether the last step of one that is killed was heard of is up to the machine.
    assert victim == VICTIM and steps >= death - 1 and from_step > steps
    assert leaves or steps <= death
    of_victim = []
    while not told.empty():
        of_victim.append(told.get())
    assert len(of_victim) in (steps, steps + 1)
    assert unconfirmed == 0 and state["again"] == []
    # In the books: every sample of the first `next` mini-batches once, in as many steps as it takes.
    all_used = [*used_0, *used_2, *of_victim[:steps]]
    expected = flat_order(state["next"], len(ends_0) + 2)
    assert sorted(itertools.chain.from_iterable(all_used)) == sorted(expected)
    assert all(count >= 3 for count in counted(all_used).values()) and len(expected) >= 3 * SAMPLES
    assert all(len(each) == BATCH for each in all_used)


def is_restarted():
    return os.environ["QUELEA_TEST_RESTARTED"] == "yes"


def epochs_with_a_restart(rank, told):
    model, optimizer = start("allreduce")
    sampler = quelea.ElasticSampler(SAMPLES, BATCH, seed=3)
    from quelea import _session

    run = _session.sessions[0].active.run
    number, used, end = quelea.start_step(), [], None
    while end is None or number < end:
        for samples in sampler:
            if rank == VICTIM and number == 3 and not is_restarted():
                os.kill(os.getpid(), signal.SIGKILL)
            if end is None and number > 4 and quelea.workers() == [0, 1, 2]:
                end = number + 30
            if number == end:
                break
            step(model, optimizer, rank, number)
            used.append(samples)
            if rank == VICTIM and not is_restarted():
                told.put(samples)
            number += 1
    found = used, quelea.start_step(), run.changes, sampler.state_dict()
    quelea.shutdown()
    return found


def test_a_process_that_joins_takes_its_turn_from_an_agreed_step_on():
    import multiprocessing

    told = multiprocessing.get_context("fork").SimpleQueue()
    results = outcomes(3, epochs_with_a_restart, told, restarted=(VICTIM,), limit=200.0)
    assert [failure for failure, _ in results] == [None] * 3, results
    used, starts, changes, states = zip(*(found for _, found in results), strict=True)
    assert changes[0] == changes[1] == changes[2] and states[0] == states[1] == states[2]
    [([(_, steps)], [], _), ([], [joined], from_step)] = changes[0]
    assert joined == VICTIM and starts[VICTIM] == from_step - STEPS_AHEAD
    before = []
    while not told.empty():
        before.append(told.get())
    # Its first mini-batches, before its turn begins, are also another's.
    all_used = [*used[0], *used[2], *before[:steps], *used[VICTIM][STEPS_AHEAD:]]
    assert states[0]["again"] == []
    expected = flat_order(states[0]["next"], 20)
    assert sorted(itertools.chain.from_iterable(all_used)) == sorted(expected)


def one_epoch(rank, state):
    model, optimizer = start("allreduce")
    sampler = quelea.ElasticSampler(SAMPLES, BATCH, seed=3)
    if state is not None:
        sampler.load_state_dict(state)
    used, number = [], 0
    expected = len(sampler)
    for samples in sampler:
        step(model, optimizer, rank, number)
        used.append(samples)
        number += 1
        if state is None and number == 2:
            break
    found = used, sampler.state_dict(), sampler.epoch, expected
    quelea.shutdown()
    return found


def test_another_number_of_processes_resumes_in_the_middle_of_an_epoch():
    before = launch(3, one_epoch, None)
    assert [state for _, state, *_ in before] == [before[0][1]] * 3
    assert before[0][1]["next"] == 6 and before[0][2] == 0
    after = launch(2, one_epoch, before[0][1])
    # 50 samples are 12 mini-batches and a half: with two ranks, the epoch ends after 14.
    assert after[0][1]["next"] == 14 and [epoch for *_, epoch, _ in after] == [1, 1]
    assert [len(used) for used, *_ in after] == [4, 4] == [expected for *_, expected in after]
    used = [samples for used, *_ in [*before, *after] for samples in used]
    assert sorted(itertools.chain.from_iterable(used)) == sorted(flat_order(14, 2))


def refused(rank):
    found = []
    model, optimizer = start("ad-psgd")
    for words in ((SAMPLES, BATCH),):
        try:
            quelea.ElasticSampler(*words)
        except quelea.Error as error:
            found.append(str(error))
    quelea.shutdown()
    return found


def test_asynchronous_algorithms_are_refused_with_the_reason():
    assert launch(1, refused) == [
        [
            "ad-psgd is asynchronous, and ElasticSampler needs ranks that take their steps together: choose a "
            "synchronous algorithm, or divide the data among the ranks"
        ]
    ]


def drawn_and_not_used(rank):
    model, optimizer = start("allreduce")
    sampler = quelea.ElasticSampler(SAMPLES, BATCH, shuffle=False)
    first = next(iter(sampler))
    again = next(iter(sampler))
    step(model, optimizer, rank, 0)
    following = next(iter(sampler))
    with pytest.raises(quelea.Error, match="before the first step"):
        sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(quelea.Error, match="seed"):
        sampler.load_state_dict({**sampler.state_dict(), "seed": 9})
    with pytest.raises(ValueError, match="a mini-batch for each of 1 ranks"):
        quelea.ElasticSampler(3, 4)
    # Another run of the same model continues with the data.
    quelea.load_state_dict(quelea.state_dict())
    resumed = next(iter(sampler))
    quelea.shutdown()
    return first, again, following, resumed


def test_what_was_drawn_and_not_used_is_drawn_again():
    first, second = [0, 1, 2, 3], [4, 5, 6, 7]
    assert launch(1, drawn_and_not_used) == [(first, first, second, second)]
